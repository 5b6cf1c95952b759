"""Keys are made once, readable by their owner alone, and no secret ever shows in a message."""

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from publishing import key, key_set, release

from bitstrata.device.trust import check_release, read_public_key
from bitstrata.errors import BadKey, CannotPublish
from bitstrata.format.release import decode_envelope
from bitstrata.publish.keys import OLD_PASSPHRASE, PASSPHRASE, generate, load_key, open_to_others, seal

SECRET = "correct horse battery staple"


def test_a_pair_of_keys(tmp_path: Path) -> None:
    made = generate(tmp_path / "mine")
    assert made.private.name == "mine.key"
    assert read_public_key(made.public) == made.key
    signing = load_key(made.private)
    assert signing.public == made.key
    accepted = check_release(
        seal(release(), [signing]), "latest.json", trusted=made.key, held=None, next_key_set=lambda number: b""
    )
    assert accepted.signed
    assert not made.encrypted


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_the_private_key_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = generate(tmp_path / "mine")
    finally:
        os.umask(before)
    assert stat.S_IMODE(made.private.stat().st_mode) == 0o600
    assert not open_to_others(made.private)
    made.private.chmod(0o640)
    assert open_to_others(made.private)


@pytest.mark.parametrize("suffix", [".key", ".pub"])
def test_nothing_is_overwritten(tmp_path: Path, suffix: str) -> None:
    there = tmp_path / f"mine{suffix}"
    there.write_text("mine")
    with pytest.raises(CannotPublish, match="never overwritten"):
        generate(tmp_path / "mine")
    assert [path.name for path in tmp_path.iterdir()] == [there.name]
    assert there.read_text() == "mine"


def test_half_a_pair_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def full(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith(".pub"):
            raise OSError(errno.ENOSPC, "disk full")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match="disk full"):
        generate(tmp_path / "mine")
    assert not [*tmp_path.iterdir()]


def test_a_passphrase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSPHRASE, SECRET)
    made = generate(tmp_path / "mine")
    assert made.encrypted
    assert b"ENCRYPTED" in made.private.read_bytes()
    assert load_key(made.private).public == made.key
    monkeypatch.setenv(OLD_PASSPHRASE, SECRET)
    monkeypatch.setenv(PASSPHRASE, "another")
    assert load_key(made.private, OLD_PASSPHRASE).public == made.key
    with pytest.raises(BadKey, match="not its passphrase") as caught:
        load_key(made.private)
    assert "another" not in str(caught.value)
    monkeypatch.delenv(PASSPHRASE)
    with pytest.raises(BadKey, match=f"environment variable {PASSPHRASE}"):
        load_key(made.private)


def test_what_is_no_private_key(tmp_path: Path) -> None:
    made = generate(tmp_path / "mine")
    other = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "other.key").write_bytes(other)
    damaged = made.private.read_bytes().replace(b"MC4", b"MD4")
    (tmp_path / "damaged.key").write_bytes(damaged)
    (tmp_path / "empty.key").write_bytes(b"")
    for path, message in (
        (made.public, "looks like a public key"),
        (tmp_path / "other.key", "another kind than Ed25519"),
        (tmp_path / "damaged.key", "no private key"),
        (tmp_path / "empty.key", "no private key"),
        (tmp_path / "missing.key", "cannot be read"),
        (tmp_path, "cannot be read"),
    ):
        with pytest.raises(BadKey, match=message) as caught:
            load_key(path)
        assert damaged.split(b"\n")[1].decode()[4:] not in str(caught.value)


def test_a_signing_key_shows_its_public_half_only(tmp_path: Path) -> None:
    made = generate(tmp_path / "mine")
    shown = repr(load_key(made.private))
    assert made.public.read_text().strip() in shown
    assert made.private.read_bytes().split(b"\n")[1].decode() not in shown


def test_envelopes_are_the_same_for_the_same_keys() -> None:
    a, b = key(1), key(2)
    assert seal(release(), [a, b]) == seal(release(), [b, a, a])
    assert len(decode_envelope(seal(key_set(1, a, b), [a, b]), "").signatures) == 2
