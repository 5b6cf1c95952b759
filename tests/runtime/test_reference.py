"""The reference against torch's own operations, op by op."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from bitstrata import codes
from bitstrata.errors import BadInput
from bitstrata.graph import Graph, Table, View, Weight, check_graph, ops
from bitstrata.graph.network import Floats
from bitstrata.runtime.activations import exponential
from bitstrata.runtime.reference import ReferenceSession

SOURCE_BITS = 4


def run(node: ops.Op, *inputs: Floats) -> Floats:
    """One node without weights, fed from slices of one input along the channels."""
    nodes: list[ops.Op] = []
    start = 0
    for index, x in enumerate(inputs):
        nodes.append(ops.Slice(name=f"part{index}", inputs=("input",), axis=1, start=start, stop=start + x.shape[1]))
        start += x.shape[1]
    graph = Graph(weights=(), nodes=(*nodes, node), outputs=(node.name,))
    whole = np.concatenate(inputs, axis=1)
    check_graph(graph, SOURCE_BITS, whole.shape)
    result = ReferenceSession(graph, SOURCE_BITS, View("2", {}, {}), {}, {})(whole)
    assert isinstance(result, np.ndarray)
    return result


def image(seed: int, *shape: int) -> Floats:
    return (np.random.default_rng(seed).standard_normal(shape) * 3).astype(np.float32)


ONE_INPUT: dict[str, tuple[Callable[..., ops.Op], Callable[[Tensor], Tensor]]] = {
    "relu": (ops.Relu, functional.relu),
    "relu6": (ops.Relu6, functional.relu6),
    "hard_sigmoid": (ops.HardSigmoid, functional.hardsigmoid),
    "hard_swish": (ops.HardSwish, functional.hardswish),
    "sigmoid": (ops.Sigmoid, torch.sigmoid),
    "silu": (ops.Silu, functional.silu),
    "max_pool": (
        lambda **k: ops.MaxPool(kernel=(3, 2), stride=(2, 1), padding=(1, 1, 1, 1), dilation=(2, 1), **k),
        lambda x: functional.max_pool2d(x, (3, 2), (2, 1), (1, 1), (2, 1)),
    ),
    "max_pool_ceil": (
        lambda **k: ops.MaxPool(kernel=(2, 3), stride=(2, 3), ceil=True, **k),
        lambda x: functional.max_pool2d(x, (2, 3), (2, 3), ceil_mode=True),
    ),
    "avg_pool": (
        lambda **k: ops.AvgPool(kernel=(3, 3), stride=(2, 2), padding=(1, 1, 1, 1), **k),
        lambda x: functional.avg_pool2d(x, 3, 2, 1),
    ),
    "avg_pool_ceil": (
        lambda **k: ops.AvgPool(kernel=(3, 3), stride=(2, 2), padding=(1, 1, 1, 1), ceil=True, **k),
        lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    ),
    "avg_pool_inside": (
        lambda **k: ops.AvgPool(
            kernel=(3, 2), stride=(2, 2), padding=(1, 1, 1, 1), ceil=True, count_padding=False, **k
        ),
        lambda x: functional.avg_pool2d(x, (3, 2), 2, 1, ceil_mode=True, count_include_pad=False),
    ),
    "adaptive": (
        lambda **k: ops.AdaptiveAvgPool(size=(3, 2), **k),
        lambda x: functional.adaptive_avg_pool2d(x, (3, 2)),
    ),
    "adaptive_larger": (
        lambda **k: ops.AdaptiveAvgPool(size=(9, 11), **k),
        lambda x: functional.adaptive_avg_pool2d(x, (9, 11)),
    ),
    "adaptive_max": (
        lambda **k: ops.AdaptiveMaxPool(size=(2, 3), **k),
        lambda x: functional.adaptive_max_pool2d(x, (2, 3)),
    ),
    "mean": (lambda **k: ops.Mean(axes=(2, 3), **k), lambda x: x.mean((2, 3))),
    "mean_kept": (lambda **k: ops.Mean(axes=(2, 3), keep=True, **k), lambda x: x.mean((2, 3), keepdim=True)),
    "mean_of_rows": (lambda **k: ops.Mean(axes=(2,), keep=True, **k), lambda x: x.mean(2, keepdim=True)),
    "mean_of_columns": (lambda **k: ops.Mean(axes=(3,), keep=True, **k), lambda x: x.mean(3, keepdim=True)),
    "pad": (
        lambda **k: ops.Pad(padding=(1, 2, 3, 0, 1, 2), value=0.5, **k),
        lambda x: functional.pad(x, (1, 2, 3, 0, 1, 2), value=0.5),
    ),
    "reflect": (
        lambda **k: ops.Pad(padding=(0, 0, 3, 1, 2, 0), mode="reflect", **k),
        lambda x: functional.pad(x, (2, 0, 3, 1), mode="reflect"),
    ),
    "replicate": (
        lambda **k: ops.Pad(padding=(0, 0, 9, 1, 2, 0), mode="replicate", **k),
        lambda x: functional.pad(x, (2, 0, 9, 1), mode="replicate"),
    ),
    "circular": (
        lambda **k: ops.Pad(padding=(0, 0, 3, 1, 2, 4), mode="circular", **k),
        lambda x: functional.pad(x, (2, 4, 3, 1), mode="circular"),
    ),
    "slice": (lambda **k: ops.Slice(axis=2, start=-5, stop=-1, step=2, **k), lambda x: x[:, :, -5:-1:2]),
    "flatten": (ops.Flatten, lambda x: x.flatten(1)),
    "reshape": (lambda **k: ops.Reshape(shape=(7, -1, 2), **k), lambda x: x.reshape(len(x), 7, -1, 2)),
}


@pytest.mark.parametrize("case", ONE_INPUT)
def test_like_torch(case: str) -> None:
    make, theirs = ONE_INPUT[case]
    x = image(1, 2, 4, 7, 5)
    result = run(make(name="y", inputs=("part0",)), x)
    expected = theirs(torch.from_numpy(x)).numpy()
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_two_inputs_like_torch() -> None:
    x, y, factor = image(1, 2, 4, 7, 5), image(2, 2, 4, 7, 5), image(3, 2, 4, 7, 5)
    np.testing.assert_array_equal(run(ops.Add(name="y", inputs=("part0", "part1")), x, y), x + y)
    np.testing.assert_array_equal(
        run(ops.Concat(name="y", inputs=("part0", "part1", "part0")), x, y), np.concatenate([x, y, x], axis=1)
    )
    np.testing.assert_array_equal(run(ops.Mul(name="y", inputs=("part0", "part1")), x, factor), x * factor)


def test_mul_spreads_a_single_pixel() -> None:
    x = image(1, 2, 4, 7, 5)
    graph = Graph(
        weights=(),
        nodes=(
            ops.AdaptiveAvgPool(name="factor", inputs=("input",), size=(1, 1)),
            ops.Mul(name="y", inputs=("factor", "input")),
        ),
        outputs=("y", "factor"),
    )
    result, factor = ReferenceSession(graph, SOURCE_BITS, View("2", {}, {}), {}, {})(x)
    np.testing.assert_array_equal(result, x * factor)


CONVOLUTIONS = {
    "plain": {"shape": (5, 4, 3, 3), "padding": (1, 1, 1, 1)},
    "strided": {"shape": (5, 4, 3, 2), "stride": (2, 3), "padding": (1, 1, 0, 0)},
    "dilated": {"shape": (5, 4, 3, 3), "dilation": (2, 1), "padding": (2, 2, 1, 1)},
    "grouped": {"shape": (6, 2, 3, 3), "groups": 2, "padding": (1, 1, 1, 1)},
    "depthwise": {"shape": (8, 1, 5, 5), "groups": 4, "padding": (2, 2, 2, 2)},
    "pointwise": {"shape": (3, 4, 1, 1)},
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize(("bits", "zero_point"), [(2, 0), (3, 4), (4, 0), (4, 3)])
def test_quantised_convolution_like_torch(case: str, bits: int, zero_point: int) -> None:
    """Equal to torch's convolution in float64 of de-quantised activations and weights, up to the final rounding."""
    options = dict(CONVOLUTIONS[case])
    shape = options.pop("shape")
    rng = np.random.default_rng(5)
    low, high = codes.code_range(bits)
    weights = rng.integers(low, high + 1, shape).astype(np.int8)
    table = Table(
        scale=rng.standard_normal(shape[0]).astype(np.float32),
        bias=rng.standard_normal(shape[0]).astype(np.float32),
        step=np.float32(0.7),
        zero_point=zero_point,
    )
    node = ops.Conv(name="y", inputs=("input",), **options)
    graph = Graph(weights=(Weight(name="y", shape=shape),), nodes=(node,), outputs=("y",))
    x = image(1, 2, 4, 7, 6)
    check_graph(graph, SOURCE_BITS, x.shape)
    session = ReferenceSession(graph, SOURCE_BITS, View("v", {"y": bits}, {"y": table}), {"y": weights}, {})

    u = codes.quantise_activations(x, 0.7, zero_point, bits)
    integers = codes.odd_integers(weights, SOURCE_BITS, bits)
    top, _, left, _ = node.padding
    expected = functional.conv2d(
        torch.from_numpy(u.astype(np.float64) - zero_point),
        torch.from_numpy(integers.astype(np.float64)),
        stride=node.stride,
        padding=(top, left),
        dilation=node.dilation,
        groups=node.groups,
    ).numpy()
    np.testing.assert_array_equal(session.accumulate(node, session.input_codes(node, x)), expected)
    spread = (1, -1, 1, 1)
    scaled = expected.astype(np.float32) * table.scale.reshape(spread) + table.bias.reshape(spread)
    np.testing.assert_array_equal(session(x), scaled)


