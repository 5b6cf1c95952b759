"""A plain web server for a published folder: for trying things, tests and the demo. Any other will do in production.

GET and HEAD of regular files, single ranges, strong ETags; no listings, no links, nothing hidden, nothing outside.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote_to_bytes, urlsplit

from bitstrata.errors import CannotPublish
from bitstrata.publish.destinations import cache_control, content_type

#: Files up to this many bytes are hashed for their ETag: `latest.json` may change within one tick of a file's clock.
_HASHED_BYTES = 2**20

#: Seconds that a connection may be idle.
_IDLE = 30.0

_NAMED_BY_CONTENT = re.compile(r"blobs/sha256/([0-9a-f]{64})|manifests/([0-9a-f]{64})\.json")
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII | re.IGNORECASE)
_PARTS = re.compile(r"[A-Za-z0-9_@+=~-][A-Za-z0-9_.@+=~-]{0,254}", re.ASCII)


@dataclass(frozen=True)
class Answer:
    """One request that was answered, for whoever watches."""

    method: str
    path: str
    status: int
    bytes: int
    """Of the body."""


Watcher = Callable[[Answer], None]


class Server(ThreadingHTTPServer):
    """Serves one folder, each connection in a thread of its own."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, folder: str | Path, host: str = "127.0.0.1", port: int = 0, watch: Watcher | None = None
    ) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise CannotPublish(f"{folder} is no folder: nothing can be served from it")
        try:
            super().__init__((host, port), partial(_Handler, self.folder, watch))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise CannotPublish(f"cannot listen on {host}, port {port}: {reason}. Choose another --port") from None

    @property
    def address(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host if isinstance(host, str) else host.decode()}:{port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that go away in the middle are no news."""


@contextmanager
def serving(
    folder: str | Path, *, host: str = "127.0.0.1", port: int = 0, watch: Watcher | None = None
) -> Iterator[str]:
    """Serves a folder while the block runs; the address to fetch from."""
    server = Server(folder, host, port, watch)
    thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.05), daemon=True)
    thread.start()
    try:
        yield server.address
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "bitstrata"
    sys_version = ""
    disable_nagle_algorithm = True  # a small body would wait for the receipt of its headers
    timeout = _IDLE

    def __init__(self, folder: Path, watch: Watcher | None, *arguments: object) -> None:
        self._folder, self._watch = folder, watch
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self._serve(body=True)

    def do_HEAD(self) -> None:
        self._serve(body=False)

    def log_message(self, format: str, *arguments: object) -> None:
        """The watcher sees what there is to see."""

    def _serve(self, *, body: bool) -> None:
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # what follows would be taken for the next request
            self._refuse(HTTPStatus.BAD_REQUEST)
            return
        path = _path(self.path)
        file = None if path is None else _open(self._folder, path)
        if path is None or file is None:
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        with file:
            self._send(path, file, body=body)

    def _send(self, path: str, file: BinaryIO, *, body: bool) -> None:
        status = os.fstat(file.fileno())
        size, etag = status.st_size, _etag(path, file, status)
        common = {
            "ETag": etag,
            "Last-Modified": formatdate(status.st_mtime, usegmt=True),
            "Accept-Ranges": "bytes",
            "Cache-Control": cache_control(path),
        }
        if _matches(self.headers.get("If-None-Match"), etag):
            self._head(HTTPStatus.NOT_MODIFIED, common)
            self._tell(HTTPStatus.NOT_MODIFIED, 0)
            return
        start, stop, code = 0, size, HTTPStatus.OK
        # Ranges are for GET alone, and for the file that the client has the beginning of.
        if body and self.headers.get("If-Range", etag) == etag:
            asked = _range(self.headers.get_all("Range") or [], size)
            if asked is not None:
                start, stop = asked
                code = HTTPStatus.PARTIAL_CONTENT
        if start >= stop and code is HTTPStatus.PARTIAL_CONTENT:
            self._refuse(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, {"Content-Range": f"bytes */{size}"})
            return
        headers = {**common, "Content-Type": content_type(path), "Content-Length": str(stop - start)}
        if code is HTTPStatus.PARTIAL_CONTENT:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        self._head(code, headers)
        sent = 0
        if body and stop > start:
            with suppress(OSError):
                sent = self.connection.sendfile(file, start, stop - start)
            if sent != stop - start:
                self.close_connection = True  # gone, or the file shrank: the client sees that bytes are missing
        self._tell(code, sent)

    def _head(self, code: HTTPStatus, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()

    def _refuse(self, code: HTTPStatus, headers: dict[str, str] | None = None) -> None:
        content = f"{code.value} {code.phrase}\n".encode()
        common = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(content))}
        self._head(code, {**common, **(headers or {})})
        if self.command != "HEAD":
            self.wfile.write(content)
        self._tell(code, 0)

    def _tell(self, code: HTTPStatus, sent: int) -> None:
        if self._watch is not None:
            self._watch(Answer(self.command, self.path, code.value, sent))


def _path(target: str) -> str | None:
    """The path of a file below the folder; None for whatever is not plainly one."""
    try:
        text = unquote_to_bytes(urlsplit(target).path).decode("ascii")
    except (ValueError, UnicodeDecodeError):
        return None
    parts = text.removeprefix("/").split("/")
    return "/".join(parts) if all(_PARTS.fullmatch(part) for part in parts) else None


def _open(folder: Path, path: str) -> BinaryIO | None:
    """A regular file, reached without following any link; None where there is none."""
    *folders, name = path.split("/")
    no_follow = getattr(os, "O_NOFOLLOW", 0)
    flags = os.O_RDONLY | no_follow | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        if os.open not in os.supports_dir_fd:
            target = folder / path
            if target.resolve() != folder.resolve() / path:
                return None
            return _regular(os.open(target, flags))
        # Step by step, so that no folder can become a link between a check and its use.
        here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        for part in folders:
            try:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | no_follow, dir_fd=here)
            finally:
                os.close(here)
            here = inner
        try:
            return _regular(os.open(name, flags, dir_fd=here))
        finally:
            os.close(here)
    except OSError:
        return None


def _regular(handle: int) -> BinaryIO | None:
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    return None


def _etag(path: str, file: BinaryIO, status: os.stat_result) -> str:
    """Strong: other bytes have another."""
    named = _NAMED_BY_CONTENT.fullmatch(path)
    if named is not None:
        return f'"{named[1] or named[2]}"'
    if status.st_size <= _HASHED_BYTES:
        return f'"{hashlib.sha256(file.read(_HASHED_BYTES)).hexdigest()}"'
    return f'"{status.st_size:x}-{status.st_mtime_ns:x}"'


def _matches(header: str | None, etag: str) -> bool:
    """If-None-Match compares weakly: a cache may have made the ETag weak."""
    if header is None:
        return False
    return header.strip() == "*" or etag in (one.strip().removeprefix("W/") for one in header.split(","))


def _range(headers: list[str], size: int) -> tuple[int, int] | None:
    """Start and stop of a single range; nothing left between them where it lies behind the end; None: send it all."""
    if len(headers) != 1:
        return None
    found = _RANGE.fullmatch(headers[0].strip())
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:  # so many from the end
        return max(size - int(found[2]), 0), size
    start, stop = int(found[1]), min(int(found[2]) + 1, size) if found[2] else size
    if found[2] and int(found[2]) < start:
        return None
    return start, stop
