"""`mixed_network`: each layer at its width, the uniform widths untouched."""

from collections.abc import Callable
from typing import Any

import families
import pytest
import torch
from allocation.test_objectives import SHAPE, Shared
from capture.parity import prepared
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bitstrata.allocation import mixed_network
from bitstrata.allocation.neighbours import widths_beside
from bitstrata.errors import BadData, BadOption, NotCalibrated, UnknownWidth
from bitstrata.training import recalculate_norms
from bitstrata.training.layers import StratifiedLayer
from bitstrata.training.stratify import stratify
from bitstrata.zoo import nets

BATCH = (6, 3, 32, 32)


def resnet() -> nn.Module:
    return nets.build("resnet8", classes=10)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet8": resnet,
    "densenet": families.densenet,
    "efficientnet": families.efficientnet,
    "shared weight": Shared,
}


def uniform(net: Any, bits: int) -> dict[str, int]:
    return {name: bits for name, _ in net.stratified_layers()}


def spread(net: Any) -> dict[str, int]:
    """All widths in turn; what shares a weight, one."""
    widths = {}
    of_weight: dict[nn.Parameter, int] = {}
    for index, (name, layer) in enumerate(net.stratified_layers()):
        widths[name] = of_weight.setdefault(layer.weight, net.widths[(index * 2 + index // 3) % 3])
    return widths


def state(net: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("options", [{}, {"norms": "shared"}, {"norms": "statistics"}, {"ends": "own"}], ids=str)
def test_a_uniform_allocation_is_the_uniform_network(model: str, options: dict[str, Any]) -> None:
    net = prepared(MODELS[model](), BATCH, **options)
    x = torch.randn(BATCH)
    for bits in net.widths:
        kept = mixed_network(net, uniform(net, bits), [x], keep_statistics=True)
        with torch.no_grad():
            assert torch.equal(kept(x), net(x, bits=bits))
        assert type(kept) is type(net.model)


@pytest.mark.parametrize("options", [{}, {"ends": "own"}], ids=str)
def test_a_uniform_allocation_gets_the_statistics_that_the_width_would_get(options: dict[str, Any]) -> None:
    net = prepared(resnet(), BATCH, **options)
    batches = [torch.randn(BATCH) * 2, torch.randn(BATCH) + 1]
    mixed = {bits: mixed_network(net, uniform(net, bits), [(x, None) for x in batches]) for bits in net.widths}
    recalculate_norms(net, batches)
    x = torch.randn(BATCH)
    with torch.no_grad():
        for bits in net.widths:
            assert torch.equal(mixed[bits](x), net(x, bits=bits))


@pytest.mark.parametrize("options", [{}, {"norms": "shared"}, {"ends": "own"}], ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_the_uniform_widths_stay_as_they_are_to_the_bit(model: str, options: dict[str, Any]) -> None:
    net = prepared(MODELS[model](), BATCH, **options)
    before = state(net)
    x = torch.randn(BATCH)
    with torch.no_grad():
        outputs = {bits: net(x, bits=bits) for bits in net.widths}
        mixed = mixed_network(net, spread(net), [torch.randn(BATCH) * 3, torch.randn(BATCH)])
        found = mixed(x)
        mixed.train()(x)
    assert not any(torch.equal(found, one) for one in outputs.values())
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    with torch.no_grad():
        for bits in net.widths:
            assert torch.equal(net(x, bits=bits), outputs[bits])


def test_every_layer_computes_with_the_weights_and_steps_of_its_width() -> None:
    net = prepared(resnet(), BATCH)
    widths = spread(net)
    assert set(widths.values()) == {2, 3, 4}
    mixed = mixed_network(net, widths, [torch.randn(BATCH)])
    for name, layer in mixed.named_modules():
        if not isinstance(layer, StratifiedLayer):
            continue
        bound = net.at(widths[name]).get_submodule(name)
        x = torch.randn(2, layer.weight.shape[1], 5, 5)
        for mine, theirs in zip(layer.accumulate(x), bound.accumulate(x), strict=True):  # type: ignore[operator]
            assert torch.equal(mine, theirs)


def test_statistics_are_the_average_over_the_batches() -> None:
    net = prepared(nets.build("resnet8", classes=10), BATCH)
    batches = [torch.randn(BATCH), torch.randn(BATCH) * 2]
    mixed = mixed_network(net, spread(net), batches)
    seen: dict[nn.Module, list[Tensor]] = {}
    norms = [module for module in mixed.modules() if isinstance(module, _BatchNorm)]
    for norm in norms:
        norm.register_forward_pre_hook(lambda module, args: seen.setdefault(module, []).append(args[0].double()))
    kept = [(norm.running_mean.clone(), norm.running_var.clone()) for norm in norms]  # type: ignore[union-attr]
    mixed.train()
    with torch.no_grad():
        for x in batches:
            mixed(x)
    for norm, (mean, variance) in zip(norms, kept, strict=True):
        means = [x.mean((0, 2, 3)) for x in seen[norm]]
        variances = [x.transpose(0, 1).flatten(1).var(1) for x in seen[norm]]
        assert len(means) == 2
        torch.testing.assert_close(mean.double(), sum(means) / 2, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(variance.double(), sum(variances) / 2, rtol=1e-4, atol=1e-6)
        assert norm.momentum is not None


def test_a_norm_takes_the_width_of_the_layer_that_feeds_it() -> None:
    net = prepared(resnet(), BATCH, ends="own")
    widths = spread(net)
    beside = widths_beside(net, widths, BATCH)
    for name in widths:
        norm = name.replace("conv", "bn") if "conv" in name else name[:-1] + "1"
        assert beside.pop(norm) == widths[name], (name, norm)
    # What is left: the stem, its norm, and the classifier.
    first = next(iter(widths))
    names = list(beside)
    assert len(names) == 3
    assert beside[names[0]] == beside[names[1]] == widths[first]
    last = [name for name in widths if name.startswith(list(widths)[-1].rsplit(".", 1)[0])]
    assert beside[names[2]] in {widths[name] for name in last}


def test_a_norm_behind_a_sum_or_concatenation_takes_the_lowest_width_that_it_feeds() -> None:
    net = prepared(families.densenet(), BATCH)
    widths = dict.fromkeys((name for name, _ in net.stratified_layers()), 4)
    widths["block1.1.conv1"] = 3
    widths["block1.0.conv2"] = 2
    beside = widths_beside(net, widths, BATCH)
    assert beside["block1.1.norm1"] == 3  # fed by the stem and a layer of 2 bits
    assert beside["block1.0.norm1"] == 4  # fed by the stem alone
    assert beside["block1.0.norm2"] == 4
    assert beside["transition.0"] == 4  # fed by many, feeds one
    assert beside["norm"] == 4  # feeds the float classifier only
    widths["block2.0.conv2"] = 3
    assert widths_beside(net, widths, BATCH)["norm"] == 3


def test_what_does_not_fit_is_refused() -> None:
    net = prepared(Shared(), SHAPE)
    x = torch.randn(SHAPE)
    with pytest.raises(BadOption, match="see twice"):
        mixed_network(net, {"one": 2, "other": 2}, [x])
    with pytest.raises(BadOption, match="'one' and 'other' share a weight"):
        mixed_network(net, {"one": 2, "other": 3, "twice": 2}, [x])
    with pytest.raises(UnknownWidth, match="'twice' is to have 5 bits"):
        mixed_network(net, {"one": 2, "other": 2, "twice": 5}, [x])
    with pytest.raises(BadData, match="needs batches"):
        mixed_network(net, {"one": 2, "other": 2, "twice": 4}, [])
    fresh = stratify(Shared(), (2, 3, 4))
    with pytest.raises(NotCalibrated):
        mixed_network(fresh, uniform(fresh, 2), [x])
