"""Downloads through every fault of a server: the right bytes or a typed error, in bounded time, nothing twice."""

import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from device.server import Faults, Server

from bitstrata.device.download import download, download_range, download_small
from bitstrata.device.folder import FolderSource
from bitstrata.device.http import HttpSource
from bitstrata.device.pace import Patience
from bitstrata.device.retries import Retries
from bitstrata.device.sources import Body
from bitstrata.errors import (
    AccessDenied,
    FetchFailed,
    Interrupted,
    NotPublished,
    SourceMisbehaves,
    SourceUnreachable,
    WrongContent,
)

QUICK = Retries(tries=4, first_pause=0.01, longest_pause=0.05, progress=1000, seconds=20)
IMPATIENT = Patience(connect=2, stall=0.4, window=0.5, slowest=2000)

CONTENT = random.Random(7).randbytes(300_000)


def fetch(server: Server, place: Path, content: bytes = CONTENT, **options: Any) -> None:
    path, digest = server.add(content)
    options.setdefault("policy", QUICK)
    source = HttpSource(server.address, patience=IMPATIENT)
    download(source, path, digest, len(content), place, **options)
    assert place.read_bytes() == content
    assert not place.with_name(place.name + ".json").exists()


def test_whole_file_with_progress(server: Server, tmp_path: Path) -> None:
    steps: list[int] = []
    fetch(server, tmp_path / "partial", progress=steps.append)
    assert steps[0] == 0
    assert steps[-1] == len(CONTENT)
    assert steps == sorted(steps)
    assert server.body_bytes == len(CONTENT)
    assert server.requests[0].headers["Accept-Encoding"] == "identity"


def test_empty_file_needs_no_request(server: Server, tmp_path: Path) -> None:
    fetch(server, tmp_path / "partial", b"")
    assert not server.requests


@pytest.mark.parametrize(
    "faults",
    [
        Faults(statuses=[500, 503, 502]),
        Faults(statuses=[429], retry_after="1"),
        Faults(statuses=[503], retry_after="Wed, 21 Oct 2015 07:28:00 GMT"),
        Faults(statuses=[503], retry_after="soon"),
        Faults(statuses=[408, 425]),
        Faults(cuts=[100_000, 50_000]),
        Faults(cuts=[100_000, 50_000], reset=True),
        Faults(cuts=[0, 0]),
        Faults(cuts=[100_000], no_ranges=True),
        Faults(cuts=[100_000], content_range="bytes 0-199999/300000"),
        Faults(cuts=[100_000], content_range="bytes 100000-299999/300001"),
        Faults(cuts=[100_000], content_range=""),
        Faults(cuts=[100_000], content_range="nonsense"),
        Faults(cuts=[100_000], etags=['"one"', '"two"']),
        Faults(cuts=[100_000], etags=['"one"', '"two"'], ignore_if_range=True),
        Faults(cuts=[100_000], etags=['W/"one"', 'W/"two"']),
        Faults(chunked=True, cuts=[100_000]),
        Faults(unframed=True, cuts=[100_000]),
        Faults(endless=True),
        Faults(endless=True, unframed=True),
    ],
    ids=str,
)
def test_faults_that_are_overcome(server: Server, tmp_path: Path, faults: Faults) -> None:
    server.faults = faults
    begin = time.monotonic()
    fetch(server, tmp_path / "partial")
    assert time.monotonic() - begin < 20


