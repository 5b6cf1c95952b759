"""From a graph and a view to the steps that the native runtime runs: what is fused, what is stored, and where.

Two stages. `plan` does not know the size of the input: it joins each computation with the addition and the activation
that follow it, and decides in which forms its result is kept. `lay_out` takes the shapes of one input and finds every
buffer its place in one arena, whose parts are used again as soon as nobody reads them any more.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from bitstrata import codes
from bitstrata.graph import INPUT, Graph, View, Weight, ops
from bitstrata.graph.ops import Shape

#: Bytes: where buffers start, and how far vector loads may run over their end. As in native/buffer.h.
ALIGNMENT = 64
SLACK = 64

Border = tuple[int, int, int, int]
"""Top, bottom, left, right."""

Key = tuple[str, str | None]
"""A buffer: a value, and the node that reads this form of it; None is the dense floats that all others read."""


Weights = Mapping[str, Weight]
"""By the node that uses each."""

_WEIGHTED = (ops.Conv, ops.Linear)


class Stored(msgspec.Struct, frozen=True):
    """One form in which a result is kept: dense floats, or what one layer reads: with its padding, maybe as codes."""

    reader: str | None = None
    padding: Border = (0, 0, 0, 0)
    step: np.float32 | None = None
    """The step of the codes; None for floats."""
    zero_point: int = 0
    top: int = 0


class Step(msgspec.Struct, frozen=True):
    """One computation with all that is fused into it: residual added, then activation applied, then stored."""

    value: str
    """The name of the result in the graph: that of the last node that is fused."""
    node: ops.Op | None
    """What is computed; None is the caller's input as it is. An activation alone is a copy with itself fused."""
    inputs: tuple[str, ...]
    reads: tuple[Key, ...]
    """The buffers of the inputs, and last that of the residual if there is one."""
    residual: str | None
    activation: ops.Op | None
    stored: tuple[Stored, ...]


class Plan(msgspec.Struct, frozen=True):
    """The steps in order, and the values that the caller gets."""

    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    """Names of results; an output that is only another shape of one has that one's name."""


def plan(graph: Graph, view: View) -> Plan:
    """The fused steps of a view, for every input shape that the graph can take."""
    # By node: whoever asks the graph for each builds its table of weights each time.
    by_weight = {weight.name: weight for weight in graph.weights}
    weights = {node.name: by_weight[node.weight or node.name] for node in graph.nodes if isinstance(node, _WEIGHTED)}
    nodes, outputs = _without_aliases(graph, weights)
    uses = Counter(name for node in nodes for name in node.inputs) + Counter(outputs)
    readers: dict[str, list[ops.Op]] = {}
    for node in nodes:
        for name in dict.fromkeys(node.inputs):
            readers.setdefault(name, []).append(node)

    def next_node(value: str) -> ops.Op | None:
        """What alone uses a value, and may therefore be fused with what computes it."""
        return readers[value][0] if uses[value] == 1 and value in readers else None

    drafts: list[Step] = []
    computed: set[str] = set()
    computations: list[ops.Op | None] = [None, *nodes]
    for computation in computations:
        value = INPUT if computation is None else computation.name
        if value in computed:
            continue
        residual, activation = None, computation if isinstance(computation, ops.ACTIVATIONS) else None
        following = next_node(value)
        if isinstance(following, ops.Add) and activation is None:
            (other,) = [name for name in following.inputs if name != value]
            if other in computed:
                computed.add(value)
                residual, value = other, following.name
                following = next_node(value)
        if isinstance(following, ops.ACTIVATIONS) and activation is None:
            computed.add(value)
            activation, value = following, following.name
        computed.add(value)
        inputs = () if computation is None else computation.inputs
        reads = _reads(weights, computation, residual)
        drafts.append(Step(value, computation, inputs, reads, residual, activation, ()))
    # In which forms a result is kept shows only when all steps are known: what is fused away reads nothing.
    read = {key for step in drafts for key in step.reads} | {(name, None) for name in outputs}
    by_name = {node.name: node for node in nodes}
    forms: dict[str, list[Stored]] = {}
    for value, reader in sorted(read, key=lambda key: (key[0], key[1] or "")):
        forms.setdefault(value, []).append(_form(weights, view, by_name[reader]) if reader else Stored())
    return Plan(tuple(msgspec.structs.replace(step, stored=tuple(forms[step.value])) for step in drafts), outputs)


