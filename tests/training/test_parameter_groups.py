"""Which parameters decay: weights do; steps, biases and norms do not; each is there once."""

from typing import Any

import pytest
import torch
from torch import nn

from bitstrata.training.parameter_groups import parameter_groups
from bitstrata.training.stratify import stratify


def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3),
        nn.BatchNorm2d(4),
        nn.PReLU(4),
        nn.Flatten(),
        nn.Linear(4 * 16, 8),
        nn.LayerNorm(8),
        nn.Linear(8, 2),
    )


def names(net: nn.Module, group: dict[str, Any]) -> set[str]:
    by_parameter = {parameter: name for name, parameter in net.named_parameters()}
    return {by_parameter[parameter] for parameter in group["params"]}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norms": "shared"},
        {"norms": "statistics"},
        {"ends": "own"},
        {"ends": "quantised"},
        {"per_channel": True},
    ],
    ids=str,
)
def test_every_parameter_is_in_one_group(options: dict[str, Any]) -> None:
    net = stratify(model(), (2, 4), **options)
    decayed, undecayed = parameter_groups(net, weight_decay=0.1)
    listed = decayed["params"] + undecayed["params"]
    assert len(listed) == len(set(listed))
    assert set(listed) == set(net.parameters())
    assert (decayed["weight_decay"], undecayed["weight_decay"]) == (0.1, 0.0)
    layers = {"0", "3", "7", "9"}
    copies = [".copies.2", ".copies.4"] if options.get("ends") == "own" else [""]
    ends = {f"model.{end}{copy}.weight" for end in ("0", "9") for copy in copies}
    assert names(net, decayed) == {f"model.{layer}.weight" for layer in layers - {"0", "9"}} | ends


def test_a_float_model() -> None:
    net = model()
    decayed, undecayed = parameter_groups(net, weight_decay=1e-4)
    assert names(net, decayed) == {"0.weight", "3.weight", "7.weight", "9.weight"}
    assert len(decayed["params"]) + len(undecayed["params"]) == len(list(net.parameters()))


@pytest.mark.parametrize(
    "norm", [nn.LayerNorm((4, 5)), nn.RMSNorm((4, 5)), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True)], ids=repr
)
def test_no_norm_decays_whatever_its_shape(norm: nn.Module) -> None:
    decayed, undecayed = parameter_groups(nn.Sequential(norm), weight_decay=0.1)
    assert decayed["params"] == []
    assert len(undecayed["params"]) == len(list(norm.parameters())) > 0


def test_a_shared_weight_is_there_once() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    net = stratify(nn.Sequential(nn.Linear(4, 4), first, second, nn.Linear(4, 4)), (2, 4))
    decayed, undecayed = parameter_groups(net, weight_decay=0.1)
    assert names(net, decayed) == {"model.0.weight", "model.1.weight", "model.3.weight"}
    assert len(undecayed["params"]) == len(set(undecayed["params"]))


def test_frozen_parameters_are_left_out() -> None:
    net = stratify(model(), (2, 4))
    frozen = [net.model[3].weight, net.model[0].weight]
    for parameter in frozen:
        parameter.requires_grad_(False)
    decayed, undecayed = parameter_groups(net, weight_decay=0.1)
    assert set(decayed["params"] + undecayed["params"]) == set(net.parameters()) - set(frozen)


def test_an_optimiser_shrinks_the_weights_and_leaves_the_steps() -> None:
    net = stratify(model(), (2, 4))
    decayed = names(net, parameter_groups(net, weight_decay=0.5)[0])
    optimiser = torch.optim.SGD(parameter_groups(net, weight_decay=0.5), lr=0.1)
    before = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    for name, parameter in net.named_parameters():
        factor = 0.95 if name in decayed else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor)
