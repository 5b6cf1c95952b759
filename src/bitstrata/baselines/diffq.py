"""DiffQ: noise in place of rounding while weights are trained.

Défossez, Adi, Synnaeve, "Differentiable Model Compression via Pseudo Quantization Noise" (2021), section 3, and the
code published with it. With the range m = min(w), M = max(w) of the layer and the step D = (M - m) / (2^k - 1):

    training    w + D u, u uniform in -1/2 .. 1/2 and new in every pass; the gradient is that of this expression
    evaluation  m + D rint((w - m) / D)

What was ruled here:

The number of bits is that of the network, fixed and the same for all weights, as the W/A settings of the tables have
it. Learning it for groups of weights, with a penalty on the size of the model, is left out.

Noise is uniform, as in the paper; the published code can also make it Gaussian.

Passes of a training network without gradients, such as those that estimate the statistics of norms, take the form of
evaluation: that is what the statistics are for.

Noise is for weights. Inputs take the same quantiser between their least and greatest value, rounded in training too,
straight through within the range and no gradient outside. The range is that of the first data and follows that of each
batch, 0.9 of the old and 0.1 of the new. It may be signed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bitstrata import codes
from bitstrata.baselines.straight import wide
from bitstrata.training import distributed
from bitstrata.training.calibration import Histogram
from bitstrata.training.options import Options
from bitstrata.training.quantiser_kinds import ActivationQuantiser, Quantizer, WeightQuantiser
from bitstrata.training.quantisers import Grid, fake_quantise

KEPT = 0.9


class DiffqWeight(WeightQuantiser):
    """Noise of one step in training, rounding in evaluation; it has no parameters."""

    def forward(self, weight: Tensor) -> Tensor:
        top = codes.activation_top(self.bound_bits())
        values = wide(weight)
        low, high = torch.aminmax(values)
        step = (high - low) / top
        if self.training and torch.is_grad_enabled():
            return (values + step * (torch.rand_like(values) - 0.5)).to(weight.dtype)
        # Weights that are all the same have no step, and need none.
        step = step.clamp_min(torch.finfo(step.dtype).tiny)
        return (low + step * torch.round((values - low) / step)).to(weight.dtype)


class DiffqInput(ActivationQuantiser):
    """Rounds between the least and the greatest value, as a moving average has them."""

    def __init__(self, options: Options, name: str, device: torch.device) -> None:
        super().__init__(options, name, device)
        for bits in options.widths:
            self.register_buffer(f"low_{bits}", torch.zeros((), device=device))
            self.register_buffer(f"high_{bits}", torch.ones((), device=device))

    def forward(self, x: Tensor) -> Tensor:
        bits = self.bound_bits()
        self.zero_point(x)
        low: Tensor = getattr(self, f"low_{bits}")
        high: Tensor = getattr(self, f"high_{bits}")
        if self.training and torch.is_grad_enabled():
            least, greatest = (float(bound) for bound in torch.aminmax(x.detach()))
            low.lerp_(torch.full_like(low, distributed.least(least)), 1.0 - KEPT)
            high.lerp_(torch.full_like(high, distributed.greatest(greatest)), 1.0 - KEPT)
        top = codes.activation_top(bits)
        step = ((high - low) / top).clamp_min(torch.finfo(high.dtype).tiny)
        return fake_quantise(x - low, step, torch.zeros_like(step), Grid(0, top), 0.0) + low

    def initialise(self, bits: int, histogram: Histogram) -> int:
        getattr(self, f"low_{bits}").fill_(histogram.low)
        getattr(self, f"high_{bits}").fill_(histogram.high)
        return 0


QUANTIZER = Quantizer("diffq", DiffqWeight, DiffqInput)
