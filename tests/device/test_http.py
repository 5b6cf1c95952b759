"""Web sources: redirects, secrets, proxies, and small files."""

import json
import logging
import traceback
from pathlib import Path

import pytest
from device.server import PAGE, Faults, Server, serving

from bitstrata.device.access import Secrets, secrets_from_environment
from bitstrata.device.download import download
from bitstrata.device.http import HttpSource
from bitstrata.device.open_source import open_source
from bitstrata.device.pace import Patience
from bitstrata.device.retries import Retries
from bitstrata.errors import AccessDenied, BadSource, FetchFailed, Interrupted, SourceMisbehaves, SourceUnreachable

SECRET = "s3cr3t-t0ken"


def test_small_files(server: Server) -> None:
    server.files["latest.json"] = b"{}"
    assert HttpSource(server.address + "/").read("latest.json", 2) == b"{}"


@pytest.mark.parametrize(
    "faults", [Faults(), Faults(chunked=True), Faults(unframed=True), Faults(endless=True)], ids=str
)
def test_more_than_the_limit_is_not_fetched(server: Server, faults: Faults) -> None:
    server.files["latest.json"] = bytes(100_000_000)
    server.faults = faults
    with pytest.raises(SourceMisbehaves, match=r"latest\.json .* has .*bytes"):
        HttpSource(server.address).read("latest.json", 1000)
    assert server.body_bytes < 20_000_000  # what the system's buffers take


def test_a_web_page_in_the_place_of_a_release_is_named(server: Server) -> None:
    server.faults.page = True
    with pytest.raises(SourceMisbehaves, match=r"latest\.json: a web page came instead of the file.*login"):
        HttpSource(server.address).read("latest.json", 1000)


def test_truncated_small_file_is_worth_another_try(server: Server) -> None:
    server.files["latest.json"] = b"{}" * 50
    server.faults.extra_length = 10
    with pytest.raises(Interrupted):
        HttpSource(server.address).read("latest.json", 1000)


@pytest.mark.parametrize(
    "content_range", ["bytes 0-898/1000", "bytes 102-1000/1001", "bytes 101-999/999", "bytes 101-*/*"]
)
def test_a_range_that_was_not_asked_for(server: Server, content_range: str) -> None:
    """Of the right length, and from another place."""
    path, _ = server.add(bytes(1000))
    server.faults.content_range = content_range
    with pytest.raises(SourceMisbehaves, match="range"), HttpSource(server.address).open(path, 101):
        pass


def test_the_rest_of_another_file_is_not_taken(server: Server) -> None:
    path, _ = server.add(b"0123456789")
    server.faults = Faults(etags=['"new"'], ignore_if_range=True)
    with HttpSource(server.address).open(path, 4, validator='"old"') as body:
        assert (body.start, body.validator, b"".join(body.chunks)) == (0, '"new"', b"0123456789")
    with HttpSource(server.address).open(path, 4, validator='"new"') as body:
        assert (body.start, body.validator, b"".join(body.chunks)) == (4, '"new"', b"456789")


def test_connections_are_used_again(server: Server) -> None:
    server.files["latest.json"] = b"{}" * 50
    source = HttpSource(server.address)
    ports = []
    real = server._server.process_request

    def count(request: object, address: object) -> None:
        ports.append(address)
        real(request, address)  # type: ignore[arg-type]

    server._server.process_request = count  # type: ignore[method-assign, assignment]
    for _ in range(5):
        source.read("latest.json", 1000)
    assert len(server.requests) == 5
    assert len(ports) == 1


@pytest.mark.parametrize(
    "path", ["../secret", "/etc/passwd", "a//b", "a/../b", "a\\b", "a?b", "a#b", "", "a b", ".x", "é"]
)
def test_paths_that_lead_elsewhere(server: Server, path: str) -> None:
    with pytest.raises(BadSource, match="no path of a published model"):
        HttpSource(server.address).read(path, 10)
    assert not server.requests


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("file:///etc/passwd", "no plain http or https address"),
        ("ftp://127.0.0.1/x", "no plain http or https address"),
        ("gopher://127.0.0.1/x", "no plain http or https address"),
        ("https://user:word@127.0.0.1/", "no plain http or https address"),
        ("http://exa mple/", "no plain http or https address"),
        ("http:\\\\127.0.0.1/", "no plain http or https address"),
        ("", "redirect to nowhere"),
        ("/latest.json", "more than 5 redirects"),
    ],
)
def test_forbidden_redirects(server: Server, location: str, says: str) -> None:
    server.faults.redirects = {"latest.json": location}
    with pytest.raises(SourceMisbehaves, match=says) as raised:
        HttpSource(server.address).read("latest.json", 10)
    assert "word" not in str(raised.value)
    assert len(server.requests) == (6 if location.startswith("/") else 1)


