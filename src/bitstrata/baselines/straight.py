"""Small pieces that the published quantisers are made of."""

from __future__ import annotations

import torch
from torch import Tensor

from bitstrata.training.layers import exact_value


def wide(x: Tensor) -> Tensor:
    """In float32 at least: rounding must not depend on autocast."""
    return x if x.dtype == torch.float64 else x.float()


def straight_through(value: Tensor, x: Tensor) -> Tensor:
    """`value`, to the last bit, with the gradient of `x`."""
    return exact_value(x, value)


def at_least(parameter: Tensor, floor: Tensor) -> Tensor:
    """The parameter, or its floor where it fell below; the gradient passes through, so that it can rise again."""
    return exact_value(parameter, torch.maximum(parameter, floor))
