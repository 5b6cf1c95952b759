"""PACT and DoReFa's weights against their formulas, written in NumPy."""

import numpy as np
import pytest
import torch
from quantiser_layers import bound, calibrated, double, gradients, layer_net, levels, quantised_weight

from bitstrata.errors import CannotStratify
from bitstrata.training import parameter_groups

every_width = pytest.mark.parametrize("bits", [2, 3, 4, 8])


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


@every_width
def test_weights_are_those_of_dorefa(bits: int) -> None:
    net = layer_net("pact", bits)
    weight, seed = bound(net, bits).weight, torch.randn(5, 6, 3, 3)
    out = quantised_weight(net, bits)
    w, top = double(weight), 2**bits - 1
    squashed, greatest = np.tanh(w), np.abs(np.tanh(w)).max()
    expected = 2 * np.rint(top * (squashed / (2 * greatest) + 0.5)) / top - 1
    np.testing.assert_allclose(double(out), expected, rtol=1e-6, atol=1e-6)
    assert levels(out) <= 2**bits
    (found,) = gradients(out, seed, weight)
    slopes = double(seed) / greatest * (1 - squashed**2)
    others = np.abs(squashed) < greatest
    np.testing.assert_allclose(found[others], slopes[others], rtol=1e-5, atol=1e-6)


@every_width
def test_inputs_are_clipped_and_rounded_as_published(bits: int) -> None:
    net = layer_net("pact", bits)
    x = torch.relu(torch.randn(4, 6, 5, 5))
    quantiser = calibrated(net, bits, x)
    clip = getattr(quantiser, f"clip_{bits}")
    with torch.no_grad():
        clip.fill_(1.25)
        x[0, 0, 0, :4] = torch.tensor([0.0, 1.25, 1.2499, 9.0])  # the edges
    x.requires_grad_()
    out, seed = quantiser(x), torch.randn(4, 6, 5, 5)
    x_gradient, clip_gradient = gradients(out, seed, x, clip)
    a, v, g, top = 1.25, double(x), double(seed), 2**bits - 1
    clipped = 0.5 * (np.abs(v) - np.abs(v - a) + a)
    np.testing.assert_allclose(double(out), np.rint(clipped * top / a) * a / top, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(x_gradient, np.where(v >= a, 0, g))
    np.testing.assert_allclose(clip_gradient, g[v >= a].sum(), rtol=1e-4, atol=1e-5)
    assert levels(out) <= 2**bits


def test_negative_inputs_are_refused_by_name() -> None:
    net = layer_net("pact", 2)
    with pytest.raises(CannotStratify, match="the quantizer pact is for inputs that are never negative"):
        net(torch.randn(4, 6, 5, 5))


def test_the_clipping_level_takes_weight_decay_and_stays_positive() -> None:
    net = layer_net("pact", 2)
    x = torch.relu(torch.randn(4, 6, 5, 5))
    quantiser = calibrated(net, 2, x)
    decayed, undecayed = (group["params"] for group in parameter_groups(net, weight_decay=1e-4))
    assert any(parameter is quantiser.clip_2 for parameter in decayed)
    assert not any(parameter is quantiser.clip_2 for parameter in undecayed)
    assert net.own_parameters(2) == [quantiser.clip_2]
    with torch.no_grad():
        quantiser.clip_2.fill_(-1.0)
    out = quantiser(x)
    assert torch.isfinite(out).all()
    assert gradients(out.sum(), torch.ones(()), quantiser.clip_2)[0] > 0
