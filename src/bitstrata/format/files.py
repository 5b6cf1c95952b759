"""Reading a file of an artifact once, so that the bytes that are checked are the bytes that are used."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from pathlib import Path

from bitstrata.errors import MissingFile, NotARegularFile, WrongHash, WrongSize
from bitstrata.format.manifest import sha256

#: A link is not followed, and a pipe does not make the reader wait.
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

#: Bytes per call; some systems read no more than 2 GB at once.
_CHUNK = 2**26


#: Memory of at least this many bytes comes in pages of this size where the system has them: one is made much quicker
#: than the 512 small ones in its place.
_HUGE_PAGE = 2**21

Content = bytes | memoryview
"""The bytes of a file, in memory that nobody else writes to."""


def read_verified(folder: Path, file: str, size: int, digest: str) -> Content:
    """The bytes of a file that has this size and sha256."""
    content = _read(folder, file, size)
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
    return bytes(_read(folder, file, limit))


def _read(folder: Path, file: str, limit: int) -> Content:
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
        if status.st_size >= _HUGE_PAGE and hasattr(os, "readv") and hasattr(mmap, "MADV_HUGEPAGE"):
            content, grown = _read_to_huge_pages(handle, status.st_size)
        else:
            content, grown = _read_to_bytes(handle, status.st_size)
    finally:
        os.close(handle)
    if grown:
        raise WrongSize(f"{path} grew while it was read")
    return content


def _read_to_bytes(handle: int, size: int) -> tuple[Content, bool]:
    """What is there, and whether there is more than `size` bytes of it."""
    parts, left = [], size + 1
    while left and (part := os.read(handle, min(left, _CHUNK))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts), not left


def _read_to_huge_pages(handle: int, size: int) -> tuple[Content, bool]:
    """The same. This is memory of the process alone: the file is copied to it, not mapped."""
    whole = -(-size // _HUGE_PAGE) * _HUGE_PAGE  # such a size begins where a huge page may
    memory = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system built without them
        memory.madvise(mmap.MADV_HUGEPAGE, 0, size // _HUGE_PAGE * _HUGE_PAGE)
    view = memoryview(memory)
    count = 0
    while count < size and (part := os.readv(handle, [view[count : min(count + _CHUNK, size)]])):
        count += part
    return view[:count].toreadonly(), bool(count == size and os.read(handle, 1))
