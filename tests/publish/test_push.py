"""A push leaves the old release or the new one, whatever happens on the way, and never sends a file twice."""

import json
import shutil
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore
from publishing import artifact, key

from bitstrata.device.trust import check_release
from bitstrata.errors import BadArtifact, CannotPublish, MissingExtra, NotPublished
from bitstrata.format import decode_manifest, published
from bitstrata.format.manifest import sha256
from bitstrata.format.release import LATEST, KeySet, Release, decode_envelope, decode_payload
from bitstrata.publish import FolderDestination, open_destination, push
from bitstrata.publish.destinations import ObjectDestination

A, B, C = map(key, (1, 2, 3))


class Crash(Exception):
    """The machine stops here."""


class Failing:
    """A destination that fails at its N-th write: before it, or right after it."""

    public = False

    def __init__(self, inner: Any, fails_at: int, after: bool) -> None:
        self.inner, self.left, self.after = inner, fails_at, after
        self.address = inner.address
        self.size, self.read = inner.size, inner.read

    def write(self, path: str, content: bytes) -> None:
        self._count(lambda: self.inner.write(path, content))

    def write_new(self, path: str, content: bytes) -> bool:
        return bool(self._count(lambda: self.inner.write_new(path, content)))

    def _count(self, act: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Crash
        result = act()
        if self.left == 0:
            raise Crash
        return result


def destinations(folder: Path) -> list[Any]:
    return [FolderDestination(folder / "published"), ObjectDestination(MemoryStore(), "s3://bucket/small")]


@pytest.fixture(params=["folder", "store"])
def destination(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return destinations(tmp_path)[request.param == "store"]


def read_release(destination: Any, trusted: Any = None) -> Release:
    """What a device would accept, every byte of it there."""

    def next_key_set(number: int) -> bytes:
        content = destination.read(published.key_set(number))
        if content is None:
            raise NotPublished("no such set")
        return bytes(content)

    content = destination.read(LATEST)
    assert content is not None
    release = check_release(content, LATEST, trusted=trusted, held=None, next_key_set=next_key_set).release
    manifest = destination.read(published.manifest(release.manifest), 2**23)
    assert len(manifest) == release.manifest_size
    assert sha256(manifest) == release.manifest
    decoded = decode_manifest(manifest)
    for entry in (*decoded.strata, *decoded.views):
        content = destination.read(published.blob(entry.sha256), 2**23)
        assert sha256(content) == entry.sha256, entry.file
    return release


def test_a_push_publishes_every_byte(destination: Any, tmp_path: Path) -> None:
    done = push(artifact(tmp_path), destination)
    release = read_release(destination)
    assert (release.name, release.version, release.key_set) == ("small", 1, 0)
    assert done.manifest == release.manifest
    assert [*done.written][-1] == LATEST, "what changes is written last"
    assert done.written.keys() >= {published.release(1), "README.md"}
    assert done.signers == ()
    assert destination.read(published.release(1)) == destination.read(LATEST)


def test_a_second_push_has_nothing_to_do(destination: Any, tmp_path: Path) -> None:
    path = artifact(tmp_path)
    first = push(path, destination, key=A)
    second = push(path, destination, key=A)
    assert second.written == {}
    assert len(second.shared) == 6
    assert second.signers == first.signers == (A.public,)
    assert push(path, destination).written == {}, "what is signed stays so"


def test_versions_share_what_they_have_in_common(destination: Any, tmp_path: Path) -> None:
    push(artifact(tmp_path), destination)
    done = push(artifact(tmp_path, version=2), destination)
    assert not any(path.startswith("blobs/") for path in done.written)
    assert len(done.shared) == 6
    assert read_release(destination).version == 2
    assert decode_payload(decode_envelope(destination.read(published.release(1)), ""), Release, "").version == 1


def test_a_damaged_blob_is_sent_again(destination: Any, tmp_path: Path) -> None:
    path = artifact(tmp_path)
    done = push(path, destination)
    blob = next(one for one in done.written if one.startswith("blobs/"))
    destination.write(blob, b"cut off")
    assert [*push(path, destination).written] == [blob]
    read_release(destination)


def test_what_is_published_is_not_replaced_by_something_else(destination: Any, tmp_path: Path) -> None:
    push(artifact(tmp_path, version=3), destination)
    before = destination.read(LATEST)
    with pytest.raises(CannotPublish, match=r"version 3 of small is published with other content.*as version 4"):
        push(artifact(tmp_path, version=3, seed=1), destination)
    with pytest.raises(CannotPublish, match="devices refuse an older one"):
        push(artifact(tmp_path, version=2), destination)
    with pytest.raises(CannotPublish, match="publishes 'small'"):
        push(artifact(tmp_path, version=4, name="other"), destination)
    destination.write(LATEST, b"<html>")
    with pytest.raises(CannotPublish, match="Something else lies there"):
        push(artifact(tmp_path, version=4), destination)
    destination.write(LATEST, before)
    assert read_release(destination).version == 3


def test_a_damaged_artifact_is_not_published(destination: Any, tmp_path: Path) -> None:
    path = artifact(tmp_path)
    content = bytearray((path / "enhance-4.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "enhance-4.safetensors").write_bytes(content)
    with pytest.raises(BadArtifact):
        push(path, destination)
    assert destination.read(LATEST) is None
    assert destination.read("README.md") is None


# Keys.


def test_signed_stays_signed_and_by_a_key_that_devices_trust(destination: Any, tmp_path: Path) -> None:
    push(artifact(tmp_path), destination)
    push(artifact(tmp_path), destination, key=A)  # signing what was published without
    assert read_release(destination, A.public).version == 1
    for options, message in (({}, "give --sign"), ({"key": B}, "--rotate-from")):
        with pytest.raises(CannotPublish, match=message):
            push(artifact(tmp_path, version=2), destination, **options)
    push(artifact(tmp_path, version=2), destination, key=A)
    assert read_release(destination, A.public).version == 2


def test_a_rotation_is_followed_by_devices(destination: Any, tmp_path: Path) -> None:
    push(artifact(tmp_path), destination, key=A)
    done = push(artifact(tmp_path, version=2), destination, key=B, rotate_from=A, spares=[C.public])
    assert done.key_set == 1
    for trusted in (A.public, B.public):
        assert read_release(destination, trusted).version == 2
    assert push(artifact(tmp_path, version=2), destination, key=B, rotate_from=A, spares=[C.public]).written == {}
    with pytest.raises(CannotPublish, match="--rotate-from"):
        push(artifact(tmp_path, version=3), destination, key=A)
    with pytest.raises(CannotPublish, match="cannot say who comes next"):
        push(artifact(tmp_path, version=3), destination, key=A, rotate_from=A)
    # The spare key saves the day when B is lost.
    push(artifact(tmp_path, version=3), destination, key=A, rotate_from=C)
    assert read_release(destination, B.public).version == 3
    found = decode_envelope(destination.read(published.key_set(2)), "")
    assert decode_payload(found, KeySet, "").keys == (A.public,)


def test_a_spare_key_from_the_beginning(destination: Any, tmp_path: Path) -> None:
    done = push(artifact(tmp_path), destination, key=A, rotate_from=A, spares=[C.public])
    assert done.key_set == 1
    assert read_release(destination, A.public).version == 1
    push(artifact(tmp_path, version=2), destination, key=B, rotate_from=C)
    assert read_release(destination, A.public).version == 2


def test_a_rotation_needs_no_new_version(destination: Any, tmp_path: Path) -> None:
    path = artifact(tmp_path)
    push(path, destination, key=A)
    first = destination.read(published.release(1))
    done = push(path, destination, key=B, rotate_from=A)
    assert [*done.written] == [published.key_set(1), LATEST]
    assert destination.read(published.release(1)) == first
    assert read_release(destination, A.public).key_set == 1


def test_options_that_make_no_rotation(destination: Any, tmp_path: Path) -> None:
    with pytest.raises(CannotPublish, match="give --sign"):
        push(artifact(tmp_path), destination, rotate_from=A)
    with pytest.raises(CannotPublish, match="spare keys"):
        push(artifact(tmp_path), destination, key=A, spares=[B.public])


def test_an_unfinished_rotation_to_another_key_is_not_overwritten(tmp_path: Path) -> None:
    destination = FolderDestination(tmp_path / "published")
    push(artifact(tmp_path), destination, key=A)
    with pytest.raises(Crash):
        push(artifact(tmp_path, version=2), Failing(destination, 2, after=True), key=B, rotate_from=A)
    assert destination.size(published.key_set(1))
    with pytest.raises(CannotPublish, match=r"keys/1\.json is there with other content"):
        push(artifact(tmp_path, version=2), destination, key=C, rotate_from=A)
    push(artifact(tmp_path, version=2), destination, key=B, rotate_from=A)
    assert read_release(destination, A.public).version == 2


# Crashes.


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("store", [0, 1], ids=["folder", "store"])
def test_a_crash_at_any_write_leaves_the_old_release_or_the_new(tmp_path: Path, store: int, after: bool) -> None:
    old, new = artifact(tmp_path), artifact(tmp_path, version=2, seed=1)
    crashes = 0
    while True:
        place = tmp_path / str(crashes)
        inner = destinations(place)[store]
        push(old, inner, key=A)
        before = inner.read(LATEST)
        options: dict[str, Any] = {"key": B, "rotate_from": A}
        try:
            push(new, Failing(inner, crashes + 1, after), **options)
        except Crash:
            crashes += 1
        else:
            break
        found = read_release(inner, A.public)
        assert found.version == (1 if inner.read(LATEST) == before else 2)
        assert read_release(inner, B.public if found.key_set else A.public) == found
        push(new, inner, **options)
        assert read_release(inner, A.public).version == 2
        assert push(new, inner, **options).written == {}
    assert crashes == 11, "six blobs, the manifest, the key set, the release, the card, latest.json"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_write_of_the_first_push_leaves_nothing_or_all(tmp_path: Path, after: bool) -> None:
    path = artifact(tmp_path)
    for number in range(1, 11):
        inner = FolderDestination(tmp_path / str(number))
        with pytest.raises(Crash):
            push(path, Failing(inner, number, after))
        if inner.read(LATEST) is not None:
            read_release(inner)
        push(path, inner, key=A)  # and signed, this time
        assert read_release(inner, A.public).version == 1
        assert decode_envelope(inner.read(published.release(1)), "").signatures or (after and number == 10)


def test_another_artifact_under_a_version_that_was_begun_is_refused(tmp_path: Path) -> None:
    inner = FolderDestination(tmp_path / "published")
    with pytest.raises(Crash):
        push(artifact(tmp_path), Failing(inner, 8, after=True))
    assert inner.size(published.release(1))
    with pytest.raises(CannotPublish, match="begun with another artifact"):
        push(artifact(tmp_path, seed=1), inner)
    push(artifact(tmp_path, seed=1, version=2), inner)
    assert read_release(inner).version == 2


# Places.


def test_folders_that_are_none(tmp_path: Path) -> None:
    path = artifact(tmp_path)
    with pytest.raises(CannotPublish, match="an artifact itself"):
        FolderDestination(path)
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotPublish, match="is a file"):
        FolderDestination(tmp_path / "file")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hf://org/name@main", "hf upload org/name FOLDER"),
        ("http://host/name", "cannot publish to http://"),
        ("ftp://host/name", "cannot publish to ftp://"),
        ("s3://key:secret-word@bucket/name", "environment"),
        ("s3://bucket/name?secret-word", "environment"),
    ],
)
def test_addresses_that_nothing_is_published_to(text: str, message: str) -> None:
    with pytest.raises(CannotPublish, match=message) as caught:
        open_destination(text)
    assert "secret-word" not in str(caught.value)


def test_without_the_extra_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(MissingExtra, match=r"bitstrata\[publish\]"):
        open_destination("s3://bucket/name")


def test_stores_are_told_what_caches_may_keep(tmp_path: Path) -> None:
    store = MemoryStore()
    done = push(artifact(tmp_path), ObjectDestination(store, "s3://bucket/small/"))
    assert done.address == "s3://bucket/small"
    for path in done.written:
        attributes = obstore.get(store, path).attributes
        changes = path in {LATEST, "README.md"}
        assert ("no-cache" if changes else "immutable") in attributes["Cache-Control"]
        if path.endswith(".json"):
            assert attributes["Content-Type"] == "application/json"


def test_what_a_store_says_is_not_repeated() -> None:
    destination = open_destination("s3://bucket/name")
    failed = destination._failed("write", "latest.json", obstore.exceptions.PermissionDeniedError("secret-word"))  # type: ignore[attr-defined]
    assert "secret-word" not in str(failed)
    assert "the credentials do not allow it" in str(failed)


def test_a_readme_of_somebody_else_stays(destination: Any, tmp_path: Path) -> None:
    destination.write("README.md", b"# mine\n")
    done = push(artifact(tmp_path), destination)
    assert destination.read("README.md") == b"# mine\n"
    assert "stays as it is" in done.notes[0]


def test_the_hub_layout(tmp_path: Path) -> None:
    destination = FolderDestination(tmp_path / "published")
    push(artifact(tmp_path), destination, hub=True)
    assert b"blobs/sha256/* filter=lfs" in (tmp_path / "published" / ".gitattributes").read_bytes()
    assert (tmp_path / "published" / "README.md").read_text().startswith("---\nlibrary_name: bitstrata\n")


def test_a_published_folder_can_be_copied(tmp_path: Path) -> None:
    push(artifact(tmp_path), FolderDestination(tmp_path / "published"), key=A)
    shutil.copytree(tmp_path / "published", tmp_path / "copy")
    assert read_release(FolderDestination(tmp_path / "copy"), A.public).version == 1
    assert json.loads((tmp_path / "copy" / LATEST).read_text()).keys() == {"payload", "signatures"}
