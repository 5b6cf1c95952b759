"""A full disk, a store that cannot be written, company, and a wrong clock: a clear message, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from device.children import change, children
from device.server import Server
from device.worlds import NAME, World, clean, invariant, leftovers

from bitstrata.device import blobs
from bitstrata.device.events import Event, Waiting
from bitstrata.device.store import Store
from bitstrata.errors import NoSpace, StoreBusy, StoreProblem

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]}


def mount(place: Path, options: str) -> None:
    place.mkdir(exist_ok=True)
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root of a Linux system can mount")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, with 128 kB."""
    place = tmp_path / "disk"
    mount(place, "size=128k")
    yield place
    subprocess.run(["umount", place], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Takes all room but some pages."""
    filler = disk / "filler"
    free = shutil.disk_usage(disk).free
    filler.write_bytes(bytes(max(0, free - leave)))
    return filler


def test_too_little_room_is_refused_before_anything_is_fetched(small_disk: Path, world: World, server: Server) -> None:
    store = Store(small_disk / "home")
    before = server.body_bytes
    with pytest.raises(NoSpace, match=r"bytes are to be fetched and .* are free .*bitstrata gc"):
        store.pull(world.serve(server))
    assert server.body_bytes - before < 8000  # the release and the manifest
    assert store.models() == []
    store.gc()
    assert leftovers(store.home.root) == []


def test_a_disk_that_fills_up_on_the_way(small_disk: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others write too: room that was there is gone. At every page of progress the old view stays."""
    monkeypatch.setattr(blobs, "MARGIN", -(2**30))  # the check before is told that there is room
    home = small_disk / "home"
    store = Store(home)
    store.pull(str(world.folder), "2", version=1)
    refused = 0
    for leave in range(0, 60_000, 4096):
        filler = fill(small_disk, leave)
        try:
            store.pull(NAME, "4")
            break
        except NoSpace:
            refused += 1
            invariant(home, world, {(1, "2")})
        finally:
            filler.unlink()
    print(f"\nthe disk was full in {refused} tries of a pull: version 1 at 2 bits stayed every time")
    assert refused > 3
    store.pull(NAME, "4")
    clean(home, world, {(2, "4")})


def test_a_full_disk_still_downgrades_and_frees(small_disk: Path, world: World) -> None:
    """The record needs a page of its own; a change that fetches nothing is not refused for want of a margin."""
    home = small_disk / "home"
    change_margin = blobs.MARGIN
    try:
        blobs.MARGIN = 0
        Store(home).pull(str(world.folder), "4")
    finally:
        blobs.MARGIN = change_margin
    fill(small_disk, 8192)
    store = Store(home)
    store.upgrade(NAME, "4")
    store.downgrade(NAME, "3")
    store.pull(NAME)
    store.downgrade(NAME, "2", prune=True)
    clean(home, world, {(2, "2")})


def test_a_read_only_store_reads_and_says_why_it_cannot_change(tmp_path: Path, world: World) -> None:
    place = tmp_path / "disk"
    mount(place, "size=4m")
    try:
        home = place / "home"
        store = Store(home)
        store.pull(str(world.folder), "3")
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        for what in (
            ["pull", NAME],
            ["upgrade", NAME, "4"],
            ["downgrade", NAME, "2"],
            ["gc"],
            ["remove", NAME],
            ["verify", NAME],
        ):
            with pytest.raises(StoreProblem, match=r"Read-only file system"):
                change(home, what)
        with pytest.raises(StoreProblem, match="BITSTRATA_HOME"):
            Store(place / "another").pull(str(world.folder))
        invariant(home, world, {(2, "3")})
        assert [record.view for record in store.models()] == ["3"]
        assert store.held_views(NAME) == ["2", "3"]
        subprocess.run(["mount", "-o", "remount,rw", place], check=True)
        store.upgrade(NAME, "4")
        clean(home, world, {(2, "4")})
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_of_somebody_else(tmp_path: Path, world: World) -> None:
    home = tmp_path / "home"
    Store(home).pull(str(world.folder), "3")
    for folder in (home, *home.iterdir()):
        folder.chmod(0o555)
    try:
        with pytest.raises(StoreProblem, match="Permission denied"):
            Store(home).upgrade(NAME, "4")
        invariant(home, world, {(2, "3")})
    finally:
        for folder in (home, *home.iterdir()):
            folder.chmod(0o755)


def test_a_file_where_the_store_should_be(tmp_path: Path, world: World) -> None:
    (tmp_path / "home").write_text("mine", encoding="utf-8")
    with pytest.raises(StoreProblem, match="BITSTRATA_HOME"):
        Store(tmp_path / "home").pull(str(world.folder))
    assert (tmp_path / "home").read_text(encoding="utf-8") == "mine"


def test_two_processes_at_once(world: World, server: Server, quick_folder: Path) -> None:
    """One after the other they fetch each byte once; a third one changes the other way all the time."""
    server.faults.piece, server.faults.pause = 700, 0.002
    address = world.serve(server)
    home = quick_folder / "home"
    with children() as one, children() as two, children() as three:
        orders = [
            (one, ["pull", address, "4", {"version": 1}]),
            (two, ["pull", address, "4", {"version": 1}]),
            (three, ["gc"]),
        ]
        ended: list[object] = []
        threads = [threading.Thread(target=lambda o=order: ended.append(o[0].run(home, o[1]))) for order in orders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(getattr(end, "error", "lost") is None for end in ended), ended
        paths = [request.path for request in server.requests if "blobs" in request.path]
        assert len(paths) == len(set(paths)), "something was fetched twice"
        clean(home, world, {(1, "4")})
        for round_number in range(4):
            orders = [
                (one, ["pull", NAME, "4"] if round_number else ["pull", NAME]),
                (two, ["downgrade", NAME, "2", {"prune": True}]),
                (three, ["gc"]),
            ]
            ended.clear()
            threads = [threading.Thread(target=lambda o=order: ended.append(o[0].run(home, o[1]))) for order in orders]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert all(getattr(end, "error", "lost") is None for end in ended), ended
            invariant(home, world, {(2, "4"), (2, "2"), (1, "2")})


def test_who_waits_says_so_and_gives_up_in_time(world: World, quick_folder: Path) -> None:
    store = Store(quick_folder / "home", patience=0.2)
    events: list[Event] = []
    with store.home.locked(), pytest.raises(StoreBusy, match="another process"):
        store.pull(str(world.folder), listen=events.append)
    assert events == [Waiting()]
    store.pull(str(world.folder))


def test_a_killed_process_leaves_no_lock(world: World, quick_folder: Path, server: Server) -> None:
    server.faults.piece, server.faults.pause = 100, 0.05
    address = world.serve(server)
    with children() as forked:
        assert forked.run(quick_folder / "home", ["pull", address], kill_after=0.3).killed
    server.faults.pause = 0
    started = time.monotonic()
    Store(quick_folder / "home").pull(address, version=1)
    assert time.monotonic() - started < 20
    invariant(quick_folder / "home", world, {(1, "2")})


AT_ANOTHER_TIME = """
import json, sys, time
real = time.time
time.time = lambda: {now}
import bitstrata
from bitstrata.device.store import Store
store = Store(sys.argv[1])
source = sys.argv[2]
store.pull(source, "2", version=1)
store.pull(source, "4")
store.downgrade("small", "3", prune=True)
store.gc()
print(json.dumps([store.verify("small").damaged, store.records.of("small").view]))
"""


@pytest.mark.parametrize("now", [0, 4_070_908_800], ids=["1970", "2099"])
def test_a_wrong_clock(now: int, world: World, server: Server, quick_folder: Path) -> None:
    program = AT_ANOTHER_TIME.format(now=now)
    address = world.serve(server)
    done = subprocess.run(
        [sys.executable, "-c", program, quick_folder / "home", address], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[], "3"]
    clean(quick_folder / "home", world, {(2, "3")})
