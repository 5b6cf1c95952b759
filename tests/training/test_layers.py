"""Stratified layers: the scale of their step gradients, and evaluation on whole numbers."""

import copy
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from formulas import paper_gradients
from numpy.typing import NDArray
from torch import Tensor, nn

from bitstrata import codes
from bitstrata.training import layers
from bitstrata.training.layers import StratifiedLayer
from bitstrata.training.net import StratifiedNet
from bitstrata.training.options import Options
from bitstrata.training.quantisers import (
    activation_grid,
    plain_backward,
    plain_forward,
)
from bitstrata.training.stratify import stratify

# The scale of step gradients in layers


def stratified(layer: nn.Module, widths: tuple[int, ...], **options: Any) -> StratifiedNet:
    return stratify(layer, widths, ends="quantised", **options)


def layer_at(net: StratifiedNet, bits: int) -> StratifiedLayer:
    layer = net.at(bits)
    assert isinstance(layer, StratifiedLayer)
    return layer


def set_activations(net: StratifiedNet, bits: int, step: float, zero_point: int) -> None:
    """What calibration would do, with given numbers."""
    quantiser = layer_at(net, bits).input_quantiser
    with torch.no_grad():
        getattr(quantiser, f"step_{bits}").fill_(step)
        getattr(quantiser, f"floor_{bits}").fill_(step / 256)
        getattr(quantiser, f"zero_point_{bits}").fill_(zero_point)
        getattr(quantiser, f"calibrated_{bits}").fill_(True)
    quantiser.state.zero_points.clear()


