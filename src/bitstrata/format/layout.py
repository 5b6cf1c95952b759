"""Which files an artifact has and which tensors stand in them: all of it follows from the graph and the widths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bitstrata.format.planes import padded, plane_bytes
from bitstrata.format.tensors import DTYPES, OWN, Tensor, Type
from bitstrata.graph import Graph, Weight
from bitstrata.graph.ops import Op, Shape

MANIFEST = "manifest.json"

FLOAT_TYPES: dict[str, Type] = {"float32": "F32", "float16": "F16"}


def stratum_file(index: int, widths: Sequence[int]) -> str:
    """The stratum that lifts the width before `widths[index]` to it."""
    return f"enhance-{widths[index]}.safetensors" if index else "base.safetensors"


def view_file(name: str) -> str:
    return f"view-{name}.safetensors"


def quantised_weights(graph: Graph) -> list[Weight]:
    return [weight for weight in graph.weights if weight.quantised]


def float_weights(graph: Graph) -> list[Weight]:
    """Those that all views share."""
    return [weight for weight in graph.weights if not weight.quantised and not weight.own]


def own_weights(graph: Graph) -> list[Weight]:
    return [weight for weight in graph.weights if weight.own]


def stored_weights(graph: Graph, index: int) -> list[Weight]:
    """The weights that have a segment in a stratum, in its order; shared floats stand in the base."""
    return [weight for weight in graph.weights if weight.quantised or (index == 0 and not weight.own)]


def planes_of(index: int, widths: Sequence[int]) -> tuple[int, int]:
    """The planes of a stratum, from the most significant: the first, and the one behind the last."""
    return (widths[index - 1] if index else 0), widths[index]


def stratum_tensors(graph: Graph, widths: Sequence[int], index: int) -> list[Tensor]:
    first, last = planes_of(index, widths)
    tensors = []
    for weight in stored_weights(graph, index):
        type_: Type = "U8" if weight.quantised else FLOAT_TYPES[weight.store]
        item = DTYPES[type_].itemsize
        size = (last - first) * plane_bytes(weight.count) if weight.quantised else weight.count * item
        tensors.append(Tensor(weight.name, type_, (padded(size) // item,)))
    return tensors


def tabled_nodes(graph: Graph) -> list[Op]:
    return [node for node in graph.nodes if node.has_table]


def code_readers(graph: Graph) -> list[Op]:
    return [node for node in graph.nodes if graph.is_quantised(node)]


def view_tensors(graph: Graph, shapes: Mapping[str, Shape]) -> list[Tensor]:
    """Bytes last, so that the floats before them stay aligned."""
    channels = sum(shapes[node.name][1] for node in tabled_nodes(graph))
    steps = len(code_readers(graph))
    return [
        Tensor("scale", "F32", (channels,)),
        Tensor("bias", "F32", (channels,)),
        Tensor("step", "F32", (steps,)),
        *(Tensor(OWN + weight.name, FLOAT_TYPES[weight.store], weight.shape) for weight in own_weights(graph)),
        Tensor("zero_point", "U8", (steps,)),
    ]
