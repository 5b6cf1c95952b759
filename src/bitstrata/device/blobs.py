"""Files by what is in them: a blob's name is its sha256, and only verified bytes ever get that name."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Set
from pathlib import Path

from bitstrata.atomic import sync_directory, write_atomically
from bitstrata.device.home import Home
from bitstrata.errors import MissingFile, NoSpace, NotARegularFile, WrongHash, WrongSize
from bitstrata.format.files import Content, read_verified
from bitstrata.format.manifest import sha256

#: Bytes that must stay free on the disk: for records, and for whoever else writes.
MARGIN = 2**20

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Blobs:
    """The blobs of a store. Changes are made under its lock; reading needs none."""

    def __init__(self, home: Home) -> None:
        self.home = home

    def has(self, digest: str, size: int) -> bool:
        """Whether it is there, by name and size; its bytes are verified when they are read."""
        try:
            status = os.lstat(self.home.blobs / digest)
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size == size

    def read(self, digest: str, size: int) -> Content:
        """Its bytes, hashed in memory: those very bytes are used."""
        return read_verified(self.home.blobs, digest, size, digest)

    def put(self, content: bytes) -> str:
        """Stores bytes that are already verified."""
        digest = sha256(content)
        if not self.has(digest, len(content)):
            write_atomically(self.home.blobs / digest, content)
        return digest

    def partial(self, digest: str) -> Path:
        return self.home.partial / digest

    def adopt(self, digest: str) -> None:
        """Gives the partial file of a digest its place; its bytes have been verified and brought to the disk."""
        os.replace(self.partial(digest), self.home.blobs / digest)
        sync_directory(self.home.blobs)
        self.notes_of(self.partial(digest)).unlink(missing_ok=True)

    @staticmethod
    def notes_of(partial: Path) -> Path:
        """What a download wrote down about its partial file."""
        return partial.with_name(partial.name + ".json")

    def fetched(self, digest: str) -> int:
        """Bytes of its partial file."""
        try:
            return os.lstat(self.partial(digest)).st_size
        except OSError:
            return 0

    def remove(self, digest: str) -> int:
        """Removes a blob; the bytes that this frees."""
        path = self.home.blobs / digest
        try:
            size = os.lstat(path).st_size
            path.unlink()
        except FileNotFoundError:
            return 0
        return size

    def collect(self, needed: Set[str]) -> tuple[int, int]:
        """Removes all blobs but the needed ones, and what killed processes left; files removed, and their bytes."""
        files = size = 0
        for folder in (self.home.blobs, self.home.partial, self.home.models):
            for path in _entries(folder):
                if folder == self.home.blobs and path.name in needed:
                    continue
                if folder == self.home.models and not path.name.endswith(".partial"):
                    continue
                status = os.lstat(path)
                if path.is_dir() and not path.is_symlink():
                    continue  # nothing of ours
                path.unlink(missing_ok=True)
                files, size = files + 1, size + status.st_size
        return files, size

    def check(self, digests: dict[str, int]) -> list[str]:
        """Those among blobs (with their sizes) that are missing, or whose bytes are wrong; wrong ones are removed."""
        bad = []
        for digest, size in digests.items():
            try:
                self.read(digest, size)
            except MissingFile:
                bad.append(digest)
            except NotARegularFile:
                if self.has(digest, size):
                    raise  # it could not be opened just now; that says nothing about its bytes
                self.remove(digest)
                bad.append(digest)
            except (WrongHash, WrongSize):
                self.remove(digest)
                bad.append(digest)
        return bad

    def make_room(self, size: int) -> None:
        """Raises where so many bytes more would not fit the disk."""
        free = shutil.disk_usage(self.home.root).free
        if free < size + MARGIN:
            raise NoSpace(
                errno.ENOSPC,
                f"{size:,} bytes are to be fetched and {free:,} are free in {self.home.root}: make room "
                f"(`bitstrata gc`, `bitstrata downgrade NAME --prune`), or choose fewer bits",
            )


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
