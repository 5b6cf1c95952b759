"""Winograd kernels give the reference's integers, or do not take a layer."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitstrata import _native, codes
from bitstrata.graph import Graph, Table, View, Weight, ops
from bitstrata.runtime.native import NativeSession, accumulators
from bitstrata.runtime.reference import ReferenceSession

KERNELS = [name for name in _native.kernel_names() if ".winograd" in name]
pytestmark = pytest.mark.skipif(not KERNELS, reason="the processor has none of their instruction sets")


def conv(padding: tuple[int, int, int, int] = (1, 1, 1, 1)) -> ops.Conv:
    return ops.Conv(name="c", inputs=("input",), padding=padding)


def expected(node: ops.Conv, weights: codes.Codes, x: np.ndarray, bits: int, source_bits: int, zero: int) -> np.ndarray:
    weight = Weight(name="c", shape=weights.shape)
    graph = Graph(weights=(weight,), nodes=(node,), outputs=("c",))
    table = Table(np.ones(1, np.float32), np.zeros(1, np.float32), np.float32(1.0), zero)
    view = View("v", {"c": bits}, {"c": table})
    return ReferenceSession(graph, source_bits, view, {"c": weights}, {}).accumulate(node, x)


def gaussian(rng: np.random.Generator, bits: int, shape: tuple[int, ...]) -> codes.Codes:
    """Codes as training leaves them: most are small."""
    low, high = codes.code_range(bits)
    return np.clip(np.rint(rng.normal(0, 0.28 * 2 ** (bits - 1), shape)), low, high).astype(np.int8)


def check(
    kernel: str,
    q: codes.Codes,
    x: np.ndarray,
    node: ops.Conv | None = None,
    *,
    bits: int,
    source_bits: int = 4,
    zero_point: int = 0,
) -> bool:
    """Whether the kernel took the layer; it must then give the reference's integers."""
    node = node or conv()
    got = accumulators(kernel, q, x, node, bits=bits, source_bits=source_bits, zero_point=zero_point)
    if got is None:
        return False
    np.testing.assert_array_equal(got, expected(node, q, x, bits, source_bits, zero_point))
    return True


def random_inputs(rng: np.random.Generator, bits: int, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(0, codes.activation_top(bits) + 1, shape).astype(np.uint8)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (2, 0, 1, 3)])
def test_sizes(kernel: str, padding: tuple[int, int, int, int]) -> None:
    rng = np.random.default_rng(1)
    q = gaussian(rng, 2, (20, 18, 3, 3))
    top, bottom, left, right = padding
    for height, width in [(1, 1), (1, 9), (2, 3), (3, 3), (4, 4), (5, 7), (9, 2), (13, 17), (40, 5)]:
        if height + top + bottom < 3 or width + left + right < 3:
            continue
        x = random_inputs(rng, 2, (2, 18, height, width))
        assert check(kernel, q, x, conv(padding), bits=2, zero_point=1), (height, width)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("inputs", [16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 128, 130])
def test_channels(kernel: str, inputs: int) -> None:
    rng = np.random.default_rng(inputs)
    for outputs in (1, 15, 16, 17, 32, 33, 64, 70):
        q, x = gaussian(rng, 2, (outputs, inputs, 3, 3)), random_inputs(rng, 2, (1, inputs, 7, 6))
        assert check(kernel, q, x, bits=2, zero_point=2)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("bits", "source_bits"), [(2, 2), (2, 4), (3, 4), (4, 4), (2, 8), (3, 8), (4, 8), (5, 8)])
