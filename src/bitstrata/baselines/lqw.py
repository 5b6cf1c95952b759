"""LQW: weight levels learned by the loss itself, input levels fitted with equal regard to all channels.

Hoang, Do, Nguyen, Cheung, "Direct Quantization for Training Highly Accurate Low Bit-width Deep Neural Networks"
(IJCAI 2020). Neither its equations nor any code of it were at hand: what follows is built from its two stated ideas
alone, that quantised weights are updated directly by gradient descent through learnable levels, and that the quantiser
of an input must not be ruled by the few channels of high variance.

    weights     w_hat = l_j, the nearest of 2^k levels that the layer learns
                dL/dl_j = the sum of dL/dw_hat over all weights that take level j, which is exact
                dL/dw = dL/dw_hat: straight through, it decides which level a weight takes next
    inputs      x_hat = s clip(rint(x / s), 0, 2^k - 1); the gradient passes in 0 .. (2^k - 1) s
                In every training step s follows the s' that minimises sum_c |x_c - s' q_c|^2 / var(x_c) over the
                channels c with the present codes q:
                s' = (sum_c q_c . x_c / var(x_c)) / (sum_c q_c . q_c / var(x_c)), s <- 0.9 s + 0.1 s'

What was ruled here, besides:

Levels of a weight start evenly spaced over the range of least squared error, the step of an input at the least squared
error on the first data (`activation_init`), from where it finds the nearest minimum of the weighted error.

Gradients of levels are multiplied by 1 / sqrt(N), N being the weights of the layer, and take no weight decay.

Steps of inputs follow in passes with gradients only; in a run of several processes over all of them. There is no
signed form: layers whose input goes below 0 are refused.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from bitstrata import codes
from bitstrata.baselines.clips import refuse_negative
from bitstrata.baselines.reach import least_error_reach
from bitstrata.baselines.straight import wide
from bitstrata.training import distributed
from bitstrata.training.calibration import Histogram, choose_step
from bitstrata.training.options import Options
from bitstrata.training.quantiser_kinds import ActivationQuantiser, Quantizer, WeightQuantiser
from bitstrata.training.quantisers import Grid, fake_quantise

KEPT = 0.9


class NearestLevel(torch.autograd.Function):
    """Each weight at its nearest level; levels take the gradient of what they stand for."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, levels: Tensor, levels_gain: float) -> Tensor:
        ascending, order = torch.sort(levels.to(weight.dtype))
        places = torch.bucketize(weight.contiguous(), 0.5 * (ascending[1:] + ascending[:-1]))
        ctx.save_for_backward(places, order)
        ctx.levels_gain, ctx.levels_type = levels_gain, levels.dtype
        return ascending[places]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        places, order = ctx.saved_tensors
        sums = torch.bincount(places.reshape(-1), gradient.reshape(-1), minlength=len(order))
        levels_gradient = torch.zeros_like(sums).scatter(0, order, sums * ctx.levels_gain)
        return gradient, levels_gradient.to(ctx.levels_type), None


class LqwWeight(WeightQuantiser):
    """2^k learned levels for a layer."""

    def __init__(self, weight: nn.Parameter, options: Options, name: str) -> None:
        super().__init__(weight, options, name)
        count = 1 << options.source_bits
        reach = least_error_reach(weight, count - 1)
        self.levels = nn.Parameter(torch.linspace(-reach, reach, count, device=weight.device))

    def forward(self, weight: Tensor) -> Tensor:
        gain = 1.0 / math.sqrt(weight.numel())
        result: Tensor = NearestLevel.apply(wide(weight), self.levels, gain)  # type: ignore[no-untyped-call]
        return result.to(weight.dtype)


class LqwInput(ActivationQuantiser):
    """Evenly spaced levels from 0, with a step that follows the errors of all channels alike."""

    def __init__(self, options: Options, name: str, device: torch.device) -> None:
        super().__init__(options, name, device)
        for bits in options.widths:
            self.register_buffer(f"step_{bits}", torch.ones((), device=device))

    def forward(self, x: Tensor) -> Tensor:
        bits = self.bound_bits()
        self.zero_point(x)
        step: Tensor = getattr(self, f"step_{bits}")
        quantised = fake_quantise(x, step, torch.zeros_like(step), Grid(0, codes.activation_top(bits)), 0.0)
        if self.training and torch.is_grad_enabled():
            self._follow(x.detach().float(), quantised.detach().float(), step)
        return quantised

    @staticmethod
    def _follow(x: Tensor, quantised: Tensor, step: Tensor) -> None:
        channel = 1 if x.ndim == 4 else x.ndim - 1
        others = [dimension for dimension in range(x.ndim) if dimension != channel]
        count = torch.full((x.shape[channel],), x.numel() / x.shape[channel], device=x.device)
        products = (x, x * x, x * quantised, quantised * quantised)
        sums = distributed.total(torch.stack([count, *(one.sum(others) for one in products)]).double())
        count, total, squares, mixed, powers = sums.to(x.device)
        variance = squares / count - (total / count).square()
        weight = torch.where(variance > 0.0, variance.reciprocal(), 0.0)
        above, below = (weight * mixed).sum(), (weight * powers).sum()
        # Where every value was 0 there is nothing to follow.
        ratio = torch.where(below > 0.0, above / below, 1.0)
        step.mul_((KEPT + (1.0 - KEPT) * ratio).to(step.dtype))

    def initialise(self, bits: int, histogram: Histogram) -> int:
        refuse_negative(histogram, self.options, self.name)
        step, _ = choose_step(histogram, bits, self.options.activation_init, self.options.widths.index(bits))
        getattr(self, f"step_{bits}").fill_(step)
        return 0


QUANTIZER = Quantizer("lqw", LqwWeight, LqwInput)
