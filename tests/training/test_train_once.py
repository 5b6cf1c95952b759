"""`train_once` and `load_net`: the phases of the job, stopping between them, and networks back from checkpoints."""

import functools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bitstrata.errors import BadRecipe, BadWidths, CheckpointDamaged, CheckpointMismatch
from bitstrata.training import Recipe, load_checkpoint, load_net, save_checkpoint, stratify, train_once
from bitstrata.training.norms import SynchronisedBatchNorm
from bitstrata.training.train_once import plain_options
from bitstrata.zoo.data import Data, load_data
from bitstrata.zoo.nets import build

DESCRIPTION = {"net": "resnet8", "classes": 10, "channels": 1}
RECIPE = Recipe(epochs=1, float_epochs=1, batch_size=32, learning_rate=0.05)


@pytest.fixture(scope="module")
def data() -> Data:
    return load_data("digits", limit=64)


def model() -> nn.Module:
    torch.manual_seed(0)
    return build("resnet8", classes=10, channels=1)


@pytest.fixture(scope="module")
def finished(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    train_once(model(), data, RECIPE, folder=folder, description=DESCRIPTION)
    return folder


def test_both_phases_and_back(data: Data, tmp_path: Path) -> None:
    lines: list[str] = []
    net = train_once(model(), data, RECIPE, folder=tmp_path, description=DESCRIPTION, widths=(2, 4), say=lines.append)
    assert lines == ["training the float network for 1 epoch", "training widths 2, 4 together for 1 epoch"]
    float_recipe = load_checkpoint(tmp_path / "float" / "checkpoint.pt")["recipe"]
    assert (float_recipe["epochs"], float_recipe["learning_rate"]) == (1, RECIPE.float_learning_rate)

    state = torch.get_rng_state()
    again, content = load_net(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert not again.training
    assert again.widths == (2, 4)
    assert content["recipe"] == RECIPE.as_dict()
    x, _ = next(data.test.batches(16))
    for bits in (2, 4):
        # The trained network lies in memory channels last, which may change the last bits of its float layers.
        torch.testing.assert_close(again(x, bits=bits), net.eval()(x, bits=bits))


def test_a_finished_job_does_nothing(finished: Path, data: Data) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*.pt")}
    lines: list[str] = []
    net = train_once(model(), data, RECIPE, folder=finished, description=DESCRIPTION, say=lines.append)
    assert len(lines) == 1
    assert "it is finished" in lines[0]
    assert {path: path.read_bytes() for path in finished.rglob("*.pt")} == before
    stored = load_checkpoint(finished / "checkpoint.pt")["model"]
    assert all(torch.equal(tensor, stored[name]) for name, tensor in net.state_dict().items())


def test_a_finished_float_phase_is_read_back(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The package has a function of the module's name.
    module = sys.modules[train_once.__module__]

    @functools.wraps(module.stratify)  # its options are read from its signature
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "stratify", stopped)
        with pytest.raises(KeyboardInterrupt):
            train_once(model(), data, RECIPE, folder=tmp_path / "stopped")
    before = (tmp_path / "stopped" / "float" / "checkpoint.pt").read_bytes()
    lines: list[str] = []
    # From other random weights: what counts is the checkpoint.
    other = build("resnet8", classes=10, channels=1)
    net = train_once(other, data, RECIPE, folder=tmp_path / "stopped", say=lines.append)
    assert "continuing the float phase" in lines[0]
    assert (tmp_path / "stopped" / "float" / "checkpoint.pt").read_bytes() == before
    whole = train_once(model(), data, RECIPE, folder=tmp_path / "whole")
    assert all(torch.equal(tensor, net.state_dict()[name]) for name, tensor in whole.state_dict().items())


def test_the_float_phase_may_be_thrown_away(data: Data, tmp_path: Path) -> None:
    train_once(model(), data, RECIPE, folder=tmp_path)
    (tmp_path / "float" / "checkpoint.pt").unlink()
    train_once(model(), data, RECIPE, folder=tmp_path)
    assert not (tmp_path / "float" / "checkpoint.pt").exists()


def test_a_float_checkpoint_is_a_file_of_weights(finished: Path, data: Data, tmp_path: Path) -> None:
    lines: list[str] = []
    weights = finished / "float" / "checkpoint.pt"
    train_once(model(), data, RECIPE, folder=tmp_path, weights=weights, say=lines.append)
    assert "starting from the float weights" in lines[0]
    assert not (tmp_path / "float").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"options": {"compensated": False}}, r"stratify\.compensated is True there and False here"),
        ({"widths": (2, 4)}, r"widths is \[2, 3, 4\] there and \[2, 4\] here"),
        ({"description": {**DESCRIPTION, "limit": 5}}, "limit is None there and 5 here"),
    ],
)
def test_another_job_in_the_same_folder(change: dict[str, Any], message: str, finished: Path, data: Data) -> None:
    with pytest.raises(CheckpointMismatch, match=message):
        train_once(model(), data, RECIPE, folder=finished, **{"description": DESCRIPTION, **change})


