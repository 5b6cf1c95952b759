"""`bitstrata inspect`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from format.samples import INPUT, network

from bitstrata.cli.main import main
from bitstrata.format import Artifact, describe, write_artifact


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_artifact(tmp_path / "net.strata", network(mixed=True), name="net", version=3, input=INPUT)
    return tmp_path / "net.strata"


def test_what_people_see(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("net, version 3 (format 1)\n")
    found = describe(Artifact.open(path))
    for size in (*found["files"].values(), *(view["fetched_bytes"] for view in found["views"].values())):
        assert f"{size:,}" in shown
    lines = shown.splitlines()
    assert any(line.startswith("block.depthwise") and "5x1x3x3" in line and "4 bits" in line for line in lines)
    assert any(line.startswith("mixed-a") and "2.36" in line for line in lines)


def test_json_is_the_description(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(describe(Artifact.open(path))))


def test_one_view(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(path), "--view", "mixed-a", "--json"]) == 0
    assert [*json.loads(capsys.readouterr().out)["views"]] == ["mixed-a"]
    assert main(["inspect", str(path), "--view", "mixed-a"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("block.depthwise") and "2 bits" in line for line in lines)
    assert any(line.startswith("block.pointwise") and "3 bits" in line for line in lines)


def test_picture(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "net.svg"
    assert main(["inspect", str(path), "--picture", str(picture), "--json"]) == 0
    streams = capsys.readouterr()
    json.loads(streams.out)
    assert str(picture) in streams.err
    assert picture.read_text(encoding="utf-8").startswith("<svg ")


def test_refusals(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"] == "NotAnArtifact"
    assert main(["inspect", str(path), "--view", "5"]) == 1
    assert "2, 3, 4, mixed-a" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["inspect", "verify"])
def test_torch_is_not_needed(path: Path, verb: str) -> None:
    program = f"""
import sys
sys.modules["torch"] = None
from bitstrata.cli.main import main
sys.exit(main([{verb!r}, {str(path)!r}]))
"""
    run = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
