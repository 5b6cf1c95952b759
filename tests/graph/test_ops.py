"""The shape rule of every op, held against torch; and what each op refuses."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from bitstrata.errors import BadShape, BitstrataError, TooLarge, WrongInputCount, ZeroSize
from bitstrata.graph import Weight, ops
from bitstrata.graph.ops import Op, Shape


def shape_of(node: Op, *inputs: Shape, weight: Weight | None = None) -> Shape | None:
    """The shape by our rule, or None where the rule refuses."""
    try:
        return node.output_shape(inputs, weight)
    except BitstrataError:
        return None


def torch_shape(compute: Callable[..., Tensor], *inputs: Shape) -> Shape | None:
    """The shape by torch, or None where torch refuses or the result is empty."""
    try:
        found = tuple(compute(*(torch.zeros(shape) for shape in inputs)).shape)
    except (RuntimeError, ValueError, IndexError):
        return None
    return found if min(found) > 0 else None


def named(op: type[Op], inputs: int = 1, **fields: Any) -> Any:
    return op(name="node", inputs=("a",) * inputs, **fields)


SIZES = [(1, 1), (2, 3), (5, 4), (7, 7), (8, 13)]


def test_every_op_is_tested_here() -> None:
    """An op that is added to the list must be added to this file."""
    source = Path(__file__).read_text(encoding="utf-8")
    for op in ops.Node.__args__:
        assert f"ops.{op.__name__}" in source, op


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("kernel", "stride"), [*itertools.product([(1, 1), (3, 2), (2, 3), (5, 5)], [(1, 1), (2, 3)])])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 1), (3, 2)])
@pytest.mark.parametrize("padding", [(0, 0), (1, 2)])
def test_conv(size: Any, kernel: Any, stride: Any, dilation: Any, padding: Any) -> None:
    for groups, inputs, outputs in ((1, 3, 4), (2, 4, 6), (4, 4, 4), (4, 4, 8), (2, 3, 4), (3, 3, 4)):
        weight = Weight(name="node", shape=(outputs, max(1, inputs // groups), *kernel))
        node = named(
            ops.Conv,
            stride=stride,
            dilation=dilation,
            groups=groups,
            padding=(padding[0], padding[0], padding[1], padding[1]),
        )
        expected = torch_shape(
            lambda x, w=weight, g=groups: functional.conv2d(
                x, torch.zeros(w.shape), None, stride, padding, dilation, g
            ),
            (2, inputs, *size),
        )
        assert shape_of(node, (2, inputs, *size), weight=weight) == expected


def test_conv_with_four_paddings() -> None:
    weight = Weight(name="node", shape=(1, 1, 3, 3))
    node = named(ops.Conv, padding=(0, 1, 2, 3), stride=(2, 2))
    expected = torch_shape(
        lambda x: functional.conv2d(functional.pad(x, (2, 3, 0, 1)), torch.zeros(1, 1, 3, 3), stride=2), (1, 1, 6, 9)
    )
    assert shape_of(node, (1, 1, 6, 9), weight=weight) == expected


@pytest.mark.parametrize("features", [4, 5])
def test_linear(features: int) -> None:
    weight = Weight(name="node", shape=(3, 5))
    expected = torch_shape(nn.Linear(5, 3), (2, features))
    assert shape_of(named(ops.Linear), (2, features), weight=weight) == expected
    with pytest.raises(BadShape):
        named(ops.Linear).output_shape([(2, 5, 1, 1)], weight)
    with pytest.raises(BadShape):
        named(ops.Linear).output_shape([(2, 5)], Weight(name="node", shape=(3, 5, 1, 1)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (3, 2), (4, 5)])
def test_pools(size: Any, ceil: bool, stride: Any) -> None:
    for kernel, padding, dilation in itertools.product(
        [(1, 1), (2, 2), (3, 3), (2, 5)], [(0, 0), (1, 1), (1, 0)], [(1, 1), (2, 1)]
    ):
        fields = {
            "kernel": kernel,
            "stride": stride,
            "ceil": ceil,
            "padding": (padding[0], padding[0], padding[1], padding[1]),
        }
        expected = torch_shape(
            lambda x, k=kernel, p=padding, d=dilation: functional.max_pool2d(x, k, stride, p, d, ceil), (2, 3, *size)
        )
        assert shape_of(named(ops.MaxPool, dilation=dilation, **fields), (2, 3, *size)) == expected, fields
        if dilation == (1, 1):
            expected = torch_shape(
                lambda x, k=kernel, p=padding: functional.avg_pool2d(x, k, stride, p, ceil), (2, 3, *size)
            )
            assert shape_of(named(ops.AvgPool, **fields), (2, 3, *size)) == expected, fields


def test_average_pools_have_no_dilation() -> None:
    with pytest.raises(BadShape, match="dilation"):
        named(ops.AvgPool, kernel=(2, 2), dilation=(2, 2)).output_shape([(1, 1, 9, 9)], None)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("grid", [(1, 1), (2, 3), (9, 9)])
def test_adaptive_pools(size: Any, grid: Any) -> None:
    for op, layer in ((ops.AdaptiveAvgPool, nn.AdaptiveAvgPool2d), (ops.AdaptiveMaxPool, nn.AdaptiveMaxPool2d)):
        assert shape_of(named(op, size=grid), (2, 3, *size)) == torch_shape(layer(grid), (2, 3, *size))


@pytest.mark.parametrize(
    "op",
    [
        ops.Affine,
        ops.Relu,
        ops.Relu6,
        ops.HardSigmoid,
        ops.HardSwish,
        ops.Sigmoid,
        ops.Silu,
    ],
)
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4, 5)])
def test_elementwise(op: type[Op], shape: Shape) -> None:
    assert shape_of(named(op), shape) == shape
    with pytest.raises(WrongInputCount, match="node"):
        named(op).output_shape([shape, shape], None)


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3, 4, 5), (2, 3, 4, 5)),
        ((2, 3), (2, 3)),
        ((2, 3, 4, 5), (2, 3, 1, 1)),
        ((2, 3, 1, 1), (2, 3, 4, 5)),
    ],
)
def test_mul(shapes: tuple[Shape, Shape]) -> None:
    assert shape_of(named(ops.Mul, 2), *shapes) == torch_shape(torch.mul, *shapes)
    same = shapes[0] == shapes[1]
    assert shape_of(named(ops.Add, 2), *shapes) == (shapes[0] if same else None)


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3, 4, 5), (2, 4, 4, 5)),
        ((2, 3, 4, 5), (2, 3, 4, 1)),  # torch would spread it; no network that packs does
        ((2, 3, 4, 5), (2, 1, 4, 5)),
        ((2, 3, 1, 5), (2, 3, 4, 1)),
        ((2, 3), (2, 3, 4, 5)),
        ((1, 3), (2, 3)),
    ],
)
@pytest.mark.parametrize("op", [ops.Mul, ops.Add])
def test_what_cannot_be_added_or_multiplied(op: type[Op], shapes: tuple[Shape, Shape]) -> None:
    with pytest.raises(BadShape, match="node"):
        named(op, 2).output_shape(shapes, None)


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3, 4, 5),),
        ((2, 3, 4, 5), (2, 1, 4, 5), (2, 7, 4, 5)),
        ((2, 3), (2, 5)),
        ((2, 3, 4, 5), (2, 3, 4, 6)),
        ((2, 3, 4, 5), (1, 3, 4, 5)),
        ((2, 3), (2, 3, 1, 1)),
    ],
)
def test_concat(shapes: tuple[Shape, ...]) -> None:
    expected = torch_shape(lambda *values: torch.cat(values, 1), *shapes)
    assert shape_of(named(ops.Concat, len(shapes)), *shapes) == expected


@pytest.mark.parametrize(("axes", "keep"), [*itertools.product([(2,), (3,), (2, 3)], [False, True])])
def test_mean(axes: Any, keep: bool) -> None:
    expected = torch_shape(lambda x: x.mean(axes, keepdim=keep), (2, 3, 4, 5))
    found = shape_of(named(ops.Mean, axes=axes, keep=keep), (2, 3, 4, 5))
    # A value has two or four dimensions, so a mean over one axis must keep it.
    assert found == (expected if expected is not None and len(expected) != 3 else None)


@pytest.mark.parametrize("axes", [(), (1,), (0, 2), (3, 2), (2, 2), (-1,)])
def test_means_over_other_axes(axes: Any) -> None:
    with pytest.raises(BadShape):
        named(ops.Mean, axes=axes, keep=True).output_shape([(2, 3, 4, 5)], None)


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.parametrize(
    "padding", [(0, 0, 0, 0), (1, 2, 3, 0), (3, 3, 4, 4), (4, 4, 5, 5), (5, 0, 0, 0), (9, 9, 9, 9)]
)
def test_pad(mode: Any, padding: Any) -> None:
    top, bottom, left, right = padding
    expected = torch_shape(lambda x: functional.pad(x, (left, right, top, bottom), mode=mode), (2, 3, 4, 5))
    assert shape_of(named(ops.Pad, padding=(0, 0, *padding), mode=mode), (2, 3, 4, 5)) == expected


def test_pad_of_channels() -> None:
    expected = torch_shape(lambda x: functional.pad(x, (0, 0, 0, 0, 4, 5)), (2, 3, 4, 5))
    assert shape_of(named(ops.Pad, padding=(4, 5, 0, 0, 0, 0)), (2, 3, 4, 5)) == expected
    with pytest.raises(BadShape, match="constant"):
        named(ops.Pad, padding=(4, 5, 0, 0, 0, 0), mode="reflect").output_shape([(2, 3, 4, 5)], None)
    for value in (float("nan"), float("inf"), 1e39):
        with pytest.raises(BadShape, match="float32"):
            named(ops.Pad, padding=(0,) * 6, value=value).output_shape([(2, 3, 4, 5)], None)


@pytest.mark.parametrize("start", [0, 1, -2, 3, 9, -9])
@pytest.mark.parametrize("stop", [None, 2, 5, -1, -9, 2**62])
@pytest.mark.parametrize("step", [1, 2, 7])
def test_slice(start: int, stop: int | None, step: int) -> None:
    for axis, shape in ((1, (2, 5)), (1, (2, 5, 3, 4)), (2, (2, 3, 5, 4)), (3, (2, 3, 4, 5))):
        index = (slice(None),) * axis + (slice(start, stop, step),)
        expected = torch_shape(lambda x, index=index: x[index], shape)
        assert shape_of(named(ops.Slice, axis=axis, start=start, stop=stop, step=step), shape) == expected


def test_slices_along_no_axis() -> None:
    with pytest.raises(BadShape, match="axis 2"):
        named(ops.Slice, axis=2).output_shape([(2, 3)], None)
    with pytest.raises(ZeroSize, match="step"):
        named(ops.Slice, axis=1, step=-1).output_shape([(2, 3)], None)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4, 5)])
def test_flatten(shape: Shape) -> None:
    assert shape_of(named(ops.Flatten), shape) == torch_shape(nn.Flatten(), shape)


@pytest.mark.parametrize(
    "new", [(60,), (-1,), (3, 4, 5), (5, -1, 3), (7, -1, 1), (61,), (5, 4, 4), (-1, -1, 5), (1, 1, 60)]
)
def test_reshape(new: Any) -> None:
    expected = torch_shape(lambda x: x.reshape(2, *new), (2, 3, 4, 5))
    assert shape_of(named(ops.Reshape, shape=new), (2, 3, 4, 5)) == expected


def test_reshape_to_other_dimensions() -> None:
    with pytest.raises(BadShape):
        named(ops.Reshape, shape=(12, 5)).output_shape([(2, 3, 4, 5)], None)
    with pytest.raises(ZeroSize):
        named(ops.Reshape, shape=(0,)).output_shape([(2, 3, 4, 5)], None)


IMAGES = [
    named(ops.MaxPool, kernel=(1, 1)),
    named(ops.AvgPool, kernel=(1, 1)),
    named(ops.AdaptiveAvgPool, size=(1, 1)),
    named(ops.AdaptiveMaxPool, size=(1, 1)),
    named(ops.Mean, axes=(2, 3)),
    named(ops.Pad, padding=(0,) * 6),
]


@pytest.mark.parametrize("node", IMAGES, ids=lambda node: type(node).__name__)
def test_what_takes_images_takes_nothing_else(node: Op) -> None:
    with pytest.raises(BadShape, match="height"):
        node.output_shape([(2, 3)], None)


@pytest.mark.parametrize(
    ("node", "error"),
    [
        (named(ops.MaxPool, kernel=(0, 1)), ZeroSize),
        (named(ops.MaxPool, kernel=(1, 1), stride=(0, 1)), ZeroSize),
        (named(ops.MaxPool, kernel=(1, 1), dilation=(1, -1)), ZeroSize),
        (named(ops.MaxPool, kernel=(5000, 1)), TooLarge),
        (named(ops.AvgPool, kernel=(1, 1), padding=(0, 0, 0, -1)), BadShape),
        (named(ops.AvgPool, kernel=(3, 3), padding=(2, 2, 1, 1)), BadShape),
        (named(ops.AdaptiveAvgPool, size=(0, 1)), ZeroSize),
        (named(ops.AdaptiveMaxPool, size=(5000, 1)), TooLarge),
        (named(ops.Pad, padding=(0, 0, -1, 0, 0, 0)), BadShape),
        (named(ops.Pad, padding=(0, 0, 5000, 0, 0, 0)), BadShape),
    ],
)
def test_sizes_that_cannot_be(node: Op, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        node.output_shape([(1, 2, 9, 9)], None)
    assert type(caught.value) is error
    assert "node" in str(caught.value)


def test_results_that_are_too_large() -> None:
    with pytest.raises(TooLarge, match="elements"):
        named(ops.Pad, padding=(4096, 4096, 4096, 4096, 4096, 4096)).output_shape([(1, 1, 1, 1)], None)
    with pytest.raises(TooLarge, match="over"):
        named(ops.Concat, 2).output_shape([(1, 2**24), (1, 1)], None)
