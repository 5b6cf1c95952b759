"""Checkpoints: come back as they were, are refused when damaged or foreign, and never take the last good one along."""

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bitstrata.errors import CheckpointDamaged, CheckpointMismatch
from bitstrata.training import checkpoint
from bitstrata.training.checkpoint import check_layout, layout, load_checkpoint, save_checkpoint
from bitstrata.training.stratify import stratify


def small_net(outputs: int = 2, widths: tuple[int, ...] = (2, 4), seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return stratify(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 5), nn.Linear(5, outputs)), widths)


def content(seed: int = 0) -> dict[str, Any]:
    net = small_net(seed=seed)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(torch.randn(3, 4), bits=2).sum().backward()
    optimiser.step()
    return {
        "layout": layout(net),
        "model": dict(net.state_dict()),
        "optimiser": optimiser.state_dict(),
        "epoch": 3,
        "seconds": 1.5,
        "flag": True,
        "nothing": None,
        "history": [{"loss": {"2": 0.1}, "pair": (1, 2)}],
        "random_state": torch.get_rng_state(),
        "kinds": [torch.ones(2, dtype=torch.bfloat16), torch.tensor(7), torch.zeros(0, 3), torch.tensor([True, False])],
    }


def same(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor):
        return isinstance(second, Tensor) and first.dtype == second.dtype and torch.equal(first, second)
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, content())
    return path


def test_everything_comes_back_as_it_was(saved: Path) -> None:
    loaded = load_checkpoint(saved)
    for key, value in content().items():
        assert same(loaded[key], value), key
    assert "digest" not in loaded
    net = small_net(seed=1)
    check_layout(saved, loaded["layout"], net)
    net.load_state_dict(loaded["model"])
    assert same(dict(net.state_dict()), loaded["model"])


def test_the_content_given_is_left_alone(tmp_path: Path) -> None:
    given = {"epoch": 1}
    save_checkpoint(tmp_path / "checkpoint.pt", given)
    assert given == {"epoch": 1}


# Damage


def test_a_truncated_file_is_refused_wherever_it_ends(saved: Path) -> None:
    whole = saved.read_bytes()
    ends = sorted({0, 1, 4, 100, *range(0, len(whole), len(whole) // 60), *range(len(whole) - 25, len(whole))})
    assert len(ends) > 80
    for end in ends:
        saved.write_bytes(whole[:end])
        with pytest.raises(CheckpointDamaged, match=r"checkpoint\.pt: "):
            load_checkpoint(saved)


def test_a_flipped_bit_is_refused_or_touches_nothing_that_counts(saved: Path) -> None:
    """A flip in the padding between the file's parts changes no value. Whatever is given back is what was saved."""
    whole = saved.read_bytes()
    original = load_checkpoint(saved)
    generator = random.Random(0)
    refused = 0
    for place in generator.sample(range(len(whole)), 120):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << generator.randrange(8)
        saved.write_bytes(damaged)
        try:
            loaded = load_checkpoint(saved)
        except (CheckpointDamaged, CheckpointMismatch):
            refused += 1
        else:
            assert same(loaded, original), f"byte {place}"
    assert refused > 20


def test_every_flipped_bit_of_a_weight_is_found_out(saved: Path) -> None:
    whole = saved.read_bytes()
    weight = content()["model"]["model.2.weight"].numpy().tobytes()
    start = whole.find(weight)
    assert start > 0
    for place in range(start, start + len(weight), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        saved.write_bytes(damaged)
        with pytest.raises(CheckpointDamaged, match="altered since it was written"):
            load_checkpoint(saved)


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 4},
        {"epoch": 3.0},
        {"flag": 1},
        {"nothing": 0},
        {"seconds": 1.25},
        {"extra": None},
        {"history": []},
        {"random_state": torch.zeros(3)},
    ],
    ids=str,
)
def test_a_changed_value_is_found_out(saved: Path, change: dict[str, Any]) -> None:
    whole = torch.load(saved, weights_only=True)
    torch.save({**whole, **change}, saved)
    with pytest.raises(CheckpointDamaged, match="digest differs"):
        load_checkpoint(saved)


def test_tensors_of_another_type_or_shape_or_name_are_found_out(saved: Path) -> None:
    for change in ("type", "shape", "name", "digest"):
        whole = torch.load(saved, weights_only=True)
        weight = whole["model"]["model.2.weight"]
        if change == "type":
            whole["model"]["model.2.weight"] = weight.view(torch.int32)
        elif change == "shape":
            whole["model"]["model.2.weight"] = weight.reshape(-1)
        elif change == "name":
            whole["model"] = {name.replace("2.weight", "9.weight"): tensor for name, tensor in whole["model"].items()}
        else:
            del whole["digest"]
        torch.save(whole, saved.parent / "changed.pt")
        with pytest.raises(CheckpointDamaged, match="digest differs"):
            load_checkpoint(saved.parent / "changed.pt")


@pytest.mark.parametrize("foreign", [[1, 2], {"model": {}}, {"format": "other", "version": 1}, torch.zeros(3)], ids=str)
def test_another_programs_file_is_told_apart(tmp_path: Path, foreign: Any) -> None:
    path = tmp_path / "foreign.pt"
    torch.save(foreign, path)
    with pytest.raises(CheckpointDamaged, match="not a bitstrata checkpoint"):
        load_checkpoint(path)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointDamaged, match="no such checkpoint"):
        load_checkpoint(tmp_path / "missing.pt")
    with pytest.raises(CheckpointDamaged, match="not a readable checkpoint"):
        load_checkpoint(tmp_path)


