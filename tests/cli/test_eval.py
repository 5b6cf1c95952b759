"""`bitstrata eval`: the numbers of training again, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from bitstrata.cli.main import main
from bitstrata.training import load_checkpoint


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    threads = torch.get_num_threads()
    folder = tmp_path_factory.mktemp("runs") / "run"
    flags = ["--limit", "128", "--batch-size", "32", "--epochs", "1", "--float-epochs", "1", "--norm-batches", "2"]
    assert main(["train", *flags, "--out", str(folder)]) == 0
    torch.set_num_threads(threads)
    return folder


def evaluate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()  # what the fixture printed
    code = main(["eval", *arguments, "--json"])
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return code, json.loads(out)


def test_the_numbers_are_those_of_training(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = load_checkpoint(run / "checkpoint.pt")["history"][-1]["accuracy"]
    for path in (run, run / "checkpoint.pt"):
        code, result = evaluate(capsys, str(path), "--data", "digits")
        assert code == 0
        assert result["accuracy"] == trained
    assert result["net"] == "resnet8"
    assert result["epochs"] == 1


def test_one_width_and_fewer_samples(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = load_checkpoint(run / "checkpoint.pt")["history"][-1]["accuracy"]
    assert evaluate(capsys, str(run), "--bits", "3")[1]["accuracy"] == {"3": trained["3"]}
    for limit in (10, 300):
        result = evaluate(capsys, str(run), "--bits", "2", "--limit", str(limit))[1]
        assert result["accuracy"]["2"]["samples"] == limit
    assert evaluate(capsys, str(run), "--limit", "1000")[1]["accuracy"] == trained


def test_prints_a_table(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--data", "digits"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-4:]] == ["width", "4", "3", "2"]


def test_a_width_that_is_not_there(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = evaluate(capsys, str(run), "--bits", "5")
    assert code == 1
    assert result["error"] == "UnknownWidth"


@pytest.mark.parametrize("part", [0.0, 0.5, 0.999])
def test_a_truncated_checkpoint(part: float, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = (run / "checkpoint.pt").read_bytes()
    damaged = tmp_path / "checkpoint.pt"
    damaged.write_bytes(whole[: int(len(whole) * part)])
    code, result = evaluate(capsys, str(damaged), "--data", "digits")
    assert code == 1
    assert result["error"] == "CheckpointDamaged"
    assert str(damaged) in result["message"]


def test_an_altered_checkpoint(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = torch.load(run / "checkpoint.pt", weights_only=True)
    content["model"]["model.conv1.weight"][0, 0, 0, 0] += 1
    torch.save(content, tmp_path / "checkpoint.pt")
    code, result = evaluate(capsys, str(tmp_path), "--data", "digits")
    assert code == 1
    assert result["error"] == "CheckpointDamaged"
    assert "digest" in result["message"]


def test_no_run_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = evaluate(capsys, str(tmp_path / "nothing"))
    assert code == 1
    assert result["error"] == "CheckpointDamaged"


def test_the_float_phase_is_told_apart(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = evaluate(capsys, str(run / "float"))
    assert code == 1
    assert result["error"] == "CheckpointMismatch"
    assert "float network" in result["message"]


def test_other_data(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split in ("train", "val"):
        for name in ("cats", "dogs"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / split / name / "1.png")
    code, result = evaluate(capsys, str(run), "--data", f"folder:{tmp_path}?size=8")
    assert code == 1
    assert result["error"] == "BadData"
    assert "3 channels and 2 classes" in result["message"]