def test_widths(kernel: str, bits: int, source_bits: int) -> None:
    rng = np.random.default_rng(bits)
    for zero_point in (0, 1, codes.activation_top(bits) // 2, codes.activation_top(bits)):
        q, x = gaussian(rng, bits, (40, 70, 3, 3)), random_inputs(rng, bits, (2, 70, 8, 9))
        taken = check(kernel, q, x, bits=bits, source_bits=source_bits, zero_point=zero_point)
        # Three-by-three tiles need 36 times the range of a code, and four-by-four ones 16 times.
        largest = {"2": 5, "3": 3, "4": 4}[kernel[-1]]
        assert taken == (bits <= largest) or bits == 5


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bits", [2, 3, 4, 5])
@pytest.mark.parametrize("inputs", [16, 64, 300])
def test_extremes_are_exact_or_refused(kernel: str, bits: int, inputs: int) -> None:
    rng = np.random.default_rng(bits)
    low, high = codes.code_range(bits)
    top = codes.activation_top(bits)
    shape = (33, inputs, 3, 3)
    signs = np.where(np.indices((3, 3)).sum(0) % 2 == 0, low, high) * np.ones(shape)
    rows = np.where(np.arange(3)[:, None] == 1, low, high) * np.ones(shape)
    for q in (np.full(shape, low), np.full(shape, high), rng.choice([low, high], shape), signs, rows):
        checkered = np.indices((9, 10)).sum(0) % 2 * top * np.ones((1, inputs, 1, 1))
        image = (1, inputs, 9, 10)
        for x in (np.full(image, top), np.zeros(image), rng.choice([0, top], image), checkered, top - checkered):
            check(kernel, q.astype(np.int8), x.astype(np.uint8), bits=bits, source_bits=max(bits, 4))


def test_two_bit_layers_are_always_taken() -> None:
    q, x = np.full((32, 64, 3, 3), -2, np.int8), np.full((1, 64, 6, 6), 3, np.uint8)
    for kernel in KERNELS:
        assert check(kernel, q, x, bits=2)


def test_weights_that_leave_a_byte_are_refused() -> None:
    """At the point (2, 2) of a three-by-three tile a weight counts up to sixteen times."""
    x = np.full((1, 16, 5, 5), 7, np.uint8)
    for value, taken in [(2, True), (3, False)]:
        q = np.full((16, 16, 3, 3), value, np.int8)
        for kernel in KERNELS:
            if kernel.endswith("3"):
                assert check(kernel, q, x, bits=3) == taken


@pytest.mark.skipif("avx2.winograd4" not in KERNELS, reason="the processor has no AVX2")
def test_products_that_could_saturate_are_refused() -> None:
    x = np.full((1, 16, 8, 8), 15, np.uint8)
    for value, taken in [(-8, False), (-7, True), (7, True)]:
        q = np.full((16, 16, 3, 3), value, np.int8)
        assert check("avx2.winograd4", q, x, bits=4) == taken
    # Sums of 32 bits have no such pairs.
    if "avx512.winograd4" in KERNELS:
        assert check("avx512.winograd4", np.full((16, 16, 3, 3), -8, np.int8), x, bits=4)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("channels", [256, 600])
def test_sums_longer_than_16_bits(kernel: str, channels: int) -> None:
    rng = np.random.default_rng(5)
    for bits in (2, 3, 4):
        q = gaussian(rng, bits, (32, channels, 3, 3))
        q[:16] = np.clip(q[:16], 0, None)
        x = np.full((1, channels, 6, 6), codes.activation_top(bits), np.uint8)
        check(kernel, q, x, bits=bits, zero_point=1)


@pytest.mark.parametrize("kernel", KERNELS)
def test_only_dense_three_by_three_layers_at_stride_one(kernel: str) -> None:
    rng = np.random.default_rng(6)
    x = random_inputs(rng, 2, (1, 32, 8, 8))
    for shape, options in [
        ((16, 32, 1, 1), {}),
        ((16, 32, 5, 5), {}),
        ((16, 32, 3, 1), {}),
        ((16, 32, 3, 3), {"stride": (2, 2)}),
        ((16, 32, 3, 3), {"dilation": (2, 1)}),
        ((16, 16, 3, 3), {"groups": 2}),
    ]:
        node = ops.Conv(name="c", inputs=("input",), **options)  # type: ignore[arg-type]
        assert accumulators(kernel, gaussian(rng, 2, shape), x, node, bits=2, source_bits=4) is None


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_layer(data: st.DataObject) -> None:
    draw = data.draw
    bits = draw(st.integers(2, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    inputs, outputs = draw(st.integers(16, 140)), draw(st.integers(1, 80))
    padding = draw(st.tuples(*[st.integers(0, 3)] * 4))
    image = (draw(st.integers(3, 16)), draw(st.integers(3, 16)))
    q = rng.integers(*codes.code_range(bits), (outputs, inputs, 3, 3), endpoint=True).astype(np.int8)
    x = random_inputs(rng, bits, (draw(st.integers(1, 3)), inputs, *image))
    zero_point = draw(st.integers(0, codes.activation_top(bits)))
    for kernel in KERNELS:
        check(kernel, q, x, conv(padding), bits=bits, source_bits=draw(st.integers(bits, 8)), zero_point=zero_point)


def residual_network(channels: int) -> Graph:
    """Two convolutions with an addition over them, then two with borders of their own that read its codes alone."""
    nodes = (
        ops.Conv(name="first", inputs=("input",), padding=(1, 1, 1, 1)),
        ops.Relu(name="one", inputs=("first",)),
        ops.Conv(name="second", inputs=("one",), padding=(1, 1, 1, 1)),
        ops.Add(name="sum", inputs=("second", "one")),
        ops.Relu(name="two", inputs=("sum",)),
        ops.Conv(name="third", inputs=("two",), padding=(2, 0, 1, 1)),
        ops.Conv(name="fourth", inputs=("two",), padding=(2, 0, 1, 1)),
    )
    names = ("first", "second", "third", "fourth")
    weights = tuple(Weight(name=name, shape=(channels, channels, 3, 3)) for name in names)
    return Graph(weights=weights, nodes=nodes, outputs=("third", "fourth"))


def session_pair(channels: int, bits: int, threads: int) -> tuple[NativeSession, ReferenceSession]:
    rng = np.random.default_rng(channels + bits)
    graph = residual_network(channels)
    q = {weight.name: gaussian(rng, bits, weight.shape) for weight in graph.weights}
    tables = {
        name: Table(
            rng.uniform(0.001, 0.01, channels).astype(np.float32),
            rng.normal(size=channels).astype(np.float32),
            np.float32(0.3),
            1 if name == "first" else 0,
        )
        for name in q
    }
    view = View("v", dict.fromkeys(q, bits), tables)
    native = NativeSession(graph, 4, view, q, {}, threads=threads)
    return native, ReferenceSession(graph, 4, view, q, {})


@pytest.mark.parametrize("channels", [16, 48, 64, 130])
@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("threads", [1, 3])
def test_sessions(channels: int, bits: int, threads: int) -> None:
    native, reference = session_pair(channels, bits, threads)
    if channels > 32 and not os.environ.get("BITSTRATA_KERNELS"):
        assert set(native.kernels().values()) & set(KERNELS)
    rng = np.random.default_rng(0)
    for batch, height, width in [(1, 7, 7), (3, 5, 9), (1, 33, 30), (1, 4, 72)]:  # also more than a strip in a row
        x = rng.normal(size=(batch, channels, height, width)).astype(np.float32)
        np.testing.assert_array_equal(native(x), reference(x))


@pytest.mark.parametrize("allowed", ["avx2", "portable"])
def test_a_lower_instruction_set_can_be_asked_for(allowed: str) -> None:
    program = """
import numpy as np
from tests.runtime.test_winograd import session_pair
native, reference = session_pair(32, 3, 2)
x = np.random.default_rng(0).normal(size=(1, 32, 9, 9)).astype(np.float32)
np.testing.assert_array_equal(native(x), reference(x))
print(*native.kernels().values())
"""
    environment = {**os.environ, "BITSTRATA_KERNELS": allowed, "PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert all(name.startswith(allowed) for name in done.stdout.split()), done.stdout
