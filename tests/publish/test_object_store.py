"""Pushing over the S3 protocol, to a small store that speaks just enough of it."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from publishing import artifact, key

from bitstrata.device.trust import check_release
from bitstrata.errors import CannotPublish
from bitstrata.format.release import LATEST
from bitstrata.publish import open_destination, push

SECRET = "secret-word-of-the-store"


class Bucket(ThreadingHTTPServer):
    """Objects by path; `deny` is the status that every write gets, where it is set."""

    daemon_threads = True

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.deny = 0
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Bucket

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def name(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix("/bucket/")

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.deny:
            self.answer(self.server.deny, f"<Error><Message>{SECRET}</Message></Error>".encode())
        elif self.headers.get("If-None-Match") == "*" and self.name() in self.server.objects:
            self.answer(412)
        else:
            self.server.objects[self.name()] = content, dict(self.headers.items())
            self.answer(200, ETag='"1"')

    def do_GET(self) -> None:
        found = self.server.objects.get(self.name())
        if found is None:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        elif self.command == "HEAD":
            self.send_response(200)
            self.send_header("Content-Length", str(len(found[0])))
            self.send_header("Last-Modified", "Wed, 21 Oct 2026 07:28:00 GMT")
            self.send_header("ETag", '"1"')
            self.end_headers()
        else:
            self.answer(200, found[0], ETag='"1"', Last_Modified="Wed, 21 Oct 2026 07:28:00 GMT")

    def do_HEAD(self) -> None:
        self.do_GET()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    server = Bucket()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "here")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "name")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def accepted(bucket: Bucket, trusted: Any) -> int:
    def read(path: str) -> bytes:
        return bucket.objects[f"models/small/{path}"][0]

    return check_release(
        read(LATEST), LATEST, trusted=trusted, held=None, next_key_set=lambda number: read(f"keys/{number}.json")
    ).release.version


def test_versions_are_pushed_over_the_network(bucket: Bucket, tmp_path: Path) -> None:
    destination = open_destination("s3://bucket/models/small")
    done = push(artifact(tmp_path), destination, key=key(1))
    assert {f"models/small/{path}": size for path, size in done.written.items()} == {
        path: len(content) for path, (content, _) in bucket.objects.items()
    }
    assert push(artifact(tmp_path), destination, key=key(1)).written == {}
    push(artifact(tmp_path, version=2), destination, key=key(2), rotate_from=key(1))
    assert accepted(bucket, key(1).public) == 2
    headers = bucket.objects["models/small/latest.json"][1]
    assert {name.lower(): value for name, value in headers.items()}["cache-control"] == "no-cache"


def test_what_never_changes_is_written_on_condition(bucket: Bucket, tmp_path: Path) -> None:
    destination = open_destination("s3://bucket/models/small")
    push(artifact(tmp_path), destination)
    headers = {name.lower(): value for name, value in bucket.objects["models/small/releases/1.json"][1].items()}
    assert headers["if-none-match"] == "*"
    assert destination.write_new("releases/1.json", b"other") is False
    # Another publisher was quicker, between our look and our write.
    destination.size = lambda path: None  # type: ignore[method-assign]
    assert destination.write_new("releases/1.json", b"other") is False
    assert bucket.objects["models/small/releases/1.json"][0] == bucket.objects["models/small/latest.json"][0]


def test_a_store_that_refuses(bucket: Bucket, tmp_path: Path) -> None:
    bucket.deny = 403
    with pytest.raises(CannotPublish, match="the credentials do not allow it") as caught:
        push(artifact(tmp_path), open_destination("s3://bucket/models/small"))
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    bucket.deny = 0
    push(artifact(tmp_path), open_destination("s3://bucket/models/small"))
    assert accepted(bucket, None) == 1
