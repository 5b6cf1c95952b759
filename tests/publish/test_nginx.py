"""The nginx of docs/nginx.conf serves a published folder as devices need it."""

import http.client
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from publishing import artifact, key

from bitstrata.format import published
from bitstrata.publish import FolderDestination, push

CONFIGURATION = Path(__file__).resolve().parents[2] / "docs" / "nginx.conf"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")

pytestmark = [pytest.mark.long, pytest.mark.skipif(NGINX is None, reason="nginx is not installed")]

Answer = tuple[int, dict[str, str], bytes]


def get(port: int, path: str, method: str = "GET", **headers: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("nginx")
    push(artifact(place), FolderDestination(place / "published"), key=key(1))
    return place / "published"


@pytest.fixture(scope="module")
def port(folder: Path) -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    text = CONFIGURATION.read_text(encoding="utf-8")
    assert text.count("listen 8080;") == 1
    prefix = folder.parent
    (prefix / "nginx.conf").write_text(text.replace("listen 8080;", f"listen 127.0.0.1:{port};"), encoding="utf-8")
    # pytest's folders are for their owner alone, and a master that is root would give its workers to somebody else.
    user = " user root;" if os.geteuid() == 0 else ""
    command = [str(NGINX), "-p", f"{prefix}/", "-c", "nginx.conf", "-e", "error.log", "-g", f"daemon off;{user}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        for _ in range(100):
            assert process.poll() is None, process.stderr and process.stderr.read()
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(10)
        assert process.stderr is not None
        process.stderr.close()


def blob(folder: Path) -> tuple[str, bytes]:
    path = max((folder / "blobs" / "sha256").iterdir(), key=lambda one: one.stat().st_size)
    return "/" + published.blob(path.name), path.read_bytes()


def test_every_file_comes_as_it_was_published(port: int, folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) == 10
    for path in files:
        name = path.relative_to(folder).as_posix()
        status, headers, body = get(port, f"/{name}")
        assert (status, body) == (200, path.read_bytes())
        assert headers["etag"].startswith('"'), "a strong one"
        changes = name in {"latest.json", "README.md"}
        assert headers["cache-control"] == ("no-cache" if changes else "public, max-age=31536000, immutable")
        if name.endswith(".json"):
            assert headers["content-type"] == "application/json"
        assert get(port, f"/{name}", If_None_Match=headers["etag"])[::2] == (304, b"")
        assert get(port, f"/{name}", "HEAD")[::2] == (200, b"")


def test_ranges(port: int, folder: Path) -> None:
    path, content = blob(folder)
    etag = get(port, path, "HEAD")[1]["etag"]
    status, headers, body = get(port, path, Range="bytes=100-", If_Range=etag, Accept_Encoding="gzip")
    assert (status, body) == (206, content[100:])
    assert headers["content-range"] == f"bytes 100-{len(content) - 1}/{len(content)}"
    assert headers["etag"] == etag
    assert "content-encoding" not in headers
    assert get(port, path, Range="bytes=7-9")[::2] == (206, content[7:10])
    assert get(port, path, Range="bytes=100-", If_Range='"another"')[::2] == (200, content)
    status, headers, _ = get(port, path, Range=f"bytes={len(content)}-")
    assert status == 416
    assert headers["content-range"] == f"bytes */{len(content)}"


def test_a_new_release_has_a_new_etag(port: int, folder: Path) -> None:
    _, before, _ = get(port, "/latest.json")
    time.sleep(1.1)  # its clock counts seconds, and both have the same size
    push(artifact(folder.parent, version=2), FolderDestination(folder), key=key(1))
    status, after, body = get(port, "/latest.json", If_None_Match=before["etag"])
    assert (status, body) == (200, (folder / "latest.json").read_bytes())
    assert after["etag"] != before["etag"]


def test_nothing_else_is_served(port: int, folder: Path) -> None:
    (folder.parent / "outside").write_text("secret")
    (folder / ".latest.json.0123456789abcdef.partial").write_text("secret")
    (folder / "blobs" / "link").symlink_to(folder.parent / "outside")
    for path in ("/.latest.json.0123456789abcdef.partial", "/../outside", "/%2e%2e/outside", "/blobs/link", "/blobs/"):
        status, _, body = get(port, path)
        assert status in {400, 403, 404}
        assert b"secret" not in body
    assert get(port, "/latest.json", "DELETE")[0] in {403, 405}
    assert (folder / "latest.json").exists()
