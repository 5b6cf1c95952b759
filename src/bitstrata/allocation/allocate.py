"""`allocate`: a width for each quantised layer, the least error within a budget of bits or bytes (eq. 12)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bitstrata.allocation.knapsack import least_error
from bitstrata.allocation.objectives import Objective, items
from bitstrata.errors import BadBudget
from bitstrata.format.planes import padded, plane_bytes
from bitstrata.training.net import StratifiedNet


@dataclass(frozen=True)
class Layer:
    """A quantised layer of an allocation."""

    name: str
    count: int
    """Weights; 0 for a layer that uses another's."""
    bits: int
    error: float
    errors: Mapping[int, float]
    """At every width that it could have had."""


@dataclass(frozen=True)
class Allocation:
    """A width for every quantised layer, and what that comes to."""

    layers: tuple[Layer, ...]
    objective: Objective
    error: float
    total_bits: int
    """Of all quantised weights together, at their widths."""
    total_bytes: int
    """Of their planes as an artifact stores them."""
    bits_per_weight: float

    @property
    def widths(self) -> dict[str, int]:
        """By layer."""
        return {layer.name: layer.bits for layer in self.layers}


def allocate(
    net: StratifiedNet,
    *,
    bits_per_weight: float | None = None,
    total_bits: int | None = None,
    total_bytes: int | None = None,
    objective: Objective = "weights",
    batches: Iterable[Any] | None = None,
) -> Allocation:
    """The widths whose summed error is least within the one budget that is given.

    bits_per_weight   the mean width over all quantised weights
    total_bits        the same as a sum
    total_bytes       of the planes as an artifact stores them, with the padding of its segments
    objective         see `objectives.items`; "energy" needs `batches`: inputs, or pairs of input and label

    A weight that several layers share is paid for once, and has one width in all of them. Raises `BadBudget` where even
    the lowest widths do not fit.
    """
    return Allocator(net, objective, batches).solve(
        bits_per_weight=bits_per_weight, total_bits=total_bits, total_bytes=total_bytes
    )


class Allocator:
    """The errors of a network, measured once, for as many budgets as are asked for."""

    def __init__(
        self, net: StratifiedNet, objective: Objective = "weights", batches: Iterable[Any] | None = None
    ) -> None:
        self.widths = net.widths
        self.objective: Objective = objective
        self.items = items(net, objective, batches)
        self.order = [name for name, _ in net.stratified_layers()]
        self.count = sum(item.count for item in self.items)

    def solve(
        self,
        *,
        bits_per_weight: float | None = None,
        total_bits: int | None = None,
        total_bytes: int | None = None,
    ) -> Allocation:
        """As `allocate`."""
        if [bits_per_weight, total_bits, total_bytes].count(None) != 2:
            raise BadBudget("give one budget: bits_per_weight, total_bits or total_bytes")
        if total_bytes is not None:
            least = sum(stored_bytes(item.count, self.widths)[0] for item in self.items)
            if total_bytes < least:
                raise BadBudget(
                    f"{total_bytes:,} bytes are too few: at {self.widths[0]} bits the planes take {least:,}"
                )
            costs, budget = [stored_bytes(item.count, self.widths) for item in self.items], int(total_bytes)
        else:
            costs = [[item.count * bits for bits in self.widths] for item in self.items]
            budget = int(total_bits) if total_bits is not None else self._bits(bits_per_weight or 0.0)
            if budget < self.count * self.widths[0]:
                given = f"{total_bits:,} bits" if total_bits is not None else f"{bits_per_weight:g} bits per weight"
                raise BadBudget(
                    f"{given} are too few: the lowest width is {self.widths[0]} bits, which takes "
                    f"{self.count * self.widths[0]:,} bits for {self.count:,} weights"
                )
        places = least_error(costs, [item.errors for item in self.items], budget)
        return self.allocation([self.widths[place] for place in places])

    def _bits(self, per_weight: float) -> int:
        """A mean width as a sum."""
        # More than the highest width buys nothing; what is no number at all buys nothing either.
        mean = min(per_weight, float(self.widths[-1])) if per_weight > 0 else 0.0
        # A mean of 2.1 is to hold what 2.1 is in decimal, whatever float is nearest to it.
        return int(mean * self.count + 1e-6)

    def uniform(self, bits: int) -> Allocation:
        """All layers at one width."""
        return self.allocation([bits] * len(self.items))

    def allocation(self, chosen: Sequence[int]) -> Allocation:
        """What a width for each weight comes to."""
        layers: dict[str, Layer] = {}
        for item, bits in zip(self.items, chosen, strict=True):
            errors = dict(zip(self.widths, item.errors, strict=True))
            for index, name in enumerate(item.layers):
                owner = index == 0
                layers[name] = Layer(
                    name, item.count if owner else 0, bits, errors[bits] if owner else 0.0, errors if owner else {}
                )
        total = sum(item.count * bits for item, bits in zip(self.items, chosen, strict=True))
        stored = sum(
            stored_bytes(item.count, self.widths)[self.widths.index(bits)]
            for item, bits in zip(self.items, chosen, strict=True)
        )
        return Allocation(
            layers=tuple(layers[name] for name in self.order),
            objective=self.objective,
            error=math.fsum(layer.error for layer in layers.values()),
            total_bits=total,
            total_bytes=stored,
            bits_per_weight=total / self.count,
        )


def stored_bytes(count: int, widths: Sequence[int]) -> list[int]:
    """What the planes of a weight take in an artifact at each width: the segments of all strata up to it."""
    total, sizes, before = 0, [], 0
    for bits in widths:
        total += padded((bits - before) * plane_bytes(count))
        sizes.append(total)
        before = bits
    return sizes