def _without_aliases(graph: Graph, weights: Weights) -> tuple[list[ops.Op], tuple[str, ...]]:
    """The nodes that an output needs, less those that only give a vector another shape, and the outputs."""
    needed = set(graph.outputs)
    for node in reversed(graph.nodes):
        if node.name in needed:
            needed.update(node.inputs)
    vectors: set[str] = set()
    same_as: dict[str, str] = {}
    nodes: list[ops.Op] = []
    for node in graph.nodes:
        if node.name not in needed:
            continue
        inputs = tuple(same_as.get(name, name) for name in node.inputs)
        if _gives_vector(weights, node, all(name in vectors for name in node.inputs)):
            vectors.add(node.name)
            if isinstance(node, (ops.Flatten, ops.Reshape)) and node.inputs[0] in vectors:
                same_as[node.name] = inputs[0]
                continue
        nodes.append(msgspec.structs.replace(node, inputs=inputs))
    return nodes, tuple(same_as.get(name, name) for name in graph.outputs)


def _gives_vector(weights: Weights, node: ops.Op, from_vectors: bool) -> bool:
    """Whether the result has one pixel, whatever the size of the input; False where that is not obvious."""
    match node:
        case ops.Linear() | ops.Flatten():
            return True
        case ops.Mean(axes=(2, 3)) | ops.AdaptiveAvgPool(size=(1, 1)):
            return True
        case ops.Reshape(shape=shape):
            return len(shape) == 1 or shape[1:] == (1, 1)
        case ops.Conv(padding=(0, 0, 0, 0)):
            return from_vectors and weights[node.name].shape[2:] == (1, 1)
        case ops.Affine() | ops.Add() | ops.Mul() | ops.Concat():
            return from_vectors
        case _:
            return from_vectors and isinstance(node, ops.ACTIVATIONS)


def _reads(weights: Weights, node: ops.Op | None, residual: str | None) -> tuple[Key, ...]:
    """Codes and padded floats are made for one reader; all other readers share the dense floats."""
    keys: list[Key] = []
    if node is not None:
        padded = isinstance(node, ops.Conv) and any(node.padding)
        quantised = node.name in weights and weights[node.name].quantised
        reader = node.name if padded or quantised else None
        keys += [(name, reader) for name in node.inputs]
    if residual is not None:
        keys.append((residual, None))
    return tuple(keys)


def _form(weights: Weights, view: View, reader: ops.Op) -> Stored:
    padding = reader.padding if isinstance(reader, ops.Conv) else (0, 0, 0, 0)
    weight = weights[reader.name]
    if not weight.quantised:
        return Stored(reader.name, padding)
    table = view.tables[reader.name]
    return Stored(reader.name, padding, table.step, table.zero_point, codes.activation_top(view.bits[weight.name]))


class Place(msgspec.Struct, frozen=True):
    """Where a buffer lies in the arena. Images are stored pixel by pixel: batch, height, width, channels."""

    offset: int
    shape: tuple[int, int, int, int]
    border: Border
    codes: bool

    @property
    def bytes(self) -> int:
        return buffer_bytes(self.shape, self.border, self.codes)


class Layout(msgspec.Struct, frozen=True):
    """All places for one input shape."""

    places: Mapping[Key, Place]
    workspaces: tuple[int, ...]
    """The offset of each step's scratch memory."""
    arena_bytes: int


