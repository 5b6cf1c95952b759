"""Kill -9 at random moments of every kind of change: the old state or the new one, and one more try completes it."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from device.children import Change, Children, change, children
from device.server import Server
from device.worlds import NAME, State, World, clean, copy, invariant

#: Body bytes that the server sends at once, and seconds between: a whole pull takes a few hundred milliseconds.
PIECE, PAUSE = 700, 0.001


@dataclass(frozen=True)
class Case:
    """A change of a store, from one state to another; the source is filled in where it says SRC."""

    start: State | None
    change: Change
    goal: State | None


CASES = {
    "pull the base": Case(None, ["pull", "SRC", "2", {"version": 1}], (1, "2")),
    "pull all bits": Case(None, ["pull", "SRC", "4"], (2, "4")),
    "upgrade to 3": Case((1, "2"), ["upgrade", NAME, "3"], (1, "3")),
    "upgrade to 4": Case((1, "3"), ["upgrade", NAME, "4"], (1, "4")),
    "to a mixed view": Case((1, "2"), ["upgrade", NAME, "mixed-a"], (1, "mixed-a")),
    "downgrade": Case((1, "4"), ["downgrade", NAME, "2"], (1, "2")),
    "downgrade and prune": Case((1, "4"), ["downgrade", NAME, "2", {"prune": True}], (1, "2")),
    "new version": Case((1, "4"), ["pull", NAME], (2, "4")),
    "new version, mixed": Case((1, "mixed-a"), ["pull", NAME], (2, "mixed-a")),
    "remove": Case((1, "3"), ["remove", NAME], None),
}


@dataclass
class Count:
    kills: int = 0
    old: int = 0
    new: int = 0


def kill_many(world: World, source: str, folder: Path, forked: Children, count: int, seed: int) -> dict[str, Count]:
    """So many kills, spread over all cases; raises at the first state that is broken."""
    rng = random.Random(seed)
    starts: dict[State | None, Path] = {}
    for case in CASES.values():
        starts[case.start] = folder / f"start-{case.start}"
        if case.start is None:
            starts[None].mkdir(parents=True, exist_ok=True)
        else:
            change(starts[case.start], ["pull", source, case.start[1], {"version": case.start[0]}])
    found = {name: Count() for name in CASES}
    for place, (name, case) in enumerate(CASES.items()):
        what = [source if part == "SRC" else part for part in case.change]
        wanted = count // len(CASES) + (place < count % len(CASES))
        whole = forked.run(copy(starts[case.start], folder / "home"), what).seconds if wanted else 0.0
        while found[name].kills < wanted:
            home = copy(starts[case.start], folder / "home")
            ended = forked.run(home, what, kill_after=rng.uniform(0, 1.1) * whole)
            assert ended.error is None, ended
            found[name].kills += ended.killed
            state = invariant(home, world, {case.start, case.goal})
            if ended.killed:
                found[name].old += state == case.start
                found[name].new += state == case.goal
            if rng.random() < 0.3:
                clean(home, world, {state})
            if state != case.goal or name != "remove":
                change(home, what)
            clean(home, world, {case.goal})
    return found


def report(found: dict[str, Count], seconds: float) -> None:
    print(f"\n{'change':24}{'kills':>8}{'old':>8}{'new':>8}")
    for name, one in found.items():
        print(f"{name:24}{one.kills:8}{one.old:8}{one.new:8}")
    kills = sum(one.kills for one in found.values())
    print(
        f"{kills} kills in {seconds:.0f} s: 0 broken states, 0 that one more try did not complete, 0 leftovers after gc"
    )


def run(world: World, server: Server, folder: Path, count: int) -> None:
    server.faults.piece, server.faults.pause = PIECE, PAUSE
    started = time.monotonic()
    with children() as forked:
        over_http = kill_many(world, world.serve(server), folder / "http", forked, count * 7 // 10, 1)
        from_folder = kill_many(world, str(world.folder), folder / "folder", forked, count - count * 7 // 10, 2)
    found = {
        name: Count(
            *(getattr(over_http[name], one) + getattr(from_folder[name], one) for one in ("kills", "old", "new"))
        )
        for name in CASES
    }
    report(found, time.monotonic() - started)
    assert sum(one.kills for one in found.values()) == count
    assert sum(one.old for one in found.values()) > 0
    assert all(one.old + one.new == one.kills for one in found.values())


def test_forty_kills(world: World, server: Server, quick_folder: Path) -> None:
    run(world, server, quick_folder, 40)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_thousand_kills(world: World, server: Server, quick_folder: Path) -> None:
    run(world, server, quick_folder, 1000)