@pytest.mark.parametrize(
    ("faults", "error", "says"),
    [
        (Faults(always=500), SourceUnreachable, "answered 500.*tried 4 times"),
        (Faults(always=429, retry_after="86400"), SourceUnreachable, "answered 429"),
        (Faults(always=401), AccessDenied, "BITSTRATA_TOKEN"),
        (Faults(always=403), AccessDenied, "BITSTRATA_TOKEN"),
        (Faults(always=404), NotPublished, "not there"),
        (Faults(always=410), NotPublished, "not there"),
        (Faults(always=416), SourceMisbehaves, "shorter"),
        (Faults(always=418), SourceMisbehaves, "418"),
        (Faults(always=204), SourceMisbehaves, "204"),
        (Faults(page=True), SourceMisbehaves, f"74 bytes, and {len(CONTENT)} were published"),
        (Faults(page=True, chunked=True), SourceMisbehaves, "web page.*login"),
        (Faults(encoded=True), SourceMisbehaves, "encoded"),
        (Faults(extra_length=5), SourceMisbehaves, "bytes, and .* were published"),
        (Faults(extra_length=-5), SourceMisbehaves, "bytes, and .* were published"),
        (Faults(cut_every=0), SourceUnreachable, "tried 4 times"),
        (Faults(cut_every=50_000, no_ranges=True), SourceUnreachable, "tried"),
        (Faults(drip=0.02), SourceUnreachable, "less than 2000 a second"),
        (Faults(drip=0.02, chunked=True), SourceUnreachable, "less than 2000 a second"),
        (Faults(drip=5), SourceUnreachable, "nothing came for 0.4 s"),
        (Faults(header_drip=0.1), SourceUnreachable, "nothing came for 0.4 s"),
        (Faults(line_drip=0.1), SourceUnreachable, "nothing came for 0.4 s"),
    ],
    ids=str,
)
def test_faults_that_end_in_a_typed_error(
    server: Server, tmp_path: Path, faults: Faults, error: type[FetchFailed], says: str
) -> None:
    server.faults = faults
    begin = time.monotonic()
    with pytest.raises(error, match=says) as raised:
        fetch(server, tmp_path / "partial")
    assert time.monotonic() - begin < 20
    assert type(raised.value) is error
    assert server.body_bytes < 3 * len(CONTENT)


def test_half_of_all_requests_fail(server: Server, tmp_path: Path) -> None:
    server.faults = Faults(random_500s=0.5, cut_every=60_000)
    fetch(server, tmp_path / "partial", policy=Retries(tries=12, first_pause=0.001, longest_pause=0.01, progress=1000))


def test_nearly_all_requests_fail(server: Server, tmp_path: Path) -> None:
    server.faults = Faults(random_500s=0.99)
    begin = time.monotonic()
    with pytest.raises(SourceUnreachable, match="tried 8 times"):
        fetch(server, tmp_path / "partial", policy=Retries(tries=8, first_pause=0.001, longest_pause=0.02))
    assert len(server.requests) == 8
    assert time.monotonic() - begin < 2


def test_no_server(tmp_path: Path, server: Server) -> None:
    server.close()
    with pytest.raises(SourceUnreachable, match=r"no connection: Connection refused.*tried 4 times"):
        fetch(server, tmp_path / "partial")


def test_total_time_is_bounded(server: Server, tmp_path: Path) -> None:
    server.faults = Faults(drip=0.01)
    patient = HttpSource(server.address, patience=Patience(window=60, stall=30))
    path, digest = server.add(CONTENT)
    begin = time.monotonic()
    with pytest.raises(SourceUnreachable, match=r"took more than 0\.5 s"):
        download(patient, path, digest, len(CONTENT), tmp_path / "partial", policy=Retries(seconds=0.5))
    assert time.monotonic() - begin < 2
    assert 0 < (tmp_path / "partial").stat().st_size < 200


