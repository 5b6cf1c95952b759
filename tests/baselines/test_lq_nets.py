"""LQ-Nets: nearest levels and the least-squares basis, by brute force in NumPy."""

import itertools

import numpy as np
import pytest
import torch
from quantiser_layers import Array, bound, calibrated, double, gradients, layer_net, levels, quantised_weight
from torch import nn

from bitstrata.errors import CannotStratify

every_width = pytest.mark.parametrize("bits", [2, 3, 4])


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


def encoded(values: Array, basis: Array, zero: int) -> tuple[Array, Array]:
    """Each value at its nearest level, and the basis that fits the values best with these codes."""
    codes = np.array(list(itertools.product((zero, 1), repeat=len(basis))), dtype=np.float64)
    nearest = np.abs(values[:, None] - (codes @ basis)[None]).argmin(axis=1)
    fitted: Array = np.linalg.lstsq(codes[nearest], values, rcond=None)[0]
    return codes[nearest] @ basis, fitted


@every_width
def test_weights_take_the_nearest_level_of_their_channel_and_the_basis_follows(bits: int) -> None:
    net = layer_net("lq-nets", bits, layer=nn.Conv2d(16, 3, 3))
    layer = bound(net, bits)
    with torch.no_grad():
        layer.weight[1].mul_(5.0)
    before = double(layer.weight_quantiser.basis).copy()
    out, seed = quantised_weight(net, bits), torch.randn(3, 16, 3, 3)
    after = double(layer.weight_quantiser.basis)
    for channel in range(3):
        expected, fitted = encoded(double(layer.weight)[channel].ravel(), before[channel], -1)
        np.testing.assert_allclose(double(out)[channel].ravel(), expected, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(after[channel], 0.9 * before[channel] + 0.1 * fitted, rtol=1e-3, atol=1e-5)
        assert levels(out[channel]) <= 2**bits
    (found,) = gradients(out, seed, layer.weight)
    np.testing.assert_array_equal(found, double(seed))


@every_width
def test_the_first_basis_of_a_weight_is_at_rest(bits: int) -> None:
    net = layer_net("lq-nets", bits, layer=nn.Conv2d(64, 3, 3))
    layer = bound(net, bits)
    basis = double(layer.weight_quantiser.basis).copy()
    values = double(layer.weight).reshape(3, -1)
    for channel in range(3):
        expected, fitted = encoded(values[channel], basis[channel], -1)
        np.testing.assert_allclose(fitted, basis[channel], rtol=0.05, atol=1e-3)
        error = np.square(expected - values[channel]).mean() / np.square(values[channel]).mean()
        assert error < {2: 0.08, 3: 0.03, 4: 0.01}[bits]


@every_width
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_inputs_take_the_nearest_level_and_the_basis_follows(bits: int, layout: torch.memory_format) -> None:
    net = layer_net("lq-nets", bits)
    x = torch.relu(torch.randn(4, 6, 5, 5)).contiguous(memory_format=layout)
    with torch.no_grad():
        quantiser = calibrated(net, bits, x)
    basis = getattr(quantiser, f"basis_{bits}")
    with torch.no_grad():
        basis.mul_(torch.linspace(0.6, 0.9, bits))  # no longer evenly spaced, and lower than some values
    before = double(basis).copy()
    x.requires_grad_()
    out, seed = quantiser(x), torch.randn(4, 6, 5, 5)
    expected, fitted = encoded(double(x).ravel(), before, 0)
    np.testing.assert_allclose(double(out).ravel(), expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(double(basis), 0.9 * before + 0.1 * fitted, rtol=1e-3, atol=1e-5)
    assert levels(out) <= 2**bits
    (found,) = gradients(out, seed, x)
    above = double(x) > before.sum()
    assert above.any()
    np.testing.assert_array_equal(found, np.where(above, 0, double(seed)))
    assert out.is_contiguous(memory_format=layout)


def test_only_training_with_gradients_moves_the_basis() -> None:
    net = layer_net("lq-nets", 2)
    x = torch.relu(torch.randn(4, 6, 5, 5))
    net(x)
    with torch.no_grad():
        net.model.weight.mul_(1.5)  # else its basis is at rest
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    net.eval()
    net(x)
    net.train()
    with torch.no_grad():
        net(x)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    net(x)
    moved = {name for name, tensor in net.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == {"model.input_quantiser.basis_2", "model.weight_quantiser.basis"}


def test_values_on_a_single_level_leave_the_basis_finite() -> None:
    net = layer_net("lq-nets", 3)
    with torch.no_grad():
        net.model.weight.fill_(0.25)
    for x in (torch.rand(4, 6, 5, 5), torch.zeros(4, 6, 5, 5)):
        assert torch.isfinite(net(x)[3]).all()
    assert all(torch.isfinite(tensor).all() for tensor in net.state_dict().values())


def test_negative_inputs_are_refused_by_name() -> None:
    with pytest.raises(CannotStratify, match="the quantizer lq-nets is for inputs that are never negative"):
        layer_net("lq-nets", 2)(torch.randn(4, 6, 5, 5))
