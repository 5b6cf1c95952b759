"""A network as a list of nodes, and the checks that make it safe to run."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Annotated

import msgspec

from bitstrata import codes
from bitstrata.errors import (
    BadShape,
    DuplicateName,
    GraphCycle,
    TooLarge,
    UndefinedValue,
    ZeroSize,
)
from bitstrata.graph.ops import Conv, Linear, Node, Op, Shape
from bitstrata.graph.weights import Name, Weight
from bitstrata.limits import MAX_ACCUMULATOR, MAX_DIMENSION, MAX_ELEMENTS, MAX_NODE_INPUTS, MAX_NODES

#: The name of the value that the caller gives.
INPUT = "input"


class Graph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """Nodes in an order in which they can be computed, the weights they use, and the names of the results."""

    weights: Annotated[tuple[Weight, ...], msgspec.Meta(max_length=MAX_NODES)]
    nodes: Annotated[tuple[Node, ...], msgspec.Meta(min_length=1, max_length=MAX_NODES)]
    outputs: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1, max_length=MAX_NODE_INPUTS)]

    def weight_of(self, node: Op) -> Weight | None:
        """The weight that a node uses, if its op has one."""
        if not isinstance(node, (Conv, Linear)):
            return None
        name = node.weight or node.name
        weight = self._weights.get(name)
        if weight is None:
            raise UndefinedValue(f"{node.described} uses the weight {name!r}, which is not there")
        return weight

    def is_quantised(self, node: Op) -> bool:
        """Whether a node reads codes."""
        weight = self.weight_of(node)
        return weight is not None and weight.quantised

    @cached_property
    def _weights(self) -> dict[str, Weight]:
        return {weight.name: weight for weight in self.weights}


def infer_shapes(graph: Graph, input_shape: Shape) -> dict[str, Shape]:
    """The shape of every value for an input of that shape; raises where the graph cannot take it."""
    weights = graph._weights
    shapes: dict[str, Shape] = {INPUT: input_shape}
    for node in graph.nodes:
        weight = weights.get(node.weight or node.name) if isinstance(node, (Conv, Linear)) else None
        shapes[node.name] = node.output_shape([shapes[name] for name in node.inputs], weight)
    return shapes


def check_graph(graph: Graph, source_bits: int, input_shape: Shape) -> dict[str, Shape]:
    """Everything that a reader must know before it trusts a graph; the shapes for the given input."""
    _check_weights(graph, source_bits)
    _check_references(graph)
    return infer_shapes(graph, input_shape)


def _check_weights(graph: Graph, source_bits: int) -> None:
    names = set()
    for weight in graph.weights:
        if weight.name in names:
            raise DuplicateName(f"two weights are named {weight.name!r}")
        names.add(weight.name)
        if len(weight.shape) not in (2, 4):
            raise BadShape(f"weight {weight.name!r} has {len(weight.shape)} dimensions; 2 or 4 are known")
        if min(weight.shape) < 1:
            raise ZeroSize(f"weight {weight.name!r} has the shape {weight.shape}")
        if max(weight.shape) > MAX_DIMENSION or weight.count > MAX_ELEMENTS:
            raise TooLarge(f"weight {weight.name!r} of shape {weight.shape} is too large")
        if weight.own and weight.quantised:
            raise BadShape(f"weight {weight.name!r}: planes are shared by all views; only float weights can be own")
        if weight.quantised:
            # The weight in half source steps, times the largest activation code (see `codes.odd_integers`).
            largest = math.prod(weight.shape[1:]) * (1 << source_bits) * codes.activation_top(source_bits)
            if largest > MAX_ACCUMULATOR:
                raise TooLarge(
                    f"weight {weight.name!r} of shape {weight.shape} at {source_bits} bits could overflow a 32-bit "
                    f"accumulator; use fewer bits or leave the layer float"
                )


def _check_references(graph: Graph) -> None:
    names = {node.name for node in graph.nodes}
    used = set()
    defined = {INPUT}
    for node in graph.nodes:
        for name in node.inputs:
            if name not in defined:
                if name in names:
                    raise GraphCycle(f"{node.described} uses {name!r}, which is computed only later")
                raise UndefinedValue(f"{node.described} uses {name!r}, which is nowhere defined")
        if node.name in defined:
            raise DuplicateName(f"two values are named {node.name!r}")
        defined.add(node.name)
        weight = graph.weight_of(node)
        if weight is not None:
            used.add(weight.name)
    for name in graph.outputs:
        if name not in defined:
            raise UndefinedValue(f"the output {name!r} is nowhere defined")
    unused = [weight.name for weight in graph.weights if weight.name not in used]
    if unused:
        raise UndefinedValue(f"no node uses the weights {unused}")
