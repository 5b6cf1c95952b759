"""The errors of layers, against the formulas on codes."""

from typing import Any

import numpy as np
import pytest
import torch
from capture.parity import prepared
from torch import Tensor, nn

from bitstrata import codes
from bitstrata.allocation.objectives import input_energies, items
from bitstrata.errors import BadData, BadOption, NotCalibrated
from bitstrata.training.stratify import stratify

SHAPE = (4, 3, 8, 8)


def grouped(**options: Any) -> Any:
    """A full, a grouped, a depthwise and a linear layer."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.Conv2d(8, 12, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 8, 3, padding=1, groups=4),
        nn.SiLU(),
        nn.Conv2d(8, 16, 3, groups=8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 6),
        nn.Linear(6, 4),
    )
    return prepared(model, SHAPE, **options)


def by_codes(layer: Any, bits: int) -> np.ndarray:
    """((q_b + z_b) s_b - q_K s_K)^2 of every weight."""
    step = layer.weight_quantiser.step.detach().numpy()
    shaped = step.reshape((-1,) + (1,) * (layer.weight.ndim - 1)) if step.ndim else step
    source = codes.quantise(layer.weight.detach().numpy(), shaped, 4)
    shifted = codes.shift_down(source, 4, bits)
    down = (shifted + codes.compensation(4, bits)) * shaped.astype(np.float64) * codes.step_factor(4, bits)
    return np.square(down - source * shaped.astype(np.float64))


@pytest.mark.parametrize("per_channel", [False, True])
def test_weights_are_compared_with_those_of_the_source_width(per_channel: bool) -> None:
    net = grouped(per_channel=per_channel)
    found = items(net)
    layers = dict(net.stratified_layers())
    assert [item.layers for item in found] == [(name,) for name in layers]
    for item in found:
        layer = layers[item.layers[0]]
        assert item.count == layer.weight.numel()
        expected = [by_codes(layer, bits).sum() for bits in (2, 3, 4)]
        np.testing.assert_allclose(item.errors, expected, rtol=1e-5)
        assert item.errors[0] > item.errors[1] > item.errors[2] == 0.0


def test_energy_weighs_every_weight_with_the_channel_that_it_multiplies() -> None:
    net = grouped()
    batches = [torch.randn(SHAPE), torch.randn(2, 3, 8, 8)]
    seen: dict[str, list[Tensor]] = {}
    hooks = [
        module.register_forward_pre_hook(lambda _, args, name=name: seen.setdefault(name, []).append(args[0]))
        for name, module in net.at(4).named_modules()
        if name in dict(net.stratified_layers())
    ]
    with torch.no_grad():
        for x in batches:
            net.at(4)(x)
    for hook in hooks:
        hook.remove()
    found = {item.layers[0]: item for item in items(net, "energy", [(x, None) for x in batches])}
    for name, layer in net.stratified_layers():
        quantiser = layer.input_quantiser
        step, zero_point = quantiser.step_4.item(), int(quantiser.zero_point_4)
        inputs = np.concatenate([x.numpy().reshape(len(x), x.shape[1], -1) for x in seen[name]])
        quantised = codes.dequantise_activations(
            codes.quantise_activations(inputs, step, zero_point, 4), step, zero_point
        )
        energy = np.square(quantised.astype(np.float64)).mean(axis=(0, 2))
        groups = getattr(layer, "groups", 1)
        outputs, inputs_of_group = layer.weight.shape[:2]
        for index, bits in enumerate((2, 3, 4)):
            squares = by_codes(layer, bits)
            expected = 0.0
            for output in range(outputs):
                group = output // (outputs // groups)
                for channel in range(inputs_of_group):
                    expected += squares[output, channel].sum() * energy[group * inputs_of_group + channel]
            assert found[name].errors[index] == pytest.approx(expected, rel=1e-4)


class Shared(nn.Module):
    """Two layers with one weight, and one layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.one = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.other = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.other.weight = self.one.weight
        self.twice = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.other(self.one(self.stem(x)).relu()).relu()
        x = self.twice(self.twice(x).relu()).relu()
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


def test_a_shared_weight_counts_once_and_its_energies_add_up() -> None:
    net = prepared(Shared(), SHAPE)
    x = torch.randn(SHAPE)
    plain, weighted = items(net), items(net, "energy", [x])
    assert [item.layers for item in plain] == [("one", "other"), ("twice",)]
    assert [item.count for item in plain] == [8 * 8 * 9, 8 * 8]
    energies = input_energies(net, [x])
    squares = by_codes(net.model.one, 2)
    both = (energies["one"] + energies["other"]).numpy()
    assert weighted[0].errors[0] == pytest.approx((squares * both[None, :, None, None]).sum(), rel=1e-4)
    seen: list[Tensor] = []
    hook = net.at(4).twice.register_forward_pre_hook(lambda layer, args: seen.append(layer.input_quantiser(args[0])))
    net.at(4)(x)
    hook.remove()
    assert len(seen) == 2
    expected = sum(one.double().square().mean((0, 2, 3)) for one in seen)
    np.testing.assert_allclose(energies["twice"], expected.detach(), rtol=1e-6)  # type: ignore[union-attr]


def test_modes_and_tensors_stay_as_they_are() -> None:
    net = grouped()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    net.train()
    items(net, "energy", [torch.randn(SHAPE)])
    assert net.at(4).training
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_what_cannot_be_measured_is_refused() -> None:
    net = grouped()
    with pytest.raises(BadData, match="give batches"):
        items(net, "energy")
    with pytest.raises(BadData, match="no batches"):
        items(net, "energy", [])
    with pytest.raises(BadOption, match="weights, energy"):
        items(net, "hessian")  # type: ignore[arg-type]
    fresh = stratify(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)), (2, 3, 4))
    with pytest.raises(NotCalibrated):
        items(fresh, "energy", [torch.randn(SHAPE)])
