"""Quantisers and stratified layers: equal to `codes`, native equal to plain, every gradient equal to its formula."""

import copy
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bitstrata import _native, codes
from bitstrata.training import layers, quantisers
from bitstrata.training.layers import StratifiedLayer
from bitstrata.training.net import StratifiedNet
from bitstrata.training.options import Options
from bitstrata.training.quantisers import (
    Grid,
    activation_grid,
    fake_quantise,
    half_steps,
    plain_backward,
    plain_forward,
    weight_grid,
)
from bitstrata.training.stratify import stratify

PAIRS = [(source, bits) for source in range(2, 9) for bits in range(2, source + 1)]

# One of each kind: with and without dropped bits and compensation, signed and unsigned, narrow and wide.
GRIDS = {
    "2 of 4": weight_grid(4, 2),
    "4 of 4": weight_grid(4, 4),
    "2 of 8": weight_grid(8, 2),
    "8 of 8": weight_grid(8, 8),
    "3 of 5": weight_grid(5, 3),
    "2 of 4, uncompensated": weight_grid(4, 2, compensated=False),
    "activations, 2 bits": activation_grid(2, 0),
    "activations, 3 bits, signed": activation_grid(3, 4),
    "activations, 8 bits, short tail": activation_grid(8, 9),
}
every_grid = pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS.keys())

# Around the 32 lanes of one vector loop, and around the 32768 elements of one chunk.
SIZES = [0, 1, 31, 32, 33, 32767, 32768, 32769, 100_003]


def values_for(grid: Grid, steps: Tensor, *shape: int) -> Tensor:
    """Numbers on both sides of the range, of which every third lies exactly between two codes or on one."""
    reach = max(-grid.low, grid.high) * 1.5
    scaled = (torch.rand(shape) * 2.0 - 1.0) * reach
    halves = torch.randint(-2 * int(reach) - 1, 2 * int(reach) + 2, shape) * 0.5
    scaled = torch.where(torch.arange(scaled.numel()).reshape(shape) % 3 == 0, halves, scaled)
    return scaled * (steps if steps.ndim == 0 else steps.reshape((-1,) + (1,) * (len(shape) - 1)))


def through_autograd(
    x: Tensor, step: Tensor, grid: Grid, gradient: Tensor, *, floor: Tensor | None = None, scale: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """x_hat, dL/dx and dL/ds for the given dL/dx_hat."""
    x, step = x.detach().requires_grad_(), step.detach().clone().requires_grad_()
    out = fake_quantise(x, step, torch.zeros_like(step) if floor is None else floor, grid, scale)
    out.backward(gradient)
    assert x.grad is not None
    assert step.grad is not None
    return out.detach(), x.grad, step.grad


# Equal to the arithmetic


@pytest.mark.parametrize("step", [0.25, 0.0371, 3.3])
@pytest.mark.parametrize(("source", "bits"), PAIRS)
def test_the_plain_forward_pass_is_the_arithmetic(source: int, bits: int, step: float) -> None:
    grid, step_tensor = weight_grid(source, bits), torch.tensor(step)
    weights = values_for(grid, step_tensor, 999)
    source_codes = codes.quantise(weights.numpy(), step_tensor.numpy(), source)
    assert (source_codes.min(), source_codes.max()) == codes.code_range(source)
    shifted = codes.shift_down(source_codes, source, bits)
    np.testing.assert_array_equal(
        half_steps(weights, step_tensor, grid).numpy(), codes.odd_integers(shifted, source, bits)
    )
    expected = codes.dequantise(shifted, step_tensor.numpy(), source, bits).astype(np.float32)
    np.testing.assert_array_equal(plain_forward(weights, step_tensor, grid).numpy(), expected)


@pytest.mark.parametrize(("source", "bits"), PAIRS)
def test_without_compensation_only_the_shifted_code_is_left(source: int, bits: int) -> None:
    grid, step = weight_grid(source, bits, compensated=False), torch.tensor(0.0371)
    weights = values_for(grid, step, 999)
    shifted = codes.shift_down(codes.quantise(weights.numpy(), step.numpy(), source), source, bits)
    expected = (shifted * (step.double().numpy() * codes.step_factor(source, bits))).astype(np.float32)
    np.testing.assert_array_equal(plain_forward(weights, step, grid).numpy(), expected)


@pytest.mark.parametrize("bits", range(2, 9))
def test_activations_are_the_arithmetic(bits: int) -> None:
    step = torch.tensor(0.0371)
    for zero_point in (0, 1, 2 ** (bits - 1)):
        grid = activation_grid(bits, zero_point)
        values = values_for(grid, step, 999)
        unsigned = codes.quantise_activations(values.numpy(), step.item(), zero_point, bits)
        assert (unsigned.min(), unsigned.max()) == (0, codes.activation_top(bits))
        expected = codes.dequantise_activations(unsigned, step.item(), zero_point)
        np.testing.assert_array_equal(plain_forward(values, step, grid).numpy(), expected)


def test_the_compensation_is_the_one_of_the_arithmetic() -> None:
    for source, bits in PAIRS:
        grid = weight_grid(source, bits)
        assert grid.offset / 2 / codes.step_factor(source, bits) == codes.compensation(source, bits)
        assert weight_grid(source, bits, compensated=False).offset == 0


def test_half_rounds_to_even() -> None:
    x = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])
    expected = torch.tensor([-2.0, -2.0, 0.0, 0.0, 2.0, 2.0])
    one = torch.tensor(1.0)
    assert torch.equal(plain_forward(x, one, weight_grid(4, 4)), expected)
    assert torch.equal(fake_quantise(x, one, one, weight_grid(4, 4), 1.0), expected)


