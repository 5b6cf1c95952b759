"""Fetching from a folder: a published model on a disk, a stick or a network share."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bitstrata.device.addresses import check_path
from bitstrata.device.bodies import collect
from bitstrata.device.sources import Body
from bitstrata.errors import AccessDenied, Interrupted, NotPublished, SourceMisbehaves
from bitstrata.format.published import LATEST

_CHUNK = 2**20

#: A link is not followed, and a pipe does not make the reader wait.
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class FolderSource:
    """A published model in a folder. The folder itself may be a link; nothing in it may be."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(os.path.abspath(os.path.expanduser(folder)))
        self.address = str(self._folder)

    def __repr__(self) -> str:
        return f"FolderSource({self.address!r})"

    def read(self, path: str, limit: int) -> bytes:
        with self.open(path) as body:
            return collect(body, limit, f"{path} of {self.address}")

    @contextmanager
    def open(self, path: str, start: int = 0, stop: int | None = None, validator: str | None = None) -> Iterator[Body]:
        place = self._folder / check_path(path)
        handle = self._open(path, place)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise SourceMisbehaves(f"{place} is not a regular file")
            now = f'"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"'
            if validator is not None and validator != now:
                start, stop = 0, None
            if start and start >= status.st_size:
                raise SourceMisbehaves(f"{place} is shorter than was published: it has {status.st_size} bytes")
            end = status.st_size if stop is None else min(stop, status.st_size)
            yield Body(start, status.st_size, now, _chunks(handle, start, end, place))
        finally:
            os.close(handle)

    def _open(self, path: str, place: Path) -> int:
        """A handle of the file, from the folder down one step at a time, so that no link on the way is followed."""
        # Where the system has no such steps, a link is looked for before; that cannot see one that is made just then.
        parts = path.split("/")
        stepwise = os.open in os.supports_dir_fd and hasattr(os, "O_DIRECTORY")
        try:
            linked = any(self._folder.joinpath(*parts[: count + 1]).is_symlink() for count in range(len(parts)))
        except OSError as error:
            raise NotPublished(f"{place} cannot be looked for: {error.strerror}") from None
        if linked:
            raise SourceMisbehaves(f"{place} is a link, or lies behind one; a published model has none")
        try:
            if not stepwise:
                return os.open(place, _FLAGS)
            handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            for left, part in zip(reversed(range(len(parts))), parts, strict=True):
                above, flags = handle, _FLAGS | os.O_DIRECTORY if left else _FLAGS
                try:
                    handle = os.open(part, flags, dir_fd=above)
                finally:
                    os.close(above)
            return handle
        except (FileNotFoundError, NotADirectoryError):
            hint = ""
            if path == LATEST:
                hint = ": this is no published model. `bitstrata push` makes one of an artifact"
            raise NotPublished(f"{place} is not there{hint}") from None
        except PermissionError:
            raise AccessDenied(f"{place} may not be read by this user") from None
        except OSError as error:
            raise Interrupted(f"{place} cannot be opened: {error.strerror}") from None


def _chunks(handle: int, start: int, end: int, place: Path) -> Iterator[bytes]:
    try:
        os.lseek(handle, start, os.SEEK_SET)
        while start < end and (chunk := os.read(handle, min(_CHUNK, end - start))):
            start += len(chunk)
            yield chunk
    except OSError as error:
        raise Interrupted(f"{place} cannot be read: {error.strerror}") from None
    if start < end:
        raise Interrupted(f"{place} became shorter while it was read")