def lay_out(steps: Plan, shapes: Mapping[str, Shape], workspace: Callable[[int], int] = lambda index: 0) -> Layout:
    """Places for the given shapes of all values; `workspace` tells how many bytes of scratch memory a step needs."""
    joined = _joined(steps)
    last_read: dict[Key, int] = {(name, None): len(steps.steps) for name in steps.outputs}
    for index, step in enumerate(steps.steps):
        for key in step.reads:
            last_read[key] = max(index + (index in joined), last_read.get(key, 0))
    ending: dict[int, list[Key]] = {}
    for key, index in last_read.items():
        ending.setdefault(index, []).append(key)
    arena = Arena()
    places: dict[Key, Place] = {}
    workspaces = []
    for index, step in enumerate(steps.steps):
        shape = image_shape(shapes[step.value])
        over = _overwritten(step, index, last_read)
        for form in step.stored:
            as_codes = form.step is not None
            if over is not None and not as_codes and not any(form.padding):
                offset = places[over].offset
                ending[index].remove(over)
                over = None
            else:
                offset = arena.take(buffer_bytes(shape, form.padding, as_codes))
            places[step.value, form.reader] = Place(offset, shape, form.padding, as_codes)
        scratch = workspace(index)
        workspaces.append(arena.take(scratch) if scratch else 0)
        if scratch:
            arena.give_back(workspaces[-1], scratch)
        for key in ending.get(index, ()):
            arena.give_back(places[key].offset, places[key].bytes)
    return Layout(places, tuple(workspaces), arena.size)


def _overwritten(step: Step, index: int, last_read: Mapping[Key, int]) -> Key | None:
    """A residual that nothing reads again: floats of the result may take its place, because every element is read just
    before the one at its place is written. Half as much memory goes through the caches."""
    if step.residual is None:
        return None
    key = step.reads[-1]
    return key if last_read[key] == index and key not in step.reads[:-1] else None


def _joined(steps: Plan) -> set[int]:
    """Float convolutions that are pooled at once: both steps may run together, so the inputs of the first must stay."""
    floats = {(step.value, form.reader) for step in steps.steps for form in step.stored if form.step is None}
    return {
        index
        for index, (step, following) in enumerate(zip(steps.steps, steps.steps[1:], strict=False))
        if isinstance(step.node, ops.Conv)
        and step.reads[0] in floats
        and isinstance(following.node, (ops.MaxPool, ops.AvgPool))
        and following.inputs == (step.value,)
    }


def image_shape(shape: Shape) -> tuple[int, int, int, int]:
    """Batch, height, width, channels; a vector is an image of one pixel."""
    if len(shape) == 2:
        return shape[0], 1, 1, shape[1]
    batch, channels, height, width = shape
    return batch, height, width, channels


def buffer_bytes(shape: tuple[int, int, int, int], border: Border, as_codes: bool) -> int:
    batch, height, width, channels = shape
    top, bottom, left, right = border
    elements = batch * (top + height + bottom) * (left + width + right) * channels
    return elements * (1 if as_codes else 4) + SLACK


class Arena:
    """Hands out stretches of one memory: the smallest free one that is large enough, else more at the end."""

    def __init__(self) -> None:
        self.size = 0
        self._free: list[tuple[int, int]] = []  # offset and size, in order, never touching

    def take(self, size: int) -> int:
        size = _aligned(size)
        fitting = [(room, offset) for offset, room in self._free if room >= size]
        if fitting:
            room, offset = min(fitting)
            self._free.remove((offset, room))
            if room > size:
                insort(self._free, (offset + size, room - size))
            return offset
        offset = self.size
        if self._free and sum(self._free[-1]) == self.size:
            offset = self._free.pop()[0]
        self.size = offset + size
        return offset

    def give_back(self, offset: int, size: int) -> None:
        size = _aligned(size)
        place = bisect_left(self._free, (offset, size))
        if place < len(self._free) and self._free[place][0] == offset + size:
            size += self._free.pop(place)[1]
        if place and sum(self._free[place - 1]) == offset:
            offset, before = self._free.pop(place - 1)
            size += before
        insort(self._free, (offset, size))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
