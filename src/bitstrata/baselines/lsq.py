"""Dedicated LSQ: one network for one width, the oracle of the paper's tables.

Esser et al., "Learned Step Size Quantization" (2020). With a single width the source *is* that width: no bits are
dropped, there is no compensation, and the quantiser of `training.quantisers` is LSQ's own, eqs. 1 to 3 there, with
its gradient scale 1 / sqrt(N Q_P). What differs is the initial weight step, 2 mean|w| / sqrt(Q_P).
"""

from __future__ import annotations

from typing import Any

from torch import nn

from bitstrata.training.net import StratifiedNet
from bitstrata.training.stratify import stratify


def lsq(model: nn.Module, bits: int, **options: Any) -> StratifiedNet:
    """`model` as a dedicated `bits`-bit network; options are those of `stratify`."""
    return stratify(model, widths=(bits,), **{"weight_init": "lsq", **options})
