"""Bringing one file here, whole and verified, through every interruption, without fetching a byte twice."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import msgspec

from bitstrata.atomic import write_atomically
from bitstrata.device.bodies import strong_validator
from bitstrata.device.retries import Attempts, Retries
from bitstrata.device.sources import Body, Source
from bitstrata.errors import Interrupted, SourceMisbehaves, WrongContent
from bitstrata.limits import MAX_ADDRESS

_CHUNK = 2**20

_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Beside a partial file: which source its bytes came from, and what that source calls this state of the file."""

    address: str
    path: str
    validator: str | None
    version: int = 1


def download(
    source: Source,
    path: str,
    digest: str,
    size: int,
    partial: Path,
    *,
    progress: Callable[[int], None] | None = None,
    policy: Retries | None = None,
) -> None:
    """Fetches a file of this size and sha256 into `partial`, from where an earlier call was interrupted.

    When it returns, the file is complete, verified and on the disk. When it raises, what came is kept for the next
    call, except bytes that were found to be wrong.
    """
    attempts = Attempts(policy or Retries())
    with _Partial(partial, source.address, path, size, progress or (lambda count: None)) as file:
        # What disagrees may be the mistake of one server or cache among many: the whole is asked for once more.
        for last in (False, True):
            try:
                _complete(source, path, file, attempts, from_the_start=last)
            except SourceMisbehaves:
                if last:
                    raise
                continue
            if file.digest() == digest:
                break
            file.begin_anew()
        else:
            file.remove()
            raise WrongContent(
                f"{path} of {source.address}: all {size} bytes came, and they are not those that were published (their "
                f"sha256 is another). The source is damaged or not to be trusted; nothing of it is kept"
            )
        file.finish()


def download_range(source: Source, path: str, start: int, stop: int, *, policy: Retries | None = None) -> bytes:
    """The bytes of a file from `start` to `stop`; whether they are the right ones is for the caller to check."""
    attempts = Attempts(policy or Retries())
    content, validator = bytearray(), None
    place = f"{path} of {source.address}"
    while len(content) < stop - start:
        asked = start + len(content)
        try:
            with source.open(path, asked, stop, validator) as body:
                if body.start != asked:
                    content.clear()
                validator, position = body.validator, body.start
                for chunk in body.chunks:
                    attempts.check_time(place)
                    wanted = chunk[max(0, start - position) : max(0, stop - position)]
                    position += len(chunk)
                    content += wanted
                    attempts.brought(len(wanted))
                    if position >= stop:
                        break
            if position < stop:
                raise Interrupted(f"{place}: {position} bytes came of the first {stop}")
        except Interrupted as error:
            attempts.failed(error)
    return bytes(content)


def download_small(source: Source, path: str, limit: int, *, policy: Retries | None = None) -> bytes:
    """A small file as a whole, with the same tries."""
    attempts = Attempts(policy or Retries())
    while True:
        try:
            return source.read(path, limit)
        except Interrupted as error:
            attempts.failed(error)


def _complete(source: Source, path: str, file: _Partial, attempts: Attempts, *, from_the_start: bool) -> None:
    """Fetches until the partial file has its size."""
    place = f"{path} of {source.address}"
    furthest = file.count
    file.report()
    while from_the_start or file.count < file.size:
        try:
            with source.open(path, 0 if from_the_start else file.count, None, file.validator) as body:
                if body.size is not None and body.size != file.size:
                    raise SourceMisbehaves(f"{place} has {body.size} bytes, and {file.size} were published")
                # What is there is given up only when something better comes, not for the page of some gateway.
                first = next(body.chunks, b"")
                file.accept(body)
                from_the_start = False
                for chunk in chain([first], body.chunks):
                    attempts.check_time(place)
                    file.write(chunk)
                    attempts.brought(max(0, file.count - furthest))
                    furthest = max(furthest, file.count)
                    if file.count == file.size:
                        break
            if file.count < file.size:
                raise Interrupted(f"{place}: the connection ended after {file.count} of {file.size} bytes")
        except Interrupted as error:
            attempts.failed(error)


class _Partial:
    """A file that is being fetched, the hash of what is there of it, and the record beside it."""

    def __init__(self, place: Path, address: str, path: str, size: int, progress: Callable[[int], None]) -> None:
        self.size = size
        self.count = 0
        self.validator: str | None = None
        self._place = place
        self._record_place = place.with_name(f"{place.name}.json")
        self._address, self._path = address, path
        self._progress = progress
        self._hash = hashlib.sha256()
        self._wrong = False

    def __enter__(self) -> _Partial:
        self._handle = os.open(self._place, _FLAGS, 0o666)
        try:
            self._resume()
        except BaseException:
            os.close(self._handle)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)
        if self._wrong:
            self._place.unlink(missing_ok=True)

    def report(self) -> None:
        self._progress(self.count)

    def digest(self) -> str:
        return self._hash.hexdigest()

    def accept(self, body: Body) -> None:
        """Makes ready for a body. Old bytes go before the record of new ones comes: it never covers both."""
        if body.start != self.count:
            self.begin_anew()
        if body.validator != self.validator:
            record = _Record(self._address, self._path, body.validator)
            write_atomically(self._record_place, msgspec.json.encode(record))
            self.validator = body.validator

    def write(self, chunk: bytes) -> None:
        """Appends, never beyond the size."""
        view = memoryview(chunk)[: self.size - self.count]
        while view:
            written = os.write(self._handle, view)
            if written <= 0:
                raise OSError(errno.EIO, "nothing was written", str(self._place))
            self._hash.update(view[:written])
            self.count += written
            view = view[written:]
        self._progress(self.count)

    def begin_anew(self) -> None:
        os.ftruncate(self._handle, 0)
        os.lseek(self._handle, 0, os.SEEK_SET)
        self._record_place.unlink(missing_ok=True)
        self._hash, self.count, self.validator = hashlib.sha256(), 0, None

    def finish(self) -> None:
        os.fsync(self._handle)
        self._record_place.unlink(missing_ok=True)

    def remove(self) -> None:
        """Nothing is left that a later call could take for good."""
        self._wrong = True
        self.begin_anew()

    def _resume(self) -> None:
        """Takes up what is there. Bytes are named by their hash, so that another source may send the rest."""
        if os.fstat(self._handle).st_size > self.size:
            self.begin_anew()
            return
        while chunk := os.read(self._handle, _CHUNK):
            self._hash.update(chunk)
            self.count += len(chunk)
        record = self._read_record()
        if self.count and record and (record.address, record.path) == (self._address, self._path):
            self.validator = strong_validator(record.validator)

    def _read_record(self) -> _Record | None:
        """None where there is none that can be used; the hash of the whole decides in the end."""
        try:
            with open(self._record_place, "rb") as file:
                record = msgspec.json.decode(file.read(2 * MAX_ADDRESS), type=_Record)
        except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return record if record.version == 1 else None