def test_redirects_are_followed_and_resumed(server: Server, tmp_path: Path) -> None:
    with serving() as store:
        content = b"x" * 100_000
        path, digest = store.add(content)
        server.faults.redirects = {path: f"{store.address}/{path}?signature={SECRET}"}
        store.faults.cuts = [40_000]
        policy = Retries(first_pause=0.01)
        download(HttpSource(server.address), path, digest, len(content), tmp_path / "partial", policy=policy)
        assert store.body_bytes == len(content)
        assert [request.headers.get("Range") for request in store.requests] == [None, "bytes=40000-"]
        # A signed address may end before the download does: each try asks for a new one.
        assert len(server.requests) == 2


def secret_source(address: str) -> HttpSource:
    return HttpSource(address, secrets=Secrets({"Authorization": f"Bearer {SECRET}", "X-Key": SECRET}))


def test_secrets_stay_with_their_host(server: Server) -> None:
    with serving() as other:
        other.files["latest.json"] = b"{}"
        other.files["back"] = b"{}"
        server.files["final"] = b"{}"
        server.faults.redirects = {"latest.json": "/next", "next": f"{other.address}/latest.json"}
        assert secret_source(server.address).read("latest.json", 10) == b"{}"
        assert [request.headers.get("X-Key") for request in server.requests] == [SECRET, SECRET]
        assert SECRET not in str(other.requests)
        # The way back brings them not back.
        other.faults.redirects = {"latest.json": f"{server.address}/final"}
        secret_source(server.address).read("latest.json", 10)
        assert server.requests[-1].path == "/final"
        assert SECRET not in str(server.requests[-1])
        # The same host under another port or name is another.
        server.faults.redirects = {"latest.json": f"http://localhost:{server.port}/final"}
        secret_source(server.address).read("latest.json", 10)
        assert SECRET not in str(server.requests[-1])


def test_secrets_are_not_sent_in_the_clear(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    """Through a proxy every http address is in the clear, even one that is called local."""
    server.files["latest.json"] = b"{}"
    monkeypatch.setenv("http_proxy", server.address)
    monkeypatch.setenv("BITSTRATA_TOKEN", SECRET)
    server.faults.always = 401
    for host in ("models.example", "localhost:1"):
        with pytest.raises(AccessDenied, match="were not sent, because the address is not https"):
            open_source(f"http://{host}/model").read("latest.json", 10)
        assert server.requests[-1].path == f"http://{host}/model/latest.json"
    assert SECRET not in str(server.requests)


def test_token_and_headers_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path
) -> None:
    server.files["latest.json"] = b"{}"
    server.faults.token = f"Bearer {SECRET}"
    monkeypatch.setenv("BITSTRATA_TOKEN", f"{SECRET}\n")
    (tmp_path / "headers").write_text(f"# for the store\n\nX-Api-Key:  {SECRET} \n")
    monkeypatch.setenv("BITSTRATA_HEADERS_FILE", str(tmp_path / "headers"))
    assert open_source(server.address).read("latest.json", 10) == b"{}"
    assert server.requests[0].headers["X-Api-Key"] == SECRET


@pytest.mark.parametrize(
    "line", ["no colon here", "Range: bytes=0-1", "host: evil", "X: a\x00b", "X:", "Na me: x", "X: é"]
)
def test_headers_that_cannot_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str) -> None:
    (tmp_path / "headers").write_text(f"X-Key: {SECRET}\n{line}{SECRET}\n" if ":" not in line else f"{line}\n")
    monkeypatch.setenv("BITSTRATA_HEADERS_FILE", str(tmp_path / "headers"))
    with pytest.raises(AccessDenied, match="BITSTRATA_HEADERS_FILE") as raised:
        secrets_from_environment()
    assert SECRET not in str(raised.value)


def test_a_missing_headers_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BITSTRATA_HEADERS_FILE", str(tmp_path / "none"))
    with pytest.raises(AccessDenied, match="No such file"):
        secrets_from_environment()


