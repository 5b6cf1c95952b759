"""DoReFa's transformation of weights (Zhou et al., "DoReFa-Net", 2016, eq. 9), on which PACT and AdaBits build."""

from __future__ import annotations

import torch
from torch import Tensor

from bitstrata.baselines.straight import wide


def normalised(weight: Tensor) -> Tensor:
    """tanh(w) / max|tanh(w)|, which lies in -1..1; gradients pass through all of it, the maximum included."""
    squashed = torch.tanh(wide(weight))
    return squashed / squashed.abs().amax().clamp_min(torch.finfo(squashed.dtype).tiny)
