"""PACT: a learned clipping level for inputs, DoReFa's weights.

Choi et al., "PACT: Parameterized Clipping Activation for Quantized Neural Networks" (2018), eqs. 1 to 3; weights by
Zhou et al., "DoReFa-Net" (2016), eqs. 5, 6 and 9, as the paper takes them.

    inputs      y = (|x| - |x - a| + a) / 2, which is x clipped to 0..a
                x_hat = a / (2^k - 1) rint(y (2^k - 1) / a)
                dx_hat / da = 1 where x >= a, else 0; dx_hat / dx = 1 where 0 <= x < a, else 0
    weights     w_hat = 2 rint((2^k - 1) u) / (2^k - 1) - 1 with u = (tanh(w) / max|tanh(w)| + 1) / 2
                dw_hat / du = 2                                       straight through

What was ruled here:

The clipping level takes weight decay at the rate of the weights, as in the paper. It starts at the least squared error
on the first data (`activation_init`), not at a large number from which the decay would bring it down: short runs end
before that.

Weights lie in -1..1 whatever their scale was; the paper leaves it to the following norm to undo that, and so does this.
A layer without a norm after it is better kept float.

There is no signed form: layers whose input goes below 0 are refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bitstrata import codes
from bitstrata.baselines.clips import LearnedClip
from bitstrata.baselines.dorefa import normalised
from bitstrata.baselines.straight import straight_through, wide
from bitstrata.training.quantiser_kinds import Quantizer, WeightQuantiser
from bitstrata.training.quantisers import Grid, fake_quantise


class DoReFaWeight(WeightQuantiser):
    """The normalised weight, rounded to 2^k levels between -1 and 1; it has no parameters."""

    def forward(self, weight: Tensor) -> Tensor:
        top = codes.activation_top(self.bound_bits())
        unit = normalised(weight)
        levels = torch.round((unit.detach() + 1.0) * (top / 2)) * (2.0 / top) - 1.0
        return straight_through(levels, unit).to(weight.dtype)


class ClipAndRound(torch.autograd.Function):
    """x clipped to 0..a and rounded, with PACT's gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, clip: Tensor, floor: Tensor, top: int, clip_gain: float) -> Tensor:
        effective = torch.maximum(clip, floor)
        ctx.save_for_backward(x, effective)
        ctx.clip_gain = clip_gain
        step = effective / top
        return fake_quantise(x, step, torch.zeros_like(step), Grid(0, top), 0.0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, clip = ctx.saved_tensors
        above = x >= clip
        clip_gradient = torch.where(above, gradient, 0.0).sum() * ctx.clip_gain
        return torch.where(above | (x < 0.0), 0.0, gradient), clip_gradient, None, None, None


class PactInput(LearnedClip):
    """Clips at the learned level, then rounds."""

    def forward(self, x: Tensor) -> Tensor:
        bits = self.bound_bits()
        self.zero_point(x)
        clip, floor = getattr(self, f"clip_{bits}"), getattr(self, f"floor_{bits}")
        top = codes.activation_top(bits)
        result: Tensor = ClipAndRound.apply(wide(x), clip, floor, top, self.own_gain)  # type: ignore[no-untyped-call]
        return result.to(x.dtype)

    def decays(self, name: str) -> bool:
        return name.startswith("clip_")


QUANTIZER = Quantizer("pact", DoReFaWeight, PactInput)