def test_a_token_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITSTRATA_TOKEN", f"{SECRET}\r\nX: {SECRET}")
    with pytest.raises(AccessDenied, match="BITSTRATA_TOKEN") as raised:
        secrets_from_environment()
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "faults",
    [
        Faults(always=401),
        Faults(always=403),
        Faults(always=404),
        Faults(always=500),
        Faults(page=True),
        Faults(encoded=True),
        Faults(cut_every=10),
        Faults(drip=1),
        Faults(redirects={"latest.json": f"file:///{SECRET}"}),
        Faults(redirects={"latest.json": f"http://user:{SECRET}@127.0.0.1/?{SECRET}"}),
        Faults(redirects={"latest.json": f"http://127.0.0.1:1/?signature={SECRET}"}),
        Faults(redirects={"latest.json": f"http://127.0.0.1:99999/?signature={SECRET}"}),
        Faults(redirects={"latest.json": f"http://no.such.invalid/?signature={SECRET}"}),
    ],
    ids=str,
)
def test_no_error_shows_a_secret(
    server: Server, faults: Faults, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.files["latest.json"] = b"{}" * 50
    server.faults = faults
    headers = {"Authorization": f"Bearer {SECRET}", "X-Key": SECRET}
    source = HttpSource(server.address, secrets=Secrets(headers), patience=Patience(connect=1, stall=0.2))
    with pytest.raises(FetchFailed) as raised:
        download(source, "latest.json", "0" * 64, 100, tmp_path / "partial", policy=Retries(tries=1))
    told = "".join(traceback.format_exception(raised.value)) + repr(raised.value) + repr(source) + repr(source._secrets)
    assert SECRET not in told.replace(f'"http://user:{SECRET}', "").replace(repr(faults), "")
    assert SECRET not in caplog.text
    for left in tmp_path.iterdir():
        assert SECRET.encode() not in left.read_bytes()
    assert any(SECRET in request.headers.get("X-Key", "") for request in server.requests)


def test_the_record_of_a_partial_file_has_no_secret(server: Server, tmp_path: Path) -> None:
    server.faults.cut_every = 10
    path, digest = server.add(bytes(100))
    with pytest.raises(SourceUnreachable):
        download(secret_source(server.address), path, digest, 100, tmp_path / "partial", policy=Retries(tries=1))
    record = json.loads((tmp_path / "partial.json").read_text())
    assert record == {"address": server.address, "path": path, "validator": record["validator"], "version": 1}


@pytest.mark.parametrize(
    ("address", "says"),
    [
        (f"https://user:{SECRET}@models.example/x", "BITSTRATA_TOKEN"),
        (f"https://{SECRET}@models.example/x", "BITSTRATA_TOKEN"),
        (f"https://models.example/x?token={SECRET}", "presigned"),
        (f"https://models.example/x#{SECRET}", "presigned"),
        (f"https://user:{SECRET}@models example/x", "no http or https address"),
        (f"https://:{SECRET}@/x?{SECRET}", "no http or https address"),
    ],
)
def test_addresses_with_secrets_are_refused_unseen(address: str, says: str) -> None:
    with pytest.raises(BadSource, match=says) as raised:
        open_source(address)
    assert SECRET not in "".join(traceback.format_exception(raised.value)).replace("open_source(address)", "")


def test_proxies_of_the_environment(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    server.files["http://models.example/m/latest.json"] = server.files["m/latest.json"] = b"{}"
    monkeypatch.setenv("http_proxy", f"http://user:p%40ss@127.0.0.1:{server.port}")
    assert open_source("http://models.example/m").read("latest.json", 10) == b"{}"
    (request,) = server.requests
    assert request.path == "http://models.example/m/latest.json"
    assert request.headers["Host"] == "models.example"
    assert request.headers["proxy-authorization"] == "Basic dXNlcjpwQHNz"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert open_source(f"{server.address}/m").read("latest.json", 10) == b"{}"
    assert server.requests[-1].path == "/m/latest.json"
    assert "proxy-authorization" not in str(server.requests[-1]).lower()


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "http://127.0.0.1:1"])
def test_proxies_that_are_of_no_use(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises((SourceUnreachable, Interrupted), match="proxy"):
        open_source("http://models.example/m").read("latest.json", 10)


def test_a_name_that_no_host_has() -> None:
    with pytest.raises(BadSource, match="no host"):
        open_source(f"http://{'x' * 64}.example/m").read("latest.json", 10)


def test_offline(monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path) -> None:
    monkeypatch.setenv("BITSTRATA_OFFLINE", "1")
    signed = tmp_path / "model.presigned.json"
    signed.write_text('{"files": {}}')
    for address in (server.address, f"{server.address}/x.presigned.json", "s3://bucket/x", "hf://a/b", str(signed)):
        source = open_source(address)
        with pytest.raises(SourceUnreachable, match="offline mode"):
            source.read("latest.json", 10)
    (tmp_path / "latest.json").write_bytes(b"{}")
    assert open_source(tmp_path).read("latest.json", 10) == b"{}"
    assert not server.requests
    monkeypatch.setenv("BITSTRATA_OFFLINE", "0")
    server.files["latest.json"] = PAGE[:0]
    assert open_source(server.address).read("latest.json", 10) == b""
