"""Reading a file of an artifact once, so that the bytes that are checked are the bytes that are used."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from bitstrata.errors import MissingFile, NotARegularFile, WrongHash, WrongSize
from bitstrata.format.manifest import sha256

#: A link is not followed, and a pipe does not make the reader wait.
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

#: Bytes per call; some systems read no more than 2 GB at once.
_CHUNK = 2**26


def read_verified(folder: Path, file: str, size: int, digest: str) -> bytes:
    """The bytes of a file that has this size and sha256."""
    content = read_bounded(folder, file, size)
    if len(content) != size:
        raise WrongSize(f"{folder / file} has {len(content)} bytes, and the manifest says {size}: fetch it again")
    if sha256(content) != digest:
        raise WrongHash(
            f"{folder / file} is damaged or belongs to another artifact: its sha256 is not the manifest's. Fetch it "
            f"again"
        )
    return content


def read_bounded(folder: Path, file: str, limit: int) -> bytes:
    """The bytes of a regular file of at most `limit` bytes."""
    path = folder / file
    if path.is_symlink():
        raise NotARegularFile(f"{path} is a link; an artifact holds regular files only")
    try:
        handle = os.open(path, _FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFile(f"{path} is not there") from None
    except PermissionError:
        raise
    except OSError as error:
        raise NotARegularFile(f"{path} cannot be opened: {error.strerror}") from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise NotARegularFile(f"{path} is not a regular file")
        if status.st_size > limit:
            raise WrongSize(f"{path} has {status.st_size} bytes, more than the {limit} it may have")
        # One byte more than it had when it was opened shows a file that grows under the reader.
        parts, left = [], status.st_size + 1
        while left and (part := os.read(handle, min(left, _CHUNK))):
            parts.append(part)
            left -= len(part)
    finally:
        os.close(handle)
    if not left:
        raise WrongSize(f"{path} grew while it was read")
    return b"".join(parts)
