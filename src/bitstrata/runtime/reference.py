"""Runs a view in NumPy: short, readable, exact. The native runtime must give the same bits.

Integers are multiplied as float64, where BLAS is fast and sums stay exact up to 2^53; a graph whose accumulators could
leave 32 bits is refused when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from bitstrata import codes
from bitstrata.graph import INPUT, Graph, Table, View, ops
from bitstrata.graph.network import Floats
from bitstrata.runtime.activations import ACTIVATION
from bitstrata.runtime.inputs import check_input

Integers = NDArray[np.int64]
Numbers = NDArray[Any]
_NUMPY_PADDING = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


class ReferenceSession:
    """A view, ready to run; calls share nothing that changes, so any number of threads may call it."""

    def __init__(
        self,
        graph: Graph,
        source_bits: int,
        view: View,
        weights: Mapping[str, codes.Codes],
        floats: Mapping[str, Floats],
    ) -> None:
        """`weights` are codes at the view's own widths; `floats` are the float weights that all views share."""
        self.graph = graph
        self.source_bits = source_bits
        self.view = view
        self.weights = weights
        self.floats = {**floats, **view.own}

    def __call__(self, x: Floats) -> Floats | tuple[Floats, ...]:
        """The output, or a tuple where the graph has several."""
        values = self.values(x)
        results = tuple(values[name] for name in self.graph.outputs)
        return results[0] if len(results) == 1 else results

    def values(self, x: Floats) -> dict[str, Floats]:
        """Every value of the graph, by name."""
        values = {INPUT: check_input(x, self.graph)}
        for node in self.graph.nodes:
            inputs = [values[name] for name in node.inputs]
            if node.has_table:
                values[node.name] = self._tabled(node, inputs[0])
            else:
                values[node.name] = _PLAIN[type(node)](node, inputs)
        return values

    def _tabled(self, node: ops.Op, x: Floats) -> Floats:
        """What has a scale and a bias: y = accumulator * scale + bias, a product and a sum, each rounded."""
        table = self.view.tables[node.name]
        if self.graph.is_quantised(node):
            accumulated = self.accumulate(node, self.input_codes(node, x)).astype(np.float32)
        elif isinstance(node, (ops.Conv, ops.Linear)):
            weight = self.floats[_weight_name(node)]
            accumulated = _multiply(node, x, weight).astype(np.float32)
        else:
            accumulated = x
        return _scaled(accumulated, table)

    def input_codes(self, node: ops.Op, x: Floats) -> NDArray[np.uint8]:
        """The codes that a quantised node reads in place of the value `x`."""
        table, bits = self._coding(node)
        assert table.step is not None
        return codes.quantise_activations(x, float(table.step), table.zero_point, bits)

    def accumulate(self, node: ops.Op, inputs: NDArray[np.uint8]) -> Integers:
        """Whole numbers: the weights in half source steps, times the codes less their zero point."""
        table, bits = self._coding(node)
        weights = codes.odd_integers(self.weights[_weight_name(node)], self.source_bits, bits)
        centred = inputs.astype(np.float64) - table.zero_point
        return _multiply(node, centred, weights.astype(np.float64)).astype(np.int64)

    def _coding(self, node: ops.Op) -> tuple[Table, int]:
        return self.view.tables[node.name], self.view.bits[_weight_name(node)]


def _weight_name(node: ops.Op) -> str:
    assert isinstance(node, (ops.Conv, ops.Linear))
    return node.weight or node.name


def _scaled(x: Floats, table: Table) -> Floats:
    shape = (1, -1) + (1,) * (x.ndim - 2)
    scaled: Floats = x * table.scale.reshape(shape)
    return scaled + table.bias.reshape(shape)


def _multiply(node: ops.Op, x: Numbers, weight: Numbers) -> Numbers:
    """A matrix product or a convolution, in the type of its arguments."""
    if isinstance(node, ops.Linear):
        product: Numbers = x @ weight.T
        return product
    assert isinstance(node, ops.Conv)
    outputs, _, kernel_height, kernel_width = weight.shape
    windows = _windows(node, x, (kernel_height, kernel_width), 0.0)
    batch, _, rows, columns = windows.shape[:4]
    # (groups, pixels, taps) times (groups, taps, outputs of a group)
    taps = windows.reshape(batch, node.groups, -1, *windows.shape[2:]).transpose(1, 0, 3, 4, 2, 5, 6)
    taps = taps.reshape(node.groups, batch * rows * columns, -1)
    product = taps @ weight.reshape(node.groups, outputs // node.groups, -1).transpose(0, 2, 1)
    product = product.reshape(node.groups, batch, rows, columns, -1).transpose(1, 0, 4, 2, 3)
    return product.reshape(batch, outputs, rows, columns)


def _windows(node: ops.Windowed, x: Numbers, kernel: ops.Pair, value: float, ceil: bool = False) -> Numbers:
    """All windows, as a view: batch, channels, rows, columns, kernel height, kernel width."""
    top, bottom, left, right = node.padding
    rows, columns = node.window_output(x.shape[2], x.shape[3], kernel, ceil)
    extents = [d * (k - 1) + 1 for k, d in zip(kernel, node.dilation, strict=True)]
    # With `ceil`, the last windows may need more places than the padding gives.
    bottom = max(bottom, (rows - 1) * node.stride[0] + extents[0] - x.shape[2] - top)
    right = max(right, (columns - 1) * node.stride[1] + extents[1] - x.shape[3] - left)
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=value)
    windows = sliding_window_view(padded, tuple(extents), axis=(2, 3))
    windows = windows[:, :, :: node.stride[0], :: node.stride[1], :: node.dilation[0], :: node.dilation[1]]
    return windows[:, :, :rows, :columns]


