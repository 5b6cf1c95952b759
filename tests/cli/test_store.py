"""The verbs about a device's store: `pull`, `upgrade`, `downgrade`, `list`, `verify`, `gc`, `remove`."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from device.worlds import NAME, World, invariant, make_world
from publishing import artifact, key

from bitstrata.cli.main import main
from bitstrata.publish.destinations import FolderDestination
from bitstrata.publish.push import push
from bitstrata.publish.serve import serving


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith("BITSTRATA_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("BITSTRATA_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


Told = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs a verb with --json and gives its lines."""

    def run(*arguments: str, code: int = 0) -> list[dict[str, Any]]:
        capsys.readouterr()
        assert main([*arguments, "--json"]) == code
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def test_a_life_of_a_model(world: World, home: Path, told: Told) -> None:
    with serving(world.folder) as address:
        *events, last = told("pull", address, "--version", "1")
        assert [event["event"] for event in events][:1] == ["resolved"]
        assert events[-1] == {"event": "switched", "name": NAME, "version": 1, "view": "2"}
        assert {**last, "bytes": 0, "manifest": ""} == {
            "name": NAME,
            "version": 1,
            "view": "2",
            "views": ["2"],
            "bytes": 0,
            "source": address,
            "manifest": "",
            "signed": False,
        }
        assert told("upgrade", NAME, "--bits", "4")[-1]["view"] == "4"
        invariant(home, world, {(1, "4")})
        assert told("pull", NAME, "--view", "mixed-a")[-1]["version"] == 2
        invariant(home, world, {(2, "mixed-a")})
    assert told("downgrade", NAME, "--bits", "2", "--prune")[-1]["views"] == ["2"]
    invariant(home, world, {(2, "2")})
    (models,) = told("list")
    assert models["home"] == str(home)
    assert [one["name"] for one in models["models"]] == [NAME]
    (sound,) = told("verify", NAME)
    assert sound["files"] == 3
    assert told("gc") == [{"files": 0, "bytes": 0}]
    (gone,) = told("remove", NAME)
    assert gone["files"] == 3
    assert told("list")[0]["models"] == []


def test_for_people(world: World, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert "holds no model; `bitstrata pull SRC` fetches one" in capsys.readouterr().out
    assert main(["pull", str(world.folder), "--bits", "3"]) == 0
    streams = capsys.readouterr()
    assert "small, version 2, runs at view 3" in streams.out
    assert "integrity only, no key is pinned" in streams.err
    assert main(["list"]) == 0
    assert "small" in capsys.readouterr().out
    assert main(["upgrade", NAME, "--bits", "4"]) == 0
    assert "small runs at view 4" in capsys.readouterr().out
    assert main(["downgrade", NAME, "--bits", "2"]) == 0
    assert "bytes are held" in capsys.readouterr().out
    assert main(["verify", NAME]) == 0
    assert "all 7 files that are held are sound" in capsys.readouterr().out
    assert main(["gc"]) == 0
    assert "0 files removed" in capsys.readouterr().out
    assert main(["remove", NAME]) == 0
    assert "small is gone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (["upgrade", NAME], "BadOption", "--bits WIDTH or --view NAME"),
        (["upgrade", NAME, "--bits", "3", "--view", "3"], "BadOption", "not both"),
        (["upgrade", NAME, "--bits", "8"], "UnknownView", "8"),
        (["upgrade", "large", "--bits", "4"], "UnknownModel", "it holds: small"),
        (["downgrade", NAME, "--bits", "4"], "BadOption", "bitstrata upgrade"),
        (["downgrade", NAME, "--view", "mixed-a"], "BadOption", "bitstrata upgrade"),
        (["pull", "SRC", "--version", "1"], "Rollback", "versions only go up"),
        (["pull", "SRC", "--name", "../x"], "BadOption", "no name for a model"),
        (["pull", "SRC", "--max-bytes", "10"], "NothingFits", "10 allowed"),
        (["pull", "SRC", "--max-bytes", "0"], "BadOption", "above zero"),
        (["pull", "SRC", "--max-bytes", "10", "--bits", "2"], "BadOption", "not both"),
        (["pull", "SRC", "--trust", "nonsense"], "BadRelease", "no public key"),
        (["pull", "/nowhere/at/all"], "NotPublished", "bitstrata push"),
        (["pull", "ftp://host/model"], "BadSource", "https://"),
        (["remove", "large"], "UnknownModel", "it holds: small"),
    ],
)
def test_refusals(
    arguments: list[str], error: str, says: str, world: World, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", str(world.folder)]) == 0
    capsys.readouterr()
    given = [str(world.folder) if one == "SRC" else one for one in arguments]
    assert main([*given, "--json"]) == 1
    streams = capsys.readouterr()
    assert json.loads(streams.out.splitlines()[-1])["error"] == error
    assert says in streams.err
    assert "Traceback" not in streams.err
    invariant(home, world, {(2, "2")})


def test_limits(world: World, told: Told) -> None:
    *events, last = told("pull", str(world.folder), "--max-bytes", "100000", "--max-latency", "10000", "--fit")
    assert last["view"] == "4"
    assert "100,000 allowed" in events[0]["why"]


def test_a_damaged_model(world: World, home: Path, told: Told) -> None:
    told("pull", str(world.folder), "--bits", "3")
    content = bytearray(world.content(2, "enhance-3.safetensors"))
    place = next(path for path in (home / "blobs").iterdir() if path.read_bytes() == content)
    content[-1] ^= 1
    place.write_bytes(content)
    (found,) = told("verify", NAME, code=1)
    assert found["error"] == "WrongHash"
    assert "enhance-3.safetensors missing or damaged" in found["message"]
    assert "`bitstrata pull small` fetches again" in found["message"]
    events = told("pull", NAME)
    assert events[0]["bytes"] == len(content)
    told("verify", NAME)
    invariant(home, world, {(2, "3")})


def test_keys(tmp_path: Path, told: Told) -> None:
    signed, bare = tmp_path / "signed", tmp_path / "bare"
    push(artifact(tmp_path), FolderDestination(signed), key=key(1))
    push(artifact(tmp_path, version=2), FolderDestination(bare))
    (tmp_path / "key.pub").write_text(key(1).public.hex(), encoding="ascii")
    assert told("pull", str(signed), "--trust", str(tmp_path / "key.pub"))[-1]["signed"]
    assert told("pull", str(bare), code=1)[-1]["error"] == "Unsigned"
    assert told("pull", str(signed), "--trust", key(2).public.hex(), code=1)[-1]["error"] == "WrongSignature"
    assert told("list")[0]["models"][0]["version"] == 1


def test_offline(world: World, home: Path, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(world.folder) as address:
        told("pull", address, "--bits", "3")
        monkeypatch.setenv("BITSTRATA_OFFLINE", "1")
        (refused,) = told("pull", NAME, code=1)
        assert "BITSTRATA_OFFLINE" in refused["message"]
    assert told("downgrade", NAME, "--bits", "2")[-1]["view"] == "2"
    assert told("upgrade", NAME, "--bits", "3")[-1]["view"] == "3"
    invariant(home, world, {(2, "3")})
