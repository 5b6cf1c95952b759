"""Folders, buckets, the hub, signed addresses: what people write, and what is asked of whom."""

import os
import sys
from pathlib import Path

import pytest
from device.server import Faults, Server, serving

from bitstrata.device.download import download, download_range
from bitstrata.device.folder import FolderSource
from bitstrata.device.http import HttpSource
from bitstrata.device.hub import hub_source
from bitstrata.device.open_source import is_remote, open_source
from bitstrata.device.pace import Patience
from bitstrata.device.retries import Retries
from bitstrata.device.s3 import s3_source
from bitstrata.errors import (
    AccessDenied,
    BadSource,
    Interrupted,
    MissingExtra,
    NotPublished,
    SourceMisbehaves,
    SourceUnreachable,
)

SECRET = "s3cr3t-t0ken"
QUICK = Retries(tries=4, first_pause=0.01, longest_pause=0.05, progress=1000)


@pytest.mark.parametrize(
    ("text", "remote"),
    [
        ("https://models.example/x", True),
        ("HTTP://models.example/x", True),
        ("s3://bucket/x", True),
        ("hf://a/b@c", True),
        ("some.presigned.json", True),
        ("ftp://models.example", True),
        ("models/x.strata", False),
        ("C:/models/x", False),
        ("C:\\models\\x", False),
        ("/models/http://x", False),
        (Path("/models/x"), False),
    ],
)
def test_what_is_remote(text: str | Path, remote: bool) -> None:
    assert is_remote(text) is remote


@pytest.mark.parametrize(
    "text", ["", "ftp://host/x", "file:///models/x", "https://", "https:///x", "s3://", "s3://B/x", "s3://bucket/../x",
             "s3://bucket//x", "hf://a", "hf://a/b/c", "hf://../b", "hf://a/b@", "hf://a/b@../c", "x\0y", "http:/x"]
)  # fmt: skip
def test_what_is_no_source(text: str) -> None:
    with pytest.raises(BadSource):
        open_source(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("https://models.example/x/", "https://models.example/x"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3://bucket", "s3://bucket"),
        ("hf://a/b", "hf://a/b@main"),
        ("hf://a/b@refs/pr/1", "hf://a/b@refs/pr/1"),
        ("https://models.example/x.presigned.json", "https://models.example/x.presigned.json"),
        ("/models/x", "/models/x"),
    ],
)
def test_an_address_finds_the_same_source_again(text: str, address: str) -> None:
    source = open_source(text)
    assert source.address == address
    again = open_source(source.address)
    assert (type(again), again.address) == (type(source), address)
    assert address in repr(source)


def test_folder(tmp_path: Path) -> None:
    (tmp_path / "blobs" / "sha256").mkdir(parents=True)
    (tmp_path / "blobs" / "sha256" / "ab").write_bytes(b"0123456789")
    source = FolderSource(tmp_path)
    assert source.read("blobs/sha256/ab", 10) == b"0123456789"
    with pytest.raises(SourceMisbehaves, match="10 bytes, more than the 9"):
        source.read("blobs/sha256/ab", 9)
    assert download_range(source, "blobs/sha256/ab", 3, 7) == b"3456"
    with source.open("blobs/sha256/ab", 4) as body:
        validator = body.validator
        assert (body.start, body.size, b"".join(body.chunks)) == (4, 10, b"456789")
    with source.open("blobs/sha256/ab", 4, validator=validator) as body:
        assert body.start == 4
    (tmp_path / "blobs" / "sha256" / "ab").write_bytes(b"abcdefghijk")
    with source.open("blobs/sha256/ab", 4, validator=validator) as body:
        assert (body.start, b"".join(body.chunks)) == (0, b"abcdefghijk")
    with pytest.raises(SourceMisbehaves, match="shorter"), source.open("blobs/sha256/ab", 11):
        pass
    with pytest.raises(NotPublished, match="bitstrata push"):
        source.read("latest.json", 10)
    with pytest.raises(NotPublished):
        FolderSource(tmp_path / "nowhere").read("manifests/ab.json", 10)
    with pytest.raises(SourceMisbehaves, match="regular file"):
        source.read("blobs/sha256", 10)


def test_folder_follows_no_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "latest.json").symlink_to(outside / "secret")
    (folder / "blobs").symlink_to(outside)
    os.mkfifo(folder / "pipe")
    source = FolderSource(folder)
    for path in ("latest.json", "blobs/secret"):
        with pytest.raises(SourceMisbehaves, match="link"):
            source.read(path, 10)
    with pytest.raises(SourceMisbehaves, match="regular file"):
        source.read("pipe", 10)
    for path in ("../outside/secret", "/etc/passwd", "blobs/../../outside/secret"):
        with pytest.raises(BadSource):
            source.read(path, 10)
    (tmp_path / "link").symlink_to(outside)
    assert FolderSource(tmp_path / "link").read("secret", 10) == b"secret"


