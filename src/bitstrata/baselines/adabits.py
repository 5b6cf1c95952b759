"""AdaBits: one float source, quantised anew at each width.

Jin, Yang, Liao, "AdaBits: Neural Network Quantization with Adaptive Bit-widths" (CVPR 2020), with the rules of their
"Neural Network Quantization with Scale-Adjusted Training" (BMVC 2020) and the corrections in the code that they
published. All widths are trained together; each has its own norms and its own clipping level.

    weights     u = (tanh(w) / max|tanh(w)| + 1) / 2
                c = min(floor(2^k u), 2^k - 1)                      the "modified" DoReFa: codes of k bits are the upper
                w_hat = ((2 c + 1) / 2^k - 1) r                     bits of those of any more
                dw_hat / du = 2 r                                   straight through
                r = 1 / (sqrt(n) std(w_hat / r)), without gradient, n = output channels times kernel positions
    inputs      x_hat = a / (2^k - 1) rint((2^k - 1) clip(x / a, 0, 1)), a learned per width
                dx_hat / da = 1 where x > a, else (x_hat - x) / a   the calibrated gradient of scale-adjusted training
    signed      the same with (x / a + 1) / 2 for x / a, and twice the result less a

What was ruled here:

The paper prints 2 c / 2^k - 1 for the weight, whose mean is off by half a level; its authors withdrew that for low
widths, where it does not train, in favour of the centred form above. It has the same codes.

The original rescales by r only layers that no norm follows. Here all are: before a norm, r cancels.

Clipping levels start at the least squared error on the first data (`activation_init`), not at 8: from there 2-bit
inputs would all be 0, and short runs end before the level comes down. They take no weight decay, as in the original.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bitstrata import codes
from bitstrata.baselines.clips import LearnedClip
from bitstrata.baselines.dorefa import normalised
from bitstrata.baselines.straight import at_least, straight_through
from bitstrata.training.bound import scale_gradient
from bitstrata.training.calibration import Histogram, choose_step
from bitstrata.training.quantiser_kinds import Quantizer, WeightQuantiser
from bitstrata.training.quantisers import Grid, fake_quantise


class AdaBitsWeight(WeightQuantiser):
    """Centred floor of the normalised weight, rescaled to a fixed deviation; it has no parameters."""

    def forward(self, weight: Tensor) -> Tensor:
        count = 1 << self.bound_bits()
        unit = normalised(weight)
        with torch.no_grad():
            cells = torch.clamp(torch.floor((unit + 1.0) * (count / 2)), 0, count - 1)
            levels = (2.0 * cells + 1.0) / count - 1.0
            fan_out = weight.shape[0] * math.prod(weight.shape[2:])
            rescale = 1.0 / (math.sqrt(fan_out) * levels.std(correction=0).clamp_min(1.0 / count))
        return (straight_through(levels, unit) * rescale).to(weight.dtype)


class AdaBitsInput(LearnedClip):
    """Rounds between 0 and the clipping level of the width, or between both signs of it."""

    def forward(self, x: Tensor) -> Tensor:
        bits = self.bound_bits()
        signed = self.zero_point(x) != 0
        top = codes.activation_top(bits)
        clip, floor = getattr(self, f"clip_{bits}"), getattr(self, f"floor_{bits}")
        if not signed:
            return fake_quantise(x, clip / top, floor / top, Grid(0, top), self.own_gain)
        clip = scale_gradient(at_least(clip, floor), self.own_gain)
        step = 2.0 * clip / top
        return fake_quantise(x + clip, step, torch.zeros_like(step), Grid(0, top), 1.0) - clip

    def initialise(self, bits: int, histogram: Histogram) -> int:
        """For signed inputs the zero point says just that: both signs of the clipping level have a code."""
        if histogram.low >= 0.0:
            return super().initialise(bits, histogram)
        step, zero_point = choose_step(histogram, bits, self.options.activation_init, self.options.widths.index(bits))
        self.set_clip(bits, step * max(zero_point, codes.activation_top(bits) - zero_point))
        return 1 << (bits - 1)


# The paper has it keep its float source (table 5).
QUANTIZER = Quantizer("adabits", AdaBitsWeight, AdaBitsInput, several_widths=True, nested=False)
