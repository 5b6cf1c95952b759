"""Ranges, validators and conditions as RFC 9110 says, and nothing outside the folder."""

import hashlib
import http.client
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bitstrata.errors import CannotPublish
from bitstrata.format import published
from bitstrata.publish import serve
from bitstrata.publish.serve import Answer, serving

BLOB = bytes(range(256)) * 20
DIGEST = hashlib.sha256(BLOB).hexdigest()
PATH = "/" + published.blob(DIGEST)


class Client:
    """One connection, kept open."""

    def __init__(self, address: str) -> None:
        self.connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=10)

    def __call__(self, path: str = PATH, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        spelled = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, path, headers=spelled)
        answer = self.connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "published"
    (root / "blobs" / "sha256").mkdir(parents=True)
    (root / published.blob(DIGEST)).write_bytes(BLOB)
    (root / "latest.json").write_bytes(b"{}")
    (root / "empty.bin").write_bytes(b"")
    (root / ".hidden").write_bytes(b"secret")
    (tmp_path / "outside").write_bytes(b"secret")
    return root


@pytest.fixture
def get(folder: Path) -> Iterator[Client]:
    with serving(folder) as address:
        client = Client(address)
        yield client
        client.connection.close()


def test_a_whole_file(get: Client) -> None:
    status, headers, body = get()
    assert (status, body) == (200, BLOB)
    assert headers["etag"] == f'"{DIGEST}"'
    assert headers["content-length"] == str(len(BLOB))
    assert headers["accept-ranges"] == "bytes"
    assert "immutable" in headers["cache-control"]
    assert headers["content-type"] == "application/octet-stream"
    assert "content-encoding" not in headers


def test_head_tells_the_same_without_a_body(get: Client) -> None:
    _, of_get, _ = get()
    status, headers, body = get(method="HEAD", Range="bytes=0-1")
    assert (status, body) == (200, b"")
    assert {**headers, "date": ""} == {**of_get, "date": ""}


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-", 0, 5120),
        ("bytes=100-199", 100, 200),
        ("bytes=5119-", 5119, 5120),
        ("bytes=5000-9999999", 5000, 5120),
        ("bytes=-1", 5119, 5120),
        ("bytes=-99999", 0, 5120),
        ("BYTES=1-2", 1, 3),
    ],
)
def test_a_range(get: Client, asked: str, start: int, stop: int) -> None:
    status, headers, body = get(Range=asked)
    assert status == 206
    assert body == BLOB[start:stop]
    assert headers["content-range"] == f"bytes {start}-{stop - 1}/5120"
    assert headers["content-length"] == str(stop - start)
    assert headers["etag"] == f'"{DIGEST}"'


@pytest.mark.parametrize("asked", ["bytes=5120-", "bytes=5120-6000", "bytes=-0", "bytes=999999999999999999-"])
def test_a_range_behind_the_end(get: Client, asked: str) -> None:
    status, headers, _ = get(Range=asked)
    assert status == 416
    assert headers["content-range"] == "bytes */5120"
    assert get()[0] == 200, "the connection goes on"


@pytest.mark.parametrize(
    "asked",
    [
        "bytes=0-1,3-4",
        "bytes=2-1",
        "bytes=-",
        "bytes=a-b",
        "lines=0-1",
        "bytes 0-1",
        "",
        "bytes=\u0660-\u0661",
        "bytes=1-2-3",
    ],
)
def test_a_range_that_is_none_gets_the_whole_file(get: Client, asked: str) -> None:
    status, headers, body = get(Range=asked.encode().decode("latin-1"))
    assert (status, body) == (200, BLOB)
    assert "content-range" not in headers


def test_ranges_of_an_empty_file(get: Client) -> None:
    assert get("/empty.bin")[::2] == (200, b"")
    assert get("/empty.bin", Range="bytes=0-")[0] == 416


def test_if_range(get: Client) -> None:
    etag = f'"{DIGEST}"'
    assert get(Range="bytes=10-19", If_Range=etag)[::2] == (206, BLOB[10:20])
    for other in ('"other"', f"W/{etag}", "Wed, 21 Oct 2015 07:28:00 GMT", DIGEST):
        assert get(Range="bytes=10-19", If_Range=other)[::2] == (200, BLOB)
    assert get(Range="bytes=9999-", If_Range='"other"')[0] == 200


def test_if_none_match(get: Client) -> None:
    etag = f'"{DIGEST}"'
    for given in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        status, headers, body = get(If_None_Match=given)
        assert (status, body) == (304, b"")
        assert headers["etag"] == etag
    assert get(If_None_Match='"other"')[0] == 200
    assert get(If_None_Match=etag, Range="bytes=0-1")[0] == 304
    assert get(method="HEAD", If_None_Match=etag)[0] == 304


