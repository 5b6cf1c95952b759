"""QIL against its formulas, written in NumPy."""

import numpy as np
import pytest
import torch
from quantiser_layers import bound, calibrated, double, gradients, layer_net, levels, quantised_weight

from bitstrata.errors import CannotStratify

every_width = pytest.mark.parametrize("bits", [2, 3, 4, 8])


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


@every_width
def test_weights_are_pruned_rounded_and_clipped_as_published(bits: int) -> None:
    net = layer_net("qil", bits)
    layer = bound(net, bits)
    quantiser, weight = layer.weight_quantiser, layer.weight
    with torch.no_grad():
        weight.normal_()
        quantiser.centre.fill_(0.75)
        quantiser.distance.fill_(0.5)
        weight[0, 0, 0] = torch.tensor([0.25, -1.25, 0.0])  # the edges
    out, seed = quantised_weight(net, bits), torch.randn_like(weight)
    found = gradients(out, seed, weight, quantiser.centre, quantiser.distance)
    w, g, c, d, q = double(weight), double(seed), 0.75, 0.5, 2 ** (bits - 1) - 1
    alpha, beta = 0.5 / d, -0.5 * c / d + 0.5
    size, sign = np.abs(w), np.sign(w)
    transformed = np.where(size < c - d, 0, np.where(size > c + d, 1, alpha * size + beta))
    np.testing.assert_allclose(double(out), np.rint(transformed * q) / q * sign, rtol=1e-6, atol=1e-7)
    assert 2 < levels(out) <= 2**bits - 1
    inside = (size >= c - d) & (size <= c + d)
    assert 0 < inside.sum() < w.size
    count = np.sqrt(w.size)
    np.testing.assert_allclose(found[0], np.where(inside, alpha * g, 0), rtol=1e-6)
    np.testing.assert_allclose(found[1], (g * sign * inside * -0.5 / d).sum() / count, rtol=1e-4, atol=1e-5)
    slopes = -0.5 * (size - c) / d**2
    np.testing.assert_allclose(found[2], (g * sign * inside * slopes).sum() / count, rtol=1e-4, atol=1e-5)


@every_width
def test_inputs_are_rounded_within_the_interval_as_published(bits: int) -> None:
    net = layer_net("qil", bits)
    x = torch.relu(torch.randn(4, 6, 5, 5))
    quantiser = calibrated(net, bits, x)
    centre, distance = net.own_parameters(bits)
    with torch.no_grad():
        centre.fill_(0.75)
        distance.fill_(0.5)
        x[0, 0, 0, :3] = torch.tensor([0.25, 1.25, 9.0])
    x.requires_grad_()
    out, seed = quantiser(x), torch.randn(4, 6, 5, 5)
    found = gradients(out, seed, x, centre, distance)
    v, g, c, d, q = double(x), double(seed), 0.75, 0.5, 2**bits - 1
    np.testing.assert_allclose(double(out), np.rint(np.clip((v - c + d) / (2 * d), 0, 1) * q) / q, rtol=1e-6, atol=1e-7)
    assert levels(out) <= 2**bits
    inside, count = np.abs(v - c) <= d, np.sqrt(6 * 5 * 5)
    np.testing.assert_allclose(found[0], np.where(inside, 0.5 / d * g, 0), rtol=1e-6)
    np.testing.assert_allclose(found[1], (g * inside * -0.5 / d).sum() / count, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[2], (g * inside * -0.5 * (v - c) / d**2).sum() / count, rtol=1e-4, atol=1e-5)


def test_intervals_start_at_zero_and_stay_positive() -> None:
    net = layer_net("qil", 2)
    x = torch.relu(torch.randn(4, 6, 5, 5))
    quantiser = calibrated(net, 2, x)
    for centre, distance in [
        (quantiser.centre_2, quantiser.distance_2),
        (net.model.weight_quantiser.centre, net.model.weight_quantiser.distance),
    ]:
        assert centre.item() == distance.item() > 0
        with torch.no_grad():
            distance.fill_(-1.0)
    assert torch.isfinite(net(x)[2]).all()


def test_negative_inputs_are_refused_by_name() -> None:
    with pytest.raises(CannotStratify, match="the quantizer qil is for inputs that are never negative"):
        layer_net("qil", 2)(torch.randn(4, 6, 5, 5))
