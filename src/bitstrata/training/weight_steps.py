"""The initial source step of a weight."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from bitstrata import codes
from bitstrata.training.quantisers import plain_forward, weight_grid

WeightInit = Literal["mean", "mse", "lsq"]

CANDIDATES = 60


@torch.no_grad()
def initial_step(
    weight: Tensor, widths: tuple[int, ...], init: WeightInit, per_channel: bool, compensated: bool = True
) -> Tensor:
    """A step of shape (), or (output channels,) with `per_channel`.

    mean    2 mean|w| / sqrt(15) 2^(4-K): section 6.1 at K = 4, and the same base step for every K (the default)
    mse     least squared error of the de-quantised weights, summed over the widths
    lsq     2 mean|w| / sqrt(Q_P), the initialisation of LSQ, for dedicated networks
    """
    source_bits = widths[-1]
    rows = weight.detach().float().flatten(1) if per_channel else weight.detach().float().reshape(1, -1)
    mean = rows.abs().mean(dim=1)
    # A channel of zeros has no scale of its own: it takes the layer's.
    mean = torch.where(mean > 0, mean, mean.mean() if mean.any() else torch.ones_like(mean))
    _, top = codes.code_range(source_bits)
    step = 2.0 * mean / math.sqrt(15.0) * 2.0 ** (4 - source_bits)
    if init == "lsq":
        step = 2.0 * mean / math.sqrt(top)
    elif init == "mse":
        step = _least_error(rows, step, widths, compensated)
    return step if per_channel else step.reshape(())


def _least_error(rows: Tensor, around: Tensor, widths: tuple[int, ...], compensated: bool) -> Tensor:
    best_error = torch.full_like(around, math.inf)
    best_step = around.clone()
    for factor in torch.logspace(math.log10(0.2), math.log10(5.0), CANDIDATES).tolist():
        step = around * factor
        error = torch.zeros_like(around)
        for bits in widths:
            grid = weight_grid(widths[-1], bits, compensated=compensated)
            error += (plain_forward(rows, step[:, None], grid) - rows).square().sum(dim=1)
        better = error < best_error
        best_error, best_step = torch.where(better, error, best_error), torch.where(better, step, best_step)
    return best_step
