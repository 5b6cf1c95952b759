"""`bitstrata allocate`: from a training run and its artifact to a view, a curve and pictures, by commands alone."""

import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from trained_run import train_and_pack

from bitstrata.allocation import allocate, mixed_network
from bitstrata.cli.main import main
from bitstrata.format import Artifact, verify_artifact
from bitstrata.training import load_checkpoint, load_net


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_and_pack(tmp_path_factory)


@pytest.fixture
def artifact(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained / "digits.strata", tmp_path / "digits.strata")
    return tmp_path / "digits.strata"


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["allocate", *map(str, arguments), "--json"])
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return code, json.loads(out)


def texts(picture: Path) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture.read_text("utf-8")).iter() if element.text]


def test_a_budget_adds_a_view(trained: Path, artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = artifact.parent / "choice.svg"
    code, found = answer(capsys, trained, artifact, "--bits-per-weight", 2.5, "--evaluate", "--picture", picture)
    assert code == 0
    net, content = load_net(trained)
    expected = allocate(net, bits_per_weight=2.5)
    assert {layer["name"]: layer["bits"] for layer in found["layers"]} == expected.widths
    assert found["error"] == pytest.approx(expected.error)
    assert found["bits_per_weight"] == expected.bits_per_weight <= 2.5
    manifest = Artifact.open(artifact).manifest
    assert sum(manifest.view("mixed-a").bits[i] for i in range(len(expected.widths))) == sum(expected.widths.values())
    assert found["view_bytes"] == manifest.view("mixed-a").size < 10_000
    assert main(["verify", str(artifact)]) == 0
    assert verify_artifact(artifact).views == ("2", "3", "4", "mixed-a")
    # The kernels predict what the mixed network in torch predicts, up to a code on an edge.
    from bitstrata.zoo.data import load_data

    data = load_data("digits", limit=256)
    batches = [x for x, _ in data.train.batches(32, training=True, epoch=content["epoch"] - 1)][:2]
    mixed = mixed_network(net, expected.widths, batches)
    with torch.no_grad():
        right = sum(int((mixed(x).argmax(1) == y).sum()) for x, y in data.test.batches(250))
    assert found["accuracy"]["samples"] == 360
    assert found["accuracy"]["top1"] == pytest.approx(100 * right / 360, abs=100 * 2 / 360)
    assert {"layer3.0.conv2", "2 bits", "Layers"} <= set(texts(picture))


def test_the_table_says_what_was_chosen(trained: Path, artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    flags = ["--bytes", "25000", "--objective", "energy", "--name", "small", "--model-version", "2", "--batches", "3"]
    assert main(["allocate", str(trained), str(artifact), *flags]) == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["layer", "weights", "width", "error"]
    total = next(line for line in lines if line and line[0] == "all")
    found = Artifact.open(artifact)
    weights = [weight for weight in found.graph.weights if weight.quantised]
    assert total[1] == f"{sum(weight.count for weight in weights):,}"
    shown = {line[0]: int(line[2]) for line in lines[1 : lines.index(total)]}
    assert shown == dict(found.view("small").bits)
    stored = sum(
        segment.size
        for index, stratum in enumerate(found.manifest.strata)
        for segment in found.manifest.segments_of(index)
        if shown.get(segment.weight, 0) >= stratum.bits
    )
    assert 24_000 < stored <= 25_000
    assert found.version == 2
    assert "view small of" in out


def test_the_same_command_gives_the_same_bytes(trained: Path, artifact: Path) -> None:
    command = ["allocate", str(trained), str(artifact), "--bits-per-weight", "3.2"]
    assert main(command) == 0
    before = {file.name: file.read_bytes() for file in artifact.iterdir()}
    assert main(command) == 1  # the name is taken
    assert main([*command, "--replace"]) == 0
    assert {file.name: file.read_bytes() for file in artifact.iterdir()} == before


def test_a_curve_from_the_lowest_to_the_highest_width(
    trained: Path, artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = artifact.parent / "curve.svg"
    before = {file.name: file.read_bytes() for file in artifact.iterdir()}
    code, found = answer(capsys, trained, artifact, "--curve", 5, "--picture", picture)
    assert code == 0
    assert [point["budget"] for point in found["mixed"]] == [2.0, 2.5, 3.0, 3.5, 4.0]
    errors = [point["error"] for point in found["mixed"]]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == 0.0
    assert all(point["bits_per_weight"] <= point["budget"] for point in found["mixed"])
    history = load_checkpoint(trained / "checkpoint.pt")["history"][-1]["accuracy"]
    assert {bits: point["accuracy"] for bits, point in found["uniform"].items()} == history
    # The ends are the uniform widths, with statistics from the batches of training: the same networks.
    assert found["mixed"][0]["accuracy"] == history["2"]
    assert found["mixed"][-1]["accuracy"] == history["4"]
    assert {file.name: file.read_bytes() for file in artifact.iterdir()} == before
    assert f"3 bits: {history['3']['top1']:.2f} %" in texts(picture)
    assert main(["allocate", str(trained), "--curve", "2", "--limit", "40"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["budget", "2.000", "4.000", "2,", "3,", "4,"]


@pytest.mark.parametrize(
    ("flags", "error", "message"),
    [
        (["--bits-per-weight", "1.5"], "BadBudget", "the lowest width is 2"),
        (["--bits-per-weight", "nan"], "BadBudget", "too few"),
        (["--bytes", "100"], "BadBudget", "at 2 bits the planes take"),
        (["--bits-per-weight", "3", "--name", "4"], "BadName", "uniform widths"),
        (["--curve", "1"], "BadOption", "at least 2 budgets"),
    ],
)
def test_what_cannot_be_done_is_refused(
    trained: Path,
    artifact: Path,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    error: str,
    message: str,
) -> None:
    code, found = answer(capsys, trained, artifact, *flags)
    assert code == 1
    assert found["error"] == error
    assert message in found["message"]
    assert Artifact.open(artifact).views == ("2", "3", "4")


def test_a_view_needs_the_artifact_of_the_run(
    trained: Path, artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = answer(capsys, trained, "--bits-per-weight", 3)
    assert (code, found["error"]) == (1, "BadOption")
    other = artifact.parent / "other"
    shutil.copytree(trained, other)
    net, content = load_net(other)
    for _, layer in net.stratified_layers():
        layer.weight.data.neg_()
    from bitstrata.training.checkpoint import save_checkpoint

    content["model"] = net.state_dict()
    kept = {key: value for key, value in content.items() if key not in ("format", "version", "digest")}
    save_checkpoint(other / "checkpoint.pt", kept)
    code, found = answer(capsys, other, artifact, "--bits-per-weight", 3)
    assert (code, found["error"]) == (1, "OtherNetwork")
    assert "Give the run that it was packed from" in found["message"]


def test_one_budget_must_be_given(trained: Path, artifact: Path) -> None:
    for flags in ([], ["--bytes", "9", "--curve", "3"]):
        with pytest.raises(SystemExit) as stopped:
            main(["allocate", str(trained), str(artifact), *flags])
        assert stopped.value.code == 2
