"""`bitstrata train`: real runs on a few digits, from flags and from files, stopped and continued."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from bitstrata.baselines import lsq
from bitstrata.cli.main import main
from bitstrata.training import Recipe, load_checkpoint, load_net
from bitstrata.training.bound import PerWidth
from bitstrata.zoo.nets import build

TINY = ["--limit", "64", "--batch-size", "32", "--epochs", "1", "--float-epochs", "0", "--norm-batches", "0"]
LONG = pytest.mark.long


def train(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    """The exit code, the JSON object that is all of standard output, and standard error."""
    code = main(["train", *arguments, "--json"])
    streams = capsys.readouterr()
    assert streams.out.count("\n") == 1
    return code, json.loads(streams.out), streams.err


def assert_same(first: Any, second: Any) -> None:
    """Equal to the last bit, tensors included."""
    if isinstance(first, torch.Tensor):
        assert torch.equal(first, second)
    elif isinstance(first, dict):
        assert list(first) == list(second)
        for key in first:
            assert_same(first[key], second[key])
    elif isinstance(first, (list, tuple)):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_same(one, other)
    else:
        assert first == second


def test_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["train", *TINY, "--float-epochs", "1", "--out", str(out)]) == 0
    streams = capsys.readouterr()
    lines = streams.out.splitlines()
    assert lines[0].split() == ["width", "top-1", "top-5", "seconds"]
    assert [line.split()[0] for line in lines[1:5]] == ["float", "4", "3", "2"]
    assert lines[-1] == f"checkpoint: {out / 'checkpoint.pt'}"
    assert "training the float network for 1 epoch\n" in streams.err
    assert (out / "log.jsonl").exists()
    assert (out / "float" / "log.jsonl").exists()


def test_json_holds_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    code, result, _ = train(capsys, *TINY, "--out", str(out), "--widths", "2,4", "--seed", "7", "--no-channels-last")
    assert code == 0
    assert result["run"]["net"] == "resnet8"
    assert result["run"]["data"] == "digits"
    assert result["run"]["widths"] == [2, 4]
    assert result["recipe"]["seed"] == 7
    assert result["recipe"]["channels_last"] is False
    assert result["recipe"]["learning_rate"] == 0.1  # of the recipe for digits, which nothing changed
    assert list(result["accuracy"]) == ["4", "2"]
    assert result["accuracy"] == result["history"][-1]["accuracy"]
    assert result["float_history"] == []
    assert Path(result["checkpoint"]) == out / "checkpoint.pt"
    net, content = load_net(result["checkpoint"])
    assert net.widths == (2, 4)
    assert content["recipe"] == result["recipe"]


def test_every_field_of_a_recipe_has_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    shown = capsys.readouterr().out
    for field in fields(Recipe):
        if field.name != "version":
            assert f"--{field.name.replace('_', '-')}" in shown


def test_options_of_stratify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--per-channel", "--norms", "statistics", "--ends", "own", "--keep-float", "layer1*", "--no-compensated"]
    code, result, _ = train(capsys, *TINY, *flags, "--out", str(tmp_path / "run"))
    assert code == 0
    assert result["stratify"]["norms"] == "statistics"
    net, _ = load_net(tmp_path / "run")
    assert net.options.per_channel
    assert isinstance(net.model.conv1, PerWidth)
    assert not net.options.compensated
    assert not any(name.startswith("layer1") for name, _ in net.stratified_layers())


def test_lsq_is_the_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    code, result, _ = train(capsys, *TINY, "--method", "lsq", "--widths", "2", "--out", out)
    assert code == 0
    assert list(result["accuracy"]) == ["2"]
    net, _ = load_net(out)
    assert net.options == lsq(build("resnet8"), 2).options


def test_lsq_needs_one_width(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result, _ = train(capsys, *TINY, "--method", "lsq", "--out", str(tmp_path))
    assert code == 1
    assert result["error"] == "BadRecipe"
    assert "one width" in result["message"]


def test_starts_from_given_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = tmp_path / "float.safetensors"
    torch.manual_seed(5)
    model = build("cifar_resnet", classes=10, channels=1, blocks=1)
    save_file(model.state_dict(), weights)
    # A learning rate so small that the float stem shows where training began.
    flags = ["--net", "cifar_resnet", "--net-option", "blocks=1", "--weights", str(weights), "--learning-rate", "1e-9"]
    code, _, errors = train(capsys, *TINY, "--float-epochs", "1", *flags, "--out", str(tmp_path / "run"))
    assert code == 0
    assert "starting from the float weights" in errors
    assert not (tmp_path / "run" / "float").exists()
    net, content = load_net(tmp_path / "run")
    torch.testing.assert_close(net.state_dict()["model.conv1.weight"], model.state_dict()["conv1.weight"])
    assert content["description"]["weights"] == "float.safetensors"
    assert content["description"]["net_options"] == {"blocks": 1}


def test_a_file_with_flags_over_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        f"""
        [run]
        net = "resnet8"
        data = "digits"
        widths = [2, 3]
        limit = 64
        out = "{(tmp_path / "run").as_posix()}"

        [recipe]
        epochs = 1
        float_epochs = 0
        batch_size = 16
        learning_rate = 0.05

        [stratify]
        norms = "shared"
        """
    )
    code, result, _ = train(capsys, "--config", str(config), "--batch-size", "32")
    assert code == 0
    assert result["run"]["widths"] == [2, 3]
    assert result["recipe"]["batch_size"] == 32
    assert result["recipe"]["learning_rate"] == 0.05
    assert result["stratify"]["norms"] == "shared"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[run]\nnett = 'resnet8'", "'nett'"),
        ("[recipe]\nepoch = 1", "'epoch'"),
        ("[stratify]\nper_chanel = true", "'per_chanel'"),
        ("[stratify]\nnorms = 'none'", "norms"),
        ("[recipes]\nepochs = 1", "'recipes'"),
        ("recipe = 'digits'", "[recipe]"),
        ("[run]\nwidths = '2'", "widths"),
        ("[run]\nlimit = 0", "limit"),
        ("[recipe]\nepochs = 'many'", "epochs"),
        ("[run", "TOML"),
    ],
)
def test_a_bad_file_is_named(text: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "run.toml"
    config.write_text(text)
    code, result, errors = train(capsys, "--config", str(config), "--out", str(tmp_path / "run"))
    assert code == 1
    assert result["error"] == "BadRecipe"
    assert named in result["message"]
    assert result["message"] in errors
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--recipe", "cifar10-long"], "BadRecipe"),
        (["--recipe", "cifar10-short"], "BadData"),  # it does not say where CIFAR-10 lies
        (["--data", "cifar10:nowhere"], "BadRecipe"),  # no recipe and no network for it
        (["--net", "resnet21"], "UnknownNet"),
        (["--net-option", "depth=3"], "UnknownNet"),
        (["--widths", "4,2"], "BadWidths"),
        (["--epochs", "0"], "BadRecipe"),
        (["--weights", "nowhere.safetensors"], "FileNotFoundError"),
        (["--config", "nowhere.toml"], "BadRecipe"),
    ],
)
def test_refusals(
    flags: list[str], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, result, errors = train(capsys, *TINY, *flags)
    assert code == 1
    assert result["error"] == error
    assert "Traceback" not in errors


def test_the_usual_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, result, _ = train(capsys, *TINY)
    assert code == 0
    assert result["checkpoint"] == "runs/digits-resnet8/checkpoint.pt"
    before = (tmp_path / result["checkpoint"]).read_bytes()
    code, again, errors = train(capsys, *TINY)
    assert code == 0
    assert "runs/digits-resnet8/checkpoint.pt: it is finished" in errors
    assert again["history"] == result["history"]
    assert (tmp_path / result["checkpoint"]).read_bytes() == before


def test_another_recipe_in_the_same_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "run")]
    assert train(capsys, *TINY, *out)[0] == 0
    code, result, _ = train(capsys, *TINY, *out, "--learning-rate", "0.03")
    assert code == 1
    assert result["error"] == "CheckpointMismatch"
    assert "learning_rate" in result["message"]
    code, result, _ = train(capsys, *TINY, *out, "--no-compensated")
    assert code == 1
    assert "stratify.compensated is True there and False here" in result["message"]


def test_another_quantizer_trains_and_is_not_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    flags = ["--limit", "256", "--batch-size", "16", "--epochs", "1", "--float-epochs", "1", "--norm-batches", "4"]
    code, result, _ = train(capsys, *flags, "--out", str(out), "--widths", "2", "--quantizer", "pact")
    assert code == 0
    assert list(result["accuracy"]) == ["2"]
    assert result["accuracy"]["2"]["top1"] > 30.0
    net, content = load_net(out)
    assert content["description"]["stratify"]["quantizer"] == "pact"
    assert net.options.quantizer == "pact"
    assert main(["pack", str(out), str(tmp_path / "digits.strata"), "--json"]) == 1
    refusal = json.loads(capsys.readouterr().out)
    assert refusal["error"] == "CannotCapture"
    assert "uses the quantizer 'pact'" in refusal["message"]
    assert not (tmp_path / "digits.strata").exists()

    code, result, _ = train(capsys, *TINY, "--out", str(tmp_path / "several"), "--quantizer", "pact")
    assert code == 1
    assert "the quantizer pact makes a network of one width" in result["message"]
    assert not (tmp_path / "several").exists()  # no float phase was trained for nothing


def kill(arguments: list[str], *, once_there: Path) -> None:
    """Starts a run, and kills it as soon as the file is there."""
    command = [sys.executable, "-m", "bitstrata.cli.main", "train", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while not once_there.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    errors = process.communicate()[1]
    assert process.returncode == -signal.SIGKILL, errors


@pytest.mark.parametrize(
    ("phase", "float_epochs"), [("", "0"), pytest.param("", "2", marks=LONG), pytest.param("float", "2", marks=LONG)]
)
def test_killed_and_continued_to_the_same_weights(
    phase: str, float_epochs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = ["--limit", "64", "--batch-size", "16", "--epochs", "2", "--float-epochs", float_epochs]
    flags = [*recipe, "--norm-batches", "2", "--threads", "1"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert train(capsys, *flags, "--out", str(whole))[0] == 0

    struck = stopped / phase / "checkpoint.pt"
    # A checkpoint after every step, so that the kill strikes within an epoch.
    kill([*flags, "--checkpoint-minutes", "0", "--out", str(stopped)], once_there=struck)
    assert load_checkpoint(struck)["epoch"] < 2

    code, result, errors = train(capsys, *flags, "--out", str(stopped))
    assert code == 0
    assert f"continuing {'the float phase, ' if phase else ''}{struck} at epoch" in errors
    assert ("training widths" in errors) == bool(phase)
    for name in ("checkpoint.pt", "float/checkpoint.pt") if float_epochs != "0" else ("checkpoint.pt",):
        first, second = load_checkpoint(whole / name), load_checkpoint(stopped / name)
        for key in ("model", "optimiser", "random_state"):
            assert_same(first[key], second[key])
    accuracies = [epoch["accuracy"] for epoch in load_checkpoint(whole / "checkpoint.pt")["history"]]
    assert [epoch["accuracy"] for epoch in result["history"]] == accuracies
    log = [json.loads(line) for line in (stopped / "log.jsonl").read_text().splitlines()]
    assert [entry["epoch"] for entry in log if entry["event"] == "epoch"] == [0, 1]


@LONG
def test_two_processes_under_torchrun(tmp_path: Path) -> None:
    flags = [*TINY, "--out", str(tmp_path / "run"), "--float-epochs", "1", "--synchronise-norms", "--json"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = subprocess.run(
        [*launcher, "-m", "bitstrata.cli.main", "train", *flags],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)  # one object: only the first process prints
    assert result["accuracy"]["2"]["samples"] == 360
    assert run.stderr.count("training widths 2, 3, 4 together") == 1
    load_net(tmp_path / "run")
