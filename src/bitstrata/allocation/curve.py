"""Accuracy against size: mixed networks for a range of budgets, beside the uniform widths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bitstrata.allocation.allocate import Allocation, Allocator
from bitstrata.allocation.mixed import mixed_network
from bitstrata.errors import BadOption
from bitstrata.training.evaluate import Accuracy, accuracies
from bitstrata.training.modes import modes_kept
from bitstrata.training.net import StratifiedNet


@dataclass(frozen=True)
class Point:
    """One network of the curve."""

    budget: float
    """Bits per weight that were allowed; the width itself for a uniform network."""
    allocation: Allocation
    accuracy: Accuracy


@dataclass(frozen=True)
class Curve:
    """Mixed networks from the smallest budget to the largest, and the uniform widths as they were trained."""

    mixed: tuple[Point, ...]
    uniform: dict[int, Point]


def budgets(widths: Sequence[int], count: int) -> list[float]:
    """So many budgets in bits per weight, evenly spread from the lowest to the highest width."""
    if count < 2:
        raise BadOption(f"a curve has at least 2 budgets, not {count}")
    low, high = widths[0], widths[-1]
    return [low + (high - low) * index / (count - 1) for index in range(count)]


def curve(
    net: StratifiedNet,
    allocator: Allocator,
    count: int,
    inputs: Sequence[Tensor],
    test: Iterable[tuple[Tensor, Tensor]],
    *,
    prepare: Callable[[Any], Any] = lambda x: x,
    on_batch: Callable[[], None] = lambda: None,
) -> Curve:
    """Solves `count` budgets, and evaluates every network of the curve in one pass over `test`.

    The mixed networks take their statistics from `inputs`; the uniform ones have those of training.
    """
    solved = {budget: allocator.solve(bits_per_weight=budget) for budget in budgets(net.widths, count)}
    networks: dict[str, nn.Module] = {}
    for allocation in solved.values():
        key = str(allocation.widths)  # several budgets may lead to one network
        if key not in networks:
            networks[key] = mixed_network(net, allocation.widths, inputs)
    uniform = {str(bits): net.at(bits) for bits in net.widths}
    with modes_kept(*uniform.values()), torch.inference_mode():
        for network in uniform.values():
            network.eval()
        found = accuracies({**networks, **uniform}, test, prepare=prepare, on_batch=on_batch)
    return Curve(
        tuple(Point(budget, one, found[str(one.widths)]) for budget, one in solved.items()),
        {bits: Point(bits, allocator.uniform(bits), found[str(bits)]) for bits in net.widths},
    )
