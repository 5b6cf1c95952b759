"""Models that switch views while they run: every output is of one view alone."""

from __future__ import annotations

import bisect
import statistics
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from device.server import Server
from device.worlds import INPUTS, NAME, World, invariant

import bitstrata
from bitstrata.device import download
from bitstrata.device.events import Event, Failed, Fetching, Ready, Switched
from bitstrata.device.held import HeldArtifact
from bitstrata.device.retries import Retries
from bitstrata.device.running import HeldModel
from bitstrata.device.store import Store
from bitstrata.errors import BitstrataError, MissingFile, SourceUnreachable


def held(world: World, home: Path, view: str = "4") -> HeldModel:
    Store(home).pull(str(world.folder), view)
    model = bitstrata.load(NAME, view=view, home=home, threads=1)
    assert isinstance(model, HeldModel)
    return model


def switching(world: World, home: Path, calls: int, switches: int, threads: int) -> None:
    model = held(world, home)
    expected = {view: world.outputs[2, view] for view in model.views}
    seen: list[set[str]] = [set() for _ in range(threads)]
    latencies: list[list[tuple[float, float]]] = [[] for _ in range(threads)]
    changes: list[tuple[float, float]] = []
    problems: list[str] = []
    stop_all = threading.Event()

    def infer(number: int) -> None:
        while not stop_all.is_set():
            before = model.view
            started = time.perf_counter()
            output = model(INPUTS)
            latencies[number].append((started, time.perf_counter()))
            found = next((view for view, right in expected.items() if np.array_equal(output, right)), None)
            if found is None:
                problems.append(f"an output of no view, after {before}")
                return
            seen[number].add(found)

    workers = [threading.Thread(target=infer, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for number in range(switches):
        goal = ("2", "3", "mixed-a", "4")[number % 4]
        started = time.perf_counter()
        if goal == "2":
            model.downgrade(goal, prune=number % 8 == 0)
        else:
            model.upgrade(goal)
        changes.append((started, time.perf_counter()))
        assert np.array_equal(model(INPUTS), expected[goal])
        assert model.view == goal
        while sum(map(len, latencies)) < calls * (number + 1) // switches and not problems:
            time.sleep(0.001)
    stop_all.set()
    for worker in workers:
        worker.join()
    assert not problems, problems
    invariant(home, world, {(2, goal)})
    every = [(start, stop) for one in latencies for start, stop in one]
    during, quiet = [], []
    for start, stop in every:
        following = bisect.bisect_left(changes, start, key=lambda change: change[1])  # the first that ends later
        switched = following < len(changes) and changes[following][0] < stop
        (during if switched else quiet).append(stop - start)
    assert len(every) >= calls
    print(f"\n{len(every)} inferences in {threads} threads, {switches} switches: every output is one view's")
    for name, times in (("during a switch", during), ("otherwise", quiet)):
        if times:
            print(f"  {name}: {len(times)}, median {1e3 * statistics.median(times):.2f}, max {1e3 * max(times):.1f} ms")
    assert len(set().union(*seen)) > 1


def test_switches_under_load(world: World, quick_folder: Path) -> None:
    switching(world, quick_folder, 1500, 24, 3)


@pytest.mark.long
def test_a_hundred_switches_under_ten_thousand_inferences(world: World, quick_folder: Path) -> None:
    switching(world, quick_folder, 10_000, 100, 4)


def test_calls_do_not_wait_for_a_view_that_is_being_built(
    world: World, quick_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = held(world, quick_folder)
    build, go_on = model._build, threading.Event()

    def slowly(name: str) -> object:
        assert go_on.wait(20)
        return build(name)

    monkeypatch.setattr(model, "_build", slowly)
    switch = threading.Thread(target=model.upgrade, args=("3",))
    switch.start()
    done = threading.Event()
    caller = threading.Thread(target=lambda: (model(INPUTS), done.set()), daemon=True)
    caller.start()
    assert done.wait(10)
    go_on.set()
    switch.join()
    assert model.view == "3"


def test_from_a_mixed_view_to_more_bits_while_running(world: World, quick_folder: Path) -> None:
    """Segments that were read for one view are not all that the next one needs."""
    model = held(world, quick_folder, "mixed-a")
    for view in ("mixed-b", "4", "2", "3"):
        model.upgrade(view)
        assert np.array_equal(model(INPUTS), world.outputs[2, view])


def test_a_view_that_is_not_held_says_what_to_do(world: World, quick_folder: Path) -> None:
    model = held(world, quick_folder, "mixed-a")
    with pytest.raises(MissingFile, match="bitstrata upgrade small"):
        model.at(4)
    with pytest.raises(MissingFile, match="bitstrata upgrade small"):
        model.at("mixed-b")
    assert np.array_equal(model(INPUTS), world.outputs[2, "mixed-a"])


def test_downgrade_of_a_model_that_runs_above_its_record(world: World, quick_folder: Path) -> None:
    model = held(world, quick_folder)
    Store(quick_folder).downgrade(NAME, "2")
    model.downgrade(3)
    assert np.array_equal(model(INPUTS), world.outputs[2, "3"])
    invariant(quick_folder, world, {(2, "2")})
    model.at(2)
    Store(quick_folder).remove(NAME)
    model.downgrade(2)
    assert np.array_equal(model(INPUTS), world.outputs[2, "2"])


def test_a_running_model_keeps_its_version(world: World, quick_folder: Path) -> None:
    store = Store(quick_folder)
    store.pull(str(world.folder), "2", version=1)
    model = bitstrata.load(NAME, home=quick_folder, threads=1)
    store.pull(NAME)
    store.gc()
    assert np.array_equal(model(INPUTS), world.outputs[1, "2"])
    model.upgrade(3)
    assert np.array_equal(model(INPUTS), world.outputs[1, "3"])
    assert store.records.of(NAME).release.version == 2
    invariant(quick_folder, world, {(2, "2")})


def test_a_model_that_is_replaced_while_it_is_loaded(
    world: World, quick_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(quick_folder)
    store.pull(str(world.folder), "4", version=1)
    really_open = Store.open

    def and_then_another_process_comes(self: Store, name: str) -> HeldArtifact:
        found = really_open(self, name)
        if found.version == 1:
            store.pull(name)
            store.gc()
        return found

    monkeypatch.setattr(Store, "open", and_then_another_process_comes)
    model = bitstrata.load(NAME, home=quick_folder, threads=1)
    assert np.array_equal(model(INPUTS), world.outputs[2, "4"])


def test_the_base_runs_while_more_bits_arrive(world: World, server: Server, quick_folder: Path) -> None:
    events: list[Event] = []
    arriving = world.size(2, "enhance-3.safetensors")
    server.faults.piece, server.faults.pause = 64, 0.01
    source = world.serve(server)
    model = bitstrata.load(source, bits=2, then=4, home=quick_folder, threads=1, listen=events.append)
    assert isinstance(model, HeldModel)
    first = model(INPUTS)
    assert not any(isinstance(event, Ready) for event in events), "the enhance strata came before the first inference"
    assert arriving > 64
    assert np.array_equal(first, world.outputs[2, "2"])
    assert model.arriving is not None
    while not model.arriving.wait(0.05):
        assert any(np.array_equal(model(INPUTS), world.outputs[2, view]) for view in "234")
    assert np.array_equal(model(INPUTS), world.outputs[2, "4"])
    steps = [(type(event).__name__, event.view) for event in events if isinstance(event, Switched | Ready)]
    assert steps == [("Switched", "2"), ("Switched", "3"), ("Ready", "3"), ("Switched", "4"), ("Ready", "4")]
    sizes = [event.bytes for event in events if isinstance(event, Fetching)]
    assert len(sizes) > 10
    invariant(quick_folder, world, {(2, "4")})


def test_a_failure_in_the_background_leaves_it_running(
    world: World, server: Server, quick_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "Retries", partial(Retries, tries=2, first_pause=0.01))
    events: list[Event] = []
    source = world.serve(server)
    Store(quick_folder).pull(source, "2")
    server.faults.always = 503
    model = bitstrata.load(source, then=4, home=quick_folder, threads=1, listen=events.append)
    assert isinstance(model, HeldModel)
    assert model.arriving is not None
    with pytest.raises(SourceUnreachable):
        model.arriving.wait(20)
    assert isinstance(events[-1], Failed)
    assert events[-1].error == "SourceUnreachable"
    assert np.array_equal(model(INPUTS), world.outputs[2, "2"])
    invariant(quick_folder, world, {(2, "2")})
    server.faults.always = None
    model.upgrade(4)
    assert np.array_equal(model(INPUTS), world.outputs[2, "4"])


def test_offline_a_model_that_is_held_runs_and_switches(
    world: World, server: Server, quick_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = world.serve(server)
    Store(quick_folder).pull(source, "3")
    monkeypatch.setenv("BITSTRATA_OFFLINE", "1")
    model = bitstrata.load(source, home=quick_folder, threads=1)
    model.downgrade(2)
    model.upgrade(3)
    assert np.array_equal(model(INPUTS), world.outputs[2, "3"])
    with pytest.raises(BitstrataError, match="offline"):
        model.upgrade(4)
    with pytest.raises(BitstrataError, match="offline"):
        Store(quick_folder).pull(NAME)
    invariant(quick_folder, world, {(2, "3")})
