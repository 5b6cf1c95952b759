"""A published model with two versions, and what must hold in the store of every device at any time."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from artifacts import INPUT, small_network
from device.server import Server

from bitstrata.device.access import OFFLINE
from bitstrata.device.needs import needs_of
from bitstrata.device.running import HeldModel
from bitstrata.device.store import Store
from bitstrata.format import write_artifact
from bitstrata.graph import Network, View
from bitstrata.publish.destinations import FolderDestination
from bitstrata.publish.push import push
from bitstrata.runtime.model import load as load_artifact

NAME = "small"
INPUTS = np.random.default_rng(3).standard_normal((2, *INPUT.shape)).astype(np.float32)

#: Mixed views; together they use all of the first enhance stratum, and neither does alone.
MIXED = {"mixed-a": {"first": 3, "second": 2}, "mixed-b": {"first": 2, "second": 3}}

State = tuple[int, str]
"""A version and a view."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


def network(version: int) -> Network:
    """The second version has other tables and another last plane; its base and first enhance stratum are the same."""
    first, tables = small_network(), small_network(seed=version)
    codes = {name: array ^ (version - 1) for name, array in first.codes.items()}
    views = {view.name: view for view in tables.views}
    mixed = []
    for name, bits in MIXED.items():
        taken = {node: views[str(bits.get(node, 4))].tables[node] for node in views["4"].tables}
        mixed.append(View(name, bits, taken))
    return replace(first, codes=codes, views=(*tables.views, *mixed))


@dataclass(frozen=True)
class World:
    """A published model."""

    folder: Path
    outputs: dict[State, np.ndarray] = field(default_factory=dict)
    """What every view of every version gives for `INPUTS`."""

    def serve(self, server: Server) -> str:
        """Puts all files on a server; its address."""
        for path in self.folder.rglob("*"):
            if path.is_file():
                server.files[path.relative_to(self.folder).as_posix()] = path.read_bytes()
        return server.address

    def size(self, version: int, file: str) -> int:
        return len(self.content(version, file))

    def content(self, version: int, file: str) -> bytes:
        return (self.folder.parent / f"{version}.strata" / file).read_bytes()


def make_world(folder: Path) -> World:
    world = World(folder / "published")
    for version in (1, 2):
        artifact = folder / f"{version}.strata"
        write_artifact(artifact, network(version), name=NAME, version=version, input=INPUT)
        push(artifact, FolderDestination(world.folder))
        model = load_artifact(artifact, threads=1)
        for view in model.views:
            world.outputs[version, view] = model.at(view)(INPUTS)
    states = list(world.outputs)
    assert len(states) == 10
    for place, one in enumerate(states):
        assert not any(np.array_equal(world.outputs[one], world.outputs[other]) for other in states[:place])
    return world


@contextmanager
def offline() -> Iterator[None]:
    before = os.environ.get(OFFLINE)
    os.environ[OFFLINE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[OFFLINE]
        else:
            os.environ[OFFLINE] = before


def state_of(home: Path) -> State | None:
    """Which version is held, and at which view."""
    record = Store(home).records.get(NAME)
    return None if record is None else (record.release.version, record.view)


def invariant(home: Path, world: World, allowed: Collection[State | None]) -> State | None:
    """Raises unless the store is in one of the states, and all that it says it holds runs, offline, as published."""
    for path in home.glob("blobs/*"):
        if _DIGEST.fullmatch(path.name):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name, f"{path} has wrong bytes"
    store = Store(home)
    names = store.records.names()
    assert set(names) <= {NAME}, names
    state = state_of(home)
    assert state in allowed, f"{state}, and not one of {allowed}"
    if state is not None:
        version, view = state
        record = store.records.of(NAME)
        assert view in record.views
        with offline():
            model = HeldModel(store, store.open(NAME), view, threads=1)
            assert np.array_equal(model(INPUTS), world.outputs[state]), f"{state} gives another output"
            for held in record.views:
                assert np.array_equal(model.at(held)(INPUTS), world.outputs[version, held]), (version, held)
    return state


def leftovers(home: Path) -> list[str]:
    """Files that no record needs."""
    store = Store(home)
    needed = {"lock"}
    for record in store.models():
        manifest = store.open(record.name).manifest
        needs = needs_of(manifest, set(record.views), store.blobs.has)
        needed |= {f"models/{record.name}.json", f"blobs/{record.release.manifest}"}
        needed |= {f"blobs/{need.digest}" for need in needs}
    there = {path.relative_to(home).as_posix() for path in home.rglob("*") if not path.is_dir()}
    assert needed - {"lock"} <= there, needed - there
    return sorted(there - needed)


def clean(home: Path, world: World, allowed: Collection[State | None]) -> None:
    """Raises unless `gc` leaves nothing that no record needs, and breaks nothing."""
    Store(home).gc()
    assert leftovers(home) == []
    invariant(home, world, allowed)


def copy(home: Path, to: Path) -> Path:
    if to.exists():
        shutil.rmtree(to)
    shutil.copytree(home, to)
    return to