# Native equal to plain


def run_native(
    x: Tensor, steps: Tensor, gradient: Tensor, grid: Grid, threads: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    # NaN shows an element that nobody wrote.
    out, x_gradient = torch.full_like(x, math.nan), torch.full_like(x, math.nan)
    step_gradient = torch.full_like(steps, math.nan)
    _native.fake_quantise(x, steps, out, *grid, threads)
    _native.fake_quantise_backward(gradient, x, steps, x_gradient, step_gradient, *grid, threads)
    return out, x_gradient, step_gradient


def assert_native_is_plain(x: Tensor, steps: Tensor, grid: Grid) -> None:
    """The forward pass and dL/dx to the bit, dL/ds to 1e-5 of what a sum of so many random terms comes to."""
    gradient = torch.empty_like(x).copy_(torch.randn(x.shape))
    out, x_gradient, step_gradient = run_native(x, steps, gradient, grid)
    shaped = steps if steps.ndim == 0 else steps.reshape((-1,) + (1,) * (x.ndim - 1))
    expected = plain_forward(x, shaped, grid)
    expected_x_gradient, expected_step_gradient = plain_backward(gradient, x, shaped, grid)
    assert torch.equal(out, expected)
    assert torch.equal(x_gradient, expected_x_gradient)
    terms = (gradient * expected - expected_x_gradient * x).double() / shaped
    rows = terms.reshape(1, -1) if steps.ndim == 0 else terms.flatten(1)
    exact, size = rows.sum(1).reshape(steps.shape), rows.square().sum(1).sqrt().reshape(steps.shape)
    assert bool(((step_gradient - exact).abs() <= 1e-5 * size).all())
    assert bool(((expected_step_gradient.reshape(steps.shape) - exact).abs() <= 1e-5 * size).all())


@every_grid
@pytest.mark.parametrize("size", SIZES)
def test_native_is_plain_with_one_step(size: int, grid: Grid) -> None:
    step = torch.tensor(0.125)  # a power of two: the ties below are exact
    assert_native_is_plain(values_for(grid, step, size), step, grid)


@every_grid
@pytest.mark.parametrize("row", [0, 1, 31, 33, 32767, 32769])
def test_native_is_plain_with_a_step_for_each_channel(row: int, grid: Grid) -> None:
    steps = torch.tensor([0.125, 0.0371, 7.7])
    assert_native_is_plain(values_for(grid, steps, 3, row), steps, grid)


@every_grid
@pytest.mark.parametrize("per_channel", [False, True])
def test_native_is_plain_in_channels_last(grid: Grid, per_channel: bool) -> None:
    steps = torch.rand(6) + 0.1 if per_channel else torch.tensor(0.3)
    x = values_for(grid, steps, 6, 5, 3, 7).contiguous(memory_format=torch.channels_last)
    assert not x.is_contiguous()
    assert_native_is_plain(x, steps, grid)


@every_grid
def test_native_is_plain_far_beyond_the_range(grid: Grid) -> None:
    step = torch.tensor(0.5)
    edges = torch.tensor([grid.low, grid.high], dtype=torch.float32) * 0.5
    beyond = torch.nextafter(edges, edges * 2 + torch.tensor([-1.0, 1.0]))
    x = torch.cat([edges, beyond, torch.tensor([-1e30, 1e30, -3e9, 3e9, 0.0, -0.0])]).repeat(5)
    assert_native_is_plain(x, step, grid)


def test_native_and_plain_keep_a_nan_visible() -> None:
    x, step, grid = torch.tensor([0.3, math.nan]).repeat(20), torch.tensor(0.1), weight_grid(4, 2)
    for out in (run_native(x, step, torch.ones_like(x), grid)[0], plain_forward(x, step, grid)):
        assert torch.equal(out.isnan(), x.isnan())


@pytest.mark.parametrize("shape", [(200_001,), (7, 40_001), (300, 700)])
@pytest.mark.parametrize("per_channel", [False, True])
def test_the_number_of_threads_changes_no_bit(shape: tuple[int, ...], per_channel: bool) -> None:
    assert _native.has_thread_pool(), "torch is loaded, and brings a pool of threads"
    grid = weight_grid(4, 2)
    steps = torch.rand(shape[0] if per_channel and len(shape) > 1 else ()) + 0.1
    x, gradient = values_for(grid, steps, *shape), torch.randn(shape)
    alone = run_native(x, steps, gradient, grid, threads=1)
    for threads in (0, 2, 3, 8):
        for first, second in zip(alone, run_native(x, steps, gradient, grid, threads), strict=True):
            assert torch.equal(first, second)


def test_native_refuses_tensors_that_do_not_fit() -> None:
    x, step, grid = torch.zeros(6), torch.tensor(1.0), weight_grid(4, 2)
    with pytest.raises(ValueError, match="different sizes"):
        _native.fake_quantise(x, step, torch.zeros(5), *grid, 1)
    with pytest.raises(ValueError, match="do not divide"):
        _native.fake_quantise(x, torch.ones(4), torch.zeros(6), *grid, 1)
    with pytest.raises(ValueError, match="do not divide"):
        _native.fake_quantise(x, torch.ones(0), torch.zeros(6), *grid, 1)
    for wrong in range(3):
        sizes = [5 if wrong == place else 6 for place in range(2)] + [2 if wrong == 2 else 1]
        gradient, x_gradient, step_gradient = (torch.zeros(size) for size in sizes)
        with pytest.raises(ValueError, match="different sizes"):
            _native.fake_quantise_backward(gradient, x, torch.ones(1), x_gradient, step_gradient, *grid, 1)


class Spy:
    """The native module, noting what is called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.called.append(name)
        return getattr(_native, name)


@pytest.mark.parametrize(
    ("layout", "native"),
    [
        ("contiguous", True),
        ("channels last", True),
        ("one element", True),
        ("empty", True),
        ("transposed", False),
        ("every second", False),
        ("expanded", False),
        ("float64", False),
    ],
)
def test_every_layout_gives_the_same_and_dense_ones_run_native(
    layout: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = torch.randn(4, 6, 5, 2)
    x = {
        "contiguous": whole,
        "channels last": whole.contiguous(memory_format=torch.channels_last),
        "one element": whole[:1, :1, :1, :1],
        "empty": whole[:0],
        "transposed": whole.transpose(0, 1),
        "every second": whole[:, ::2],
        "expanded": whole[:1].expand(4, 6, 5, 2),
        "float64": whole.double(),
    }[layout]
    grid, step = weight_grid(4, 2), torch.tensor(0.2, dtype=x.dtype)
    gradient = torch.randn_like(x)
    spy = Spy()
    monkeypatch.setattr(quantisers, "_native", spy)
    out, x_gradient, step_gradient = through_autograd(x, step, grid, gradient)
    assert bool(spy.called) == native
    assert torch.equal(out, plain_forward(x, step, grid))
    expected_x_gradient, expected_step_gradient = plain_backward(gradient, x, step, grid)
    assert torch.equal(x_gradient, expected_x_gradient)
    torch.testing.assert_close(step_gradient, expected_step_gradient, rtol=1e-4, atol=1e-5)


def test_a_gradient_of_another_layout_meets_the_right_elements() -> None:
    """A sum gives an expanded gradient, a convolution one in channels-last, whatever the layout of the weight."""
    grid, step, x = weight_grid(4, 2), torch.tensor(0.2), torch.randn(4, 6, 5, 2)
    gradient = torch.randn(4, 6, 5, 2)
    expected = through_autograd(x, step, grid, gradient)
    for other in (gradient.contiguous(memory_format=torch.channels_last), gradient.transpose(2, 3).contiguous().mT):
        assert other.stride() != x.stride()
        for found, wanted in zip(through_autograd(x, step, grid, other), expected, strict=True):
            assert torch.equal(found, wanted)
    one = torch.tensor(1.0)
    for found, wanted in zip(
        through_autograd(x, step, grid, one.expand_as(x)),
        through_autograd(x, step, grid, torch.ones_like(x)),
        strict=True,
    ):
        assert torch.equal(found, wanted)


def test_the_plain_functions_alone_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the package was built without its extension."""
    x, gradient = torch.randn(5, 7), torch.randn(5, 7)
    for step in (torch.tensor(0.2), torch.rand(5) + 0.1, torch.tensor([0.3])):
        with_native = through_autograd(x, step, weight_grid(4, 2), gradient)
        with monkeypatch.context() as patched:
            patched.setattr(quantisers, "_native", None)
            without = through_autograd(x, step, weight_grid(4, 2), gradient)
        assert torch.equal(with_native[0], without[0])
        assert torch.equal(with_native[1], without[1])
        assert with_native[2].shape == without[2].shape == step.shape
        torch.testing.assert_close(with_native[2], without[2], rtol=1e-5, atol=1e-6)


# Gradients against their formulas, in float64 and from scratch


class Formula(NamedTuple):
    x_gradient: NDArray[np.float64]
    step_terms: NDArray[np.float64]


def paper_gradients(x: Tensor, step: float, gradient: Tensor, source: int, bits: int, compensated: bool) -> Formula:
    """Eqs. 6 and 7, case by case, with the compensation in; the terms of dL/ds_b already times ds_b/ds = 2^m.

    The cases are those of the source range: there is one mask for all widths.
    """
    w, g = x.double().numpy(), gradient.double().numpy()
    low, high = codes.code_range(source)
    low_b, high_b = codes.code_range(bits)
    offset = codes.compensation(source, bits) if compensated else 0.0
    step_b = step * 2 ** (source - bits)
    code_b = np.floor(np.rint(w / step) / 2 ** (source - bits))
    inside = (w / step >= low) & (w / step <= high)
    terms = np.where(
        inside,
        g * (-w / step_b + code_b + offset),
        np.where(w / step < low, g * (low_b + offset), g * (high_b + offset)),
    )
    return Formula(np.where(inside, g, 0.0), terms * 2 ** (source - bits))


@pytest.mark.parametrize("compensated", [True, False])
@pytest.mark.parametrize(("source", "bits"), PAIRS)
def test_weight_gradients_are_the_papers_three_cases(source: int, bits: int, compensated: bool) -> None:
    step = 0.0371
    grid = weight_grid(source, bits, compensated=compensated)
    x, gradient = (torch.rand(500) * 2 - 1) * 2.0 ** (source - 1) * 1.5 * step, torch.randn(500)
    formula = paper_gradients(x, step, gradient, source, bits, compensated)
    assert 0 < np.count_nonzero(formula.x_gradient) < 500, "both cases must occur"
    _, x_gradient, step_gradient = through_autograd(x, torch.tensor(step), grid, gradient)
    np.testing.assert_allclose(x_gradient.numpy(), formula.x_gradient, rtol=1e-6)
    size = np.sqrt(np.square(formula.step_terms).sum())
    assert abs(step_gradient.item() - formula.step_terms.sum()) <= 1e-4 * size


def test_each_channels_step_gets_the_gradient_of_its_channel() -> None:
    steps = torch.tensor([0.05, 0.1, 0.4])
    x, gradient = torch.randn(3, 40, 2, 2), torch.randn(3, 40, 2, 2)
    _, x_gradient, step_gradient = through_autograd(x, steps, weight_grid(4, 3), gradient)
    assert step_gradient.shape == (3,)
    for channel in range(3):
        formula = paper_gradients(x[channel], steps[channel].item(), gradient[channel], 4, 3, True)
        np.testing.assert_allclose(x_gradient[channel].numpy(), formula.x_gradient, rtol=1e-6)
        assert step_gradient[channel].item() == pytest.approx(formula.step_terms.sum(), rel=1e-3)


@pytest.mark.parametrize("zero_point", [0, 1, 4])
def test_activation_gradients_are_the_three_cases_with_a_zero_point(zero_point: int) -> None:
    bits, step = 3, 0.21
    grid = activation_grid(bits, zero_point)
    x, gradient = torch.randn(400) * 2, torch.randn(400)
    a, g = x.double().numpy(), gradient.double().numpy()
    top = 2**bits - 1 - zero_point
    below, above = a / step < -zero_point, a / step > top
    assert below.any()
    assert above.any()
    terms = np.where(below, -zero_point * g, np.where(above, top * g, g * (np.rint(a / step) - a / step)))
    _, x_gradient, step_gradient = through_autograd(x, torch.tensor(step), grid, gradient)
    np.testing.assert_allclose(x_gradient.numpy(), np.where(below | above, 0.0, g), rtol=1e-6)
    assert step_gradient.item() == pytest.approx(terms.sum(), rel=1e-4)


def test_the_mask_includes_the_ends_of_the_source_range() -> None:
    """At the base width too: two-bit codes end at 1, and yet 4-bit source codes up to 7 pass their gradient."""
    x = torch.tensor([-8.1, -8.0, -7.9, 0.0, 6.9, 7.0, 7.1]) * 0.5
    expected = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    for bits in (2, 3, 4):
        _, x_gradient, _ = through_autograd(x, torch.tensor(0.5), weight_grid(4, bits), torch.ones(7))
        assert torch.equal(x_gradient, expected)


@every_grid
def test_step_gradient_is_the_derivative_of_the_straight_through_surrogate(grid: Grid) -> None:
    """Straight through: all rounding is a residual that stays as it is, so x_hat(s) = s (clip(x / s) + residual)."""
    step, nudge = 0.3, 1e-6
    x = values_for(grid, torch.tensor(step), 300).double()
    gradient = torch.randn(300, dtype=torch.float64)
    # An element that the nudge carries over the end of the range has no derivative there.
    scaled = x / step
    x = x[((scaled - grid.low).abs() > 1e-3) & ((scaled - grid.high).abs() > 1e-3)]
    gradient = gradient[: len(x)]

    def clipped(at: float) -> Tensor:
        return torch.clamp(x / at, grid.low, grid.high)

    residual = plain_forward(x, torch.tensor(step, dtype=torch.float64), grid) / step - clipped(step)

    def loss(at: float) -> float:
        return float((gradient * at * (clipped(at) + residual)).sum())

    numerical = (loss(step + nudge) - loss(step - nudge)) / (2 * nudge)
    _, _, found = through_autograd(x, torch.tensor(step, dtype=torch.float64), grid, gradient)
    assert found.item() == pytest.approx(numerical, rel=1e-6, abs=1e-6)


def test_step_gradient_is_scaled_and_the_others_are_not() -> None:
    x, gradient, step = torch.randn(50), torch.randn(50), torch.tensor(0.2)
    plain = through_autograd(x, step, weight_grid(4, 2), gradient)
    scaled = through_autograd(x, step, weight_grid(4, 2), gradient, scale=0.125)
    assert torch.equal(plain[0], scaled[0])
    assert torch.equal(plain[1], scaled[1])
    assert torch.equal(plain[2] * 0.125, scaled[2])


@pytest.mark.parametrize("step", [0.001, 0.0, -0.7])
def test_a_step_below_its_floor_computes_with_the_floor_and_still_learns(step: float) -> None:
    x, gradient, floor = torch.randn(50), torch.randn(50), torch.tensor(0.2)
    low = through_autograd(x, torch.tensor(step), weight_grid(4, 2), gradient, floor=floor)
    at_floor = through_autograd(x, floor, weight_grid(4, 2), gradient)
    for found, wanted in zip(low, at_floor, strict=True):
        assert torch.equal(found, wanted)
    assert low[2].item() != 0.0


def test_float64_is_rounded_in_float64() -> None:
    grid = weight_grid(4, 3)
    step = torch.tensor(0.1, dtype=torch.float64)
    # In float32 the first of these would round to a tie, and down.
    x = torch.tensor([0.05 + 1e-12, 0.05 - 1e-12, 0.31, -3.0], dtype=torch.float64)
    out, x_gradient, step_gradient = through_autograd(x, step, grid, torch.ones(4, dtype=torch.float64))
    assert out.dtype == x_gradient.dtype == step_gradient.dtype == torch.float64
    source_codes = np.array([1, 0, 3, -8])
    expected = codes.dequantise(codes.shift_down(source_codes, 4, 3), 0.1, 4, 3)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-15)
    np.testing.assert_array_equal(x_gradient.numpy(), [1, 1, 1, 0])
    np.testing.assert_allclose(step_gradient.item(), (expected.sum() - x[:3].sum().item()) / 0.1, rtol=1e-12)


