"""AdaBits against its formulas, written in NumPy."""

from typing import Any

import numpy as np
import pytest
import torch
from quantiser_layers import Array, bound, calibrated, double, gradients, layer_net, levels, quantised_weight
from torch import nn

WIDTHS = (2, 3, 4)


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


def weight_codes(weight: Array, bits: int) -> Array:
    unit = (np.tanh(weight) / np.abs(np.tanh(weight)).max() + 1) / 2
    return np.minimum(np.floor(2**bits * unit), 2**bits - 1)


@pytest.mark.parametrize("bits", WIDTHS)
def test_weights_are_centred_floors_of_a_fixed_deviation(bits: int) -> None:
    net = layer_net("adabits", *WIDTHS, layer=nn.Conv2d(16, 12, 3))
    found = quantised_weight(net, bits)
    centred = (2 * weight_codes(double(bound(net, bits).weight), bits) + 1) / 2**bits - 1
    np.testing.assert_allclose(double(found), centred / centred.std() / np.sqrt(12 * 9), rtol=1e-5)
    assert levels(found) == 2**bits


def test_codes_of_a_width_are_the_upper_bits_of_those_above() -> None:
    net = layer_net("adabits", *WIDTHS)
    places = {bits: np.unique(double(quantised_weight(net, bits)), return_inverse=True)[1] for bits in WIDTHS}
    # Ranks are codes only where every code occurs.
    assert all(place.max() == 2**bits - 1 for bits, place in places.items())
    np.testing.assert_array_equal(places[4] >> 1, places[3])
    np.testing.assert_array_equal(places[4] >> 2, places[2])


@pytest.mark.parametrize("bits", WIDTHS)
def test_the_gradient_of_weights_is_that_of_the_normalisation(bits: int) -> None:
    net = layer_net("adabits", *WIDTHS)
    weight, seed = bound(net, bits).weight, torch.randn(5, 6, 3, 3)
    (found,) = gradients(quantised_weight(net, bits), seed, weight)
    w, g = double(weight), double(seed)
    squashed, greatest = np.tanh(w), np.abs(np.tanh(w)).max()
    centred = (2 * weight_codes(w, bits) + 1) / 2**bits - 1
    expected = g / greatest * (1 - squashed**2)
    place = np.unravel_index(np.abs(squashed).argmax(), w.shape)
    # The greatest weight also divides all of them.
    expected[place] -= (g * squashed).sum() / greatest**2 * np.sign(squashed[place]) * (1 - squashed[place] ** 2)
    np.testing.assert_allclose(found, expected / centred.std() / np.sqrt(5 * 9), rtol=1e-3, atol=1e-4)


def clipping(bits: int, x: torch.Tensor) -> tuple[Any, torch.Tensor]:
    """A calibrated input quantiser whose clipping level lies within the values."""
    quantiser = calibrated(layer_net("adabits", *WIDTHS), bits, x)
    clip = getattr(quantiser, f"clip_{bits}")
    with torch.no_grad():
        clip.fill_(1.1)
    return quantiser, clip


@pytest.mark.parametrize("bits", WIDTHS)
def test_inputs_and_the_calibrated_gradient(bits: int) -> None:
    x = torch.relu(torch.randn(4, 6, 5, 5)).requires_grad_()
    quantiser, clip = clipping(bits, x)
    out, seed = quantiser(x), torch.randn(4, 6, 5, 5)
    x_gradient, clip_gradient = gradients(out, seed, x, clip)
    top, a, v, g = 2**bits - 1, double(clip), double(x), double(seed)
    expected = a / top * np.rint(top * np.clip(v / a, 0, 1))
    np.testing.assert_allclose(double(out), expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(x_gradient, np.where(v > a, 0, g))
    np.testing.assert_allclose(clip_gradient, (g * np.where(v > a, 1, (expected - v) / a)).sum(), rtol=1e-4)
    assert 2 < levels(out) <= 2**bits


@pytest.mark.parametrize("bits", WIDTHS)
def test_signed_inputs_have_a_double_sided_form(bits: int) -> None:
    x = torch.randn(4, 6, 5, 5).requires_grad_()
    quantiser, clip = clipping(bits, x)
    out, seed = quantiser(x), torch.randn(4, 6, 5, 5)
    x_gradient, clip_gradient = gradients(out, seed, x, clip)
    top, a, v, g = 2**bits - 1, double(clip), double(x), double(seed)
    expected = a * (2 * np.rint(top * np.clip((v / a + 1) / 2, 0, 1)) / top - 1)
    np.testing.assert_allclose(double(out), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(x_gradient, np.where(np.abs(v) > a, 0, g))
    slopes = np.where(np.abs(v) > a, np.sign(v), (expected - v) / a)
    np.testing.assert_allclose(clip_gradient, (g * slopes).sum(), rtol=1e-3)
    assert levels(out) == 2**bits


def test_every_width_has_its_own_clipping_level_and_sees_its_whole_gradient() -> None:
    net = layer_net("adabits", *WIDTHS)
    for bits in WIDTHS:
        assert [p is getattr(net.model.input_quantiser, f"clip_{bits}") for p in net.own_parameters(bits)] == [True]
    x = torch.relu(torch.randn(4, 6, 5, 5))
    net(x)
    for signed in (False, True):
        if signed:
            net = layer_net("adabits", *WIDTHS)
            x = torch.randn(4, 6, 5, 5)
            net(x)
        clip = net.model.input_quantiser.clip_3
        alone, together = (
            gradients(bound(net, 3, joint=joint).input_quantiser(x).sum(), torch.ones(()), clip)[0]
            for joint in (False, True)
        )
        np.testing.assert_allclose(together, 3 * alone, rtol=1e-5)


def test_a_clipping_level_stays_positive_and_can_come_back() -> None:
    net = layer_net("adabits", 2)
    x = torch.relu(torch.randn(4, 6, 5, 5))
    quantiser = calibrated(net, 2, x)
    with torch.no_grad():
        quantiser.clip_2.fill_(-1.0)
    out = quantiser(x)
    assert torch.isfinite(out).all()
    assert out.max() > 0
    (found,) = gradients(out.sum(), torch.ones(()), quantiser.clip_2)
    assert found > 0
