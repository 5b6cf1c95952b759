"""The publisher's keys: made once, kept secret, used to sign releases and the key sets that follow them."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from bitstrata.errors import BadKey, CannotPublish
from bitstrata.format.release import Envelope, KeySet, Release, Signature, encode, signed_bytes

#: The environment variable with the passphrase of private keys.
PASSPHRASE = "BITSTRATA_KEY_PASSPHRASE"  # noqa: S105 (its name, not its value)
#: That of the key that is rotated away, where it has another.
OLD_PASSPHRASE = "BITSTRATA_OLD_KEY_PASSPHRASE"  # noqa: S105

_MAX_KEY_FILE = 16_384


class SigningKey:
    """A private key. It shows nothing of itself but its public half."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"SigningKey(public={public_text(self.public)})"

    def sign(self, payload: bytes) -> Signature:
        return Signature(key=self.public, signature=self._key.sign(signed_bytes(payload)))


@dataclass(frozen=True)
class KeyFiles:
    """A new pair of keys on disk."""

    private: Path
    public: Path
    key: bytes
    """The public one."""
    encrypted: bool


def generate(name: str | Path) -> KeyFiles:
    """Writes a new `NAME.key`, for its owner's eyes only, and `NAME.pub`; neither may exist.

    With a passphrase in the environment variable BITSTRATA_KEY_PASSPHRASE the private key is encrypted with it.
    """
    private, public = Path(f"{name}.key"), Path(f"{name}.pub")
    for path in (private, public):
        if path.exists() or path.is_symlink():
            raise CannotPublish(f"{path} is there, and a key is never overwritten: choose another name")
    passphrase = _passphrase()
    encryption: KeySerializationEncryption = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    key = Ed25519PrivateKey.generate()
    _write_new(private, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption), 0o600)
    signing = SigningKey(key)
    try:
        _write_new(public, f"{public_text(signing.public)}\n".encode(), 0o644)
    except BaseException:
        private.unlink(missing_ok=True)  # nobody has used it yet
        raise
    return KeyFiles(private, public, signing.public, passphrase is not None)


def load_key(path: str | Path, *variables: str) -> SigningKey:
    """The private key of a PEM file; where it is encrypted, by the first of these environment variables that is set.

    BITSTRATA_KEY_PASSPHRASE is always the last of them.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_KEY_FILE)
    except OSError as error:
        raise BadKey(f"the key {path} cannot be read: {error.strerror}") from None
    passphrase = next(filter(None, map(_passphrase, (*variables, PASSPHRASE))), None)
    encrypted = b"ENCRYPTED" in content
    if encrypted and passphrase is None:
        raise BadKey(f"the key {path} is encrypted: put its passphrase into the environment variable {PASSPHRASE}")
    try:
        key = load_pem_private_key(content, passphrase if encrypted else None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # The reason of the library is left out: it may repeat what it could not read.
        if encrypted:
            raise BadKey(f"the key {path} is damaged, or {PASSPHRASE} is not its passphrase") from None
        hint = "; it looks like a public key, and signing needs the .key file" if str(path).endswith(".pub") else ""
        raise BadKey(f"{path} is no private key in PEM form{hint}. `bitstrata keygen` makes one") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise BadKey(f"the key {path} is of another kind than Ed25519. `bitstrata keygen` makes one")
    return SigningKey(key)


def seal(payload: Release | KeySet, keys: Sequence[SigningKey]) -> bytes:
    """The envelope around a release or key set, signed by these keys. The same for the same content and keys."""
    content = encode(payload)
    distinct = {key.public: key for key in keys}
    signatures = tuple(distinct[public].sign(content) for public in sorted(distinct))
    return encode(Envelope(payload=content, signatures=signatures))


def public_text(key: bytes) -> str:
    """A public key as it is written: 44 base64 characters."""
    return base64.b64encode(key).decode("ascii")


def open_to_others(path: str | Path) -> bool:
    """Whether other users of this machine may read a file."""
    return os.name == "posix" and bool(Path(path).stat().st_mode & 0o077)


def _passphrase(variable: str = PASSPHRASE) -> bytes | None:
    """An empty one is none."""
    return os.environ.get(variable, "").encode() or None


def _write_new(path: Path, content: bytes, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags, mode)
    except FileExistsError:
        raise CannotPublish(f"{path} is there, and a key is never overwritten: choose another name") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