class Malicious:
    """What a pickle would do on loading: make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    torch.save(
        {"format": checkpoint.FORMAT, "version": 1, "bad": Malicious(tmp_path / "was here")}, tmp_path / "bad.pt"
    )
    with pytest.raises(CheckpointDamaged, match="not a readable checkpoint"):
        load_checkpoint(tmp_path / "bad.pt")
    assert not (tmp_path / "was here").exists()


# Other versions and other models


@pytest.mark.parametrize("version", [0, 2, None, "1"])
def test_another_version_is_refused_by_name(tmp_path: Path, version: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "VERSION", version)
        save_checkpoint(tmp_path / "other.pt", {"epoch": 1})
    with pytest.raises(CheckpointMismatch, match=f"checkpoint version {version}; this bitstrata reads 1"):
        load_checkpoint(tmp_path / "other.pt")


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (lambda: small_net(outputs=3), r"'model.3.weight' has shape \[2, 5\] there and \[3, 5\] here"),
        (lambda: small_net(widths=(2, 3, 4)), "has no tensor 'model.1.copies.3.weight'"),
        (lambda: small_net(widths=(2,)), "its tensor 'model.1.copies.4.weight' has no place here"),
        (lambda: nn.Linear(2, 2), "has no tensor 'weight'"),
    ],
    ids=["another head", "more widths", "fewer widths", "another model"],
)
def test_a_checkpoint_of_another_model_names_the_first_difference(saved: Path, other: Any, says: str) -> None:
    with pytest.raises(CheckpointMismatch, match=f"checkpoint.pt is of another model: .*{says}"):
        check_layout(saved, load_checkpoint(saved)["layout"], other())


# The last good one


@pytest.mark.parametrize("failing", ["fsync", "replace", "serialise", "content"])
def test_a_failing_save_leaves_the_last_good_checkpoint(
    saved: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()
    newer = content(seed=1)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    def half_written(_: Any, buffer: Any) -> None:
        buffer.write(before[: len(before) // 2])
        raise OSError(errno.ENOSPC, "disk full")

    expected: type[Exception] = OSError
    if failing == "serialise":
        monkeypatch.setattr(torch, "save", half_written)
    elif failing == "content":
        newer["bad"] = object()
        expected = TypeError
    else:
        monkeypatch.setattr(os, failing, full)
    with pytest.raises(expected):
        save_checkpoint(saved, newer)
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
    assert saved.read_bytes() == before
    assert same(load_checkpoint(saved)["model"], content()["model"])
    monkeypatch.undo()
    newer.pop("bad", None)
    save_checkpoint(saved, newer)
    assert same(load_checkpoint(saved)["model"], content(seed=1)["model"])