def test_synchronised_norms(data: Data, tmp_path: Path) -> None:
    recipe = Recipe(epochs=1, batch_size=32, synchronise_norms=True)
    net = train_once(model(), data, recipe, folder=tmp_path, description=DESCRIPTION)
    assert any(isinstance(module, SynchronisedBatchNorm) for module in net.modules())
    load_net(tmp_path)  # needs none of them: the tensors have the same names


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"per_chanel": True}, "'per_chanel'"),
        ({"example": None}, "'example'"),
        ({"norms": "none"}, "norms"),
        ({"ends": 3}, "ends"),
        ({"keep_float": "layer1"}, "keep_float"),
        ({"quantise": lambda name, module: True}, "quantise"),
    ],
)
def test_bad_options(options: dict[str, Any], named: str, data: Data, tmp_path: Path) -> None:
    with pytest.raises(BadRecipe, match=named):
        train_once(model(), data, RECIPE, folder=tmp_path / "run", options=options)
    assert not (tmp_path / "run").exists()


def test_options_are_complete() -> None:
    """What a default is today must not decide what a checkpoint means tomorrow."""
    options = plain_options({"keep_float": ("layer1",)})
    assert options["keep_float"] == ["layer1"]
    assert options["ends"] == "float"
    assert stratify(model(), **options).options == stratify(model(), keep_float=["layer1"]).options


def test_bad_widths_are_found_before_training(data: Data, tmp_path: Path) -> None:
    with pytest.raises(BadWidths):
        train_once(model(), data, RECIPE, folder=tmp_path / "run", widths=(4, 2))
    assert not (tmp_path / "run").exists()


def test_nothing_to_train(data: Data, tmp_path: Path) -> None:
    with pytest.raises(BadRecipe, match="epochs = 0"):
        train_once(model(), data, Recipe(epochs=0), folder=tmp_path)


def test_truncated_checkpoints(finished: Path, data: Data, tmp_path: Path) -> None:
    whole = (finished / "checkpoint.pt").read_bytes()
    damaged = tmp_path / "checkpoint.pt"
    damaged.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointDamaged, match=r"checkpoint\.pt"):
        load_net(tmp_path)
    with pytest.raises(CheckpointDamaged):
        train_once(model(), data, RECIPE, folder=tmp_path, description=DESCRIPTION)
    assert damaged.read_bytes() == whole[: len(whole) // 2]


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointDamaged, match="no such"):
        load_net(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"net": "resnet9"}, "'resnet9' cannot be built"),
        ({"classes": 11}, r"'model\.linear\.weight' has shape"),
        ({"net_options": {"depth": 3}}, "cannot be built"),
        ({"widths": [2, 3]}, "has no place here"),
        ({"widths": [3, 2]}, "cannot be built"),
        ({"stratify": {"norms": "none"}}, "cannot be built"),
        ({"channels": "one"}, "does not describe"),
        ({"net": None}, "does not describe"),
    ],
)
def test_descriptions_that_do_not_fit(change: dict[str, Any], message: str, finished: Path, tmp_path: Path) -> None:
    content = load_checkpoint(finished / "checkpoint.pt")
    content["description"] |= change
    save_checkpoint(tmp_path / "checkpoint.pt", content)
    with pytest.raises(CheckpointMismatch, match=message):
        load_net(tmp_path)


def test_checkpoints_of_other_kinds(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointMismatch, match="float network"):
        load_net(finished / "float")
    save_checkpoint(tmp_path / "checkpoint.pt", {"note": "of somebody else"})
    with pytest.raises(CheckpointMismatch, match="has no 'layout'"):
        load_net(tmp_path)
    content = load_checkpoint(finished / "checkpoint.pt")
    del content["model"]["model.linear.bias"]
    save_checkpoint(tmp_path / "checkpoint.pt", content)
    with pytest.raises(CheckpointDamaged, match="layout"):
        load_net(tmp_path)
