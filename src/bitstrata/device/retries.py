"""How often and how long a fetch is tried."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from bitstrata.errors import Interrupted, SourceUnreachable


@dataclass(frozen=True)
class Retries:
    """Bounds on tries and time; seconds and bytes."""

    tries: int = 6
    """In a row that bring less than `progress` bytes each."""
    tries_in_all: int = 1000
    progress: int = 2**16
    """Bytes after which tries count anew; more than a source may bring that is given up for being slow."""
    first_pause: float = 0.5
    """Doubled after every try without progress, and shortened by chance, so that devices do not return in step."""
    longest_pause: float = 60.0
    """Also where a source asks for a longer one."""
    seconds: float = 86_400.0
    """For one file, with all its tries and pauses."""


class Attempts:
    """The tries of one fetch."""

    def __init__(self, policy: Retries) -> None:
        self._policy = policy
        self._end = time.monotonic() + policy.seconds
        self._in_a_row = 0
        self._in_all = 0
        self._brought = 0

    def brought(self, count: int) -> None:
        """So many more bytes are there than ever before."""
        self._brought += count
        if self._brought >= self._policy.progress:
            self._in_a_row, self._brought = 0, 0

    def check_time(self, place: str) -> None:
        if time.monotonic() > self._end:
            raise SourceUnreachable(f"{place} took more than {self._policy.seconds:g} s; try again to go on from here")

    def failed(self, error: Interrupted) -> None:
        """Waits until the next try, or says that there is none."""
        self._in_a_row += 1
        self._in_all += 1
        self._brought = 0
        policy = self._policy
        pause = min(policy.longest_pause, policy.first_pause * 2.0 ** min(self._in_a_row - 1, 30))
        pause *= random.uniform(0.5, 1.0)
        if error.retry_after is not None:
            pause = max(pause, min(error.retry_after, policy.longest_pause))
        out_of_time = time.monotonic() + pause > self._end
        if out_of_time or self._in_a_row >= policy.tries or self._in_all >= policy.tries_in_all:
            times = "once" if self._in_all == 1 else f"{self._in_all} times"
            raise SourceUnreachable(
                f"{error} (tried {times}; what came is kept, try again to go on from here)"
            ) from None
        time.sleep(pause)