@pytest.mark.skipif(os.name == "posix" and os.geteuid() == 0, reason="root may read everything")
def test_folder_without_permission(tmp_path: Path) -> None:
    (tmp_path / "latest.json").touch(mode=0)
    with pytest.raises(AccessDenied):
        FolderSource(tmp_path).read("latest.json", 10)


def base_of(source: object) -> str:
    assert isinstance(source, HttpSource)
    return source._base


def test_public_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    assert base_of(s3_source("s3://bucket/a b/c")) == "https://bucket.s3.amazonaws.com/a%20b/c"
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert base_of(s3_source("s3://bucket")) == "https://bucket.s3.eu-west-1.amazonaws.com"
    assert base_of(s3_source("s3://my.bucket/x")) == "https://s3.eu-west-1.amazonaws.com/my.bucket/x"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://minio.example:9000/")
    assert base_of(s3_source("s3://bucket/x")) == "https://minio.example:9000/bucket/x"
    monkeypatch.setenv("AWS_REGION", "evil.example/")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    with pytest.raises(BadSource, match="AWS_REGION"):
        s3_source("s3://bucket/x")


def test_public_bucket_over_http(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.address)
    monkeypatch.setenv("BITSTRATA_TOKEN", SECRET)
    server.files["bucket/x/latest.json"] = b"{}"
    assert open_source("s3://bucket/x").read("latest.json", 10) == b"{}"
    assert SECRET not in str(server.requests)
    server.faults.always = 403
    with pytest.raises(AccessDenied, match="AWS_ACCESS_KEY_ID"):
        open_source("s3://bucket/x").read("latest.json", 10)


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDENTITY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.address)


@pytest.mark.usefixtures("account")
class TestPrivateBucket:
    """With credentials, through obstore, against the same server."""

    @pytest.fixture(autouse=True)
    def needs_obstore(self) -> None:
        pytest.importorskip("obstore")

    def test_signed_requests(self, server: Server, tmp_path: Path) -> None:
        content = bytes(range(256)) * 4000
        path, digest = server.add(content)
        server.files = {f"bucket/x/{name}": data for name, data in server.files.items()}
        source = open_source("s3://bucket/x")
        download(source, path, digest, len(content), tmp_path / "partial", policy=QUICK)
        assert (tmp_path / "partial").read_bytes() == content
        assert "AKIDENTITY" in server.requests[0].headers["authorization"]
        assert SECRET not in str(server.requests)
        assert download_range(source, path, 5, 900) == content[5:900]

    @pytest.mark.parametrize(
        "faults",
        [
            Faults(statuses=[500, 503]),
            Faults(cuts=[300_000, 300_000]),
            Faults(cuts=[300_000], reset=True),
            Faults(cuts=[300_000], etags=['"one"', '"two"']),
        ],
        ids=str,
    )
    def test_faults_that_are_overcome(self, server: Server, tmp_path: Path, faults: Faults) -> None:
        content = bytes(range(256)) * 4000
        path, digest = server.add(content)
        server.files = {f"bucket/{name}": data for name, data in server.files.items()}
        server.faults = faults
        source = s3_source("s3://bucket", Patience(connect=2, stall=1))
        download(source, path, digest, len(content), tmp_path / "partial", policy=QUICK)
        assert (tmp_path / "partial").read_bytes() == content
        if not faults.etags and not faults.reset:
            assert server.body_bytes <= 1.05 * len(content)

    @pytest.mark.parametrize(
        ("faults", "error"),
        [
            (Faults(always=404), NotPublished),
            (Faults(always=403), AccessDenied),
            (Faults(always=401), AccessDenied),
            (Faults(always=500), Interrupted),
            (Faults(always=400), SourceMisbehaves),
            (Faults(drip=5), Interrupted),
            (Faults(drip=0.01), Interrupted),
        ],
        ids=str,
    )
    def test_faults_that_end_in_a_typed_error(
        self, server: Server, faults: Faults, error: type[Exception], capfd: pytest.CaptureFixture[str]
    ) -> None:
        server.files["bucket/latest.json"] = bytes(10_000)
        server.faults = faults
        source = s3_source("s3://bucket", Patience(connect=2, stall=0.5, window=0.3, slowest=2000))
        with pytest.raises(error) as raised:
            source.read("latest.json", 100_000)
        assert type(raised.value) is error
        assert "s3://bucket/latest.json" in str(raised.value)
        captured = capfd.readouterr()
        for secret in (SECRET, "AKIDENTITY"):
            assert secret not in str(raised.value) + repr(source) + captured.out + captured.err

    def test_no_server(self, server: Server) -> None:
        server.close()
        with pytest.raises(Interrupted, match="did not answer"):
            s3_source("s3://bucket", Patience(connect=1, stall=0.5)).read("latest.json", 10)

    def test_anonymous_on_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
        assert isinstance(s3_source("s3://bucket"), HttpSource)


@pytest.mark.usefixtures("account")
def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("obstore")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtra, match=r"bitstrata\[s3\]"):
        s3_source("s3://bucket/x")


