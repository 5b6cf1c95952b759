"""Where the learned range of a weight quantiser starts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Of more weights than this, an evenly spaced part decides.
SAMPLES = 1 << 18
CANDIDATES = 80
SMALLEST_FRACTION = 0.02


@torch.no_grad()
def least_error_reach(weight: Tensor, intervals: int) -> float:
    """The r for which evenly spaced levels from -r to r, that many intervals in all, have the least squared error."""
    values = weight.detach().float().reshape(-1)
    values = values[:: 1 + values.numel() // SAMPLES]
    greatest = float(values.abs().max())
    if greatest == 0.0:
        return 1.0
    best = (math.inf, greatest)
    for fraction in torch.logspace(math.log10(SMALLEST_FRACTION), 0.0, CANDIDATES).tolist():
        reach = greatest * fraction
        step = 2.0 * reach / intervals
        rounded = torch.round((values.clamp(-reach, reach) + reach) / step) * step - reach
        best = min(best, (float((rounded - values).square().sum()), reach))
    return best[1]
