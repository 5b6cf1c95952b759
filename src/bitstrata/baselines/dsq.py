"""DSQ: a hard quantiser with the gradient of a soft one, which hardens as it learns.

Gong et al., "Differentiable Soft Quantization: Bridging Full-Precision and Low-Bit Neural Networks" (ICCV 2019),
section 3. Between learned bounds l and u there are n = 2^k - 1 intervals of length D = (u - l) / n. With
z = (x - l) / D and f = z - floor(z) - 1/2, the place within an interval:

    soft        phi = s tanh(K f), s = 1 / (1 - alpha), K = log(2 / alpha - 1); alpha is learned
                D (floor(z) + (phi + 1) / 2) + l
    forward     the same with sign(phi) for phi, which is D rint(z) + l; x is clipped to l..u before
    gradients   those of the soft form, straight through the sign. With h' = 1/2 s K (1 - tanh(K f)^2) between the
                bounds and 0 outside:
                dx_hat / dx = h'
                dx_hat / du = (q - z h') / n, q the code 0..n
                dx_hat / dl = 1 - h' - dx_hat / du
                dx_hat / dalpha = D/2 (tanh(K f) s^2 + s (1 - tanh(K f)^2) f K'), K' = -2 / (alpha (2 - alpha))

Weights and inputs are treated alike, one l, u and alpha per layer for each.

What was ruled here:

alpha starts at 0.2 and is kept in 0.01..0.5, of which the upper end is the paper's; below the lower one the soft form
has no gradient left.

Bounds start where the squared error is least: -r and r for weights, and those of the first data (`activation_init`)
for inputs. As l is learned, inputs may be signed.

One learning rate serves all parameters here, under which sums over whole layers would move l, u and alpha too fast:
their gradients are multiplied by 1 / sqrt(N), N being the weights of the layer or the input elements of one sample.
They take no weight decay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from bitstrata import codes
from bitstrata.baselines.reach import least_error_reach
from bitstrata.baselines.straight import wide
from bitstrata.limits import STEP_FLOOR_DIVISOR
from bitstrata.training.calibration import Histogram, choose_step
from bitstrata.training.options import Options
from bitstrata.training.quantiser_kinds import ActivationQuantiser, Quantizer, WeightQuantiser

FIRST_ALPHA = 0.2
LEAST_ALPHA, GREATEST_ALPHA = 0.01, 0.5


class SoftRound(torch.autograd.Function):
    """Rounds to evenly spaced levels from `low` to `high`, with the gradients of the soft form."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, low: Tensor, high: Tensor, alpha: Tensor, floor: Tensor, top: int, gain: float
    ) -> Tensor:
        """`floor` is the least step."""
        step = torch.maximum((high - low) / top, floor)
        ctx.save_for_backward(x, low, step, alpha)
        ctx.top, ctx.gain = top, gain
        return (x - low).mul_(step.reciprocal()).round_().clamp_(0.0, top).mul_(step).add_(low)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, low, step, alpha = ctx.saved_tensors
        top, alpha = ctx.top, float(alpha.clamp(LEAST_ALPHA, GREATEST_ALPHA))
        scale, slope = 1.0 / (1.0 - alpha), math.log(2.0 / alpha - 1.0)
        place = (x - low).mul_(step.reciprocal())
        within = (place - place.floor()).sub_(0.5)
        curve = (within * slope).tanh_()
        inside = torch.where((place >= 0.0) & (place <= top), gradient, 0.0)
        alpha_gradient = (inside * curve).sum() * (scale * scale)
        passed = inside.addcmul_(inside, curve.square_(), value=-1.0)
        alpha_gradient += within.mul_(passed).sum() * (-2.0 * scale / (alpha * (2.0 - alpha)))
        passed.mul_(0.5 * scale * slope)
        passed_place = (passed * place).sum()
        high_gradient = (place.round_().clamp_(0.0, top).mul_(gradient).sum() - passed_place) / top
        low_gradient = gradient.sum() - passed.sum() - high_gradient
        gain = ctx.gain
        own = (low_gradient * gain, high_gradient * gain, alpha_gradient * (0.5 * step * gain))
        return passed, *own, None, None, None


def soft_round(x: Tensor, held: nn.Module, suffix: str, top: int, gain: float) -> Tensor:
    """With the parameters that the module `held` holds under names with this suffix."""
    own = (getattr(held, f"{name}{suffix}") for name in ("low", "high", "alpha", "floor"))
    result: Tensor = SoftRound.apply(wide(x), *own, top, gain)  # type: ignore[no-untyped-call]
    return result.to(x.dtype)


def register(module: nn.Module, suffix: str, device: torch.device) -> None:
    for name, value in (("low", 0.0), ("high", 1.0), ("alpha", FIRST_ALPHA)):
        module.register_parameter(f"{name}{suffix}", nn.Parameter(torch.tensor(value, device=device)))
    module.register_buffer(f"floor{suffix}", torch.zeros((), device=device))


@torch.no_grad()
def fill(module: nn.Module, suffix: str, low: float, high: float, top: int) -> None:
    values = {"low": low, "high": high, "alpha": FIRST_ALPHA, "floor": (high - low) / top / STEP_FLOOR_DIVISOR}
    for name, value in values.items():
        getattr(module, f"{name}{suffix}").fill_(value)


class DsqWeight(WeightQuantiser):
    """2^k levels between the learned bounds."""

    def __init__(self, weight: nn.Parameter, options: Options, name: str) -> None:
        super().__init__(weight, options, name)
        top = codes.activation_top(options.source_bits)
        reach = least_error_reach(weight, top)
        register(self, "", weight.device)
        fill(self, "", -reach, reach, top)

    def forward(self, weight: Tensor) -> Tensor:
        top = codes.activation_top(self.bound_bits())
        return soft_round(weight, self, "", top, 1.0 / math.sqrt(weight.numel()))


class DsqInput(ActivationQuantiser):
    """The same for an input, with bounds for each width."""

    def __init__(self, options: Options, name: str, device: torch.device) -> None:
        super().__init__(options, name, device)
        for bits in options.widths:
            register(self, f"_{bits}", device)

    def own_parameters(self, bits: int) -> Iterator[nn.Parameter]:
        for name in ("low", "high", "alpha"):
            yield getattr(self, f"{name}_{bits}")

    def forward(self, x: Tensor) -> Tensor:
        bits = self.bound_bits()
        self.zero_point(x)
        gain = self.own_gain / math.sqrt(max(x.numel() / max(x.shape[0], 1), 1.0))
        return soft_round(x, self, f"_{bits}", codes.activation_top(bits), gain)

    def initialise(self, bits: int, histogram: Histogram) -> int:
        step, zero_point = choose_step(histogram, bits, self.options.activation_init, self.options.widths.index(bits))
        top = codes.activation_top(bits)
        fill(self, f"_{bits}", -zero_point * step, (top - zero_point) * step, top)
        return zero_point


QUANTIZER = Quantizer("dsq", DsqWeight, DsqInput)
