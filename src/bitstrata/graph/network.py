"""What an artifact holds, in memory: a graph, the codes and floats of its weights, and the tables of its views."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bitstrata import codes
from bitstrata.errors import BadStep, BadTable
from bitstrata.graph.graph import Graph
from bitstrata.graph.ops import Shape

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Table:
    """The numbers of one node in one view: y = accumulator * scale + bias, and how its input becomes codes.

    On codes the accumulator is the sum of (2^(m+1) q + 2^m - 1) * (u - o): the weight in half source steps.
    """

    scale: Floats
    bias: Floats
    step: np.float32 | None = None
    """The step of the input's codes; None where the node reads floats."""
    zero_point: int = 0


@dataclass(frozen=True)
class View:
    """One runnable network: a width for every quantised weight, and a table for every node that has one."""

    name: str
    bits: Mapping[str, int]
    """By weight."""
    tables: Mapping[str, Table]
    """By node."""
    own: Mapping[str, Floats] = field(default_factory=dict)
    """Float weights that belong to this view only, by name."""


@dataclass(frozen=True)
class Network:
    """All that is packed into an artifact."""

    graph: Graph
    widths: tuple[int, ...]
    codes: Mapping[str, codes.Codes]
    """Source codes of the quantised weights, by name."""
    floats: Mapping[str, Floats]
    """The float weights that all views share, by name."""
    views: tuple[View, ...]

    @property
    def source_bits(self) -> int:
        return self.widths[-1]


def check_view(view: View, graph: Graph, widths: tuple[int, ...], shapes: Mapping[str, Shape]) -> None:
    """Raises where a view does not fit its graph, or holds numbers that no network has."""
    quantised = {weight.name for weight in graph.weights if weight.quantised}
    if view.bits.keys() != quantised:
        raise BadTable(f"view {view.name!r} gives widths for other weights than the graph quantises")
    for name, bits in view.bits.items():
        if bits not in widths:
            raise BadTable(f"view {view.name!r}: weight {name!r} is to have {bits} bits, and there are {widths}")
    tabled = [node for node in graph.nodes if node.has_table]
    if view.tables.keys() != {node.name for node in tabled}:
        raise BadTable(f"view {view.name!r} has tables for other nodes than the graph")
    for node in tabled:
        table = view.tables[node.name]
        place = f"view {view.name!r}, node {node.name!r}"
        channels = (shapes[node.name][1],)
        if table.scale.shape != channels or table.bias.shape != channels:
            raise BadTable(f"{place}: scale and bias have other sizes than its {channels[0]} channels")
        if not (np.isfinite(table.scale).all() and np.isfinite(table.bias).all()):
            raise BadTable(f"{place}: scale or bias is not finite")
        weight = graph.weight_of(node)
        if weight is None or not weight.quantised:
            if table.step is not None:
                raise BadTable(f"{place}: it reads floats, and has an activation step")
            continue
        if table.step is None or not (np.isfinite(table.step) and table.step > 0):
            raise BadStep(f"{place}: the activation step is {table.step}, and must be positive")
        with np.errstate(over="ignore"):
            if not np.isfinite(np.float32(1.0) / table.step):
                raise BadStep(f"{place}: the activation step {table.step} is too small to divide by")
        if not 0 <= table.zero_point <= codes.activation_top(view.bits[weight.name]):
            raise BadTable(f"{place}: zero point {table.zero_point} is no code of {view.bits[weight.name]} bits")
    owned = {weight.name: weight for weight in graph.weights if weight.own}
    if view.own.keys() != owned.keys():
        raise BadTable(f"view {view.name!r} has other own weights than the graph names")
    for name, values in view.own.items():
        check_floats(name, values, owned[name].shape)


def check_shape(name: str, values: Floats, shape: Shape) -> None:
    if values.shape != shape:
        raise BadTable(f"float weight {name!r} has the shape {values.shape}, and the graph says {shape}")


def check_floats(name: str, values: Floats, shape: Shape) -> None:
    check_shape(name, values, shape)
    with np.errstate(invalid="ignore"):
        extremes = (values.min(), values.max()) if values.size else ()  # of which a NaN is both; no memory is taken
    if not all(map(math.isfinite, extremes)):
        raise BadTable(f"float weight {name!r} is not finite")
