"""The exact multiple-choice knapsack: one option for each layer, least summed error within a budget.

Layers are decided one after the other. A state is what the layers so far cost together and what error they come to; of
all choices that were made only those are kept that

- no other state undercuts in cost without being worse in error (dominance), and
- could still end below the best solution that is known. How far a state could come is told by the linear relaxation of
  the layers that are left, in which a layer may stand between two widths: it is solved for all budgets at once by
  sorting the steps of the layers' lower convex hulls. Leaving out the one step that does not fit gives a solution that
  can be had, and the best of these is the bound for all.

Both rules drop only what cannot be the answer, so the answer is exact, up to the rounding of the sums.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bitstrata.errors import BadBudget, BadOption

#: Of the largest sum of errors: how far a bound may be off by rounding. Sums of some hundred floats are off by less.
_ROUNDING = 1e-12

_Points = list[tuple[int, float, int]]
"""The options of a layer: cost, error and place, from the cheapest up, each with less error than the one before."""


def least_error(costs: Sequence[Sequence[int]], errors: Sequence[Sequence[float]], budget: int) -> tuple[int, ...]:
    """For each layer the place of its chosen option: the least sum of errors whose costs are within the budget.

    Of choices with equal errors the cheapest is taken. Raises `BadBudget` where even the cheapest options together do
    not fit.
    """
    layers = _checked(costs, errors)
    least = sum(points[0][0] for points in layers)
    if budget < least:
        raise BadBudget(f"a budget of {budget:,} is too small: the least that is possible is {least:,}")
    # Above the cheapest options, in the largest unit that all differences are a multiple of.
    unit = math.gcd(*(cost - points[0][0] for points in layers for cost, _, _ in points)) or 1
    room = (budget - least) // unit
    shifted = [[((cost - points[0][0]) // unit, error, place) for cost, error, place in points] for points in layers]
    # Large layers first: what the small ones can still mend is then close to what the relaxation says.
    order = sorted(range(len(layers)), key=lambda index: (-shifted[index][-1][0], index))
    chosen = _search([shifted[index] for index in order], room)
    result = [0] * len(layers)
    for index, place in zip(order, chosen, strict=True):
        result[index] = place
    return tuple(result)


def _checked(costs: Sequence[Sequence[int]], errors: Sequence[Sequence[float]]) -> list[_Points]:
    """The options of every layer without those that cost more than another and are no better."""
    if len(costs) != len(errors):
        raise BadOption(f"there are costs of {len(costs)} layers and errors of {len(errors)}")
    layers = []
    for index, (cost, error) in enumerate(zip(costs, errors, strict=True)):
        if not len(cost) or len(cost) != len(error):
            raise BadOption(
                f"layer {index} has {len(cost)} costs and {len(error)} errors; it needs one of each a width"
            )
        if not all(math.isfinite(value) for value in error):
            raise BadOption(f"layer {index} has errors that are not finite: {list(error)}")
        points: _Points = []
        for one, value, place in sorted(zip(map(int, cost), map(float, error), range(len(cost)), strict=True)):
            if not points or value < points[-1][1]:
                points.append((one, value, place))
        layers.append(points)
    return layers


def _search(layers: list[_Points], room: int) -> list[int]:
    """The places chosen; the cheapest option of every layer costs nothing here."""
    relaxed = _Relaxation.of_rests(layers)
    slack = _ROUNDING * sum(max(abs(error) for _, error, _ in points) for points in layers)
    costs = np.zeros(1, dtype=np.int64)
    errors = np.zeros(1)
    bound = relaxed[0].reachable(costs, errors, room) + slack
    history: list[tuple[NDArray[np.int32], NDArray[np.int16]]] = []
    for points, rest in zip(layers, relaxed[1:], strict=True):
        count = len(costs)
        all_costs = np.concatenate([costs + cost for cost, _, _ in points])
        all_errors = np.concatenate([errors + error for _, error, _ in points])
        # The parts are sorted each: a stable sort merges them.
        kept = np.argsort(all_costs, kind="stable")
        kept = kept[all_costs[kept] <= room]
        kept = _undominated(kept, all_costs, all_errors)
        bound = min(bound, rest.reachable(all_costs[kept], all_errors[kept], room) + slack)
        kept = kept[rest.lower(all_costs[kept], all_errors[kept], room) <= bound]
        costs, errors = all_costs[kept], all_errors[kept]
        history.append(((kept % count).astype(np.int32), (kept // count).astype(np.int16)))
    # Errors fall as costs rise, so the last state is the best, and the cheapest of the best.
    state = len(costs) - 1
    chosen = []
    for points, (parents, options) in zip(reversed(layers), reversed(history), strict=True):
        chosen.append(points[int(options[state])][2])
        state = int(parents[state])
    return chosen[::-1]


def _undominated(order: NDArray[np.intp], costs: NDArray[np.int64], errors: NDArray[np.float64]) -> NDArray[np.intp]:
    """Of states sorted by cost those with less error than all cheaper ones; one for each cost."""
    sorted_errors = errors[order]
    best_before = np.concatenate([[np.inf], np.minimum.accumulate(sorted_errors)[:-1]])
    order = order[sorted_errors < best_before]
    sorted_costs = costs[order]
    last_of_cost = np.concatenate([sorted_costs[1:] != sorted_costs[:-1], [True]])
    kept: NDArray[np.intp] = order[last_of_cost]
    return kept


class _Relaxation:
    """The least error of the last layers for any budget, where a layer may stand between two of its options."""

    def __init__(self, base: float, steps: list[tuple[float, int, float]]) -> None:
        """`steps` are the edges of the layers' hulls: error per cost (negative), cost and error, the steepest first."""
        self.costs = np.cumsum([0, *(cost for _, cost, _ in steps)])
        self.errors = np.cumsum([base, *(error for _, _, error in steps)])

    @classmethod
    def of_rests(cls, layers: list[_Points]) -> list[_Relaxation]:
        """For all layers, for all but the first, and so on down to none."""
        found = [cls(0.0, [])]
        base = 0.0
        steps: list[tuple[float, int, float]] = []
        for points in reversed(layers):
            base += points[0][1]
            steps = sorted(steps + _hull_steps(points))
            found.append(cls(base, steps))
        return found[::-1]

    def lower(self, costs: NDArray[np.int64], errors: NDArray[np.float64], room: int) -> NDArray[np.float64]:
        """What no completion of the states can go below."""
        bounds: NDArray[np.float64] = errors + np.interp(room - costs, self.costs, self.errors)
        return bounds

    def reachable(self, costs: NDArray[np.int64], errors: NDArray[np.float64], room: int) -> float:
        """The best of the completions that take whole steps only, for as long as they fit."""
        steps = np.searchsorted(self.costs, room - costs, side="right") - 1
        return float((errors + self.errors[steps]).min())


def _hull_steps(points: _Points) -> list[tuple[float, int, float]]:
    """The edges of the lower convex hull, each as error per cost, cost and error."""
    hull: list[tuple[int, float]] = []
    for cost, error, _ in points:
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], (cost, error)):
            hull.pop()
        hull.append((cost, error))
    return [(_slope(one, other), other[0] - one[0], other[1] - one[1]) for one, other in itertools.pairwise(hull)]


def _slope(one: tuple[int, float], other: tuple[int, float]) -> float:
    return (other[1] - one[1]) / (other[0] - one[0])
