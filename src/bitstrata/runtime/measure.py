"""How long calls take: several things in turn, in rounds, so that what disturbs the machine disturbs them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

#: However slow a call is, a median of fewer would say nothing.
LEAST_ROUNDS = 5
MOST_ROUNDS = 10_000
#: A turn is at least one timed call, and ends after so many, or after so many seconds.
TURN_CALLS = 20
TURN_SECONDS = 0.05

Clock = Callable[[], float]


@dataclass(frozen=True)
class Spread:
    """What a set of times, or of other numbers, looks like."""

    count: int
    least: float
    lower: float
    """The lower quartile."""
    median: float
    upper: float
    """The upper quartile."""
    p95: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        least, lower, median, upper, p95 = (float(one) for one in np.percentile(values, (0, 25, 50, 75, 95)))
        return cls(len(values), least, lower, median, upper, p95)


@dataclass(frozen=True)
class Times:
    """The seconds of one call: its first in every turn, when caches hold another's data, and those after it."""

    first: list[float]
    steady: list[float]
    rounds: list[float]
    """The median of the steady ones in each round, for comparing with what else ran in that round."""


def in_turns(
    calls: Mapping[str, Callable[[], object]],
    seconds: float,
    *,
    clock: Clock = time.perf_counter,
    least_rounds: int = LEAST_ROUNDS,
    progress: Callable[[float], None] = lambda done: None,
) -> dict[str, Times]:
    """Times of each call. They take turns in rounds, each round beginning with another of them.

    seconds     how long to measure each call for, about
    """
    for call in calls.values():
        call()
    names = list(calls)
    times = {name: Times([], [], []) for name in names}
    started = time.monotonic()
    allowed = seconds * len(names)
    for number in range(MOST_ROUNDS):
        gone = time.monotonic() - started
        if number >= least_rounds and gone >= allowed:
            break
        progress(min(gone / allowed if allowed else 1.0, number / least_rounds))
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            _take_turn(calls[name], times[name], clock)
    return times


def _take_turn(call: Callable[[], object], times: Times, clock: Clock) -> None:
    times.first.append(_timed(call, clock))
    taken: list[float] = []
    turn_started = time.monotonic()
    while not taken or (len(taken) < TURN_CALLS and time.monotonic() - turn_started < TURN_SECONDS):
        taken.append(_timed(call, clock))
    times.steady.extend(taken)
    times.rounds.append(float(np.median(taken)))


def _timed(call: Callable[[], object], clock: Clock) -> float:
    start = clock()
    call()
    return clock() - start
