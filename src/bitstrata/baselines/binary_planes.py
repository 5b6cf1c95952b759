"""Weights whose enhance planes are parameters of their own: the quantiser of the two naive baselines (section 3.3).

The base is quantised as in LSQ, w_0 = clip(rint(w / s_0)); every further width adds one binary plane with a float
source tensor b_i^r of its own (eq. 3 of the paper, without compensation):

    w_i = 2 w_(i-1) + b_i,    b_i = 1 where b_i^r > 0, else 0,    s_i = s_(i-1) / 2

Where the paper is silent:
- Straight through the sign means that b_i^r is in the unit of the weight and takes the gradient of the de-quantised
  weight. Taken in the unit of codes, the gradient would be smaller by a step, and the plane would hardly ever change.
- b_i^r starts at w - w_hat_(i-1) - s_i / 2, the residual of the lower width less half a step: positive exactly where
  the bit brings the weight nearer.
- The steps of higher widths are halves of the base step, which learns from every width that is trained.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from bitstrata import codes
from bitstrata.limits import STEP_FLOOR_DIVISOR
from bitstrata.training.bound import scale_gradient
from bitstrata.training.options import Options
from bitstrata.training.quantiser_kinds import Quantizer, WeightQuantiser
from bitstrata.training.quantisers import fake_quantise, weight_grid
from bitstrata.training.steps import LearnedActivationStep
from bitstrata.training.weight_steps import initial_step


class BinaryPlanes(WeightQuantiser):
    """A base of LSQ and one learned binary plane for each bit above it."""

    def __init__(self, weight: nn.Parameter, options: Options, name: str) -> None:
        super().__init__(weight, options, name)
        self.base_bits = options.widths[0]
        step = initial_step(weight, (self.base_bits,), "lsq", options.per_channel)
        self.step = nn.Parameter(step)
        self.floor: Tensor
        self.register_buffer("floor", step / STEP_FLOOR_DIVISOR)
        for bits in self._planes(options.widths[-1]):
            self.register_parameter(f"plane_{bits}", nn.Parameter(torch.zeros_like(weight)))
        self.start_planes(weight)

    def _planes(self, bits: int) -> range:
        """The widths whose planes a width is made of, above the base."""
        return range(self.base_bits + 1, bits + 1)

    @torch.no_grad()
    def start_planes(self, weight: Tensor) -> None:
        """Sets the sources of all planes to the residual that the widths below leave."""
        value = self._base(weight)
        step = self._step(weight)
        for bits in self._planes(self.options.widths[-1]):
            step = step / 2
            source = getattr(self, f"plane_{bits}")
            source.copy_(weight - value - step / 2)
            value = value + step * (source > 0)

    def forward(self, weight: Tensor) -> Tensor:
        value = self._base(weight)
        step = scale_gradient(self._step(weight), self._step_gradient_scale(weight))
        for bits in self._planes(self.bound_bits()):
            step = step / 2
            bit = _Bit.apply(getattr(self, f"plane_{bits}"), step.detach())  # type: ignore[no-untyped-call]
            value = value + step * bit
        return value

    def plane_parameters(self, bits: int) -> list[nn.Parameter]:
        """The source of the plane that lifts to `bits`."""
        return [getattr(self, f"plane_{bits}")] if bits > self.base_bits else []

    def _base(self, weight: Tensor) -> Tensor:
        grid = weight_grid(self.base_bits, self.base_bits)
        return fake_quantise(weight, self.step, self.floor, grid, self._step_gradient_scale(weight))

    def _step_gradient_scale(self, weight: Tensor) -> float:
        """That of LSQ, 1 / sqrt(N Q_P)."""
        _, top = codes.code_range(self.base_bits)
        return 1.0 / math.sqrt(weight.numel() / self.step.numel() * top)

    def _step(self, weight: Tensor) -> Tensor:
        """The base step, in a shape that broadcasts against the weight."""
        step = torch.maximum(self.step, self.floor)
        return step if step.ndim == 0 else step.reshape((-1,) + (1,) * (weight.ndim - 1))


class _Bit(torch.autograd.Function):
    """1 where the source is positive, else 0; the source takes the gradient of the de-quantised weight."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, step: Tensor) -> Tensor:
        ctx.save_for_backward(step)
        return (source > 0).to(source.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (step,) = ctx.saved_tensors
        return gradient / step, None


QUANTIZER = Quantizer("binary-planes", BinaryPlanes, LearnedActivationStep, several_widths=True)
