"""LQW: levels that take exact gradients, and an input step that weighs channels by their variance, in NumPy."""

import numpy as np
import pytest
import torch
from quantiser_layers import bound, calibrated, double, gradients, layer_net, levels, quantised_weight
from torch import nn

from bitstrata.errors import CannotStratify

every_width = pytest.mark.parametrize("bits", [2, 3, 4])


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


@every_width
def test_weights_take_the_nearest_level_and_levels_their_gradient(bits: int) -> None:
    net = layer_net("lqw", bits)
    layer = bound(net, bits)
    learned = layer.weight_quantiser.levels
    assert learned.shape == (2**bits,)
    with torch.no_grad():
        learned.copy_(learned[torch.randperm(2**bits)] * 0.9)  # in any order
        learned[0] += 0.01
    out, seed = quantised_weight(net, bits), torch.randn_like(layer.weight)
    w, g, values = double(layer.weight).ravel(), double(seed).ravel(), double(learned)
    nearest = np.abs(w[:, None] - values[None]).argmin(axis=1)
    np.testing.assert_allclose(double(out).ravel(), values[nearest], rtol=1e-6)
    assert levels(out) <= 2**bits
    weight_gradient, level_gradient = gradients(out, seed, layer.weight, learned)
    np.testing.assert_array_equal(weight_gradient.ravel(), g)
    expected = [g[nearest == level].sum() / np.sqrt(w.size) for level in range(2**bits)]
    np.testing.assert_allclose(level_gradient, expected, rtol=1e-4, atol=1e-5)


@every_width
@pytest.mark.parametrize("layer", [nn.Conv2d(6, 5, 3, padding=1), nn.Linear(6, 5)], ids=["conv", "linear"])
def test_the_input_step_follows_the_errors_of_channels_by_their_variance(bits: int, layer: nn.Module) -> None:
    net = layer_net("lqw", bits, layer=layer)
    shape = (4, 6, 5, 5) if isinstance(layer, nn.Conv2d) else (60, 6)
    x = torch.relu(torch.randn(shape))
    channels = x.transpose(0, 1)
    channels[0] *= 20.0
    channels[1] = 0.0
    with torch.no_grad():
        quantiser = calibrated(net, bits, x)
    step = getattr(quantiser, f"step_{bits}")
    with torch.no_grad():
        step.fill_(1.0)
    x.requires_grad_()
    out, seed = quantiser(x), torch.randn(shape)
    v, top = double(x), 2**bits - 1
    q = np.clip(np.rint(v), 0, top)
    np.testing.assert_array_equal(double(out), q)
    (found,) = gradients(out, seed, x)
    np.testing.assert_array_equal(found, np.where(v > top, 0, double(seed)))
    rows, row_codes = (np.moveaxis(one, 1, 0).reshape(6, -1) for one in (v, q))
    used = [c for c in range(6) if c != 1]
    mixed = sum((row_codes[c] * rows[c]).sum() / rows[c].var() for c in used)
    powers = sum((row_codes[c] ** 2).sum() / rows[c].var() for c in used)
    np.testing.assert_allclose(double(step), 0.9 + 0.1 * mixed / powers, rtol=1e-5)


def test_the_step_ends_where_the_weighted_error_is_least() -> None:
    net = layer_net("lqw", 2)
    x = torch.relu(torch.randn(16, 6, 5, 5)) * torch.tensor([6.0, 1, 1, 1, 1, 1]).reshape(6, 1, 1)
    quantiser = calibrated(net, 2, x)
    start = quantiser.step_2.item()
    for _ in range(200):
        quantiser(x)
    v, weights = double(x), 1 / double(x).var(axis=(0, 2, 3))
    steps = np.geomspace(0.1, 10, 500)
    errors = [((np.clip(np.rint(v / s), 0, 3) * s - v) ** 2).sum(axis=(0, 2, 3)) @ weights for s in steps]
    assert quantiser.step_2.item() == pytest.approx(steps[int(np.argmin(errors))], rel=0.15)
    assert quantiser.step_2.item() < 0.5 * start  # which served the loud channel


def test_only_training_with_gradients_moves_the_step() -> None:
    net = layer_net("lqw", 2)
    x = torch.relu(torch.randn(4, 6, 5, 5))
    net(x)
    before = net.model.input_quantiser.step_2.clone()
    net.eval()(2 * x)
    with torch.no_grad():
        net.train()(2 * x)
    assert torch.equal(net.model.input_quantiser.step_2, before)
    net(torch.zeros_like(x))
    assert torch.equal(net.model.input_quantiser.step_2, before)
    net(2 * x)
    assert net.model.input_quantiser.step_2 > before


def test_negative_inputs_are_refused_by_name() -> None:
    with pytest.raises(CannotStratify, match="the quantizer lqw is for inputs that are never negative"):
        layer_net("lqw", 2)(torch.randn(4, 6, 5, 5))
