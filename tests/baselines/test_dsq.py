"""DSQ: its hard forward pass in NumPy, and its gradients against torch's own derivative of the soft form."""

import numpy as np
import pytest
import torch
from quantiser_layers import bound, calibrated, double, layer_net, levels, quantised_weight
from torch import Tensor

every_width = pytest.mark.parametrize("bits", [2, 3, 4, 8])


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


def published(x: Tensor, low: Tensor, high: Tensor, alpha: Tensor, bits: int) -> Tensor:
    """Clip, soft rounding by tanh, and the sign with the gradient of the identity, in float64."""
    clipped = x + torch.relu(low - x)
    clipped = clipped - torch.relu(clipped - high)
    delta = (high - low) / (2**bits - 1)
    index = ((clipped - low) / delta).floor().clamp(max=2**bits - 2).detach()
    middle = low + (index + 0.5) * delta
    phi = torch.tanh(torch.log(2 / alpha - 1) / delta * (clipped - middle)) / (1 - alpha)
    phi = (torch.where(phi >= 0, 1.0, -1.0) - phi).detach() + phi
    return low + delta * (index + (phi + 1) / 2)


def check(out: Tensor, x: Tensor, parameters: list[Tensor], bits: int, count: int) -> None:
    seed = torch.randn(x.shape)
    found = torch.autograd.grad(out, [x, *parameters], seed)
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, *parameters)]
    expected = published(*exact, bits)
    slopes = torch.autograd.grad(expected, exact, seed.double())
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[0].double(), slopes[0], rtol=1e-3, atol=1e-4)
    clipped = slopes[0] == 0
    assert 0 < int(clipped.sum()) < clipped.numel()
    for one, other in zip(found[1:], slopes[1:], strict=True):
        torch.testing.assert_close(one.double(), other / count**0.5, rtol=1e-3, atol=1e-4)


def set_to(parameters: list[Tensor], *values: float) -> None:
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.fill_(value)


@every_width
def test_weights_and_their_gradients(bits: int) -> None:
    net = layer_net("dsq", bits)
    layer = bound(net, bits)
    parameters = [getattr(layer.weight_quantiser, name) for name in ("low", "high", "alpha")]
    set_to(parameters, -0.1, 0.07, 0.3)
    out = quantised_weight(net, bits)
    assert 2 < levels(out) <= 2**bits
    check(out, layer.weight, parameters, bits, layer.weight.numel())


@every_width
@pytest.mark.parametrize("signed", [False, True])
def test_inputs_and_their_gradients(bits: int, signed: bool) -> None:
    net = layer_net("dsq", bits)
    x = torch.randn(4, 6, 5, 5)
    if not signed:
        x = x.abs()
    quantiser = calibrated(net, bits, x)
    parameters = [getattr(quantiser, f"{name}_{bits}") for name in ("low", "high", "alpha")]
    assert (parameters[0].item() < 0) == signed
    set_to(parameters, -0.9 if signed else 0.1, 1.3, 0.15)
    x.requires_grad_()
    out = quantiser(x)
    assert levels(out) <= 2**bits
    check(out, x, parameters, bits, 6 * 5 * 5)
    assert net.own_parameters(bits) == parameters


def test_the_forward_pass_is_plain_rounding_between_the_bounds() -> None:
    net = layer_net("dsq", 2)
    x = torch.rand(4, 6, 5, 5)
    quantiser = calibrated(net, 2, x)
    low, high = double(quantiser.low_2), double(quantiser.high_2)
    expected = low + np.rint((np.clip(double(x), low, high) - low) / (high - low) * 3) * (high - low) / 3
    np.testing.assert_allclose(double(quantiser(x)), expected, rtol=1e-5, atol=1e-6)


def test_crossed_bounds_and_wild_alphas_do_no_harm() -> None:
    net = layer_net("dsq", 2)
    x = torch.rand(4, 6, 5, 5)
    quantiser = calibrated(net, 2, x)
    set_to([quantiser.low_2, quantiser.high_2, quantiser.alpha_2], 0.5, 0.2, -3.0)
    out = net(x)[2]
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert all(torch.isfinite(p.grad).all() for p in net.parameters() if p.grad is not None)
