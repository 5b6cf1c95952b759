"""`bitstrata verify`."""

import json
from pathlib import Path

import pytest
from format.samples import INPUT, network

from bitstrata.cli.main import main
from bitstrata.format import write_artifact


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_artifact(tmp_path / "net.strata", network(), name="net", input=INPUT)
    return tmp_path / "net.strata"


def test_a_sound_artifact(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(path)]) == 0
    assert "7 files, 8 segments and views 2, 3, 4 are sound" in capsys.readouterr().out
    (path / "notes.txt").write_text("mine", encoding="utf-8")
    assert main(["verify", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["other_files"] == ["notes.txt"]
    assert found["bytes"] == sum(file.stat().st_size for file in path.iterdir()) - 4


@pytest.mark.parametrize("place", [0, 100, -1])
def test_a_damaged_one(path: Path, place: int, capsys: pytest.CaptureFixture[str]) -> None:
    content = bytearray((path / "enhance-4.safetensors").read_bytes())
    content[place] ^= 4
    (path / "enhance-4.safetensors").write_bytes(content)
    assert main(["verify", str(path), "--json"]) == 1
    streams = capsys.readouterr()
    assert json.loads(streams.out)["error"] == "WrongHash"
    assert "enhance-4.safetensors" in streams.err
