"""A web server that misbehaves on purpose: each fault is a switch."""

from __future__ import annotations

import contextlib
import hashlib
import random
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PAGE = b"<!DOCTYPE html><html><title>Log in</title><body>Who are you?</body></html>"


@dataclass
class Faults:
    """All off: a plain static server with Range, If-Range and strong ETags."""

    random_500s: float = 0.0
    statuses: list[int] = field(default_factory=list)
    """Answers to the next requests, instead of the file."""
    always: int | None = None
    retry_after: str | None = None
    cuts: list[int] = field(default_factory=list)
    """Body bytes after which the next connections end."""
    cut_every: int | None = None
    hold: int | None = None
    """Body bytes after which nothing more comes until the faults are others."""
    reset: bool = False
    """Ends are resets."""
    no_ranges: bool = False
    content_range: str | None = None
    """Instead of the right one; empty for none at all."""
    extra_length: int = 0
    """Added to every Content-Length."""
    etags: list[str] = field(default_factory=list)
    """For the next answers; the last one stays."""
    ignore_if_range: bool = False
    page: bool = False
    endless: bool = False
    chunked: bool = False
    unframed: bool = False
    """Neither length nor chunks: the body goes on until the connection ends."""
    piece: int = 2**16
    """Bytes of the body that are sent at once."""
    pause: float = 0.0
    """Seconds after each such piece."""
    drip: float = 0.0
    """Seconds between single bytes of the body."""
    header_drip: float = 0.0
    line_drip: float = 0.0
    """Seconds between the bytes of a chunk's size, padded without end."""
    encoded: bool = False
    redirects: dict[str, str] = field(default_factory=dict)
    token: str | None = None
    """What Authorization must be."""

    def __str__(self) -> str:
        """For the names of tests: the switches that are on."""
        usual = vars(Faults())
        return ", ".join(f"{name}={value}" for name, value in vars(self).items() if value != usual[name]) or "none"


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    status: int


class Server:
    """Serves `files` (path to bytes) on a port of this machine until it is closed."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.files: dict[str, bytes] = {}
        self.faults = Faults()
        self.requests: list[Request] = []
        self.body_bytes = 0
        self.random = random.Random(1)
        self.lock = threading.Lock()
        self.closing = False
        self._server = _Threads(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        if context:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self.address = f"{'https' if context else 'http'}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def add(self, content: bytes) -> tuple[str, str]:
        """Serves a blob; its path and digest."""
        digest = hashlib.sha256(content).hexdigest()
        self.files[f"blobs/sha256/{digest}"] = content
        return f"blobs/sha256/{digest}", digest

    def close(self) -> None:
        self.closing = True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server(context)
    try:
        yield server
    finally:
        server.close()


class _Threads(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    owner: Server

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that give up are what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a small body would wait for the receipt of its headers
    server: _Threads

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        owner, faults = self.server.owner, self.server.owner.faults
        path = self.path.split("?")[0].lstrip("/")
        with owner.lock:
            status = self._status(path)
            cut = faults.cuts.pop(0) if faults.cuts and status == 200 else faults.cut_every
            etags = faults.etags
            etag = (etags.pop(0) if len(etags) > 1 else etags[0]) if etags else None
        content = PAGE if faults.page else owner.files.get(path, b"")
        if etag is None:
            etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        headers = {"ETag": etag, "Last-Modified": "Mon, 02 Jan 2023 03:04:05 GMT"}
        if status != 200:
            headers = {"Location": faults.redirects[path]} if status == 302 else {}
            content = b"<Error><Message>no</Message></Error>"
            if faults.retry_after:
                headers["Retry-After"] = faults.retry_after
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        known = faults.ignore_if_range or self.headers.get("If-Range", etag) == etag
        start, stop = 0, len(content)
        if status == 200 and (wanted := self.headers.get("If-Match")) and wanted != etag:
            status, content, stop = 412, b"", 0
        elif status == 200 and found and known and not faults.no_ranges:
            start, stop = int(found[1]), min(int(found[2] or len(content)) + (1 if found[2] else 0), len(content))
            if start >= len(content):
                status, headers["Content-Range"], start, stop = 416, f"bytes */{len(content)}", 0, 0
            else:
                status, headers["Content-Range"] = 206, f"bytes {start}-{stop - 1}/{len(content)}"
                if faults.content_range is not None:
                    headers["Content-Range"] = faults.content_range
        with owner.lock:
            owner.requests.append(Request(self.path, dict(self.headers.items()), status))
        self._send(status, headers, content[start:stop], cut)

    def _status(self, path: str) -> int:
        owner, faults = self.server.owner, self.server.owner.faults
        if faults.always is not None:
            return faults.always
        if faults.statuses:
            return faults.statuses.pop(0)
        if owner.random.random() < faults.random_500s:
            return 500
        if faults.token is not None and self.headers.get("Authorization") != faults.token:
            return 401
        if path in faults.redirects:
            return 302
        return 200 if faults.page or path in owner.files else 404

    def _send(self, status: int, headers: dict[str, str], body: bytes, cut: int | None) -> None:
        faults = self.server.owner.faults
        framed = not (faults.endless or faults.chunked or faults.unframed or faults.line_drip) or status >= 300
        lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in headers.items() if value)]
        if framed:
            lines.append(f"Content-Length: {len(body) + faults.extra_length}")
        elif not faults.unframed:
            lines.append("Transfer-Encoding: chunked")
        if faults.encoded:
            lines.append("Content-Encoding: gzip")
        if cut is not None or faults.extra_length or not framed:
            self.close_connection = True
            lines.append("Connection: close")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode()
        if faults.header_drip:
            self._drip(head, faults.header_drip)
        else:
            self.wfile.write(head)
        if faults.line_drip:
            self._drip(b"1;" + b" " * 10_000, faults.line_drip)
            return
        chunked = not framed and not faults.unframed
        if faults.hold is not None:
            self._send_body(body[: faults.hold], chunked, faults)
            while self.server.owner.faults is faults:
                self._wait(0.01)
            self.close_connection = True
            return
        self._send_body(body if cut is None or status >= 300 else body[:cut], chunked, faults)
        if chunked and cut is None:
            self.wfile.write(b"0\r\n\r\n")
        if cut is not None and faults.reset:
            self.wfile.flush()
            time.sleep(0.02)  # until what was sent has been taken: a reset throws away what is still on its way
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def _send_body(self, body: bytes, chunked: bool, faults: Faults) -> None:
        if faults.drip:
            for place in range(len(body)):
                self._piece(body[place : place + 1], chunked)
                self._wait(faults.drip)
            return
        for place in range(0, len(body), faults.piece):
            self._piece(body[place : place + faults.piece], chunked)
            if faults.pause:
                self._wait(faults.pause)
        while faults.endless and not self.server.owner.closing:
            self._piece(bytes(2**16), chunked)

    def _piece(self, piece: bytes, chunked: bool) -> None:
        with self.server.owner.lock:  # before it is sent: whoever has it may ask
            self.server.owner.body_bytes += len(piece)
        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)

    def _drip(self, content: bytes, seconds: float) -> None:
        for place in range(len(content)):
            self.wfile.write(content[place : place + 1])
            self._wait(seconds)

    def _wait(self, seconds: float) -> None:
        if self.server.owner.closing:
            raise ConnectionAbortedError
        time.sleep(seconds)