def test_hub(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    assert base_of(hub_source("hf://org/name")) == "https://huggingface.co/org/name/resolve/main"
    assert base_of(hub_source("hf://org/name@refs/pr/1")) == "https://huggingface.co/org/name/resolve/refs%2Fpr%2F1"
    monkeypatch.setenv("HF_ENDPOINT", server.address + "/")
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("BITSTRATA_TOKEN", "another")
    with serving() as store:
        store.files["stored"] = b"{}"
        server.faults.redirects = {"org/name/resolve/v1/latest.json": f"{store.address}/stored"}
        assert open_source("hf://org/name@v1").read("latest.json", 10) == b"{}"
        assert server.requests[0].headers["Authorization"] == f"Bearer {SECRET}"
        assert SECRET not in str(store.requests)
    monkeypatch.delenv("HF_TOKEN")
    server.faults = Faults(always=401)
    with pytest.raises(AccessDenied, match=r"no such model.*HF_TOKEN"):
        open_source("hf://org/name@v1").read("latest.json", 10)
    assert "another" not in str(server.requests)


def write_list(place: Path, files: str) -> Path:
    place.write_text(f'{{"files": {files}}}')
    return place


def test_presigned(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv("BITSTRATA_TOKEN", "token-for-others")
    server.files["bucket/one"] = b"{}"
    place = write_list(tmp_path / "m.presigned.json", f'{{"latest.json": "{server.address}/bucket/one?sig={SECRET}"}}')
    source = open_source(place)
    assert source.read("latest.json", 10) == b"{}"
    assert server.requests[0].path == f"/bucket/one?sig={SECRET}"
    assert "token-for-others" not in str(server.requests)
    assert SECRET not in source.address + repr(source)
    assert "/bucket/one" in caplog.text
    assert SECRET not in caplog.text
    with pytest.raises(NotPublished, match="not among the signed addresses"):
        source.read("keys/1.json", 10)


def test_presigned_list_on_the_web(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as store:
        store.files["one"] = b"{}"
        server.files["lists/m.presigned.json"] = f'{{"files": {{"latest.json": "{store.address}/one?s=1"}}}}'.encode()
        server.faults.token = f"Bearer {SECRET}"
        monkeypatch.setenv("BITSTRATA_TOKEN", SECRET)
        source = open_source(f"{server.address}/lists/m.presigned.json")
        assert source.read("latest.json", 10) == b"{}"
        assert source.read("latest.json", 10) == b"{}"
        assert len(server.requests) == 1
        assert SECRET not in str(store.requests)


def test_presigned_that_has_expired(server: Server, tmp_path: Path) -> None:
    server.faults.always = 403
    query = f"X-Amz-Date=20240102T030405Z&X-Amz-Expires=3600&X-Amz-Signature={SECRET}"
    place = write_list(tmp_path / "m.presigned.json", f'{{"latest.json": "{server.address}/one?{query}"}}')
    source = open_source(place)
    with pytest.raises(AccessDenied, match="it has expired at 2024-01-02 04:04 UTC") as raised:
        source.read("latest.json", 10)
    assert SECRET not in str(raised.value)
    assert len(server.requests) == 1
    # A new list in the same place is used at once, and when what was signed before no longer holds.
    server.faults = Faults()
    for name in ("two", "three"):
        write_list(place, f'{{"latest.json": "{server.address}/{name}"}}')
        server.files[name] = name.encode()
        assert source.read("latest.json", 10) == name.encode()
        server.faults.statuses = [403]
    write_list(place, f'{{"latest.json": "{server.address}/three"}}')
    server.faults.statuses = [403, 403]
    with pytest.raises(AccessDenied, match="may have expired"):
        source.read("latest.json", 10)


@pytest.mark.parametrize(
    "files",
    [
        f'{{"latest.json": "file:///etc/passwd?{SECRET}"}}',
        f'{{"latest.json": "http://models.example/x?{SECRET}"}}',
        f'{{"latest.json": "https://user:{SECRET}@models.example/x"}}',
        f'{{"latest.json": "{SECRET}"}}',
        f'{{"latest.json": ["{SECRET}"]}}',
        f'"{SECRET}"',
        f'{{}}, "{SECRET}": 1',
        "{",
    ],
)
def test_lists_that_cannot_be(tmp_path: Path, files: str) -> None:
    place = write_list(tmp_path / "m.presigned.json", files)
    with pytest.raises(BadSource) as raised:
        open_source(place).read("latest.json", 10)
    assert SECRET not in str(raised.value)


def test_presigned_list_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotPublished):
        open_source(tmp_path / "m.presigned.json").read("latest.json", 10)


def test_unreachable_host_is_reported_with_the_network(tmp_path: Path) -> None:
    source = open_source("https://no.such.host.invalid/x", Patience(connect=2))
    with pytest.raises((Interrupted, SourceUnreachable), match=r"name of the host|no connection"):
        source.read("latest.json", 10)
