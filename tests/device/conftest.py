"""What the tests of fetching share: a server, and an environment that sets nothing."""

import os
from collections.abc import Iterator

import pytest
from device.server import Server, serving


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxies, tokens or accounts of whoever runs the tests."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith(("AWS_", "HF_", "BITSTRATA_", "SSL_CERT")):
            monkeypatch.delenv(name)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running