def _sum_in_order(windows: NDArray[np.float32]) -> Floats:
    """The sum over the last two axes, place after place: an order that any implementation can keep."""
    total = np.zeros(windows.shape[:-2], dtype=np.float32)
    for row in range(windows.shape[-2]):
        for column in range(windows.shape[-1]):
            total = total + windows[..., row, column]
    return total


def _max_pool(node: ops.MaxPool, inputs: Sequence[Floats]) -> Floats:
    windows = _windows(node, inputs[0], node.kernel, -np.inf, node.ceil)
    result: Floats = windows.max(axis=(4, 5))
    return result


def _avg_pool(node: ops.AvgPool, inputs: Sequence[Floats]) -> Floats:
    x = inputs[0]
    total = _sum_in_order(_windows(node, x, node.kernel, 0.0, node.ceil))
    rows, columns = (_counts(node, axis, x.shape[2 + axis], total.shape[2 + axis]) for axis in (0, 1))
    counts: Floats = (rows[:, None] * columns).astype(np.float32)
    return total / counts


def _counts(node: ops.AvgPool, axis: int, size: int, windows: int) -> NDArray[np.int64]:
    """How many places of each window count; those that `ceil` adds beyond the padding never do."""
    before, after = node.padding[2 * axis], node.padding[2 * axis + 1]
    start = np.arange(windows) * node.stride[axis] - before
    end = np.minimum(start + node.kernel[axis], size + after)
    if not node.count_padding:
        start, end = np.maximum(start, 0), np.minimum(end, size)
    return end - start


def _adaptive(node: ops.AdaptiveAvgPool, inputs: Sequence[Floats]) -> Floats:
    x = inputs[0]
    rows, columns = (_spans(count, size) for count, size in zip(node.size, x.shape[2:], strict=True))
    reduce = _largest if isinstance(node, ops.AdaptiveMaxPool) else _mean
    return np.stack([np.stack([reduce(x[:, :, r, c]) for c in columns], axis=-1) for r in rows], axis=-2)


def _spans(count: int, size: int) -> list[slice]:
    return [slice(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _largest(x: Floats) -> Floats:
    result: Floats = x.max(axis=(2, 3))
    return result


def _mean(x: Floats) -> Floats:
    return _sum_in_order(x) / np.float32(x.shape[-2] * x.shape[-1])


def _mean_over(node: ops.Mean, inputs: Sequence[Floats]) -> Floats:
    x = inputs[0]
    if node.axes == (2, 3):
        result = _mean(x)
        return result[:, :, None, None] if node.keep else result
    (axis,) = node.axes
    lines = np.moveaxis(x, axis, -1)[..., None, :]
    return np.expand_dims(_mean(lines), axis)


def _pad(node: ops.Pad, inputs: Sequence[Floats]) -> Floats:
    before, after, top, bottom, left, right = node.padding
    places = ((0, 0), (before, after), (top, bottom), (left, right))
    mode = _NUMPY_PADDING[node.mode]
    options = {"constant_values": np.float32(node.value)} if mode == "constant" else {}
    return np.pad(inputs[0], places, mode=mode, **options)  # type: ignore[call-overload, no-any-return]


def _slice(node: ops.Slice, inputs: Sequence[Floats]) -> Floats:
    places = [slice(None)] * inputs[0].ndim
    places[node.axis] = slice(node.start, node.stop, node.step)
    return inputs[0][tuple(places)]


def _reshape(node: ops.Reshape, inputs: Sequence[Floats]) -> Floats:
    return inputs[0].reshape(node.output_shape([inputs[0].shape], None))


#: What each op without a table computes from its inputs.
_PLAIN: dict[type[ops.Op], Callable[..., Floats]] = {
    ops.Add: lambda node, inputs: inputs[0] + inputs[1],
    ops.Mul: lambda node, inputs: inputs[0] * inputs[1],
    ops.Concat: lambda node, inputs: np.concatenate(inputs, axis=1),
    ops.Flatten: lambda node, inputs: inputs[0].reshape(len(inputs[0]), -1),
    ops.MaxPool: _max_pool,
    ops.AvgPool: _avg_pool,
    ops.AdaptiveAvgPool: _adaptive,
    ops.AdaptiveMaxPool: _adaptive,
    ops.Mean: _mean_over,
    ops.Pad: _pad,
    ops.Slice: _slice,
    ops.Reshape: _reshape,
    **{op: lambda node, inputs, activate=activate: activate(inputs[0]) for op, activate in ACTIVATION.items()},
}
