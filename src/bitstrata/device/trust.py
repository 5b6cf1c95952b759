"""Which releases a device accepts: signed by a key that it trusts, of the model it holds, and never an older one.

A key that was pinned by hand stands for the set that it belongs to, whichever that is. From there on the sets form a
chain, `keys/1.json`, `keys/2.json`, ...: each is signed by a key of the set before it and by one of its own, so that
nobody rotates to a key that nobody has. A release says which set was the newest when it was published, and is accepted
by a key of that very set only: what an old key signs after a rotation is refused by every device that knows of it.

Out of scope: a source that goes on showing an old release to a device that has seen none newer (a freeze).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from bitstrata.errors import BadRelease, NotPublished, Rollback, Unsigned, WrongModel, WrongSignature
from bitstrata.format import published
from bitstrata.format.release import Envelope, KeySet, Release, decode_envelope, decode_payload, signed_bytes
from bitstrata.limits import MAX_KEY_ROTATIONS

#: Bytes that a file with a public key has at most.
_MAX_KEY_FILE = 4096

#: Points of small order, their sign bit clear: anybody can make signatures that such a "key" verifies. All zeros, what
#: a placeholder looks like, is one of them.
_WEAK = {
    bytes(32).hex(),
    "01" + 31 * "00",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    *(first + 30 * "ff" + "7f" for first in ("ec", "ed", "ee")),
}


@dataclass(frozen=True)
class Accepted:
    """A release that a device may fetch."""

    release: Release
    key_set: KeySet | None
    """What to trust for this model from now on; None where nothing was pinned."""

    @property
    def signed(self) -> bool:
        """Whether a trusted key signed it. Otherwise hashes protect against damage, and nothing against forgery."""
        return self.key_set is not None


def check_release(
    content: bytes,
    place: str,
    *,
    trusted: KeySet | bytes | None,
    held: Release | None,
    next_key_set: Callable[[int], bytes],
) -> Accepted:
    """The release in the bytes of a `latest.json` or `releases/<version>.json`, if this device accepts it.

    place         what the bytes came from, for messages
    trusted       the key set that was accepted last, or a key that was just pinned by hand; None: integrity only
    held          the release that the device holds, if any
    next_key_set  fetches the bytes of the key set of a number; asked only where keys have been rotated
    """
    envelope = decode_envelope(content, place)
    release = decode_payload(envelope, Release, place)
    key_set = None
    if trusted is not None:
        if not envelope.signatures:
            raise Unsigned(f"{place} is not signed, and a key is pinned for this model: only what it signs is accepted")
        key_set = _current_set(envelope, release, trusted, _Chain(place, release.name, next_key_set))
        _check_signed(envelope, key_set.keys, place)
    if held is not None:
        _check_successor(release, held, place)
    return Accepted(release, key_set)


def fingerprint(key: bytes) -> str:
    """A public key as people compare it."""
    digest = hashlib.sha256(key).hexdigest()
    return " ".join(digest[start : start + 4] for start in range(0, 32, 4))


def read_public_key(path_or_text: str | Path) -> bytes:
    """The 32 bytes of an Ed25519 public key: from a `.pub` file, or from its 64 hex or 44 base64 characters."""
    text = str(path_or_text).strip()
    key = None if isinstance(path_or_text, Path) else _parse(text)
    place = "this text"
    if key is None:
        place = text
        try:
            with Path(text).open("rb") as file:
                content = file.read(_MAX_KEY_FILE + 1)
        except (OSError, ValueError) as error:
            # What is neither key nor file may be a secret that was put in the wrong place: it is not repeated.
            shown = text if isinstance(path_or_text, Path) or text.endswith(".pub") else "what was given"
            reason = getattr(error, "strerror", None) or "no file has such a name"
            raise BadRelease(
                f"no public key: {shown} is not 64 hex or 44 base64 characters, and as a file: {reason}"
            ) from None
        key = _parse_file(content, place)
    if bytes([*key[:31], key[31] & 0x7F]).hex() in _WEAK:
        raise BadRelease(f"{place} is no real public key: anybody can sign for it")
    return key


def _parse(text: str) -> bytes | None:
    if re.fullmatch(r"[0-9A-Fa-f]{64}", text):
        return bytes.fromhex(text)
    if re.fullmatch(r"[A-Za-z0-9+/]{43}=", text):
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error:
            return None
    return None


def _parse_file(content: bytes, place: str) -> bytes:
    if len(content) > _MAX_KEY_FILE:
        raise BadRelease(f"{place} is too long for a public key")
    if b"PRIVATE KEY" in content:
        raise BadRelease(f"{place} holds a private key: give the public one, the .pub file, and keep this one secret")
    if content.lstrip().startswith(b"-----BEGIN"):
        try:
            key = load_pem_public_key(content)
        except (ValueError, UnsupportedAlgorithm):
            raise BadRelease(f"{place} holds no public key that can be read") from None
        if not isinstance(key, Ed25519PublicKey):
            raise BadRelease(f"{place} holds a key of another kind than Ed25519")
        return key.public_bytes_raw()
    found = _parse(content.decode("ascii", errors="replace").strip())
    if found is None:
        raise BadRelease(f"{place} holds no public key: 64 hex or 44 base64 characters, or PEM")
    return found


@dataclass(frozen=True)
class _Chain:
    """The key sets of a source."""

    place: str
    name: str
    fetch: Callable[[int], bytes]

    def read(self, number: int) -> tuple[Envelope, KeySet]:
        """The set of that number. Nothing about it is trusted yet."""
        place = f"{published.key_set(number)} (which {self.place} calls for)"
        try:
            content = self.fetch(number)
        except NotPublished:
            raise WrongSignature(f"{place} is not there: whether its keys may be trusted cannot be seen") from None
        envelope = decode_envelope(content, place)
        key_set = decode_payload(envelope, KeySet, place)
        if key_set.number != number:
            raise WrongSignature(f"{place} is key set {key_set.number}")
        if key_set.name != self.name:
            raise WrongModel(f"{place} has the keys of {key_set.name!r}, and the release is of {self.name!r}")
        if len(set(key_set.keys)) != len(key_set.keys):
            raise BadRelease(f"{place} has one key twice")
        _check_signed(envelope, key_set.keys, f"{place}, by its own keys")
        return envelope, key_set

    def follow(self, current: KeySet, number: int) -> KeySet:
        """From a trusted set to a newer one, each signed by the one before."""
        if number - current.number > MAX_KEY_ROTATIONS:
            raise WrongSignature(
                f"{self.place} is {number - current.number} key sets ahead of the one held; {MAX_KEY_ROTATIONS} are "
                f"followed at most. Pin a newer key"
            )
        for wanted in range(current.number + 1, number + 1):
            envelope, following = self.read(wanted)
            self.check_follows(envelope, following, current)
            current = following
        return current

    def check_follows(self, envelope: Envelope, following: KeySet, current: KeySet) -> None:
        place = f"{published.key_set(following.number)}, by the set before it"
        _check_signed(envelope, current.keys, place)
        known = {*current.keys, *following.keys}
        if any(signature.key not in known for signature in envelope.signatures):
            raise WrongSignature(f"{place}: it has a signature by a key of neither set")


def _current_set(envelope: Envelope, release: Release, trusted: KeySet | bytes, chain: _Chain) -> KeySet:
    """The trusted set of the number that the release says it is signed by."""
    if isinstance(trusted, bytes):
        return _set_of_pin(envelope, release, trusted, chain)
    if release.key_set < trusted.number:
        raise WrongSignature(
            f"{chain.place} was signed for key set {release.key_set}, and the keys have been rotated since: "
            f"{trusted.number} is trusted now"
        )
    if release.name != trusted.name:
        raise WrongModel(
            f"{chain.place} is the model {release.name!r}; the pinned keys are those of {trusted.name!r}: fetch from "
            f"another address, or pin a key for that model too"
        )
    return chain.follow(trusted, release.key_set)


def _set_of_pin(envelope: Envelope, release: Release, key: bytes, chain: _Chain) -> KeySet:
    """The set that a key pinned by hand leads to."""
    alone = KeySet(name=release.name, number=release.key_set, keys=(key,))
    signs_release = any(signature.key == key for signature in envelope.signatures)
    if release.key_set == 0:
        return alone
    # Downwards to the newest set that the key vouches for, as one of its own or as one of the set before.
    newer: list[tuple[Envelope, KeySet]] = []
    for number in range(release.key_set, max(release.key_set - MAX_KEY_ROTATIONS, 0), -1):
        step = chain.read(number)
        if any(signature.key == key for signature in step[0].signatures):
            _check_signed(step[0], (key,), f"{published.key_set(number)}, by the pinned key")
            current = step[1]
            break
        if signs_release:
            return alone  # a spare key of the set, which was not at hand when the set was made
        newer.append(step)
    else:
        raise WrongSignature(f"{chain.place}: neither it nor any of its key sets was signed by the pinned key")
    for following_envelope, following in reversed(newer):
        chain.check_follows(following_envelope, following, current)
        current = following
    return current


def _check_signed(envelope: Envelope, keys: Iterable[bytes], place: str) -> None:
    """Raises unless one of the keys signed it, and no signature in the name of one is false."""
    trusted = set(keys)
    found = [signature for signature in envelope.signatures if signature.key in trusted]
    if not found:
        raise WrongSignature(f"{place}: no signature is by a key that is trusted for this model")
    content = signed_bytes(envelope.payload)
    for signature in found:
        try:
            Ed25519PublicKey.from_public_bytes(signature.key).verify(signature.signature, content)
        except (InvalidSignature, ValueError):
            raise WrongSignature(
                f"{place}: the signature of {fingerprint(signature.key)} is false; it was altered on the way, or forged"
            ) from None


def _check_successor(release: Release, held: Release, place: str) -> None:
    if release.name != held.name:
        raise WrongModel(f"{place} is the model {release.name!r}, and {held.name!r} is held from there")
    if release.version < held.version:
        raise Rollback(
            f"{place} is version {release.version}, and version {held.version} is held: versions only go up. (Fewer "
            f"bits of the same version are no rollback: downgrade)"
        )
    if release.version == held.version and release.manifest != held.manifest:
        raise Rollback(
            f"{place} is another version {release.version} than the one that is held: what was published under a "
            f"version never changes"
        )