def test_tries_in_all_are_bounded(server: Server, tmp_path: Path) -> None:
    server.faults = Faults(cut_every=10_000)
    policy = Retries(tries=3, tries_in_all=7, first_pause=0, progress=1000)
    with pytest.raises(SourceUnreachable, match="tried 7 times"):
        fetch(server, tmp_path / "partial", policy=policy)
    assert (tmp_path / "partial").stat().st_size == 70_000
    fetch(server, tmp_path / "partial", policy=Retries(first_pause=0, progress=1000))
    assert server.body_bytes == len(CONTENT)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_ten_cuts_cost_next_to_nothing(server: Server, tmp_path: Path, reset: bool, etag: str | None) -> None:
    content = random.Random(3).randbytes(8 * 2**20 + 12_345)
    cuts = [random.Random(4).randrange(1, len(content) // 11) for _ in range(10)]
    server.faults = Faults(cuts=cuts, reset=reset, etags=[etag] if etag else [])
    fetch(server, tmp_path / "partial", content)
    assert len(server.requests) == 11
    print(f"{server.body_bytes / len(content):.4f} times its size on the wire, with ten cuts")
    assert server.body_bytes <= 1.05 * len(content)
    sent = [request.headers.get("If-Range") for request in server.requests]
    assert sent[0] is None
    assert all((value is None) == bool(etag) for value in sent[1:])


def test_a_changed_file_is_never_spliced(server: Server, tmp_path: Path) -> None:
    """The file under the address becomes another of the same size; both states are whole on the wire."""
    path, digest = server.add(CONTENT)
    server.files[path] = bytes(len(CONTENT))
    server.faults = Faults(cuts=[100_000])
    source = HttpSource(server.address)
    with pytest.raises(SourceUnreachable):
        download(source, path, digest, len(CONTENT), tmp_path / "partial", policy=Retries(tries=1))
    assert (tmp_path / "partial").stat().st_size == 100_000
    server.files[path] = CONTENT
    download(source, path, digest, len(CONTENT), tmp_path / "partial", policy=QUICK)
    assert (tmp_path / "partial").read_bytes() == CONTENT
    assert server.requests[-1].status == 200
    assert server.body_bytes == 100_000 + len(CONTENT)


def test_wrong_content_is_tried_twice_and_not_kept(server: Server, tmp_path: Path) -> None:
    path, digest = server.add(CONTENT)
    server.files[path] = CONTENT[:-1] + b"?"
    place = tmp_path / "partial"
    with pytest.raises(WrongContent, match="sha256"):
        download(HttpSource(server.address), path, digest, len(CONTENT), place, policy=QUICK)
    assert len(server.requests) == 2
    assert list(tmp_path.iterdir()) == []


def test_damage_on_the_disk_costs_one_more_download(server: Server, tmp_path: Path) -> None:
    place = tmp_path / "partial"
    place.write_bytes(bytes(1000))
    fetch(server, place)
    place.write_bytes(bytes(len(CONTENT)))
    fetch(server, place)
    place.write_bytes(bytes(len(CONTENT) + 1))
    fetch(server, place)


def test_what_is_complete_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "partial").write_bytes(CONTENT)
    fetch(server, tmp_path / "partial")
    assert not server.requests


def test_a_gateway_does_not_cost_what_is_there(server: Server, tmp_path: Path) -> None:
    place = tmp_path / "partial"
    place.write_bytes(CONTENT[:200_000])
    for faults in (Faults(page=True), Faults(page=True, chunked=True), Faults(page=True, unframed=True)):
        server.faults = faults
        with pytest.raises(SourceMisbehaves):
            fetch(server, place)
        assert place.read_bytes() == CONTENT[:200_000]
    server.faults, server.body_bytes = Faults(), 0
    fetch(server, place)
    assert server.body_bytes == 100_000


@pytest.mark.parametrize("record", [b"", b"{", b"null", b'{"address": 3}', b"\xff", b"[" * 100_000])
def test_a_damaged_record_does_no_harm(server: Server, tmp_path: Path, record: bytes) -> None:
    (tmp_path / "partial").write_bytes(CONTENT[:1000])
    (tmp_path / "partial.json").write_bytes(record)
    fetch(server, tmp_path / "partial")
    assert server.body_bytes == len(CONTENT) - 1000


def test_a_hostile_record_adds_no_headers(server: Server, tmp_path: Path) -> None:
    path, _ = server.add(CONTENT)
    record = {"address": server.address, "path": path, "validator": '"a"\r\nX-Evil: 1'}
    (tmp_path / "partial").write_bytes(CONTENT[:1000])
    (tmp_path / "partial.json").write_text(json.dumps(record))
    fetch(server, tmp_path / "partial")
    assert "X-Evil" not in server.requests[0].headers


PROGRAM = """
import sys
from pathlib import Path
from bitstrata.device.download import download
from bitstrata.device.http import HttpSource
address, path, digest, size, place = sys.argv[1:]
download(HttpSource(address), path, digest, int(size), Path(place))
"""


def test_killed_and_started_again(server: Server, tmp_path: Path) -> None:
    """The process dies by kill -9 in the middle; the next one takes up where it was."""
    content = random.Random(5).randbytes(2 * 2**20)
    path, digest = server.add(content)
    place = tmp_path / "partial"
    arguments = [sys.executable, "-c", PROGRAM, server.address, path, digest, str(len(content)), str(place)]
    first = 700_000
    server.faults = Faults(hold=first, etags=['"same"'])
    process = subprocess.Popen(arguments)
    try:
        deadline = time.monotonic() + 15
        while not (place.exists() and place.stat().st_size == first):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert json.loads((tmp_path / "partial.json").read_text())["validator"] == '"same"'
    server.faults = Faults(etags=['"same"'])
    before = len(server.requests)
    subprocess.run(arguments, check=True, timeout=30)
    assert place.read_bytes() == content
    again = server.requests[before:]
    assert [request.status for request in again] == [206]
    assert again[0].headers["If-Range"] == '"same"'
    had = int(again[0].headers["Range"].removeprefix("bytes=").rstrip("-"))
    assert had == first
    assert server.body_bytes == len(content)


def test_another_source_sends_the_rest(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "published"
    path, digest = server.add(CONTENT)
    (folder / path).parent.mkdir(parents=True)
    (folder / path).write_bytes(CONTENT)
    server.faults = Faults(always=None, cut_every=120_000)
    place = tmp_path / "partial"
    with pytest.raises(SourceUnreachable):
        download(HttpSource(server.address), path, digest, len(CONTENT), place, policy=Retries(tries=1, progress=2**30))
    seen: list[int] = []
    download(FolderSource(folder), path, digest, len(CONTENT), place, progress=seen.append)
    assert seen[0] == 120_000
    assert place.read_bytes() == CONTENT


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_says_so_and_keeps_the_rest(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real, room = os.write, [100_000]

    def write(handle: int, content: Any) -> int:
        if len(content) < 1000:  # the record
            return real(handle, content)
        if not room[0]:
            raise OSError(code, os.strerror(code))
        written = real(handle, content[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match=os.strerror(code)) as raised:
        fetch(server, tmp_path / "partial")
    assert not isinstance(raised.value, FetchFailed)
    assert raised.value.errno == code
    assert (tmp_path / "partial").read_bytes() == CONTENT[:100_000]
    monkeypatch.undo()
    fetch(server, tmp_path / "partial")


def test_a_link_in_the_place_of_the_partial_file_is_not_followed(server: Server, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "partial").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        fetch(server, tmp_path / "partial")
    assert (tmp_path / "precious").read_bytes() == b"precious"


@pytest.mark.parametrize(
    "faults",
    [
        Faults(),
        Faults(cuts=[3_000, 10, 0]),
        Faults(cuts=[3_000], reset=True),
        Faults(no_ranges=True, cuts=[55_000]),
        Faults(cuts=[3_000], etags=['"one"', '"two"']),
        Faults(statuses=[500, 503]),
        Faults(endless=True, unframed=True, no_ranges=True),
        Faults(chunked=True, cuts=[3_000]),
    ],
    ids=str,
)
def test_ranges(server: Server, faults: Faults) -> None:
    path, _ = server.add(CONTENT)
    server.faults = faults
    source = HttpSource(server.address, patience=IMPATIENT)
    assert download_range(source, path, 50_000, 60_000, policy=QUICK) == CONTENT[50_000:60_000]


def test_a_range_costs_its_own_size(server: Server) -> None:
    path, _ = server.add(CONTENT)
    server.faults = Faults(cuts=[1000, 2000, 3000])
    download_range(HttpSource(server.address), path, 50_000, 100_000, policy=QUICK)
    assert server.body_bytes == 50_000


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        (Faults(always=500), SourceUnreachable),
        (Faults(content_range="bytes 1-2/3"), SourceMisbehaves),
        (Faults(extra_length=3), SourceMisbehaves),
        (Faults(always=404), NotPublished),
    ],
    ids=str,
)
def test_ranges_that_end_in_a_typed_error(server: Server, faults: Faults, error: type[FetchFailed]) -> None:
    path, _ = server.add(CONTENT)
    server.faults = faults
    with pytest.raises(error):
        download_range(HttpSource(server.address), path, 50_000, 60_000, policy=QUICK)


def test_a_range_over_the_end(server: Server) -> None:
    path, _ = server.add(CONTENT)
    with pytest.raises(SourceMisbehaves, match="shorter"):
        download_range(HttpSource(server.address), path, 299_000, 301_000, policy=QUICK)


def test_small_files(server: Server) -> None:
    server.files["latest.json"] = b"{}"
    server.faults = Faults(statuses=[500, 500])
    assert download_small(HttpSource(server.address), "latest.json", 100, policy=QUICK) == b"{}"
    assert len(server.requests) == 3


def test_pauses_grow_and_heed_the_source(monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("bitstrata.device.retries.time.sleep", pauses.append)
    server.faults = Faults(always=503)
    with pytest.raises(SourceUnreachable):
        fetch(server, tmp_path / "partial", policy=Retries(tries=9, first_pause=1, longest_pause=20))
    assert len(pauses) == 8
    for pause, full in zip(pauses, [1, 2, 4, 8, 16, 20, 20, 20], strict=True):
        assert full / 2 <= pause <= full
    pauses.clear()
    server.faults = Faults(always=429, retry_after="7")
    with pytest.raises(SourceUnreachable):
        fetch(server, tmp_path / "partial", policy=Retries(tries=3, first_pause=0.1, longest_pause=20))
    assert pauses == [7, 7]
    pauses.clear()
    server.faults = Faults(always=429, retry_after="999999999")
    with pytest.raises(SourceUnreachable):
        fetch(server, tmp_path / "partial", policy=Retries(tries=2, first_pause=0.1, longest_pause=20))
    assert pauses == [20]


def test_the_file_is_on_the_disk_before_it_returns(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, synced = tmp_path / "partial", []
    real: Callable[[int], None] = os.fsync

    def fsync(handle: int) -> None:
        if os.path.samestat(os.fstat(handle), place.stat()):
            synced.append(hashlib.sha256(place.read_bytes()).hexdigest())
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    fetch(server, place)
    assert synced == [hashlib.sha256(CONTENT).hexdigest()]


def test_interruptions_are_fetch_failures() -> None:
    error = Interrupted("why", retry_after=3)
    assert isinstance(error, FetchFailed)
    assert (str(error), error.retry_after, error.errno) == ("why", 3, None)


class FromTheStart:
    """A source that knows no ranges, and never comes beyond the same place."""

    address = "nowhere"

    def __init__(self) -> None:
        self.opened = 0

    def read(self, path: str, limit: int) -> bytes:
        raise NotImplementedError

    @contextmanager
    def open(self, path: str, start: int = 0, stop: int | None = None, validator: str | None = None) -> Iterator[Body]:
        self.opened += 1

        def chunks() -> Iterator[bytes]:
            for _ in range(10):
                yield bytes(1000)
            raise Interrupted("cut")

        yield Body(0, 20_000, None, chunks())


def test_what_came_before_is_no_progress(tmp_path: Path) -> None:
    source, policy = FromTheStart(), Retries(tries=3, tries_in_all=50, first_pause=0, progress=1000)
    with pytest.raises(SourceUnreachable, match="tried 3 times"):
        download(source, "path", "0" * 64, 20_000, tmp_path / "partial", policy=policy)
    assert source.opened == 3


def test_wrong_bytes_are_gone_before_the_next_try(server: Server, tmp_path: Path) -> None:
    path, digest = server.add(CONTENT)
    server.files[path] = bytes(len(CONTENT))

    def progress(count: int) -> None:
        if count == len(CONTENT):
            server.faults = Faults(always=404)

    with pytest.raises(NotPublished):
        download(HttpSource(server.address), path, digest, len(CONTENT), tmp_path / "partial", progress=progress)
    assert (tmp_path / "partial").read_bytes() == b""