def weight_step_gradient(net: StratifiedNet, bits: int, gradient: Tensor) -> Tensor:
    layer = layer_at(net, bits)
    (found,) = torch.autograd.grad(layer.weight_quantiser(layer.weight), layer.weight_quantiser.step, gradient)
    return found


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_scale_of_one_step_for_the_layer(bits: int) -> None:
    net, gradient = stratified(nn.Conv2d(5, 6, 3), (2, 3, 4)), torch.randn(6, 5, 3, 3)
    weight, step = net.model.weight.detach(), net.model.weight_quantiser.step.detach()
    raw = paper_gradients(weight, step.item(), gradient, 4, bits, True).step_terms.sum()
    found = weight_step_gradient(net, bits, gradient)
    assert found.item() == pytest.approx(raw / math.sqrt(6 * 5 * 3 * 3 * 7), rel=1e-3)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_scale_of_a_step_for_each_channel(bits: int) -> None:
    net, gradient = stratified(nn.Conv2d(5, 6, 3), (2, 3, 4), per_channel=True), torch.randn(6, 5, 3, 3)
    weight, steps = net.model.weight.detach(), net.model.weight_quantiser.step.detach()
    assert steps.shape == (6,)
    found = weight_step_gradient(net, bits, gradient)
    for channel in range(6):
        formula = paper_gradients(weight[channel], steps[channel].item(), gradient[channel], 4, bits, True)
        expected = formula.step_terms.sum() / math.sqrt(5 * 3 * 3 * 7)
        assert found[channel].item() == pytest.approx(expected, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(
    ("widths", "option", "normalised"),
    [
        ((2, 3, 4), None, False),
        ((2, 4, 5), None, True),
        ((2, 4, 8), None, True),
        ((2, 3), None, False),
        ((2, 3, 4), True, True),
        ((2, 4, 8), False, False),
    ],
)
def test_normalisation_by_width_is_the_default_above_four_bits(
    widths: tuple[int, ...], option: bool | None, normalised: bool
) -> None:
    assert Options(widths=widths, normalise_step_gradients=option).normalises_step_gradients == normalised
    net, gradient = stratified(nn.Linear(20, 30), widths, normalise_step_gradients=option), torch.randn(30, 20)
    weight, step = net.model.weight.detach(), net.model.weight_quantiser.step.item()
    source = widths[-1]
    for bits in widths:
        raw = paper_gradients(weight, step, gradient, source, bits, True).step_terms.sum()
        scale = 1 / math.sqrt(600 * (2 ** (source - 1) - 1)) * (2.0 ** (bits - source) if normalised else 1.0)
        assert weight_step_gradient(net, bits, gradient).item() == pytest.approx(raw * scale, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("bits", [2, 3])
def test_scale_of_activation_steps_counts_the_elements_of_one_sample(bits: int) -> None:
    net = stratified(nn.Conv2d(3, 2, 1), (2, 3))
    set_activations(net, bits, 0.4, 1)
    quantiser = layer_at(net, bits).input_quantiser
    step = getattr(quantiser, f"step_{bits}")
    x, gradient = torch.randn(5, 3, 4, 6), torch.randn(5, 3, 4, 6)
    (found,) = torch.autograd.grad(quantiser(x), step, gradient)
    _, raw = plain_backward(gradient.double(), x.double(), step.detach().double(), activation_grid(bits, 1))
    assert found.item() == pytest.approx(raw.item() / math.sqrt(3 * 4 * 6 * (2**bits - 1)), rel=1e-4)


def test_repeating_the_batch_leaves_every_gradient_of_a_mean_loss_the_same() -> None:
    net = stratified(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2)), (2, 3, 4))
    x = torch.randn(6, 3, 8, 8)
    net(x)

    def gradients(batch: Tensor) -> dict[str, Tensor]:
        net.zero_grad()
        net(batch, bits=2).square().mean().backward()
        return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}

    once, twice = gradients(x), gradients(x.repeat(2, 1, 1, 1))
    steps = [name for name in once if "step" in name]
    assert sorted(steps) == sorted(
        f"model.{place}.{step}" for place in "03" for step in ("weight_quantiser.step", "input_quantiser.step_2")
    )
    assert all(once[name].item() != 0 for name in steps)
    for name in once:
        torch.testing.assert_close(twice[name], once[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bits", [2, 4])
def test_an_activation_step_below_its_floor_computes_with_the_floor(bits: int) -> None:
    net = stratified(nn.Linear(8, 3), (2, 4))
    set_activations(net, bits, 0.5, 1)
    layer, x = layer_at(net, bits), torch.randn(6, 8) * 0.01
    with torch.no_grad():
        getattr(layer.input_quantiser, f"step_{bits}").fill_(-1.0)
    floor = torch.tensor(0.5 / 256)
    assert torch.equal(layer.input_quantiser(x), plain_forward(x, floor, activation_grid(bits, 1)))
    net.eval()
    assert torch.equal(layer.input_quantiser.step(), floor)


# Evaluation on whole numbers


def convolve(
    x: NDArray[np.int64],
    weights: NDArray[np.int64],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
) -> NDArray[np.int64]:
    """A convolution on integers, tap by tap."""
    batch, channels, _, _ = x.shape
    outputs, per_group, kernel_height, kernel_width = weights.shape
    x = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    height = (x.shape[2] - dilation[0] * (kernel_height - 1) - 1) // stride[0] + 1
    width = (x.shape[3] - dilation[1] * (kernel_width - 1) - 1) // stride[1] + 1
    grouped = weights.reshape(groups, outputs // groups, per_group, kernel_height, kernel_width)
    out = np.zeros((batch, groups, outputs // groups, height, width), dtype=np.int64)
    for row in range(kernel_height):
        for column in range(kernel_width):
            top, left = row * dilation[0], column * dilation[1]
            window = x[:, :, top : top + stride[0] * height : stride[0], left : left + stride[1] * width : stride[1]]
            window = window[:, :, :height, :width].reshape(batch, groups, channels // groups, height, width)
            out += np.einsum("ngchw,gkc->ngkhw", window, grouped[..., row, column])
    return out.reshape(batch, outputs, height, width)


def integer_operands(
    net: StratifiedNet, bits: int, x: Tensor, step: float, zero_point: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """u - o and the odd integers of the weight, from `codes` alone."""
    source = net.widths[-1]
    weight, weight_step = net.model.weight.detach(), net.model.weight_quantiser.step.detach()
    if weight_step.ndim:
        weight_step = weight_step.reshape((-1,) + (1,) * (weight.ndim - 1))
    source_codes = codes.quantise(weight.numpy(), weight_step.numpy(), source)
    odd = codes.odd_integers(codes.shift_down(source_codes, source, bits), source, bits)
    unsigned = codes.quantise_activations(x.numpy(), step, zero_point, bits)
    return unsigned.astype(np.int64) - zero_point, odd.astype(np.int64)


class Geometry(NamedTuple):
    """Everything that `nn.Conv2d` takes."""

    inputs: int
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1


GEOMETRIES = {
    "3x3": Geometry(16, 16, (3, 3), padding=(1, 1)),
    "no padding": Geometry(6, 4, (3, 3)),
    "stride": Geometry(6, 4, (3, 3), stride=(2, 2), padding=(1, 1)),
    "dilation": Geometry(6, 4, (3, 3), dilation=(2, 2), padding=(2, 2)),
    "groups": Geometry(6, 4, (3, 3), groups=2, padding=(1, 1)),
    "depthwise": Geometry(6, 6, (5, 5), groups=6, padding=(2, 2)),
    "depthwise, two outputs each": Geometry(6, 12, (3, 3), groups=6, stride=(2, 2)),
    "1x1": Geometry(6, 4, (1, 1), stride=(2, 2)),
    "oblong": Geometry(6, 4, (1, 5), stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
}


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES.keys())
@torch.no_grad()
def test_convolutions_accumulate_the_integers_of_the_arithmetic(geometry: Geometry, per_channel: bool) -> None:
    net = stratified(nn.Conv2d(*geometry), tuple(range(2, 9)), per_channel=per_channel).eval()
    x = torch.randn(2, geometry.inputs, 11, 9)
    for bits in net.widths:
        step, zero_point = 4.0 / 2**bits, 2 ** (bits - 1) - 1
        set_activations(net, bits, step, zero_point)
        activations, weights = integer_operands(net, bits, x, step, zero_point)
        expected = convolve(activations, weights, *geometry[3:])
        accumulated, scale = layer_at(net, bits).accumulate(x)
        assert accumulated.dtype == torch.float32
        np.testing.assert_array_equal(accumulated.numpy(), expected)
        assert torch.equal(scale, net.model.weight_quantiser.step * 0.5 * step)
        # The epilogue: one product, then one sum.
        output = accumulated * scale.reshape(-1, 1, 1) + net.model.bias.reshape(-1, 1, 1)
        assert torch.equal(net(x, bits=bits), output)


@pytest.mark.parametrize("padding_mode", ["reflect", "replicate", "circular"])
@torch.no_grad()
def test_other_padding_modes_pad_the_codes(padding_mode: str) -> None:
    net = stratified(nn.Conv2d(3, 4, 3, padding=(1, 2), padding_mode=padding_mode), (2, 4)).eval()
    x = torch.randn(2, 3, 6, 7)
    set_activations(net, 2, 0.7, 1)
    activations, weights = integer_operands(net, 2, x, 0.7, 1)
    mode: Any = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[padding_mode]
    padded = np.pad(activations, ((0, 0), (0, 0), (1, 1), (2, 2)), mode=mode)
    accumulated, _ = layer_at(net, 2).accumulate(x)
    np.testing.assert_array_equal(accumulated.numpy(), convolve(padded, weights, (1, 1), (0, 0), (1, 1), 1))


@pytest.mark.parametrize("shape", [(12,), (3, 12), (2, 5, 12)])
@torch.no_grad()
def test_linear_layers_accumulate_the_integers_of_the_arithmetic(shape: tuple[int, ...]) -> None:
    net = stratified(nn.Linear(12, 5), tuple(range(2, 9)), per_channel=True).eval()
    x = torch.randn(shape)
    for bits in net.widths:
        set_activations(net, bits, 0.1, 1)
        activations, weights = integer_operands(net, bits, x, 0.1, 1)
        accumulated, scale = layer_at(net, bits).accumulate(x)
        np.testing.assert_array_equal(accumulated.numpy(), activations @ weights.T)
        assert torch.equal(net(x, bits=bits), accumulated * scale + net.model.bias)


def largest_sums(bits: int, inputs: int) -> tuple[StratifiedNet, Tensor]:
    """Every activation at its highest code; one output of highest codes, one of lowest, one where they cancel."""
    weight = torch.empty(3, inputs)
    weight[0], weight[1] = 1e9, -1e9
    weight[2, : inputs // 2], weight[2, inputs // 2 :] = 1e9, -1e9
    layer = nn.Linear(inputs, 3, bias=False)
    layer.weight.data.normal_()
    net = stratified(layer, (2, 7, 8) if bits > 4 else (2, 3, 4))
    net.model.weight.data.copy_(weight)
    set_activations(net, bits, 1.0, 0)
    return net.eval(), torch.full((1, inputs), 1e9)


@pytest.mark.parametrize("inputs", [3, 100, 256, 257, 300, 20_001])
@pytest.mark.parametrize("bits", [2, 3, 4, 7, 8])
@torch.no_grad()
def test_the_largest_sums_are_exact_and_rounded_once(bits: int, inputs: int) -> None:
    net, x = largest_sums(bits, inputs)
    activations, weights = integer_operands(net, bits, x, 1.0, 0)
    exact = activations @ weights.T
    assert exact[0, 0] == inputs * (2**bits - 1) * weights.max()
    accumulated, _ = layer_at(net, bits).accumulate(x)
    np.testing.assert_array_equal(accumulated.numpy(), exact.astype(np.float32))


@torch.no_grad()
def test_float32_alone_would_not_be_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """The case above has teeth: without the switch to float64 it fails."""
    net, x = largest_sums(7, 20_001)
    exact, _ = layer_at(net, 7).accumulate(x)
    monkeypatch.setattr(layers, "FLOAT32_EXACT", 2**62)
    inexact, _ = layer_at(net, 7).accumulate(x)
    assert not torch.equal(inexact, exact)


MODELS = {
    "convolution": (nn.Conv2d(8, 6, 3, padding=1), (4, 8, 7, 7)),
    "depthwise": (nn.Conv2d(8, 8, 3, groups=8), (4, 8, 7, 7)),
    "linear": (nn.Linear(40, 6), (4, 40)),
}


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(("layer", "shape"), MODELS.values(), ids=MODELS.keys())
def test_training_mode_computes_what_evaluation_does(
    layer: nn.Module, shape: tuple[int, ...], per_channel: bool
) -> None:
    net = stratified(copy.deepcopy(layer), (2, 3, 4, 8), per_channel=per_channel)
    x = torch.randn(shape)
    net(x)
    for bits in net.widths:
        simulated = net.train()(x, bits=bits)
        exact = net.eval()(x, bits=bits)
        torch.testing.assert_close(simulated, exact, rtol=1e-4, atol=1e-4 * float(exact.detach().abs().max()))


@pytest.mark.parametrize("autocast", [False, True])
def test_evaluation_with_gradients_gives_the_exact_value_and_the_gradients_of_training(autocast: bool) -> None:
    net = stratified(nn.Conv2d(64, 32, 3, padding=1), (2, 3, 4))
    x = torch.randn(4, 64, 8, 8)
    net(x)
    x.requires_grad_()
    seed = torch.randn(4, 32, 8, 8)
    for bits in net.widths:
        with torch.no_grad():
            exact = net.eval()(x, bits=bits)
        found: list[list[Tensor]] = []
        for training in (True, False):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                output = net.train(training)(x, bits=bits)
            wanted = [x, net.model.weight, net.model.weight_quantiser.step, net.model.bias]
            found.append(list(torch.autograd.grad(output, wanted, seed.to(output.dtype))))
            if not training:
                assert torch.equal(output, exact)
        for trained, evaluated in zip(*found, strict=True):
            scale = float(trained.abs().max())
            torch.testing.assert_close(evaluated, trained, rtol=1e-2 if autocast else 1e-5, atol=1e-2 * scale)


def test_no_error_of_the_simulation_reaches_the_evaluated_value(monkeypatch: pytest.MonkeyPatch) -> None:
    net = stratified(nn.Linear(6, 4), (2, 4))
    x = torch.randn(3, 6)
    net(x)
    layer = layer_at(net.eval(), 2)
    with torch.no_grad():
        exact = layer(x)
    simulated = layer._simulated
    # So far off that a sum with the difference would round.
    monkeypatch.setattr(layer, "_simulated", lambda value: simulated(value) + 1e6)
    output = layer(x)
    assert output.requires_grad
    assert torch.equal(output, exact)


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("grad", [True, False])
def test_a_converted_network_keeps_its_type_in_both_modes(kind: torch.dtype, grad: bool) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.Flatten(),
        nn.Linear(128, 3),
    )
    net = stratified(model, (2, 4)).to(kind)
    x = torch.randn(4, 3, 8, 8, dtype=kind)
    with torch.set_grad_enabled(grad):
        for mode in (True, False):
            for output in net.train(mode)(x).values():
                assert output.dtype == kind
                assert bool(output.isfinite().all())


@torch.no_grad()
def test_a_bfloat16_layer_evaluates_with_the_codes_it_was_trained_with() -> None:
    layer = nn.Linear(300, 4).bfloat16()
    net = stratified(layer, (4, 8)).bfloat16()
    set_activations(net, 8, 0.03, 100)
    bound = layer_at(net, 8)
    trained = bound.weight_quantiser(bound.weight)
    integers, step = bound.weight_quantiser.integers(bound.weight)
    assert step.dtype == torch.float32
    assert torch.equal((integers * (step * 0.5)).bfloat16(), trained)
