"""Bytes that are wrong, wherever they are: at the source, in the store, or exchanged while they are read."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from device.server import Server
from device.worlds import INPUTS, NAME, World, clean, invariant

import bitstrata
from bitstrata.device import download
from bitstrata.device.retries import Retries
from bitstrata.device.store import Store
from bitstrata.errors import BitstrataError, FetchFailed, MissingFile, WrongContent, WrongHash, WrongModel
from bitstrata.format import Manifest, published


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "Retries", partial(Retries, tries=2, first_pause=0.01))


@pytest.fixture
def store(quick_folder: Path) -> Store:
    return Store(quick_folder / "home")


def manifests(world: World, folder: Path) -> list[Manifest]:
    """Of both versions."""
    store = Store(folder)
    return [store.open(store.pull(str(world.folder), version=version).name).manifest for version in (1, 2)]


def test_strata_of_one_version_with_those_of_another(
    world: World, server: Server, store: Store, quick_folder: Path
) -> None:
    """A server that mixes: the enhance stratum of version 1 under the name of that of version 2, both well-formed."""
    first, second = manifests(world, quick_folder / "reader")
    address = world.serve(server)
    store.pull(address, "3")
    one, two = first.strata[2], second.strata[2]
    assert one.size == two.size
    assert one.sha256 != two.sha256
    server.files[published.blob(two.sha256)] = world.content(1, two.file)
    with pytest.raises(WrongContent):
        store.upgrade(NAME, "4")
    invariant(store.home.root, world, {(2, "3")})
    assert store.blobs.fetched(two.sha256) == 0
    # The very bytes, were they in the store already, are not relied on either.
    (store.home.blobs / two.sha256).write_bytes(world.content(1, two.file))
    with pytest.raises(WrongContent):
        bitstrata.load(NAME, bits=4, home=store.home.root)
    invariant(store.home.root, world, {(2, "3")})
    (store.home.blobs / two.sha256).write_bytes(world.content(1, two.file))
    server.files[published.blob(two.sha256)] = world.content(2, two.file)
    store.upgrade(NAME, "4")
    clean(store.home.root, world, {(2, "4")})


def test_manifests_exchanged(world: World, server: Server, store: Store, quick_folder: Path) -> None:
    address = world.serve(server)
    names = [path for path in server.files if path.startswith("manifests/")]
    server.files[names[0]], server.files[names[1]] = server.files[names[1]], server.files[names[0]]
    with pytest.raises(FetchFailed):
        store.pull(address)
    assert list(store.home.blobs.iterdir()) == []


def test_a_release_that_names_the_manifest_of_another_version(world: World, server: Server, store: Store) -> None:
    from bitstrata.format.release import Release, decode_envelope, decode_payload
    from bitstrata.publish.keys import seal

    address = world.serve(server)
    old = decode_payload(decode_envelope(server.files["releases/1.json"], "test"), Release, "test")
    forged = Release(name=NAME, version=2, manifest=old.manifest, manifest_size=old.manifest_size, key_set=old.key_set)
    server.files["latest.json"] = seal(forged, [])
    with pytest.raises(WrongModel, match="version 1"):
        store.pull(address)
    assert store.models() == []


def test_what_failed_once_is_not_trusted_later(world: World, server: Server, store: Store) -> None:
    """Bytes that were found to be wrong are gone; bytes that lie in `partial/` are hashed before they are adopted."""
    address = world.serve(server)
    store.pull(address, "2")
    stratum = store.open(NAME).manifest.strata[1]
    path = published.blob(stratum.sha256)
    right = server.files[path]
    server.files[path] = bytes(len(right))
    for _ in range(2):
        with pytest.raises(WrongContent):
            Store(store.home.root).upgrade(NAME, "3")
        assert store.blobs.fetched(stratum.sha256) == 0
    store.blobs.partial(stratum.sha256).write_bytes(bytes(len(right)))
    with pytest.raises(WrongContent):
        Store(store.home.root).upgrade(NAME, "3")
    assert not store.blobs.has(stratum.sha256, stratum.size)
    store.blobs.partial(stratum.sha256).write_bytes(bytes(len(right)))
    server.files[path] = right
    store.upgrade(NAME, "3")
    clean(store.home.root, world, {(2, "3")})


@pytest.mark.parametrize("what", ["manifest", "base", "enhance", "view", "other view"])
@pytest.mark.parametrize("how", ["bit", "shorter", "longer", "empty", "gone", "link"])
def test_rot_is_found_and_only_that_file_is_fetched(
    world: World, server: Server, store: Store, what: str, how: str
) -> None:
    address = world.serve(server)
    store.pull(address, "4")
    store.downgrade(NAME, "2")
    manifest, release = store.open(NAME).manifest, store.records.of(NAME).release
    digest = {
        "manifest": release.manifest,
        "base": manifest.strata[0].sha256,
        "enhance": manifest.strata[2].sha256,
        "view": manifest.view("2").sha256,
        "other view": manifest.view("4").sha256,
    }[what]
    place = store.home.blobs / digest
    size = place.stat().st_size
    damage(place, how)
    damaged = store.verify(NAME).damaged
    assert len(damaged) == 1
    assert not place.is_symlink()
    before = server.body_bytes
    store.pull(NAME)
    assert server.body_bytes - before == size + len(server.files["latest.json"])
    assert not store.verify(NAME).damaged
    clean(store.home.root, world, {(2, "2")})


def damage(place: Path, how: str) -> None:
    content = bytearray(place.read_bytes())
    place.unlink()
    if how == "link":
        elsewhere = place.parent.parent.parent / "elsewhere"
        elsewhere.write_bytes(content)
        place.symlink_to(elsewhere)
    elif how != "gone":
        content[len(content) // 2] ^= 1
        changed = {"bit": content, "shorter": content[:-1], "longer": content + b"\0", "empty": b""}
        place.write_bytes(changed[how])


def test_a_damaged_manifest_is_fetched_again_without_verify(world: World, store: Store) -> None:
    store.pull(str(world.folder), "3")
    damage(store.home.blobs / store.records.of(NAME).release.manifest, "bit")
    with pytest.raises(MissingFile, match="bitstrata pull small"):
        store.upgrade(NAME, "4")
    store.pull(NAME)
    clean(store.home.root, world, {(2, "3")})


def test_a_damaged_stratum_is_never_run(world: World, store: Store) -> None:
    store.pull(str(world.folder), "3")
    damage(store.home.blobs / store.open(NAME).manifest.strata[1].sha256, "bit")
    with pytest.raises(WrongHash, match="`bitstrata verify small` removes"):
        bitstrata.load(NAME, home=store.home.root)


@pytest.mark.parametrize("way", ["rename", "link", "hard link"])
def test_files_exchanged_while_they_are_read(world: World, store: Store, way: str) -> None:
    """Somebody swaps a blob for a well-formed one of another version, again and again: it is refused, or not met."""
    store.pull(str(world.folder), "4")
    manifest = store.open(NAME).manifest
    place = store.home.blobs / manifest.strata[2].sha256
    good, bad = place.read_bytes(), world.content(1, manifest.strata[2].file)
    folder = store.home.root.parent
    (folder / "good").write_bytes(good)
    (folder / "bad").write_bytes(bad)
    done = threading.Event()
    make: Callable[[Path, Path], None] = {"rename": copied, "link": os.symlink, "hard link": os.link}[way]

    def swap() -> None:
        while not done.is_set():
            for content in ("bad", "good"):
                make(folder / content, folder / "new")
                os.replace(folder / "new", place)
                (folder / "new").unlink(missing_ok=True)  # a rename between two links of one file does nothing

    thread = threading.Thread(target=swap)
    thread.start()
    loaded = refused = 0
    try:
        for _ in range(150):
            try:
                model = bitstrata.load(NAME, home=store.home.root, threads=1)
            except BitstrataError:
                refused += 1
                continue
            assert np.array_equal(model(INPUTS), world.outputs[2, "4"])
            loaded += 1
    finally:
        done.set()
        thread.join()
    print(f"\n{way}: loaded {loaded} times as published, refused {refused} times, never anything else")
    assert refused
    store.verify(NAME)
    store.pull(NAME)
    invariant(store.home.root, world, {(2, "4")})


def copied(source: Path, place: Path) -> None:
    place.write_bytes(source.read_bytes())


def test_links_in_the_place_of_partial_files_and_folders(world: World, store: Store, tmp_path: Path) -> None:
    """Nothing outside the store is written through a link that lies in it."""
    store.pull(str(world.folder), "2")
    stratum = store.open(NAME).manifest.strata[1]
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    store.blobs.partial(stratum.sha256).symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        store.upgrade(NAME, "3")
    assert victim.read_bytes() == b"precious"
    store.gc()
    (store.home.blobs / stratum.sha256).symlink_to(victim)
    store.upgrade(NAME, "3")
    assert victim.read_bytes() == b"precious"
    clean(store.home.root, world, {(2, "3")})