def test_float64_values_with_a_float32_step() -> None:
    x = torch.randn(30, dtype=torch.float64)
    out, x_gradient, step_gradient = through_autograd(x, torch.tensor(0.25), weight_grid(4, 2), torch.ones_like(x))
    assert (out.dtype, x_gradient.dtype, step_gradient.dtype) == (torch.float64, torch.float64, torch.float32)
    wanted = plain_forward(x, torch.tensor(0.25, dtype=torch.float64), weight_grid(4, 2))
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
def test_narrow_values_are_rounded_in_float32(narrow: torch.dtype) -> None:
    grid, step = weight_grid(8, 8), torch.tensor(0.0123)
    x, gradient = torch.randn(200).to(narrow), torch.randn(200).to(narrow)
    found = through_autograd(x, step, grid, gradient)
    assert [tensor.dtype for tensor in found] == [narrow, narrow, torch.float32]
    out, x_gradient, step_gradient = through_autograd(x.float(), step, grid, gradient.float())
    assert torch.equal(found[0], out.to(narrow))
    assert torch.equal(found[1], x_gradient.to(narrow))
    assert torch.equal(found[2], step_gradient)


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
def test_a_narrow_step_gets_its_gradient_too(narrow: torch.dtype) -> None:
    """As in a network that was converted as a whole."""
    grid, step = weight_grid(4, 2), torch.tensor([0.25, 0.5]).to(narrow)
    x, gradient = torch.randn(2, 100).to(narrow), torch.randn(2, 100).to(narrow)
    found = through_autograd(x, step, grid, gradient)
    wanted = through_autograd(x.float(), step.float(), grid, gradient.float())
    for tensor, reference in zip(found, wanted, strict=True):
        assert tensor.dtype == narrow
        assert torch.equal(tensor, reference.to(narrow))


def test_a_second_derivative_is_refused_rather_than_wrong() -> None:
    x = torch.randn(5, requires_grad=True)
    out = fake_quantise(x, torch.tensor(0.2), torch.tensor(0.0), weight_grid(4, 2), 1.0)
    (first,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


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
