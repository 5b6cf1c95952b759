"""`bitstrata pack`, `predict`, and `eval` of an artifact: from a training run to predictions, by commands alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from trained_run import train_and_pack

from bitstrata.cli.main import main
from bitstrata.training import load_checkpoint, load_net
from bitstrata.zoo.data import load_data


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_and_pack(tmp_path_factory)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_pack_says_what_a_device_fetches(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = answer(
        capsys, "pack", str(run), str(tmp_path / "a.strata"), "--name", "tens", "--model-version", "7"
    )
    assert code == 0
    assert (report["name"], report["version"], report["widths"]) == ("tens", 7, [2, 3, 4])
    assert report["input"]["labels"] == [str(digit) for digit in range(10)]
    sizes = [report["views"][name]["fetched_bytes"] for name in ("2", "3", "4")]
    assert sizes == sorted(sizes)
    assert main(["pack", str(run), str(tmp_path / "half.strata"), "--float16"]) == 0
    assert f"{tmp_path / 'half.strata'}" in capsys.readouterr().out


def test_the_artifact_is_as_accurate_as_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = load_checkpoint(run / "checkpoint.pt")["history"][-1]["accuracy"]
    code, result = answer(capsys, "eval", str(run / "digits.strata"), "--data", "digits")
    assert code == 0
    assert result["runtime"] == "native"
    for width, accuracy in result["accuracy"].items():
        assert abs(accuracy["top1"] - trained[width]["top1"]) <= 100 / 360 + 1e-6
    _, one = answer(capsys, "eval", str(run / "digits.strata"), "--data", "digits", "--bits", "2", "--limit", "50")
    assert list(one["accuracy"]) == ["2"]
    assert one["accuracy"]["2"]["samples"] == 50


def test_predict_uses_the_stored_preprocessing_and_labels(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = load_data("digits")
    x, _ = next(iter(data.test.batches(3)))
    net, _ = load_net(run)
    pixels = np.rint((x.numpy() * data.input.std[0] + data.input.mean[0]) * 255).astype(np.uint8)[:, 0]
    paths = []
    for index, image in enumerate(pixels):
        paths.append(str(tmp_path / f"{index}.png"))
        Image.fromarray(image).save(paths[-1])
    code, report = answer(capsys, "predict", str(run / "digits.strata"), *paths, "--bits", "3", "--top", "10")
    assert code == 0
    assert report["view"] == "3"
    with torch.no_grad():
        expected = net.eval().at(3)(x).softmax(1)
    for result, probabilities in zip(report["results"], expected, strict=True):
        found = {one["label"]: one["probability"] for one in result["classes"]}
        assert list(found.values()) == sorted(found.values(), reverse=True)
        np.testing.assert_allclose([found[label] for label in data.input.labels], probabilities, atol=1e-4)
    assert main(["predict", str(run / "digits.strata"), paths[0]]) == 0
    assert paths[0] in capsys.readouterr().out


def test_refuses_what_is_not_there(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = str(run / "digits.strata")
    code, report = answer(capsys, "predict", artifact, str(tmp_path / "missing.png"))
    assert (code, report["error"]) == (1, "BadData")
    code, report = answer(capsys, "predict", artifact, str(tmp_path / "missing.png"), "--bits", "7")
    assert (code, report["error"]) == (1, "UnknownView")
    code, report = answer(capsys, "eval", artifact)
    assert (code, report["error"]) == (1, "BadData")
    code, report = answer(capsys, "pack", str(tmp_path / "no-run"), str(tmp_path / "out.strata"))
    assert code == 1
    assert not (tmp_path / "out.strata").exists()
