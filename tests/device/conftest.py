"""What the tests of fetching share: a server, and an environment that sets nothing."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from device.server import Server, serving
from device.worlds import World, make_world


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


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def quick_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: what kills and failing calls leave is the same there, and sooner."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="bitstrata-", dir=memory))
    yield folder
    shutil.rmtree(folder)
