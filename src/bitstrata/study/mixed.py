"""Mixed-precision networks over the planes of a joint one, at several budgets: figure 8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from torch import Tensor

from bitstrata.allocation.allocate import Allocator
from bitstrata.allocation.curve import curve
from bitstrata.allocation.objectives import Objective
from bitstrata.study.records import MixedPoint
from bitstrata.training.net import StratifiedNet

BUDGETS_PER_BIT = 8


def mixed_points(
    net: StratifiedNet, inputs: Sequence[Tensor], test: Sequence[tuple[Tensor, Tensor]]
) -> list[MixedPoint]:
    """The accuracy of mixed networks at evenly spaced budgets, for each objective.

    `inputs` are training batches, for the statistics of norms and the energies of inputs.
    """
    count = (net.widths[-1] - net.widths[0]) * BUDGETS_PER_BIT + 1
    points = []
    for objective in get_args(Objective):
        found = curve(net, Allocator(net, objective, inputs), count, inputs, test)
        points += [
            MixedPoint(
                objective=objective,
                bits_per_weight=point.allocation.bits_per_weight,
                widths=point.allocation.widths,
                top1=point.accuracy.top1,
                top5=point.accuracy.top5,
            )
            for point in found.mixed
        ]
    return points
