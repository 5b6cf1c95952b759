"""A release: which manifest is version N of a model, who says so, and which keys may say it next.

Published as `latest.json` (and, unchanging, as `releases/<version>.json`): an envelope around the exact bytes of a
release, with signatures of those bytes. A key set, `keys/<number>.json`, is an envelope too, signed by a key of the set
before it. All are JSON in one spelling; sizes and counts are bounded before anything is decoded.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec

from bitstrata.errors import BadRelease
from bitstrata.format.manifest import Sha256
from bitstrata.graph.weights import Name
from bitstrata.limits import MAX_KEYS, MAX_MANIFEST_BYTES, MAX_RELEASE_BYTES

LATEST = "latest.json"

Version = Annotated[int, msgspec.Meta(ge=1, le=2**53 - 1)]
PublicKey = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
"""The 32 bytes of an Ed25519 key; base64 in JSON."""


class Release(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is signed: one version of one model."""

    kind: Literal["bitstrata-release"] = "bitstrata-release"
    name: Name
    version: Version
    manifest: Sha256
    manifest_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_MANIFEST_BYTES)]
    key_set: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    """The number of the newest key set when it was published; 0 where there is none."""


class KeySet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys that may sign releases of a model, from this number on until the next set."""

    kind: Literal["bitstrata-keys"] = "bitstrata-keys"
    name: Name
    number: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    """Published sets count from 1. 0 is the key that was pinned or signed with before there was any set."""
    keys: Annotated[tuple[PublicKey, ...], msgspec.Meta(min_length=1, max_length=MAX_KEYS)]


class Signature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key: PublicKey
    signature: Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]


class Envelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The bytes that are signed, and their signatures, sorted by key, no key twice."""

    payload: Annotated[bytes, msgspec.Meta(max_length=MAX_RELEASE_BYTES)]
    signatures: Annotated[tuple[Signature, ...], msgspec.Meta(max_length=MAX_KEYS)] = ()


Payload = TypeVar("Payload", Release, KeySet)
Struct = TypeVar("Struct", bound=msgspec.Struct)


def signed_bytes(payload: bytes) -> bytes:
    """What a signature is made over: never the bytes of anything else that the same key might sign."""
    return b"bitstrata release v1\n" + payload


def encode(value: msgspec.Struct) -> bytes:
    """The one spelling of a release, key set or envelope: keys sorted, no spaces."""
    return msgspec.json.encode(value, order="sorted")


def decode_envelope(content: bytes, place: str) -> Envelope:
    """The envelope that these bytes spell; `place` is named in errors."""
    envelope = _decode(content, Envelope, place)
    keys = [signature.key for signature in envelope.signatures]
    if keys != sorted(set(keys)):
        raise BadRelease(f"{place}: the signatures are not in order, or two are of one key")
    return envelope


def decode_payload(envelope: Envelope, kind: type[Payload], place: str) -> Payload:
    """What an envelope is around. Nothing about it is trusted yet."""
    return _decode(envelope.payload, kind, place)


def _decode(content: bytes, kind: type[Struct], place: str) -> Struct:
    if len(content) > MAX_RELEASE_BYTES:
        raise BadRelease(f"{place} has {len(content)} bytes, more than {MAX_RELEASE_BYTES}")
    try:
        value = msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRelease(f"{place} is not what it should be: {str(error)[:200]!a}") from None
    if encode(value) != content:
        raise BadRelease(f"{place} is not in the one spelling there is: sorted keys, none twice, no spaces")
    return value
