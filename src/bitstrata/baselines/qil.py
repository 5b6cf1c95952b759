"""QIL: learned intervals, outside of which weights and inputs are pruned or clipped.

Jung et al., "Learning to Quantize Deep Networks by Optimizing Quantization Intervals with Task Loss" (CVPR 2019),
section 3. A transformer takes the interval c - d .. c + d to 0..1, a discretiser rounds there:

    inputs      t = clip(0.5 (x - c) / d + 0.5, 0, 1); x_hat = rint(q t) / q, q = 2^k - 1
    weights     the same of |w| with q = 2^(k-1) - 1, times sign(w): with two bits that is -1, 0 and 1
    gradients   straight through the rounding; inside the interval
                dt/dx = 0.5 / d, dt/dc = -0.5 / d, dt/dd = -0.5 (x - c) / d^2, outside all are 0

What was ruled here:

The exponent gamma of the weights' transformer, which the paper can also learn, is 1, as that of inputs always is.

The results lie in -1..1 and 0..1 whatever the scale of their layer was, as in the paper: a norm is expected to follow.

Intervals start at 0 .. r, with the r of least squared error, of the weight and of the first data (`activation_init`).

One learning rate serves all parameters here, under which sums over whole layers would move intervals too fast: their
gradients are multiplied by 1 / sqrt(N), N being the weights of the layer or the input elements of one sample. They take
no weight decay. The paper fine-tunes each width from the one above; here every network starts from the float weights.

There is no signed form for inputs: layers whose input goes below 0 are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from bitstrata import codes
from bitstrata.baselines.clips import refuse_negative
from bitstrata.baselines.reach import least_error_reach
from bitstrata.baselines.straight import wide
from bitstrata.limits import STEP_FLOOR_DIVISOR
from bitstrata.training.calibration import Histogram, choose_step
from bitstrata.training.options import Options
from bitstrata.training.quantiser_kinds import ActivationQuantiser, Quantizer, WeightQuantiser


class IntervalRound(torch.autograd.Function):
    """Transformer and discretiser for values that are not negative."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, centre: Tensor, distance: Tensor, floor: Tensor, top: int, interval_gain: float
    ) -> Tensor:
        distance = torch.maximum(distance, floor)
        ctx.save_for_backward(x, centre, distance)
        ctx.interval_gain = interval_gain
        transformed = (x - (centre - distance)).mul_(0.5 * top / distance).clamp_(0.0, top)
        return transformed.round_().div_(top)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, centre, distance = ctx.saved_tensors
        offset = x - centre
        passed = torch.where(offset.abs() <= distance, gradient, 0.0).mul_(0.5 / distance)
        centre_gradient = -passed.sum() * ctx.interval_gain
        distance_gradient = -offset.mul_(passed).sum() / distance * ctx.interval_gain
        return passed, centre_gradient, distance_gradient, None, None, None


def interval_round(x: Tensor, centre: Tensor, distance: Tensor, floor: Tensor, top: int, gain: float) -> Tensor:
    result: Tensor = IntervalRound.apply(wide(x), centre, distance, floor, top, gain)  # type: ignore[no-untyped-call]
    return result


class QilWeight(WeightQuantiser):
    """Rounds the magnitude within the learned interval, and gives it its sign back."""

    def __init__(self, weight: nn.Parameter, options: Options, name: str) -> None:
        super().__init__(weight, options, name)
        half = 0.5 * least_error_reach(weight, 2 * codes.code_range(options.source_bits)[1])
        self.centre = nn.Parameter(torch.tensor(half, device=weight.device))
        self.distance = nn.Parameter(torch.tensor(half, device=weight.device))
        self.floor: Tensor
        self.register_buffer("floor", torch.tensor(half / STEP_FLOOR_DIVISOR, device=weight.device))

    def forward(self, weight: Tensor) -> Tensor:
        top = codes.code_range(self.bound_bits())[1]
        gain = 1.0 / math.sqrt(weight.numel())
        magnitude = interval_round(weight.abs(), self.centre, self.distance, self.floor, top, gain)
        return (magnitude * weight.detach().sign()).to(weight.dtype)


class QilInput(ActivationQuantiser):
    """Rounds within the learned interval of the width."""

    def __init__(self, options: Options, name: str, device: torch.device) -> None:
        super().__init__(options, name, device)
        for bits in options.widths:
            self.register_parameter(f"centre_{bits}", nn.Parameter(torch.ones((), device=device)))
            self.register_parameter(f"distance_{bits}", nn.Parameter(torch.ones((), device=device)))
            self.register_buffer(f"floor_{bits}", torch.zeros((), device=device))

    def own_parameters(self, bits: int) -> Iterator[nn.Parameter]:
        yield getattr(self, f"centre_{bits}")
        yield getattr(self, f"distance_{bits}")

    def forward(self, x: Tensor) -> Tensor:
        bits = self.bound_bits()
        self.zero_point(x)
        centre, distance, floor = (getattr(self, f"{part}_{bits}") for part in ("centre", "distance", "floor"))
        gain = self.own_gain / math.sqrt(max(x.numel() / max(x.shape[0], 1), 1.0))
        return interval_round(x, centre, distance, floor, codes.activation_top(bits), gain).to(x.dtype)

    def initialise(self, bits: int, histogram: Histogram) -> int:
        refuse_negative(histogram, self.options, self.name)
        step, _ = choose_step(histogram, bits, self.options.activation_init, self.options.widths.index(bits))
        half = 0.5 * step * codes.activation_top(bits)
        getattr(self, f"centre_{bits}").fill_(half)
        getattr(self, f"distance_{bits}").fill_(half)
        getattr(self, f"floor_{bits}").fill_(half / STEP_FLOOR_DIVISOR)
        return 0


QUANTIZER = Quantizer("qil", QilWeight, QilInput)
