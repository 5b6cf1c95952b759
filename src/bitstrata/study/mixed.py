"""Mixed-precision networks over the planes of a joint one, at several budgets: figure 8."""

from __future__ import annotations

from itertools import islice
from typing import get_args

from bitstrata.allocation.allocate import Allocator
from bitstrata.allocation.mixed import mixed_network
from bitstrata.allocation.objectives import Objective
from bitstrata.study.records import MixedPoint
from bitstrata.training.evaluate import accuracies
from bitstrata.training.net import StratifiedNet
from bitstrata.training.recipe import Recipe
from bitstrata.zoo.data import Data

#: Budgets between two neighbouring widths, the upper one included.
BUDGETS_PER_BIT = 4
#: Batches for norm statistics and energies, where the recipe does not say how many.
BATCHES = 30


def mixed_points(net: StratifiedNet, data: Data, recipe: Recipe) -> list[MixedPoint]:
    """The accuracy of mixed networks at evenly spaced budgets, for each objective.

    Statistics come from the batches that those of the uniform widths come from.
    """
    batches = data.train.batches(recipe.batch_size, training=True, epoch=recipe.epochs - 1, seed=recipe.seed)
    inputs = [x for x, _ in islice(batches, recipe.norm_batches or BATCHES)]
    lowest, highest = net.widths[0], net.widths[-1]
    budgets = [lowest + step / BUDGETS_PER_BIT for step in range(1, (highest - lowest) * BUDGETS_PER_BIT)]
    points = []
    for objective in get_args(Objective):
        allocator = Allocator(net, objective, inputs)
        allocations = [allocator.solve(bits_per_weight=budget) for budget in budgets]
        networks = {str(place): mixed_network(net, one.widths, inputs) for place, one in enumerate(allocations)}
        found = accuracies(networks, data.test.batches(250))
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
