"""Dedicated LSQ: with one width the quantiser is LSQ's own, forward and backward."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from bitstrata.baselines.lsq import lsq
from bitstrata.training.layers import StratifiedLayer
from bitstrata.training.net import StratifiedNet


@pytest.fixture(autouse=True)
def fixed_seed_and_one_thread() -> Iterator[None]:
    """Threads that wait for each other on a busy machine would take most of the time of tests this small."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def round_pass(x: Tensor) -> Tensor:
    """Rounding, with the gradient of the identity; from the listing in LSQ's appendix."""
    return (x.round() - x).detach() + x


def scale_gradient(x: Tensor, scale: float) -> Tensor:
    """The identity, with the gradient scaled; from the same listing."""
    return (x - x * scale).detach() + x * scale


def published(v: Tensor, s: Tensor, negative: int, positive: int, count: int) -> Tensor:
    """The quantiser of LSQ's listing: clip, round, multiply, all by torch's own derivatives."""
    s = scale_gradient(s, 1.0 / math.sqrt(count * positive))
    return round_pass(torch.clamp(v / s, -negative, positive)) * s


def set_activations(net: StratifiedNet, bits: int, step: float) -> None:
    quantiser = bound(net, bits).input_quantiser
    with torch.no_grad():
        getattr(quantiser, f"step_{bits}").fill_(step)
        getattr(quantiser, f"calibrated_{bits}").fill_(True)
    quantiser.state.zero_points.clear()


def bound(net: StratifiedNet, bits: int) -> StratifiedLayer:
    layer = net.at(bits)
    assert isinstance(layer, StratifiedLayer)
    return layer


def layer_net(layer: nn.Module, bits: int, **options: Any) -> StratifiedNet:
    return lsq(layer, bits, ends="quantised", **options)


@pytest.mark.parametrize("bits", range(2, 9))
def test_the_weight_step_starts_at_twice_the_mean_over_the_root_of_the_highest_code(bits: int) -> None:
    layer = nn.Linear(20, 10)
    step = layer_net(layer, bits).model.weight_quantiser.step
    assert step.item() == pytest.approx(2 * layer.weight.abs().mean().item() / math.sqrt(2 ** (bits - 1) - 1), rel=1e-6)


def test_another_initial_step_can_be_asked_for() -> None:
    layer = nn.Linear(20, 10)
    step = layer_net(layer, 2, weight_init="mean").model.weight_quantiser.step
    assert step.item() == pytest.approx(2 * layer.weight.abs().mean().item() / math.sqrt(15) * 4, rel=1e-6)


@pytest.mark.parametrize("bits", range(2, 9))
def test_weights_are_quantised_as_published(bits: int) -> None:
    net = layer_net(nn.Conv2d(8, 6, 3), bits)
    layer = bound(net, bits)
    with torch.no_grad():
        layer.weight.normal_()  # wide enough to be clipped on both sides
        layer.weight_quantiser.step.fill_(1.1 / 2 ** (bits - 1))
    seed = torch.randn_like(layer.weight)
    found = layer.weight_quantiser(layer.weight)
    found_gradients = torch.autograd.grad(found, [layer.weight, layer.weight_quantiser.step], seed)
    # In float64, so that what differs is float32's rounding only.
    weight = layer.weight.detach().double().requires_grad_()
    step = layer.weight_quantiser.step.detach().double().requires_grad_()
    low, high = 2 ** (bits - 1), 2 ** (bits - 1) - 1
    expected = published(weight, step, low, high, weight.numel())
    expected_gradients = torch.autograd.grad(expected, [weight, step], seed.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-7)
    clipped = (weight / step < -low) | (weight / step > high)
    assert 0 < int(clipped.sum()) < weight.numel()
    assert torch.equal(found_gradients[0].double(), expected_gradients[0])
    torch.testing.assert_close(found_gradients[1].double(), expected_gradients[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bits", range(2, 9))
def test_activations_are_quantised_as_published(bits: int) -> None:
    net = layer_net(nn.Conv2d(8, 6, 3), bits)
    set_activations(net, bits, 1.7 / 2**bits)
    quantiser = bound(net, bits).input_quantiser
    x = functional.relu(torch.randn(4, 8, 5, 5)).requires_grad_()
    step = getattr(quantiser, f"step_{bits}")
    seed = torch.randn_like(x)
    found = quantiser(x)
    found_gradients = torch.autograd.grad(found, [x, step], seed)
    wide, wide_step = x.detach().double().requires_grad_(), step.detach().double().requires_grad_()
    # Features of one sample, as LSQ counts them.
    expected = published(wide, wide_step, 0, 2**bits - 1, 8 * 5 * 5)
    expected_gradients = torch.autograd.grad(expected, [wide, wide_step], seed.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-7)
    assert torch.equal(found_gradients[0].double(), expected_gradients[0])
    torch.testing.assert_close(found_gradients[1].double(), expected_gradients[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("ratio", "expected"), [(-2.9, -2.0), (-1.7, -0.3), (0.2, -0.2), (0.7, 0.3), (1.6, 1.0)])
def test_the_step_gradient_of_single_values(ratio: float, expected: float) -> None:
    """Eq. 3 of LSQ at two bits: round(v/s) - v/s inside, -Q_N below, Q_P above; N = 1 and Q_P = 1, so unscaled."""
    net = layer_net(nn.Linear(1, 1, bias=False), 2)
    layer = bound(net, 2)
    with torch.no_grad():
        layer.weight.fill_(ratio * layer.weight_quantiser.step.item())
    (found,) = torch.autograd.grad(layer.weight_quantiser(layer.weight).sum(), layer.weight_quantiser.step)
    assert found.item() == pytest.approx(expected, abs=1e-5)


def test_a_layer_and_all_its_gradients_are_those_of_a_network_written_by_hand() -> None:
    bits = 3
    net = layer_net(nn.Conv2d(4, 5, 3, padding=1), bits)
    layer = bound(net, bits)
    set_activations(net, bits, 0.3)
    x, seed = functional.relu(torch.randn(2, 4, 6, 6)), torch.randn(2, 5, 6, 6)
    net(x, bits=bits).backward(seed)
    weight, bias = (p.detach().clone().requires_grad_() for p in (layer.weight, layer.bias))
    weight_step = layer.weight_quantiser.step.detach().clone().requires_grad_()
    activation_step = torch.tensor(0.3, requires_grad=True)
    functional.conv2d(
        published(x, activation_step, 0, 7, 4 * 6 * 6),
        published(weight, weight_step, 4, 3, weight.numel()),
        bias,
        padding=1,
    ).backward(seed)
    for found, expected in [
        (layer.weight, weight),
        (layer.bias, bias),
        (layer.weight_quantiser.step, weight_step),
        (layer.input_quantiser.step_3, activation_step),
    ]:
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-3, atol=1e-4)


def test_it_is_a_network_of_one_width_with_float_ends() -> None:
    net = lsq(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)), 3)
    assert net.widths == (3,)
    assert [name for name, _ in net.stratified_layers()] == ["2"]
    assert set(net(torch.randn(5, 4))) == {3}
