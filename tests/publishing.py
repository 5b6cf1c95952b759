"""Keys, key sets and releases for tests, made without files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from artifacts import INPUT, small_network
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bitstrata.errors import NotPublished
from bitstrata.format import write_artifact
from bitstrata.format.release import KeySet, Release
from bitstrata.publish.keys import SigningKey, seal


def key(number: int) -> SigningKey:
    """Always the same key for a number."""
    return SigningKey(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))


def release(version: int = 1, *, name: str = "small", manifest: str = "ab" * 32, key_set: int = 0) -> Release:
    return Release(name=name, version=version, manifest=manifest, manifest_size=1000, key_set=key_set)


def key_set(number: int, *keys: SigningKey, name: str = "small") -> KeySet:
    return KeySet(name=name, number=number, keys=tuple(sorted(one.public for one in keys)))


def chain(*sets: tuple[KeySet, Sequence[SigningKey]]) -> Callable[[int], bytes]:
    """A source of key sets, each sealed by the keys beside it."""
    sealed = {one.number: seal(one, keys) for one, keys in sets}

    def fetch(number: int) -> bytes:
        if number not in sealed:
            raise NotPublished(f"keys/{number}.json is not there")
        return sealed[number]

    return fetch


def artifact(folder: Path, version: int = 1, seed: int = 0, name: str = "small") -> Path:
    path = folder / f"{name}-{version}-{seed}.strata"
    write_artifact(path, small_network(seed=seed), name=name, version=version, input=INPUT)
    return path
