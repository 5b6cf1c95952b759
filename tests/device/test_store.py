"""The store of a device: what each verb does, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from device.server import Server
from device.worlds import INPUTS, NAME, World, clean, invariant, leftovers
from publishing import artifact, key

import bitstrata
from bitstrata.device.choose import Limits
from bitstrata.device.events import Event, Resolved, Switched
from bitstrata.device.store import Store
from bitstrata.errors import (
    BadOption,
    BitstrataError,
    MissingFile,
    NothingFits,
    NotPublished,
    Rollback,
    StoreDamaged,
    UnknownModel,
    UnknownView,
    Unsigned,
    WrongModel,
    WrongSignature,
)
from bitstrata.publish.destinations import FolderDestination
from bitstrata.publish.push import push


@pytest.fixture
def store(quick_folder: Path) -> Store:
    return Store(quick_folder / "home")


@pytest.fixture
def source(world: World) -> str:
    return str(world.folder)


def test_there_and_back(store: Store, source: str, world: World) -> None:
    home = store.home.root
    record = store.pull(source)
    assert (record.name, record.view, record.views, record.release.version) == (NAME, "2", ("2",), 2)
    invariant(home, world, {(2, "2")})
    assert store.upgrade(NAME, "4").views == ("2", "3", "4")
    invariant(home, world, {(2, "4")})
    assert store.held_views(NAME) == ["2", "3", "4"]
    whole = store.held_bytes(NAME)
    assert store.downgrade(NAME, "3").views == ("2", "3", "4")
    assert store.held_bytes(NAME) == whole
    invariant(home, world, {(2, "3")})
    assert store.downgrade(NAME, "2", prune=True).views == ("2",)
    assert leftovers(home) == []
    gone = sum(world.size(2, f"{name}.safetensors") for name in ("enhance-3", "enhance-4", "view-3", "view-4"))
    assert store.held_bytes(NAME) == whole - gone
    invariant(home, world, {(2, "2")})


def test_events_tell_what_happens(store: Store, source: str, world: World) -> None:
    events: list[Event] = []
    store.pull(source, "3", listen=events.append)
    files = ("base", "enhance-3", "view-2", "view-3")
    size = sum(world.size(2, f"{file}.safetensors") for file in files)
    assert events[0] == Resolved(NAME, 2, False, "3", "", size)
    assert events[-1] == Switched(NAME, 2, "3")
    again: list[Event] = []
    store.pull(NAME, listen=again.append)
    assert again == [Resolved(NAME, 2, False, "3", "", 0), Switched(NAME, 2, "3")]


def test_directions_are_kept_apart(store: Store, source: str) -> None:
    store.pull(source, "3")
    with pytest.raises(BadOption, match="bitstrata downgrade"):
        store.upgrade(NAME, "2")
    with pytest.raises(BadOption, match="bitstrata upgrade"):
        store.downgrade(NAME, "4")
    with pytest.raises(UnknownView):
        store.upgrade(NAME, "8")
    with pytest.raises(UnknownModel, match="it holds: small"):
        store.upgrade("large", "4")
    with pytest.raises(MissingFile, match="bitstrata pull small --view mixed-a"):
        store.downgrade(NAME, "mixed-a")
    assert store.records.of(NAME).view == "3"


def test_a_mixed_view_brings_its_segments_only(store: Store, source: str, world: World) -> None:
    home = store.home.root
    store.pull(source, "mixed-a")
    manifest = store.open(NAME).manifest
    stratum = manifest.strata[1]
    assert not store.blobs.has(stratum.sha256, stratum.size)
    held = {one.weight for one in manifest.segments_of(1) if store.blobs.has(one.sha256.hex(), one.size)}
    assert held == {"first"}
    clean(home, world, {(2, "mixed-a")})
    store.upgrade(NAME, "3")
    clean(home, world, {(2, "3")})
    assert {one.weight for one in manifest.segments_of(1) if store.blobs.has(one.sha256.hex(), one.size)} == set()


def test_two_mixed_views_that_add_up_to_a_stratum_survive_gc(store: Store, source: str, world: World) -> None:
    store.pull(source, "mixed-b")
    store.upgrade(NAME, "mixed-a")
    clean(store.home.root, world, {(2, "mixed-a")})
    store.pull(NAME)
    stratum = store.open(NAME).manifest.strata[1]
    assert not store.blobs.has(stratum.sha256, stratum.size)
    assert set(store.held_views(NAME)) == {"2", "mixed-a", "mixed-b"}
    assert not store.verify(NAME).damaged


def test_versions_are_pinned_and_only_go_up(store: Store, source: str, world: World) -> None:
    store.pull(source, "4", version=1)
    invariant(store.home.root, world, {(1, "4")})
    assert store.upgrade(NAME, "4").release.version == 1
    shared = store.held_bytes(NAME)
    record = store.pull(NAME)
    assert (record.release.version, record.view) == (2, "4")
    invariant(store.home.root, world, {(2, "4")})
    assert shared
    with pytest.raises(Rollback, match="versions only go up"):
        store.pull(source, version=1)
    with pytest.raises(NotPublished):
        store.pull(source, version=3)
    clean(store.home.root, world, {(2, "4")})


def test_models_share_blobs_and_go_one_by_one(store: Store, source: str, world: World) -> None:
    store.pull(source, "3")
    store.pull(source, "4", name="other")
    assert [record.name for record in store.models()] == ["other", NAME]
    freed = store.remove("other")
    assert freed.bytes == sum(world.size(2, f"{file}.safetensors") for file in ("enhance-4", "view-4"))
    invariant(store.home.root, world, {(2, "3")})
    store.remove(NAME)
    assert store.models() == []
    assert leftovers(store.home.root) == []
    with pytest.raises(UnknownModel, match="it holds: none"):
        store.open(NAME)


@pytest.mark.parametrize(
    "name", ["../evil", "a/b", "a\\b", ".hidden", "a..b", "", "a\0b", "a\n", "x" * 300, "CON\x1b[0m"]
)
def test_names_that_are_no_names(store: Store, source: str, name: str) -> None:
    if name:
        with pytest.raises(BadOption, match="no name for a model"):
            store.pull(source, name=name)
    assert store.records.get(name) is None
    assert list(store.home.root.parent.rglob("*evil*")) == []
    with pytest.raises(BitstrataError):
        store.pull(name)
    assert store.models() == []


def test_names_that_differ_in_case_only(store: Store, source: str) -> None:
    store.pull(source)
    with pytest.raises(WrongModel, match="too near"):
        store.pull(source, name="SMALL")


def test_the_same_name_from_elsewhere(store: Store, source: str, tmp_path: Path) -> None:
    push(artifact(tmp_path, version=3, seed=9), FolderDestination(tmp_path / "elsewhere"))
    store.pull(source)
    with pytest.raises(WrongModel, match="--name"):
        store.pull(str(tmp_path / "elsewhere"))
    assert store.pull(str(tmp_path / "elsewhere"), name="another").release.version == 3
    assert len(store.models()) == 2


def test_keys_are_pinned(store: Store, tmp_path: Path) -> None:
    good, evil = tmp_path / "good", tmp_path / "evil"
    push(artifact(tmp_path), FolderDestination(good), key=key(1))
    record = store.pull(str(good), trust=key(1).public)
    assert record.trusted is not None
    push(artifact(tmp_path, version=2, seed=1), FolderDestination(evil), key=key(2))
    with pytest.raises(WrongSignature):
        store.pull(str(evil))
    push(artifact(tmp_path, version=3, seed=1), FolderDestination(tmp_path / "bare"))
    with pytest.raises(Unsigned):
        store.pull(str(tmp_path / "bare"))
    with pytest.raises(Unsigned):
        bitstrata.load(tmp_path / "bare", home=store.home.root)
    with pytest.raises(WrongSignature, match="bitstrata remove small"):
        store.pull(str(good), trust=key(2).public)
    assert store.records.of(NAME) == record
    store.remove(NAME)
    assert store.pull(str(evil)).trusted is None


def test_limits_choose_a_view(store: Store, source: str, world: World) -> None:
    events: list[Event] = []
    three = [*(f"{file}.safetensors" for file in ("base", "enhance-3", "view-3"))]
    most = sum(world.size(2, file) for file in three)
    assert store.pull(source, limits=Limits(max_bytes=most), listen=events.append).view == "3"
    resolved = next(event for event in events if isinstance(event, Resolved))
    assert f"{most:,} allowed" in resolved.why
    assert "4 not" in resolved.why
    with pytest.raises(NothingFits, match="2 not"):
        store.pull(source, limits=Limits(max_bytes=10))
    with pytest.raises(BadOption):
        store.pull(source, "2", limits=Limits(max_bytes=10))
    assert store.pull(source, limits=Limits(max_latency=10.0, fit=True)).view == "4"


def test_offline_says_so(store: Store, world: World, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    address = world.serve(server)
    store.pull(address, "3")
    monkeypatch.setenv("BITSTRATA_OFFLINE", "1")
    with pytest.raises(BitstrataError, match="BITSTRATA_OFFLINE"):
        store.pull(NAME)
    with pytest.raises(BitstrataError, match="BITSTRATA_OFFLINE"):
        store.upgrade(NAME, "4")
    store.downgrade(NAME, "2")
    store.upgrade(NAME, "3")
    invariant(store.home.root, world, {(2, "3")})


def test_a_version_that_is_gone_from_its_source(store: Store, world: World, server: Server) -> None:
    address = world.serve(server)
    store.pull(address, "2", version=1)
    del server.files[f"blobs/sha256/{store.open(NAME).manifest.strata[2].sha256}"]
    with pytest.raises(NotPublished, match="bitstrata pull small"):
        store.upgrade(NAME, "4")
    invariant(store.home.root, world, {(1, "2")})
    store.pull(NAME, "4")
    invariant(store.home.root, world, {(2, "4")})


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b"[" * 5000, b'{"record_version":2}'])
def test_a_damaged_record(store: Store, source: str, world: World, content: bytes) -> None:
    store.pull(source, "3")
    place = store.home.models / f"{NAME}.json"
    place.write_bytes(content)
    for use in (store.open, store.verify, store.remove):
        with pytest.raises(StoreDamaged, match="Remove it and pull small again"):
            use(NAME)
    place.unlink()
    events: list[Event] = []
    store.pull(source, "3", listen=events.append)
    assert isinstance(events[0], Resolved)
    assert events[0].bytes == 0
    invariant(store.home.root, world, {(2, "3")})


def test_load_takes_names_sources_and_what_is_held(
    store: Store, source: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BITSTRATA_HOME", str(store.home.root))
    model = bitstrata.load(source, bits=2, version=1, threads=1)
    assert np.array_equal(model(INPUTS), world.outputs[1, "2"])
    assert np.array_equal(bitstrata.load(NAME, threads=1)(INPUTS), world.outputs[1, "2"])
    assert np.array_equal(bitstrata.load(source, view="mixed-a", threads=1)(INPUTS), world.outputs[1, "mixed-a"])
    assert np.array_equal(bitstrata.load(source, bits=4, version=2, threads=1)(INPUTS), world.outputs[2, "4"])
    with pytest.raises(BadOption):
        bitstrata.load(source, bits=2, view="3")
    with pytest.raises(Rollback):
        bitstrata.load(source, version=1)
    clean(store.home.root, world, {(2, "4")})


def test_gc_of_nothing(store: Store) -> None:
    assert store.gc().files == 0
    assert sorted(os.listdir(store.home.root)) == ["blobs", "lock", "models", "partial"]
