"""Mixed-precision networks over the planes of a joint one, at several budgets: figure 8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from torch import Tensor

from bitstrata.allocation.allocate import Allocator
from bitstrata.allocation.mixed import mixed_network
from bitstrata.allocation.objectives import Objective
from bitstrata.study.records import MixedPoint
from bitstrata.training.evaluate import accuracies
from bitstrata.training.net import StratifiedNet

#: Budgets between two neighbouring widths, the upper one included.
BUDGETS_PER_BIT = 4


def mixed_points(
    net: StratifiedNet, inputs: Sequence[Tensor], test: Sequence[tuple[Tensor, Tensor]]
) -> list[MixedPoint]:
    """The accuracy of mixed networks at evenly spaced budgets, for each objective.

    `inputs` are training batches, for the statistics of norms and the energies of inputs.
    """
    lowest, highest = net.widths[0], net.widths[-1]
    budgets = [lowest + step / BUDGETS_PER_BIT for step in range(1, (highest - lowest) * BUDGETS_PER_BIT)]
    points = []
    for objective in get_args(Objective):
        allocator = Allocator(net, objective, inputs)
        allocations = [allocator.solve(bits_per_weight=budget) for budget in budgets]
        networks = {str(place): mixed_network(net, one.widths, inputs) for place, one in enumerate(allocations)}
        found = accuracies(networks, test)
        points += [
            MixedPoint(
                objective=objective,
                bits_per_weight=one.bits_per_weight,
                widths=one.widths,
                top1=found[str(place)].top1,
                top5=found[str(place)].top5,
            )
            for place, one in enumerate(allocations)
        ]
    return points
