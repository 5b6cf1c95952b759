"""TLS is always verified, by the authorities of the system or of SSL_CERT_FILE."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from device.server import Server, serving

from bitstrata.device.download import download
from bitstrata.device.http import HttpSource
from bitstrata.device.open_source import open_source
from bitstrata.device.pace import Patience
from bitstrata.device.retries import Retries
from bitstrata.errors import Interrupted, SourceMisbehaves, SourceUnreachable

trustme = pytest.importorskip("trustme")


@pytest.fixture(scope="module")
def authority() -> object:
    return trustme.CA()


def secure_server(authority: object, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)  # type: ignore[attr-defined]
    return context


@pytest.fixture
def secure(authority: object) -> Iterator[Server]:
    with serving(secure_server(authority, "127.0.0.1")) as running:
        yield running


@pytest.fixture
def trusted(authority: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")  # type: ignore[attr-defined]
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))


@pytest.mark.usefixtures("trusted")
def test_a_trusted_server(secure: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITSTRATA_TOKEN", "secret")
    content = bytes(range(256)) * 2000
    path, digest = secure.add(content)
    secure.faults.cuts = [100_000, 200_000]
    policy = Retries(first_pause=0.01)
    download(open_source(secure.address), path, digest, len(content), tmp_path / "partial", policy=policy)
    assert secure.body_bytes == len(content)
    assert secure.requests[0].headers["Authorization"] == "Bearer secret"


def test_an_unknown_authority_is_refused_at_once(secure: Server) -> None:
    with pytest.raises(SourceUnreachable, match=r"certificate is not accepted.*SSL_CERT_FILE"):
        HttpSource(secure.address).read("latest.json", 10)
    assert not secure.requests


@pytest.mark.usefixtures("trusted")
def test_a_certificate_for_another_host_is_refused(authority: object) -> None:
    with (
        serving(secure_server(authority, "models.example")) as other,
        pytest.raises(SourceUnreachable, match="certificate is not accepted"),
    ):
        HttpSource(other.address).read("latest.json", 10)


@pytest.mark.usefixtures("trusted")
def test_no_redirect_from_https_to_http(secure: Server, server: Server) -> None:
    server.files["latest.json"] = b"{}"
    secure.faults.redirects = {"latest.json": f"{server.address}/latest.json"}
    with pytest.raises(SourceMisbehaves, match="from https to http"):
        HttpSource(secure.address).read("latest.json", 10)
    assert not server.requests
    secure.files["latest.json"], secure.faults.redirects = b"{}", {}
    server.faults.redirects = {"latest.json": f"{secure.address}/latest.json"}
    assert HttpSource(server.address).read("latest.json", 10) == b"{}"


@pytest.mark.usefixtures("trusted")
def test_headers_that_drip_are_given_up(secure: Server) -> None:
    secure.files["latest.json"] = b"{}"
    secure.faults.header_drip = 0.1
    with pytest.raises(Interrupted, match=r"nothing came for 0\.5 s"):
        HttpSource(secure.address, patience=Patience(stall=0.5)).read("latest.json", 10)
