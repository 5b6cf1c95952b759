"""Fake quantisers: what a weight or an activation becomes at a width, and its straight-through gradient.

Both kinds are one function. With q = clip(rint(x / s), low, high), m dropped bits and compensation z:

    forward     x_hat = (floor(q / 2^m) + z) 2^m s                                    eqs. 1 and 5 of the paper
    backward    dL/dx = g where low <= x / s <= high, else 0                          eq. 6, with the mask of LSQ
                dL/ds = (<g, x_hat> - <dL/dx, x>) / s                                 eq. 7 with z and clipping

The second line of the backward pass is the paper's three-case formula in one: inside the range each element adds
g (x_hat - x) / s, outside g x_hat / s. It needs two dot products and saves nothing but x itself.

`FakeQuantise` runs the native kernel for dense float32 CPU tensors and the plain functions below everywhere else
(other devices, other layouts, inside torch.compile, which fuses them).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bitstrata import codes

try:
    from bitstrata import _native
except ImportError:  # built without the extension: the plain functions are complete
    _native = None  # type: ignore[assignment]


class Grid(NamedTuple):
    """The codes that a quantiser can give, as plain numbers."""

    low: int
    high: int
    dropped: int = 0
    compensated: bool = True

    @property
    def offset(self) -> int:
        """2^m - 1, the compensation in units of half a step."""
        return (1 << self.dropped) - 1 if self.compensated else 0


def weight_grid(source_bits: int, bits: int, *, compensated: bool = True) -> Grid:
    """Source codes of a weight, shifted down to `bits`."""
    return Grid(*codes.code_range(source_bits), codes.dropped_bits(source_bits, bits), compensated)


def activation_grid(bits: int, zero_point: int) -> Grid:
    """Unsigned activation codes minus their zero point."""
    return Grid(-zero_point, codes.activation_top(bits) - zero_point)


def half_steps(x: Tensor, step: Tensor, grid: Grid) -> Tensor:
    """x_hat in units of s / 2: small whole numbers, `codes.odd_integers` of the shifted-down code."""
    source = torch.clamp(torch.round(x * step.reciprocal()), grid.low, grid.high)
    if grid.dropped == 0:
        return source * 2.0
    return torch.floor(source * 2.0**-grid.dropped) * 2.0 ** (grid.dropped + 1) + float(grid.offset)


def plain_forward(x: Tensor, step: Tensor, grid: Grid) -> Tensor:
    """The forward pass in plain torch; `step` broadcasts against x."""
    return half_steps(x, step, grid) * (step * 0.5)


def plain_backward(gradient: Tensor, x: Tensor, step: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """The backward pass in plain torch: the gradients of x and of each step, the latter in the shape of `step`."""
    scaled = x * step.reciprocal()
    passed = torch.where((scaled >= grid.low) & (scaled <= grid.high), gradient, torch.zeros_like(gradient))
    products = gradient * plain_forward(x, step, grid) - passed * x
    if step.numel() == 1:
        return passed, products.sum().reshape(step.shape) / step
    return passed, products.flatten(1).sum(1).reshape(step.shape) / step


class FakeQuantise(torch.autograd.Function):
    """x_hat of x and a step of shape () or (channels,); see the head of this file."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        step: Tensor,
        floor: Tensor,
        low: int,
        high: int,
        dropped: int,
        compensated: bool,
        step_gradient_scale: float,
    ) -> Tensor:
        """`floor` keeps the step positive without a gradient of its own (the gradient passes through it)."""
        effective = torch.maximum(step, floor)
        ctx.save_for_backward(x, effective)
        ctx.grid = (low, high, dropped, compensated)
        ctx.step_gradient_scale = step_gradient_scale
        if _runs_native(x):
            out = torch.empty_like(x)
            _native.fake_quantise(x.detach(), effective, out, low, high, dropped, compensated, torch.get_num_threads())
            return out
        return plain_forward(x, _broadcast(effective, x), Grid(low, high, dropped, compensated))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, step = ctx.saved_tensors
        nothing = (None,) * 6
        if _runs_native(x) and gradient.dtype == torch.float32:
            if gradient.stride() != x.stride():
                gradient = torch.empty_like(x).copy_(gradient)
            x_gradient = torch.empty_like(x)
            step_gradient = torch.empty_like(step)
            _native.fake_quantise_backward(
                gradient, x.detach(), step, x_gradient, step_gradient, *Grid(*ctx.grid), threads=torch.get_num_threads()
            )
        else:
            x_gradient, step_gradient = plain_backward(gradient, x, _broadcast(step, x), Grid(*ctx.grid))
            step_gradient = step_gradient.reshape(step.shape)
        return x_gradient, step_gradient * ctx.step_gradient_scale, *nothing


def fake_quantise(x: Tensor, step: Tensor, floor: Tensor, grid: Grid, step_gradient_scale: float) -> Tensor:
    """x_hat with its gradients, in the type of x; rounded in float32 at least, which must not depend on autocast."""
    wide = x if x.dtype == torch.float64 else x.float()
    # The kernels take one type; the casts do nothing unless the whole network was converted.
    step, floor = step.to(wide.dtype), floor.to(wide.dtype)
    result: Tensor = FakeQuantise.apply(wide, step, floor, *grid, step_gradient_scale)  # type: ignore[no-untyped-call]
    return result.to(x.dtype)


def _broadcast(step: Tensor, x: Tensor) -> Tensor:
    return step if step.numel() == 1 else step.reshape((-1,) + (1,) * (x.ndim - 1))


def _runs_native(x: Tensor) -> bool:
    if _native is None or torch.compiler.is_compiling() or x.device.type != "cpu" or x.dtype != torch.float32:
        return False
    return x.is_contiguous() or (x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last))
