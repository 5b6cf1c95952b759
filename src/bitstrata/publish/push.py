"""Publishing an artifact: first what never changes, then `latest.json`, the one file that does.

Whatever is cut off on the way leaves the old release as it was; the same push again completes the new one, and sends
only what is missing. Versions share the files that they have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bitstrata.device.trust import fingerprint
from bitstrata.errors import BadRelease, CannotPublish, NotAnArtifact
from bitstrata.format import MANIFEST, Artifact, published, verify_artifact
from bitstrata.format.files import read_bounded, read_verified
from bitstrata.format.manifest import Manifest, Stratum, ViewEntry, sha256
from bitstrata.format.release import Envelope, KeySet, Release, decode_envelope, decode_payload, encode
from bitstrata.limits import MAX_KEYS, MAX_MANIFEST_BYTES
from bitstrata.publish.card import MARK, Facts, card
from bitstrata.publish.destinations import README, Destination
from bitstrata.publish.keys import SigningKey, seal

#: For git, whose hubs keep large files apart.
ATTRIBUTES_FILE, ATTRIBUTES = ".gitattributes", b"blobs/sha256/* filter=lfs diff=lfs merge=lfs -text\n"


@dataclass(frozen=True)
class Pushed:
    """What a push came to."""

    address: str
    name: str
    version: int
    manifest: str
    key_set: int
    signers: tuple[bytes, ...]
    """Public keys; none where the release is not signed."""
    written: dict[str, int] = field(default_factory=dict)
    """Bytes, by path, in the order of writing; nothing where all was there."""
    shared: dict[str, int] = field(default_factory=dict)
    """Bytes of strata and views that were there, by path."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Published:
    """What `latest.json` says before a push."""

    content: bytes
    envelope: Envelope
    release: Release
    key_set: KeySet | None


