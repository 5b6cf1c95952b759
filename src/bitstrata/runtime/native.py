"""Runs a view with the compiled kernels: the same results as the reference, to the bit, and fast."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitstrata import _native, codes
from bitstrata.errors import BadCodes, BadInput, BadOption, BadTable
from bitstrata.format.planes import PackedCodes
from bitstrata.graph import Graph, View, infer_shapes, ops
from bitstrata.graph.network import Floats, check_shape
from bitstrata.graph.ops import Shape
from bitstrata.runtime.inputs import check_input
from bitstrata.runtime.plan import Key, Place, Step, image_shape, lay_out, plan

#: Input shapes whose plans a session keeps.
KEPT_SHAPES = 8

_PAD_MODES = ("constant", "reflect", "replicate", "circular")
_KINDS: dict[type[ops.Op], str] = {
    ops.Conv: "convolution",
    ops.Linear: "convolution",
    ops.Affine: "copy",
    ops.Add: "add",
    ops.Mul: "multiply",
    ops.Concat: "concatenate",
    ops.MaxPool: "max_pool",
    ops.AvgPool: "average_pool",
    ops.AdaptiveAvgPool: "adaptive_average_pool",
    ops.AdaptiveMaxPool: "adaptive_max_pool",
    ops.Mean: "adaptive_average_pool",
    ops.Pad: "pad",
    ops.Slice: "slice",
    ops.Flatten: "reshape",
    ops.Reshape: "reshape",
    **dict.fromkeys(ops.ACTIVATIONS, "copy"),
}


class StepTime(NamedTuple):
    """How long one step took in one run."""

    step: Step | None
    """None is the writing of the results."""
    kernel: str
    """The kernel of a layer, or the kind of any other step."""
    seconds: float


class NativeSession:
    """A view, ready to run; any number of threads may call it at once."""

    def __init__(
        self,
        graph: Graph,
        source_bits: int,
        view: View,
        weights: Mapping[str, codes.Codes | PackedCodes],
        floats: Mapping[str, Floats],
        *,
        threads: int | None = None,
    ) -> None:
        """`weights` are codes at the view's own widths, or their planes; `floats` are those that all views share.

        threads     for one call, by default all processors that this process may use
        """
        if threads is not None and threads < 1:
            raise BadOption(f"threads={threads}: at least one is needed")
        self.graph = graph
        self.source_bits = source_bits
        self.view = view
        self.threads = threads or available_processors()
        self._plan = plan(graph, view)
        self._program = _native.Program()
        self._layers = [self._add_layer(step.node, weights, {**floats, **view.own}) for step in self._plan.steps]
        self._program.prepare(self.threads)
        # Replaced as a whole, never changed: threads need no lock, and a fork can find none locked.
        self._bound: dict[Shape, BoundPlan] = {}

    def __call__(self, x: Floats) -> Floats | tuple[Floats, ...]:
        """The output, or a tuple where the graph has several."""
        usual = isinstance(x, np.ndarray) and x.dtype == np.float32 and x.shape in self._bound
        x = np.ascontiguousarray(x) if usual else check_input(x, self.graph)
        results = self._bound_for(x.shape).run(x, self.threads)
        return results[0] if len(results) == 1 else results

    def kernels(self) -> dict[str, str]:
        """Which kernel runs each convolution and linear layer."""
        return {
            step.node.name: self._program.kernel(layer)
            for step, layer in zip(self._plan.steps, self._layers, strict=True)
            if isinstance(step.node, (ops.Conv, ops.Linear))
        }

    def profile(self, x: Floats) -> list[StepTime]:
        """Runs once, and says how long every step took, in the order in which they run."""
        x = check_input(x, self.graph)
        seconds = self._bound_for(x.shape).profile(x, self.threads)
        shapes = infer_shapes(self.graph, x.shape)
        kernels = self.kernels()
        times = []
        for step, taken in zip(self._plan.steps, seconds, strict=False):
            kind, _, _ = _described(step, shapes)
            name = "" if step.node is None else step.node.name
            times.append(StepTime(step, kernels.get(name, kind), taken))
        return [*times, StepTime(None, "results", seconds[-1])]

    def _bound_for(self, shape: Shape) -> BoundPlan:
        kept = self._bound
        found = kept.get(shape)
        if found is None:
            found = self._bind(shape)
        if next(reversed(kept), None) != shape:  # the latest last, so that the others go first
            others = [(key, value) for key, value in kept.items() if key != shape]
            self._bound = dict([*others[-(KEPT_SHAPES - 1) :], (shape, found)])
        return found

    def _add_layer(
        self, node: ops.Op | None, weights: Mapping[str, codes.Codes | PackedCodes], floats: Mapping[str, Floats]
    ) -> int:
        """Prepares the weights and the table of a node; -1 where it has none."""
        if node is None or not node.has_table:
            return -1
        table = self.view.tables[node.name]
        scale, bias = (np.ascontiguousarray(one, dtype=np.float32) for one in (table.scale, table.bias))
        weight = self.graph.weight_of(node)
        try:
            if weight is None:
                return self._program.add_affine(scale, bias)
            geometry = _geometry(node)
            if not weight.quantised:
                values = floats[weight.name]
                check_shape(weight.name, values, weight.shape)
                return self._program.add_float(_as_kernel(values, np.float32), *geometry, scale, bias)
            bits = self.view.bits[weight.name]
            stored = weights[weight.name]
            if stored.shape != weight.shape:
                raise BadCodes(
                    f"codes of {weight.name!r} have the shape {stored.shape}, and the graph says {weight.shape}"
                )
            coding = (self.source_bits, table.zero_point)
            if isinstance(stored, PackedCodes):
                if len(stored.planes) != bits:
                    raise BadCodes(
                        f"codes of {weight.name!r} have {len(stored.planes)} planes, and the view says {bits}"
                    )
                shape = _kernel_shape(stored.shape)
                return self._program.add_planes(stored.planes, shape, *geometry, *coding, scale, bias)
            return self._program.add_quantised(_as_kernel(stored, np.int8), *geometry, bits, *coding, scale, bias)
        except ValueError as error:
            if isinstance(error, (BadCodes, BadTable)):
                raise
            raise BadTable(f"view {self.view.name!r}, {node.described}: {error}") from error

    def _bind(self, shape: Shape) -> BoundPlan:
        shapes = infer_shapes(self.graph, shape)

        def workspace(index: int) -> int:
            layer = self._layers[index]
            if layer < 0:
                return 0
            return self._program.workspace(layer, image_shape(shapes[self._plan.steps[index].value]))

        layout = lay_out(self._plan, shapes, workspace)
        buffers: dict[Key, Any] = {key: _buffer(place) for key, place in layout.places.items()}
        bound = _native.Plan(self._program, layout.arena_bytes, image_shape(shape))
        for step, layer, scratch in zip(self._plan.steps, self._layers, layout.workspaces, strict=True):
            read = [buffers[key] for key in step.reads]
            kind, parameters, value = _described(step, shapes)
            bound.add(
                kind,
                layer,
                read[: len(step.inputs)],
                read[-1] if step.residual is not None else None,
                _activation(step),
                [_output(step, index, buffers) for index in range(len(step.stored))],
                parameters,
                value,
                scratch,
            )
        for name in self._plan.outputs:
            bound.add_result(buffers[name, None])
        return BoundPlan(bound, tuple(shapes[name] for name in self.graph.outputs), layout.arena_bytes)


class BoundPlan:
    """The steps for one input shape."""

    def __init__(self, bound: Any, result_shapes: tuple[Shape, ...], arena_bytes: int) -> None:
        self._bound = bound
        self._result_shapes = result_shapes
        self.arena_bytes = arena_bytes

    def profile(self, x: Floats, threads: int) -> list[float]:
        """The seconds of each step, and last those of writing the results."""
        results = [np.empty(shape, dtype=np.float32) for shape in self._result_shapes]
        return list(self._bound.profile(x, results, threads))

    def run(self, x: Floats, threads: int) -> tuple[Floats, ...]:
        try:
            results = [np.empty(shape, dtype=np.float32) for shape in self._result_shapes]
            self._bound.run(x, results, threads)
        except MemoryError as error:
            raise BadInput(
                f"an input of shape {x.shape} needs {self.arena_bytes} bytes, more than there are; use a smaller batch"
            ) from error
        return tuple(results)


def accumulators(
    kernel: str,
    weights: codes.Codes,
    inputs: NDArray[np.uint8],
    node: ops.Conv,
    *,
    bits: int,
    source_bits: int,
    zero_point: int = 0,
) -> NDArray[np.int32] | None:
    """What a kernel of that name sums up for one layer fed with codes; None where it does not take such a layer."""
    outputs, _, kernel_height, kernel_width = weights.shape
    batch, _, height, width = inputs.shape
    rows, columns = node.window_output(height, width, (kernel_height, kernel_width))
    out = np.empty((batch, outputs, rows, columns), dtype=np.int32)
    geometry = (node.stride, node.padding, node.dilation, node.groups)
    weights, inputs = np.ascontiguousarray(weights), np.ascontiguousarray(inputs)
    taken = _native.accumulators(kernel, weights, inputs, out, *geometry, bits, source_bits, zero_point)
    return out if taken else None


def available_processors() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _geometry(node: ops.Op) -> tuple[ops.Pair, ops.Pair, int]:
    """Stride, dilation and groups; a linear layer is a convolution of one pixel."""
    return (node.stride, node.dilation, node.groups) if isinstance(node, ops.Conv) else ((1, 1), (1, 1), 1)


def _as_kernel(values: NDArray[Any], dtype: type) -> NDArray[Any]:
    return np.ascontiguousarray(values.reshape(_kernel_shape(values.shape)), dtype=dtype)


def _kernel_shape(shape: Shape) -> tuple[int, int, int, int]:
    """(out, in, height, width)."""
    outputs, inputs, *window = shape
    height, width = window or (1, 1)
    return outputs, inputs, height, width


def _buffer(place: Place) -> Any:
    return _native.Buffer(place.offset, place.shape, place.border, place.codes)


def _output(step: Step, index: int, buffers: Mapping[Key, Any]) -> Any:
    form = step.stored[index]
    inverse = 0.0 if form.step is None else float(np.float32(1.0) / np.float32(form.step))
    return _native.Output(buffers[step.value, form.reader], inverse, form.zero_point, form.top)


def _activation(step: Step) -> str:
    return "none" if step.activation is None else str(step.activation.__struct_config__.tag)


def _described(step: Step, shapes: Mapping[str, Shape]) -> tuple[str, Sequence[int], float]:
    """The kind of a step, its numbers in the order that native/plan.cpp reads them, and its constant."""
    node = step.node
    if node is None:
        return "input", (), 0.0
    kind = _KINDS[type(node)]
    match node:
        case ops.MaxPool():
            return kind, (*node.kernel, *node.stride, *node.dilation, *node.padding, 0), 0.0
        case ops.AvgPool():
            return kind, (*node.kernel, *node.stride, *node.dilation, *node.padding, node.count_padding), 0.0
        case ops.Pad():
            before, _, top, _, left, _ = node.padding
            return kind, (before, top, left, _PAD_MODES.index(node.mode)), node.value
        case ops.Slice():
            _, height, width, channels = image_shape(shapes[node.inputs[0]])
            size = (channels, height, width)[node.axis - 1]
            start, _, stride = slice(node.start, node.stop, node.step).indices(size)
            return kind, (node.axis, start, stride), 0.0
        case _:
            return kind, (), 0.0