def test_what_changes_is_asked_for_and_its_etag_changes(get: Client, folder: Path) -> None:
    _, first, _ = get("/latest.json")
    assert first["cache-control"] == "no-cache"
    assert first["content-type"] == "application/json"
    times = (folder / "latest.json").stat()
    (folder / "latest.json").write_bytes(b"[]")
    os.utime(folder / "latest.json", ns=(times.st_atime_ns, times.st_mtime_ns))  # within one tick of the clock
    status, second, body = get("/latest.json", If_None_Match=first["etag"])
    assert (status, body) == (200, b"[]")
    assert second["etag"] != first["etag"]
    assert not second["etag"].startswith("W/")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "/blobs",
        "/blobs/",
        "/blobs/sha256/",
        "/missing",
        "/.hidden",
        "/%2ehidden",
        "/../outside",
        "/..%2foutside",
        "/%2e%2e/outside",
        "/%2e%2e%2foutside",
        "/blobs/../../outside",
        "/blobs/../latest.json",
        "/./latest.json",
        "//etc/passwd",
        "/blobs//sha256",
        "/..\\outside",
        "/..%5coutside",
        "/C:/outside",
        "/latest.json%00",
        "/latest.json/",
        "/latest.json/x",
        "/%ff%fe",
        "/l%C3%A4test.json",
        "/" + "a" * 300,
    ],
)
def test_what_is_not_plainly_a_file_of_the_folder_is_not_found(get: Client, path: str) -> None:
    status, _, body = get(path or "/")
    assert status == 404
    assert b"secret" not in body


def test_links_are_not_followed(get: Client, folder: Path, tmp_path: Path) -> None:
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "inside").symlink_to("latest.json")
    (folder / "folder").symlink_to(tmp_path)
    for path in ("/link", "/inside", "/folder/outside"):
        assert get(path)[0] == 404


def test_a_pipe_does_not_make_it_wait(get: Client, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    assert get("/pipe")[0] == 404


def test_queries_are_ignored_and_escapes_understood(get: Client) -> None:
    assert serve._path("http://[") is None  # what http.client would not send
    assert get("/latest.json?version=1")[0] == 200
    assert get("/l%61test.json")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(get: Client, folder: Path, method: str) -> None:
    assert get("/latest.json", method=method)[0] == 501
    assert (folder / "latest.json").read_bytes() == b"{}"


def test_a_body_of_a_get_is_not_taken_for_a_request(folder: Path) -> None:
    with serving(folder) as address, socket.create_connection(("127.0.0.1", urlsplit(address).port or 0)) as raw:
        raw.sendall(
            b"GET /latest.json HTTP/1.1\r\nHost: x\r\nContent-Length: 40\r\n\r\nGET /empty.bin HTTP/1.1\r\n\r\n"
        )
        answer = b""
        while part := raw.recv(4096):
            answer += part
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1


def test_many_clients_at_once(folder: Path) -> None:
    found: list[bytes] = []
    watched: list[Answer] = []
    with serving(folder, watch=watched.append) as address:

        def fetch() -> None:
            client = Client(address)
            for start in range(0, 5120, 1024):
                found.append(client(Range=f"bytes={start}-{start + 1023}")[2])
            client.connection.close()

        threads = [threading.Thread(target=fetch) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 100
    assert sum(map(len, found)) == 20 * 5120
    assert sum(answer.bytes for answer in watched) == 20 * 5120
    assert {(answer.method, answer.status, answer.path) for answer in watched} == {("GET", 206, PATH)}


def test_a_client_that_waits_does_not_stop_the_others(folder: Path) -> None:
    with serving(folder) as address, socket.create_connection(("127.0.0.1", urlsplit(address).port or 0)):
        client = Client(address)
        assert client()[0] == 200
        client.connection.close()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open handles cannot be counted here")
def test_no_handle_stays_open(get: Client, folder: Path) -> None:
    def open_handles() -> int:
        get("/missing")  # its answer comes after the file of the one before was closed
        return len(os.listdir("/proc/self/fd"))

    before = open_handles()
    (folder / "link").symlink_to("latest.json")
    for path in (PATH, "/missing", "/blobs/missing", "/link", "/blobs", "/no/such/folder"):
        get(path)
    assert open_handles() == before


def test_what_cannot_be_served(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(CannotPublish, match="no folder"), serving(tmp_path / "missing"):
        pass
    with (
        serving(folder) as address,
        pytest.raises(CannotPublish, match="Choose another --port"),
        serving(folder, port=urlsplit(address).port or 0),
    ):
        pass
    with pytest.raises(CannotPublish), serving(folder, port=99999):
        pass