def push(
    artifact: str | Path,
    destination: Destination,
    *,
    key: SigningKey | None = None,
    rotate_from: SigningKey | None = None,
    spares: Sequence[bytes] = (),
    facts: Facts | None = None,
    hub: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Pushed:
    """Publishes an artifact as the newest version of its model.

    key          signs the release; needed from the first signed release on
    rotate_from  a key that devices trust so far: it signs a new key set, made of `key` and the spares
    spares       public keys that may sign and rotate too, for the day when `key` is lost
    facts        what the model card tells besides sizes
    hub          also write what a hub wants of a git repository
    """
    manifest, content = _sound_manifest(artifact)
    before = _read_published(destination)
    _check_successor(manifest, sha256(content), before, destination)
    rotation = _rotation(manifest.name, before, key, rotate_from, spares, destination)
    number = rotation[0].number if rotation else before.release.key_set if before else 0
    release = Release(
        name=manifest.name,
        version=manifest.version,
        manifest=sha256(content),
        manifest_size=len(content),
        key_set=number,
    )
    latest = _envelope(release, before, key, rotated=rotation is not None)
    writing = _Writing(destination, say)
    entries: list[Stratum | ViewEntry] = [*manifest.strata, *manifest.views]
    for entry in entries:
        path = published.blob(entry.sha256)
        if destination.size(path) == entry.size:
            writing.shared[path] = entry.size
        else:
            writing.replace(path, bytes(read_verified(Path(artifact), entry.file, entry.size, entry.sha256)))
    path = published.manifest(release.manifest)
    if destination.size(path) != release.manifest_size:
        writing.replace(path, content)
    if rotation:
        writing.new(
            published.key_set(number),
            rotation[1],
            "it is left of a rotation that was not finished. Finish that, or remove it",
        )
    writing.release(release, latest, begun=before is None or before.release.version < release.version)
    if hub and destination.size(ATTRIBUTES_FILE) is None:
        writing.replace(ATTRIBUTES_FILE, ATTRIBUTES)
    signers = tuple(signature.key for signature in decode_envelope(latest, published.LATEST).signatures)
    facts = facts or Facts()
    measured = facts.accuracy is not None or facts.latency is not None
    # The card of a release that is there may tell what was measured then.
    if measured or before is None or before.release != release or destination.size(README) is None:
        writing.card(card(Artifact.open(artifact), release, facts, signed=bool(signers)))
    if before is None or before.content != latest:
        writing.replace(published.LATEST, latest)
    return Pushed(
        destination.address,
        release.name,
        release.version,
        release.manifest,
        number,
        signers,
        writing.written,
        writing.shared,
        tuple(writing.notes),
    )


class _Writing:
    """Writes what is not there, and remembers what it wrote."""

    def __init__(self, destination: Destination, say: Callable[[str], None]) -> None:
        self._destination, self._say = destination, say
        self.written: dict[str, int] = {}
        self.shared: dict[str, int] = {}
        self.notes: list[str] = []

    def replace(self, path: str, content: bytes) -> None:
        self._say(f"{path}: {len(content):,} bytes")
        self._destination.write(path, content)
        self.written[path] = len(content)

    def new(self, path: str, content: bytes, otherwise: str) -> None:
        """A file that never changes, and is not named by its content."""
        if self._destination.write_new(path, content):
            self.written[path] = len(content)
        elif self._destination.read(path) != content:
            raise CannotPublish(
                f"{self._destination.address}/{path} is there with other content: {otherwise}. Nothing that devices "
                f"see was changed"
            )

    def release(self, release: Release, envelope: bytes, *, begun: bool) -> None:
        """`begun`: this version was never the latest, so that nobody can have it yet."""
        path = published.release(release.version)
        found = self._destination.read(path)
        if found is not None and found != envelope:
            there = decode_payload(decode_envelope(found, path), Release, path)
            if there.manifest == release.manifest and there.name == release.name:
                # Only signed otherwise. What was once published stays.
                if begun:
                    self.replace(path, envelope)
                return
        self.new(path, envelope, f"version {release.version} was begun with another artifact. Pack with a higher one")

    def card(self, text: str) -> None:
        content = text.encode()
        found = self._destination.read(README, 2**20)
        if found == content:
            return
        if found is not None and MARK.encode() not in found:
            self.notes.append(f"{README} was written by somebody else, and stays as it is")
            return
        self.replace(README, content)


def _sound_manifest(artifact: str | Path) -> tuple[Manifest, bytes]:
    """The manifest of an artifact of which every byte was checked."""
    folder = Path(artifact)
    found = Artifact.open(folder)
    content = read_bounded(folder, MANIFEST, MAX_MANIFEST_BYTES)
    verify_artifact(folder)
    if read_bounded(folder, MANIFEST, MAX_MANIFEST_BYTES) != content or len(content) != found.manifest_size:
        raise NotAnArtifact(f"{folder} was written anew while it was read: push it when that is done")
    return found.manifest, content


def _read_published(destination: Destination) -> _Published | None:
    content = destination.read(published.LATEST)
    if content is None:
        return None
    place = f"{destination.address}/{published.LATEST}"
    try:
        envelope = decode_envelope(content, place)
        release = decode_payload(envelope, Release, place)
        key_set = None
        if release.key_set:
            place = f"{destination.address}/{published.key_set(release.key_set)}"
            held = destination.read(published.key_set(release.key_set))
            if held is None:
                raise CannotPublish(f"{place} is missing: put it back, no device could follow the keys without it")
            key_set = decode_payload(decode_envelope(held, place), KeySet, place)
    except BadRelease as error:
        raise CannotPublish(f"{error}. Something else lies there, or it was damaged: choose another place") from None
    return _Published(content, envelope, release, key_set)


def _check_successor(manifest: Manifest, digest: str, before: _Published | None, destination: Destination) -> None:
    if before is None:
        return
    there = before.release
    if there.name != manifest.name:
        raise CannotPublish(
            f"{destination.address} publishes {there.name!r}; {manifest.name!r} needs a place of its own"
        )
    if manifest.version < there.version:
        raise CannotPublish(
            f"version {there.version} of {there.name} is published, and devices refuse an older one: pack this as "
            f"version {there.version + 1} to bring it back"
        )
    if manifest.version == there.version and digest != there.manifest:
        raise CannotPublish(
            f"version {there.version} of {there.name} is published with other content, and what a version means "
            f"never changes: pack this as version {there.version + 1}"
        )


def _trusted_keys(before: _Published | None) -> tuple[bytes, ...]:
    """What devices trust so far; nothing where nothing was signed yet."""
    if before is None:
        return ()
    if before.key_set is not None:
        return before.key_set.keys
    return tuple(signature.key for signature in before.envelope.signatures)


def _rotation(
    name: str,
    before: _Published | None,
    key: SigningKey | None,
    rotate_from: SigningKey | None,
    spares: Sequence[bytes],
    destination: Destination,
) -> tuple[KeySet, bytes] | None:
    """The next key set and its envelope, where there is to be one; checks that devices will trust the key."""
    trusted = _trusted_keys(before)
    if rotate_from is None:
        if spares:
            raise CannotPublish("spare keys come with a new key set: give the key to rotate from, too")
        if key is not None and trusted and key.public not in trusted:
            known = ", ".join(map(fingerprint, trusted))
            raise CannotPublish(
                f"devices trust {known} for {name}, and would refuse what {fingerprint(key.public)} signs: give the "
                f"trusted key too, with --rotate-from"
            )
        return None
    if key is None:
        raise CannotPublish("a rotation needs the new key, which signs from now on: give --sign")
    keys = tuple(sorted({key.public, *spares}))
    if len(keys) > MAX_KEYS:
        raise CannotPublish(f"{len(keys)} keys are more than the {MAX_KEYS} that a key set holds")
    number = before.release.key_set if before else 0
    if before is not None and before.key_set is not None and tuple(sorted(before.key_set.keys)) == keys:
        return None  # done by an earlier push
    if trusted and rotate_from.public not in trusted:
        raise CannotPublish(
            f"devices trust {', '.join(map(fingerprint, trusted))} for {name}, and {fingerprint(rotate_from.public)} "
            f"is none of them: it cannot say who comes next"
        )
    following = KeySet(name=name, number=number + 1, keys=keys)
    return following, seal(following, [rotate_from, key])


def _envelope(release: Release, before: _Published | None, key: SigningKey | None, *, rotated: bool) -> bytes:
    """The bytes of the new `latest.json`."""
    same = before is not None and encode(before.release) == encode(release)
    if key is not None:
        return seal(release, [key])
    if before is not None and before.envelope.signatures:
        if same and not rotated:
            return before.content
        raise CannotPublish(
            f"{release.name} has been signed so far, and devices that pinned its key would refuse an unsigned release: "
            f"give --sign"
        )
    return seal(release, [])
