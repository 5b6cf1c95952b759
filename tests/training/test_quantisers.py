"""Quantisers: equal to `codes`, native equal to plain, every gradient equal to its formula."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from formulas import paper_gradients
from torch import Tensor

from bitstrata import _native, codes
from bitstrata.training import quantisers
from bitstrata.training.quantisers import (
    Grid,
    activation_grid,
    fake_quantise,
    half_steps,
    plain_backward,
    plain_forward,
    weight_grid,
)

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
