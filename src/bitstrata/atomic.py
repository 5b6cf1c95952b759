"""Replacing a file so that a crash at any instruction leaves the old one or the new one, whole."""

from __future__ import annotations

import glob
import os
import secrets
from pathlib import Path


def write_atomically(path: str | Path, content: bytes) -> None:
    """Writes `content` to a temporary file beside `path`, brings it to the disk, and renames it over `path`."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.partial")
    # Not mkstemp: its files are for their owner only, and what is written here may be published.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(target.parent)


def remove_partial(path: str | Path) -> None:
    """Removes the temporary files of writers of `path` that were killed; for when nobody else is writing it."""
    target = Path(path)
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
        left.unlink(missing_ok=True)


def sync_directory(folder: Path) -> None:
    """Brings a rename to the disk; not every system can open a directory, and those need no such call."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
