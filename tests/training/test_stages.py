"""`fit` on one width alone, as the stages of longer methods use it, and how often it evaluates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bitstrata.errors import BadRecipe, UnknownWidth
from bitstrata.training import Recipe, fit, stratify
from bitstrata.training.net import StratifiedNet
from bitstrata.zoo.data import load_data
from bitstrata.zoo.nets import build

DATA = load_data("digits", limit=128)


def network(**options: Any) -> StratifiedNet:
    torch.manual_seed(0)
    return stratify(build("resnet8", 10, 1), **options)


def recipe(**changes: Any) -> Recipe:
    return Recipe.from_dict({"epochs": 1, "batch_size": 32, "learning_rate": 0.05, "distill": "none", **changes})


def state(net: StratifiedNet) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


@pytest.mark.parametrize("norm_batches", [0, 2])
def test_one_width_leaves_what_belongs_to_the_others(norm_batches: int) -> None:
    net = network()
    before = state(net)
    history = fit(net, DATA, recipe(norm_batches=norm_batches), bits=3)
    assert set(history[0].loss) == set(history[0].accuracy) == {"3"}
    changed = {name for name, value in state(net).items() if not torch.equal(value, before[name])}
    others = [name for name in changed if ".copies.2." in name or ".copies.4." in name or name.endswith(("_2", "_4"))]
    assert others == []
    assert any(".copies.3." in name and "running_mean" in name for name in changed)
    assert any(name.endswith("step_3") for name in changed)


def test_one_width_of_several_trains_as_a_network_of_its_own() -> None:
    # At the source width nothing is dropped, so the joint network's highest width is a dedicated network.
    dedicated, several = network(widths=(4,)), network(widths=(2, 3, 4))
    for net in (dedicated, several):
        fit(net, DATA, recipe(weight_decay=1e-2), bits=4)
    x, _ = next(iter(DATA.test.batches(32)))
    dedicated.eval(), several.eval()
    with torch.no_grad():
        torch.testing.assert_close(dedicated(x, bits=4), several(x, bits=4))


def test_what_is_frozen_stays() -> None:
    net = network()
    for parameter in net.shared_parameters():
        parameter.requires_grad_(False)
    before = {parameter: parameter.clone() for parameter in net.shared_parameters()}
    own = [parameter.clone() for parameter in net.own_parameters(2)]
    fit(net, DATA, recipe(), bits=2)
    assert all(torch.equal(parameter, old) for parameter, old in before.items())
    assert any(not torch.equal(new, old) for new, old in zip(net.own_parameters(2), own, strict=True))


def test_a_width_that_is_not_there_is_refused() -> None:
    with pytest.raises(UnknownWidth, match="not 5"):
        fit(network(), DATA, recipe(), bits=5)


@pytest.mark.parametrize(("every", "evaluated"), [(1, [1, 2, 3]), (2, [2, 3]), (5, [3]), (0, [])])
def test_epochs_are_evaluated_every_so_often_and_at_the_end(every: int, evaluated: list[int]) -> None:
    history = fit(network(widths=(2,)), DATA, recipe(epochs=3, evaluate_every=every))
    assert [epoch.epoch + 1 for epoch in history if epoch.accuracy] == evaluated


def test_norms_are_re_estimated_at_the_end_even_without_evaluation() -> None:
    def statistics(norm_batches: int) -> torch.Tensor:
        net = network(widths=(2,))
        fit(net, DATA, recipe(norm_batches=norm_batches, evaluate_every=0))
        return next(value for name, value in net.state_dict().items() if name.endswith("running_var"))

    assert not torch.equal(statistics(0), statistics(3))


def test_the_trace_of_the_combination_is_logged(tmp_path: Path) -> None:
    fit(network(), DATA, recipe(epochs=2, objective="minimum-norm", evaluate_every=0), folder=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    trace = [line for line in lines if line["event"] == "trace"]
    assert [line["at"] for line in trace] == [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0]
    epochs = [line for line in lines if line["event"] == "epoch"]
    for number, epoch in enumerate(epochs):
        points = [line for line in trace if line["epoch"] == number]
        for bits in ("2", "3", "4"):
            for kind in ("weights", "norms"):
                mean = sum(point[kind][bits] for point in points) / len(points)
                assert epoch[kind][bits] == pytest.approx(mean)


def test_a_recipe_cannot_evaluate_less_than_never() -> None:
    with pytest.raises(BadRecipe, match="evaluate_every"):
        recipe(evaluate_every=-1)
