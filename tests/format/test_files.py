"""Reading a file once: what was hashed is what is used, whatever happens to the file; in huge pages too."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from bitstrata.errors import WrongHash, WrongSize
from bitstrata.format import files
from bitstrata.format.files import read_bounded, read_verified

#: Below a huge page, one exactly, and some with parts of another.
SIZES = [1000, 2**21 - 1, 2**21, 2**21 + 1, 5_000_000]


def write(folder: Path, size: int) -> tuple[bytes, str]:
    content = np.random.default_rng(size).bytes(size)
    (folder / "file").write_bytes(content)
    return content, hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("size", SIZES)
def test_the_bytes_of_a_file(tmp_path: Path, size: int) -> None:
    content, digest = write(tmp_path, size)
    found = read_verified(tmp_path, "file", size, digest)
    assert found == content
    assert read_bounded(tmp_path, "file", size) == content
    assert memoryview(found).readonly
    assert not np.frombuffer(found, np.uint8).flags.writeable


@pytest.mark.parametrize("size", SIZES)
def test_a_flipped_bit_anywhere(tmp_path: Path, size: int) -> None:
    content, digest = write(tmp_path, size)
    for place in {0, 1, 4095, 4096, 2**21 - 1, 2**21, size // 2, size - 1}:
        if place < size:
            damaged = bytearray(content)
            damaged[place] ^= 16
            (tmp_path / "file").write_bytes(damaged)
            with pytest.raises(WrongHash, match="damaged"):
                read_verified(tmp_path, "file", size, digest)


@pytest.mark.parametrize("size", SIZES)
def test_a_file_that_changes_after_it_was_hashed_is_not_seen(tmp_path: Path, size: int) -> None:
    content, digest = write(tmp_path, size)
    found = read_verified(tmp_path, "file", size, digest)
    with open(tmp_path / "file", "r+b") as file:  # in place: the very file that was read
        file.write(bytes(size))
    assert found == content
    os.truncate(tmp_path / "file", 0)
    assert hashlib.sha256(found).hexdigest() == digest


@pytest.mark.parametrize("size", SIZES)
def test_files_of_other_sizes(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    content, digest = write(tmp_path, size)
    with pytest.raises(WrongSize, match="more than the"):
        read_verified(tmp_path, "file", size - 1, digest)
    with pytest.raises(WrongSize, match="the manifest says"):
        read_verified(tmp_path, "file", size + 1, digest)
    monkeypatch.setattr(files, "_CHUNK", size // 3)
    assert read_verified(tmp_path, "file", size, digest) == content
    whole = os.fstat

    def shrunk(handle: int) -> os.stat_result:
        """As if the file had grown since."""
        status = list(whole(handle))
        status[6] -= 1
        return os.stat_result(status)

    monkeypatch.setattr(files.os, "fstat", shrunk)
    with pytest.raises(WrongSize, match="grew"):
        read_verified(tmp_path, "file", size, digest)
