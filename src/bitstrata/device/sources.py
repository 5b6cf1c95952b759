"""Where a device fetches from: a folder, a web server, an object store, a model hub; all are bytes under paths."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Body:
    """The bytes of a file from some place on."""

    start: int
    """Where they begin: where it was asked for, or 0 where the source sends the whole file."""
    size: int | None
    """Of the whole file, where the source says so."""
    validator: str | None
    """A strong ETag of what is being sent: with it the rest can be asked for later."""
    chunks: Iterator[bytes]


class Source(Protocol):
    """A published model. Errors are `FetchFailed`; those that another try may mend are `Interrupted`."""

    address: str
    """For messages and records: without secrets. `open_source(address)` finds the same source again."""

    def read(self, path: str, limit: int) -> bytes:
        """A small file as a whole; more than `limit` bytes are an error, and are not fetched."""
        ...

    def open(
        self, path: str, start: int = 0, stop: int | None = None, validator: str | None = None
    ) -> AbstractContextManager[Body]:
        """A file from `start` on (to `stop`, exclusive), if it is still the one that the validator is of; else all."""
        ...
