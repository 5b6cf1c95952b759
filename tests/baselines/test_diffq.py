"""DiffQ: noise of one step in training, rounding in evaluation, in NumPy."""

import numpy as np
import pytest
import torch
from quantiser_layers import bound, calibrated, double, gradients, layer_net, levels, quantised_weight
from torch import nn

every_width = pytest.mark.parametrize("bits", [2, 3, 4, 8])


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


@every_width
def test_weights_carry_uniform_noise_of_one_step_in_training(bits: int) -> None:
    net = layer_net("diffq", bits, layer=nn.Conv2d(32, 32, 3))
    weight = bound(net, bits).weight
    out, seed = quantised_weight(net, bits), torch.randn_like(weight)
    w = double(weight)
    step = (w.max() - w.min()) / (2**bits - 1)
    noise = (double(out) - w) / step
    assert np.abs(noise).max() == pytest.approx(0.5, abs=0.01)
    assert noise.mean() == pytest.approx(0.0, abs=0.02)
    assert noise.var() == pytest.approx(1 / 12, rel=0.05)
    assert not torch.equal(out, quantised_weight(net, bits))
    (found,) = gradients(out, seed, weight)
    # The greatest and the least weight also set the step of all.
    expected = double(seed).copy()
    slope = (double(seed) * noise).sum() / (2**bits - 1)
    expected[np.unravel_index(w.argmax(), w.shape)] += slope
    expected[np.unravel_index(w.argmin(), w.shape)] -= slope
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


@every_width
def test_weights_are_rounded_between_their_extremes_in_evaluation(bits: int) -> None:
    net = layer_net("diffq", bits)
    w = double(bound(net, bits).weight)
    with torch.no_grad():
        in_training = quantised_weight(net, bits)
    out = quantised_weight(net.eval(), bits)
    step = (w.max() - w.min()) / (2**bits - 1)
    np.testing.assert_allclose(double(out), w.min() + step * np.rint((w - w.min()) / step), rtol=1e-5, atol=1e-6)
    assert levels(out) <= 2**bits
    assert torch.equal(in_training, out)


@every_width
@pytest.mark.parametrize("signed", [False, True])
def test_inputs_are_rounded_between_their_extremes(bits: int, signed: bool) -> None:
    net = layer_net("diffq", bits)
    x = torch.randn(4, 6, 5, 5)
    if not signed:
        x.relu_()
    quantiser = calibrated(net, bits, x)
    low, high = (getattr(quantiser, f"{name}_{bits}") for name in ("low", "high"))
    assert (low.item(), high.item()) == pytest.approx((x.min().item(), x.max().item()))
    net.eval()
    values = (1.5 * x).requires_grad_()
    out, seed = quantiser(values), torch.randn(4, 6, 5, 5)
    v, m, step = double(values), double(low), double((high - low) / (2**bits - 1))
    np.testing.assert_allclose(
        double(out), m + step * np.clip(np.rint((v - m) / step), 0, 2**bits - 1), rtol=1e-5, atol=1e-5
    )
    assert levels(out) <= 2**bits
    (found,) = gradients(out, seed, values)
    np.testing.assert_array_equal(found, np.where((v < m) | (v > double(high)), 0, double(seed)))


def test_the_range_of_inputs_follows_in_training_only() -> None:
    net = layer_net("diffq", 2)
    x = torch.rand(4, 6, 5, 5)
    quantiser = calibrated(net, 2, x)
    before = quantiser.high_2.item()
    net.eval()(3 * x)
    with torch.no_grad():
        net.train()(3 * x)
    assert quantiser.high_2.item() == before
    net(3 * x)
    assert quantiser.high_2.item() == pytest.approx(0.9 * before + 0.1 * 3 * x.max().item(), rel=1e-5)


def test_equal_weights_and_inputs_stay_finite() -> None:
    net = layer_net("diffq", 2)
    nn.init.constant_(net.model.weight, 0.5)
    for mode in (True, False):
        assert torch.isfinite(net.train(mode)(torch.full((4, 6, 5, 5), 2.0))[2]).all()