def test_linear_reads_codes() -> None:
    weights = np.array([[1, -2, 0], [-1, 1, 1]], dtype=np.int8)
    table = Table(np.float32([0.5, 2.0]), np.float32([0.0, 1.0]), np.float32(1.0), 1)
    node = ops.Linear(name="y", inputs=("input",))
    graph = Graph(weights=(Weight(name="y", shape=(2, 3)),), nodes=(node,), outputs=("y",))
    session = ReferenceSession(graph, SOURCE_BITS, View("v", {"y": 2}, {"y": table}), {"y": weights}, {})
    # codes 1, 3 (clipped), 0 less the zero point 1 are 0, 2, -1; the weights 8q + 3 are 11, -13, 3 and -5, 11, 11
    np.testing.assert_array_equal(session.accumulate(node, np.uint8([[1, 3, 0]])), [[-29, 11]])
    np.testing.assert_array_equal(session(np.float32([[0.0, 9.0, -4.0]])), [[-14.5, 23.0]])


def test_exponential_is_right_and_never_overflows() -> None:
    x = np.linspace(-87, 88, 100_001).astype(np.float32)
    np.testing.assert_allclose(exponential(x), np.exp(x.astype(np.float64)), rtol=2e-7)
    extremes = exponential(np.float32([-1e30, 1e30, -np.inf, np.inf]))
    assert np.isfinite(extremes).all()
    assert (extremes > 0).all()


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (np.zeros((1, 3, 8, 8), dtype=np.float32), "4 input channels|do not fit"),
        (np.zeros((4, 8, 8), dtype=np.float32), "batch, channels"),
        (np.zeros((0, 4, 8, 8), dtype=np.float32), "empty"),
        (np.zeros((1, 4, 1, 1), dtype=np.float32), "does not fit an image"),
        (np.array(["a"]), "array of numbers"),
    ],
)
def test_refuses_inputs_that_do_not_fit(x: Floats, reason: str) -> None:
    node = ops.Conv(name="y", inputs=("input",))
    graph = Graph(weights=(Weight(name="y", shape=(2, 4, 3, 3), store="float32"),), nodes=(node,), outputs=("y",))
    table = Table(np.ones(2, np.float32), np.zeros(2, np.float32))
    session = ReferenceSession(graph, 4, View("v", {}, {"y": table}), {}, {"y": np.zeros((2, 4, 3, 3), np.float32)})
    with pytest.raises(BadInput, match=reason):
        session(x)
