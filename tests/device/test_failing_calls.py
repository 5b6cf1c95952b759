"""The n-th call to the file system fails, for every n until a run passes unhit: the old state or the new one."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from device.children import Change, Children, change, children
from device.server import Server
from device.worlds import NAME, State, World, clean, copy, invariant

KINDS = ("EIO", "ENOSPC", "EACCES", "short")

CASES: dict[str, tuple[State | None, Change, State | None]] = {
    "pull": (None, ["pull", "SRC", "2"], (2, "2")),
    "upgrade": ((1, "2"), ["upgrade", NAME, "4"], (1, "4")),
    "to a mixed view": ((1, "2"), ["upgrade", NAME, "mixed-a"], (1, "mixed-a")),
    "downgrade": ((1, "4"), ["downgrade", NAME, "3"], (1, "3")),
    "downgrade and prune": ((1, "4"), ["downgrade", NAME, "2", {"prune": True}], (1, "2")),
    "new version": ((1, "4"), ["pull", NAME], (2, "4")),
    "verify": ((1, "mixed-a"), ["verify", NAME], (1, "mixed-a")),
    "gc": ((1, "3"), ["gc"], (1, "3")),
    "remove": ((1, "3"), ["remove", NAME], None),
}


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Children]:
    """Children under the library that lets calls fail."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    source = Path(__file__).with_name("faults.c")
    built = subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], capture_output=True)
    if built.returncode:
        pytest.skip(f"the library that lets calls fail cannot be built here: {built.stderr.decode()[:200]}")
    with children(library) as running:
        yield running


class Sweep:
    """Lets calls of one kind of change fail, and counts what came of it."""

    def __init__(self, world: World, source: str, folder: Path, failing: Children) -> None:
        self._world, self._source, self._folder, self._failing = world, source, folder, failing
        self.runs = 0
        self.errors: Counter[str] = Counter()

    def run(self, case: str, kind: str, stride: int = 1) -> int:
        """The number of calls of a run that passed unhit."""
        start, steps, goal = CASES[case]
        what = [self._source if part == "SRC" else part for part in steps]
        template = self._folder / f"start-{start}"
        if start is None:
            template.mkdir(parents=True, exist_ok=True)
        elif not template.exists():
            change(template, ["pull", self._source, start[1], {"version": start[0]}])
        number = 1
        while True:
            home = copy(template, self._folder / "home")
            ended = self._failing.run(home, what, fault=(number, kind))
            place = f"{case}, call {number}, {kind}: {ended}"
            assert ended.typed, place
            try:
                state = invariant(home, self._world, {start, goal})
                if ended.error is None:
                    assert state == goal
                if state != goal or case != "remove":
                    change(home, what)
                clean(home, self._world, {goal})
            except Exception as error:
                raise AssertionError(place) from error
            if ended.calls < number:
                assert ended.error is None, place
                return ended.calls
            self.runs += 1
            self.errors[str(ended.error)] += 1
            number += stride


def report(sweep: Sweep, calls: dict[str, int], started: float) -> None:
    print()
    for name, count in calls.items():
        print(f"{name:40}{count:6} calls")
    print(f"{sweep.runs} runs with a failing call in {time.monotonic() - started:.0f} s: 0 broken states, 0 leftovers")
    print(", ".join(f"{name}: {count}" for name, count in sweep.errors.most_common()))


@pytest.mark.parametrize("case", CASES)
def test_some_calls_fail(case: str, world: World, quick_folder: Path, failing: Children) -> None:
    started = time.monotonic()
    sweep = Sweep(world, str(world.folder), quick_folder, failing)
    stride = 1 if case == "verify" else 8
    report(sweep, {f"{case}, {kind}": sweep.run(case, kind, stride) for kind in KINDS}, started)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("transport", ["http", "folder"])
def test_every_call_fails(transport: str, world: World, server: Server, quick_folder: Path, failing: Children) -> None:
    started = time.monotonic()
    source = world.serve(server) if transport == "http" else str(world.folder)
    sweep = Sweep(world, source, quick_folder, failing)
    report(sweep, {f"{case}, {kind}": sweep.run(case, kind) for case in CASES for kind in KINDS}, started)
