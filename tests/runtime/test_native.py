"""The native runtime gives the reference's bits: every kernel on a grid of layers, sessions on random networks."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitstrata import _native, codes
from bitstrata.errors import BadCodes, BadInput, BadOption, BadTable
from bitstrata.graph import Graph, Table, View, Weight, check_graph, ops
from bitstrata.graph.network import Floats
from bitstrata.runtime.native import KEPT_SHAPES, NativeSession, accumulators
from bitstrata.runtime.reference import ReferenceSession

SOURCE_BITS = 4
# The kernels of test_winograd.py take too few of the layers here.
INTEGER_KERNELS = [name for name in _native.kernel_names() if not name.endswith("float") and "winograd" not in name]
#: Those that take some windows and widths only.
SPECIAL_KERNELS = {"avx512.depthwise", "avx2.narrow_depthwise"}
#: Those of one width.
TWO_BITS_ONLY = {"avx2.lookup"}


# Kernels, one layer at a time


def expected(node: ops.Conv, weights: codes.Codes, x: np.ndarray, bits: int, source_bits: int, zero: int) -> np.ndarray:
    weight = Weight(name="c", shape=weights.shape)
    graph = Graph(weights=(weight,), nodes=(node,), outputs=("c",))
    table = Table(np.ones(1, np.float32), np.zeros(1, np.float32), np.float32(1.0), zero)
    view = View("v", {"c": bits}, {"c": table})
    return ReferenceSession(graph, source_bits, view, {"c": weights}, {}).accumulate(node, x)


def filled(rng: np.random.Generator, how: str, low: int, high: int, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    match how:
        case "lowest":
            values = np.full(shape, low)
        case "highest":
            values = np.full(shape, high)
        case "extremes":
            values = rng.choice([low, high], shape)
        case _:
            values = rng.integers(low, high + 1, shape)
    return values.astype(dtype)


def check_layer(
    kernel: str,
    node: ops.Conv,
    shape: tuple[int, int, int, int],
    image: tuple[int, int],
    *,
    bits: int = 2,
    source_bits: int = 4,
    zero_point: int = 0,
    weights: str = "any",
    inputs: str = "any",
    batch: int = 2,
) -> bool:
    """Whether the kernel took the layer; it must then give the reference's integers."""
    rng = np.random.default_rng(hash((shape, image, bits, zero_point)) % 2**32)
    q = filled(rng, weights, *codes.code_range(bits), shape, np.int8)
    x = filled(rng, inputs, 0, codes.activation_top(bits), (batch, shape[1] * node.groups, *image), np.uint8)
    got = accumulators(kernel, q, x, node, bits=bits, source_bits=source_bits, zero_point=zero_point)
    if got is None:
        return False
    np.testing.assert_array_equal(got, expected(node, q, x, bits, source_bits, zero_point))
    return True


def conv(**options: object) -> ops.Conv:
    return ops.Conv(name="c", inputs=("input",), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kernel", INTEGER_KERNELS)
@pytest.mark.parametrize("window", [(1, 1), (3, 3), (5, 5), (7, 7), (1, 7), (3, 2), (2, 5)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (3, 1)])
def test_windows(kernel: str, window: tuple[int, int], stride: tuple[int, int]) -> None:
    taken = False
    bits = 2 if kernel in TWO_BITS_ONLY else 3
    for padding in [(0, 0, 0, 0), (1, 1, 1, 1), (2, 0, 1, 3)]:
        for dilation in [(1, 1), (2, 1), (1, 3)]:
            for inputs, outputs, groups in [(5, 17, 1), (12, 6, 3), (19, 19, 19)]:
                node = conv(stride=stride, padding=padding, dilation=dilation, groups=groups)
                shape = (outputs, inputs // groups, *window)
                taken |= check_layer(kernel, node, shape, (14, 21), bits=bits, zero_point=3)
    square = window in [(3, 3), (5, 5)] and stride in [(1, 1), (2, 2)]
    assert taken or (kernel in SPECIAL_KERNELS and not square)


@pytest.mark.parametrize("kernel", INTEGER_KERNELS)
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 128, 129])
def test_channels(kernel: str, channels: int) -> None:
    taken = False
    for other in [1, 8, 13, 40]:
        taken |= check_layer(kernel, conv(padding=(1, 1, 1, 1)), (other, channels, 3, 3), (3, 5), zero_point=1)
        taken |= check_layer(kernel, conv(), (channels, other, 1, 1), (7, 7), zero_point=1)
    if channels > 1:
        node = conv(padding=(1, 1, 1, 1), groups=channels)
        taken |= check_layer(kernel, node, (channels, 1, 3, 3), (6, 5), zero_point=2)
        taken |= check_layer(kernel, node, (2 * channels, 1, 3, 3), (6, 5), zero_point=2)
    assert taken or kernel.endswith("depthwise")


@pytest.mark.parametrize("kernel", INTEGER_KERNELS)
@pytest.mark.parametrize(
    ("bits", "source_bits"), [(bits, source) for source in range(2, 9) for bits in range(2, source + 1)]
)
def test_widths_and_extremes(kernel: str, bits: int, source_bits: int) -> None:
    top = codes.activation_top(bits)
    taken = False
    for groups, shape in [(1, (18, 40, 3, 3)), (20, (20, 1, 3, 3)), (2, (18, 12, 3, 3))]:
        node = conv(padding=(1, 1, 1, 1), groups=groups)
        for weights, inputs, zero_point in [
            ("lowest", "highest", 0),
            ("highest", "highest", 0),
            ("lowest", "lowest", top),
            ("highest", "lowest", top),
            ("extremes", "extremes", 1),
            ("any", "any", top // 2),
        ]:
            taken |= check_layer(
                kernel,
                node,
                shape,
                (4, 5),
                bits=bits,
                source_bits=source_bits,
                zero_point=zero_point,
                weights=weights,
                inputs=inputs,
            )
    assert taken or (kernel in SPECIAL_KERNELS and source_bits > 6) or (kernel in TWO_BITS_ONLY and bits > 2)


@pytest.mark.parametrize("kernel", INTEGER_KERNELS)
def test_long_sums(kernel: str) -> None:
    """More products than any 16-bit sum can hold, all of one sign."""
    for bits in (2, 4, 7, 8):
        for weights in ("lowest", "highest", "extremes"):
            check_layer(
                kernel, conv(), (9, 4096, 1, 1), (1, 1), bits=bits, source_bits=8, weights=weights, inputs="highest"
            )


@pytest.mark.skipif("avx2.direct" not in INTEGER_KERNELS, reason="the processor has no AVX2")
def test_products_that_could_saturate_are_left_to_the_wide_kernel() -> None:
    x = np.full((1, 4, 1, 1), 255, np.uint8)
    for value, taken in [(-128, False), (127, False), (-64, True), (64, True), (65, False)]:
        q = np.full((8, 4, 1, 1), value, np.int8)
        got = accumulators("avx2.direct", q, x, conv(), bits=8, source_bits=8)
        assert (got is not None) == taken, value


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_layer(data: st.DataObject) -> None:
    draw = data.draw
    groups = draw(st.sampled_from([1, 1, 2, 5]))
    shape = (
        groups * draw(st.integers(1, 20)),
        draw(st.integers(1, 20)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
    )
    if draw(st.booleans()):
        groups, shape = shape[0], (shape[0], 1, *shape[2:])
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    node = conv(
        stride=draw(pair), dilation=draw(pair), groups=groups, padding=draw(st.tuples(*[st.integers(0, 3)] * 4))
    )
    image = [d * (k - 1) + 1 + draw(st.integers(0, 8)) for k, d in zip(shape[2:], node.dilation, strict=True)]
    source_bits = draw(st.integers(2, 8))
    bits = draw(st.integers(2, source_bits))
    for kernel in INTEGER_KERNELS:
        check_layer(
            kernel,
            node,
            shape,
            (image[0], image[1]),
            bits=bits,
            source_bits=source_bits,
            zero_point=draw(st.integers(0, codes.activation_top(bits))),
            weights=draw(st.sampled_from(["any", "extremes"])),
            inputs=draw(st.sampled_from(["any", "extremes"])),
            batch=draw(st.integers(1, 3)),
        )


@pytest.mark.skipif("avx2.lookup" not in INTEGER_KERNELS, reason="the processor has no AVX2")
@pytest.mark.parametrize(("weights", "taken"), [("lowest", False), ("highest", True)])
def test_sums_that_could_leave_16_bits_are_not_looked_up(weights: str, taken: bool) -> None:
    for inputs, fits in [(5461, True), (5464, taken), (10922, taken), (10924, False)]:
        got = check_layer("avx2.lookup", conv(), (33, inputs, 1, 1), (1, 2), weights=weights, inputs="highest")
        assert got == fits, inputs


def test_a_float_kernel_takes_no_codes() -> None:
    ones = np.ones((1, 1, 1, 1), np.int8)
    for kernel in set(_native.kernel_names()) - set(INTEGER_KERNELS):
        assert accumulators(kernel, ones, ones.view(np.uint8), conv(), bits=2, source_bits=2) is None


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="no such kernel"):
        accumulators(
            "sse9", np.zeros((1, 1, 1, 1), np.int8), np.zeros((1, 1, 1, 1), np.uint8), conv(), bits=2, source_bits=2
        )


# Whole sessions


class RandomNetwork:
    """A network of random nodes of every kind, with the tables of one view; exact, so without float layers."""

    def __init__(self, seed: int, image: tuple[int, int, int] = (5, 13, 11)) -> None:
        self.rng = np.random.default_rng(seed)
        self.image = image
        self.nodes: list[ops.Op] = []
        self.weights: list[Weight] = []
        self.bits: dict[str, int] = {}
        self.tables: dict[str, Table] = {}
        self.codes: dict[str, codes.Codes] = {}
        self.shapes: dict[str, tuple[int, ...]] = {"input": (1, *image)}

    def pick(self, *ranks: int) -> str:
        names = [name for name, shape in self.shapes.items() if not ranks or len(shape) in ranks]
        return names[-1 - min(int(self.rng.geometric(0.5)) - 1, len(names) - 1)]

    def add(self, make: Callable[..., ops.Op], *inputs: str, weight: Weight | None = None, **options: object) -> None:
        name = weight.name if weight else f"n{len(self.nodes)}"
        node = make(name=name, inputs=inputs, **options)
        self.shapes[name] = node.output_shape([self.shapes[one] for one in inputs], weight)
        self.nodes.append(node)

    def table(self, channels: int, inputs: int, name: str, bits: int | None = None) -> None:
        size = (inputs**-0.5) * 0.05 if bits else 1.0
        scale = (self.rng.normal(size=channels) * size).astype(np.float32)
        bias = self.rng.normal(size=channels).astype(np.float32)
        if bits is None:
            self.tables[name] = Table(scale, bias)
            return
        zero_point = int(self.rng.integers(0, 1 << bits)) if self.rng.random() < 0.5 else 0
        self.tables[name] = Table(scale, bias, np.float32(self.rng.uniform(0.05, 1.5)), zero_point)

    def quantise(self, shape: tuple[int, ...]) -> Weight:
        weight = Weight(name=f"n{len(self.nodes)}", shape=shape)
        bits = int(self.rng.integers(2, SOURCE_BITS + 1))
        low, high = codes.code_range(bits)
        self.weights.append(weight)
        self.bits[weight.name] = bits
        self.codes[weight.name] = self.rng.integers(low, high + 1, shape).astype(np.int8)
        self.table(shape[0], int(np.prod(shape[1:])), weight.name, bits)
        return weight

    def convolution(self) -> None:
        source = self.pick(4)
        _, channels, height, width = self.shapes[source]
        kind = self.rng.choice(["plain", "depthwise", "grouped"])
        groups = {"plain": 1, "depthwise": channels, "grouped": 2 if channels % 2 == 0 else 1}[str(kind)]
        outputs = channels if kind == "depthwise" else groups * int(self.rng.integers(1, 14))
        kernel = tuple(int(self.rng.integers(1, 1 + min(4, size))) for size in (height, width))
        weight = self.quantise((outputs, channels // groups, *kernel))
        padding = tuple(int(self.rng.integers(0, 3)) for _ in range(4))
        stride = tuple(int(one) for one in self.rng.integers(1, 3, 2))
        self.add(ops.Conv, source, weight=weight, groups=groups, padding=padding, stride=stride)

    def linear(self) -> None:
        if all(len(shape) != 2 for shape in self.shapes.values()):
            return
        source = self.pick(2)
        self.add(ops.Linear, source, weight=self.quantise((int(self.rng.integers(1, 40)), self.shapes[source][1])))

    def addition(self) -> None:
        first = self.pick()
        others = [name for name, shape in self.shapes.items() if shape == self.shapes[first]]
        self.add(ops.Add, first, str(self.rng.choice(others)))

    def product(self) -> None:
        """As in squeeze and excitation."""
        source = self.pick(4)
        gate = f"n{len(self.nodes)}"
        self.add(ops.AdaptiveAvgPool, source, size=(1, 1))
        self.add(ops.HardSigmoid, gate)
        self.add(ops.Mul, *self.rng.permutation([source, self.nodes[-1].name]).tolist())

    def concatenation(self) -> None:
        first = self.pick()
        shape = self.shapes[first]
        others = [name for name, one in self.shapes.items() if len(one) == len(shape) and one[2:] == shape[2:]]
        self.add(ops.Concat, first, *(str(name) for name in self.rng.choice(others, int(self.rng.integers(1, 4)))))
        if self.shapes[self.nodes[-1].name][1] > 60:
            self.add(ops.Slice, self.nodes[-1].name, axis=1, start=int(self.rng.integers(0, 5)), stop=-7, step=3)

    def pooling(self) -> None:
        source = self.pick(4)
        height, width = self.shapes[source][2:]
        kernel = (min(3, height), min(2, width))
        padding = tuple(int(self.rng.integers(0, 1 + kernel[axis // 2] // 2)) for axis in range(4))
        options = {"kernel": kernel, "stride": (2, 1), "padding": padding, "ceil": bool(self.rng.integers(0, 2))}
        if self.rng.integers(0, 2):
            self.add(ops.MaxPool, source, **options)
        else:
            self.add(ops.AvgPool, source, **options, count_padding=bool(self.rng.integers(0, 2)))

    def reduction(self) -> None:
        source = self.pick(4)
        match int(self.rng.integers(0, 5)):
            case 0:
                self.add(ops.Mean, source, axes=(2, 3))
            case 1:
                self.add(ops.Mean, source, axes=(int(self.rng.integers(2, 4)),), keep=True)
            case 2:
                self.add(ops.AdaptiveMaxPool, source, size=(2, 3))
            case 3:
                self.add(ops.AdaptiveAvgPool, source, size=(3, 4))
            case _:
                self.add(ops.Mean, source, axes=(2, 3), keep=True)

    def reshaping(self) -> None:
        source = self.pick()
        shape = self.shapes[source]
        if int(np.prod(shape[1:])) > 3000:
            return
        match int(self.rng.integers(0, 3)):
            case 0:
                self.add(ops.Flatten, source)
            case 1:
                self.add(ops.Reshape, source, shape=(int(np.prod(shape[1:])), 1, 1))
            case _ if len(shape) == 4:
                self.add(ops.Reshape, source, shape=(shape[2], shape[1], -1))

    def padding(self) -> None:
        source = self.pick(4)
        height, width = self.shapes[source][2:]
        mode = str(self.rng.choice(["constant", "reflect", "replicate", "circular"]))
        around = [int(self.rng.integers(0, min(size, 3))) for size in (height, height, width, width)]
        before = (1, 2) if mode == "constant" else (0, 0)
        self.add(ops.Pad, source, padding=(*before, *around), mode=mode, value=0.25)

    def slicing(self) -> None:
        source = self.pick(4)
        axis = int(self.rng.integers(1, 4))
        size = self.shapes[source][axis]
        if size > 4:
            self.add(ops.Slice, source, axis=axis, start=1, stop=int(self.rng.choice([size, -1])), step=2)

    def scaling(self) -> None:
        source = self.pick()
        self.table(self.shapes[source][1], 1, f"n{len(self.nodes)}")
        self.add(ops.Affine, source)

    def activation(self) -> None:
        self.add(ops.ACTIVATIONS[int(self.rng.integers(0, len(ops.ACTIVATIONS)))], self.pick())

    def grow(self, count: int) -> RandomNetwork:
        kinds = [self.convolution] * 6 + [self.activation] * 4 + [self.addition] * 3 + [self.linear] * 2
        kinds += [self.product, self.concatenation, self.pooling, self.reduction, self.reshaping]
        kinds += [self.padding, self.slicing, self.scaling]
        while len(self.nodes) < count:
            kinds[int(self.rng.integers(0, len(kinds)))]()
        return self

    def parts(self) -> tuple[Graph, int, View, dict[str, codes.Codes], dict[str, Floats]]:
        names = [node.name for node in self.nodes]
        outputs = (names[-1], *self.rng.choice(names, 3).tolist())
        graph = Graph(weights=tuple(self.weights), nodes=tuple(self.nodes), outputs=outputs)  # type: ignore[arg-type]
        check_graph(graph, SOURCE_BITS, (1, *self.image))
        return graph, SOURCE_BITS, View("v", self.bits, self.tables), self.codes, {}

    def input(self, batch: int = 1) -> Floats:
        return self.rng.normal(size=(batch, *self.image)).astype(np.float32)


def assert_same(got: Floats | tuple[Floats, ...], wanted: Floats | tuple[Floats, ...]) -> None:
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the reference's, where a random network overflows
def test_random_networks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    network = RandomNetwork(seed).grow(25)
    parts = network.parts()
    reference = ReferenceSession(*parts)
    native = NativeSession(*parts, threads=1 + seed % 3)
    monkeypatch.setenv("BITSTRATA_KERNELS", "portable")
    portable = NativeSession(*parts, threads=1)
    assert all(name.startswith("portable.") for name in portable.kernels().values())
    for batch in (1, 3):
        x = network.input(batch)
        wanted = reference(x)
        assert_same(native(x), wanted)
        assert_same(portable(x), wanted)


def small_network(seed: int = 0) -> RandomNetwork:
    """Convolutions, a residual and pooling: a network that takes images of any size."""
    network = RandomNetwork(seed, (6, 20, 20))
    for _ in range(2):
        source = network.nodes[-1].name if network.nodes else "input"
        weight = network.quantise((24, network.shapes[source][1], 3, 3))
        network.add(ops.Conv, source, weight=weight, padding=(1, 1, 1, 1))
        network.add(ops.Relu, weight.name)
        source = network.nodes[-1].name
        weight = network.quantise((24, 24, 3, 3))
        network.add(ops.Conv, source, weight=weight, padding=(1, 1, 1, 1))
        network.add(ops.Add, weight.name, source)
        network.add(ops.HardSwish, network.nodes[-1].name)
    network.add(ops.AdaptiveAvgPool, network.nodes[-1].name, size=(1, 1))
    network.add(ops.Flatten, network.nodes[-1].name)
    network.add(ops.Linear, network.nodes[-1].name, weight=network.quantise((70, 24)))
    return network


def test_any_batch_and_size() -> None:
    parts = small_network().parts()
    reference, native = ReferenceSession(*parts), NativeSession(*parts, threads=2)
    rng = np.random.default_rng(0)
    for shape in [(1, 6, 1, 1), (7, 6, 3, 5), (2, 6, 33, 17), (1, 6, 48, 1), (1, 6, 20, 20), (5, 6, 1, 2)] * 2:
        x = rng.normal(size=shape).astype(np.float32)
        assert_same(native(x), reference(x))


def test_more_shapes_than_are_kept() -> None:
    parts = small_network().parts()
    native = NativeSession(*parts, threads=1)
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=(1, 6, 4, 4 + width)).astype(np.float32) for width in range(KEPT_SHAPES + 4)]
    first = [native(x) for x in inputs]
    for x, wanted in zip(inputs, first, strict=True):
        assert_same(native(x), wanted)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_the_number_of_threads_changes_nothing(threads: int) -> None:
    parts = small_network().parts()
    x = small_network().input(3)
    session = NativeSession(*parts, threads=threads)
    wanted = ReferenceSession(*parts)(x)
    for _ in range(20):
        assert_same(session(x), wanted)


def test_calls_from_several_threads() -> None:
    parts = small_network().parts()
    session = NativeSession(*parts, threads=2)
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=(1 + index % 3, 6, 9 + index, 10)).astype(np.float32) for index in range(4)]
    reference = ReferenceSession(*parts)
    wanted = [reference(x) for x in inputs]
    barrier = threading.Barrier(4)

    def work(which: int) -> None:
        barrier.wait()
        for turn in range(30):
            index = (which + turn) % 4
            assert_same(session(inputs[index]), wanted[index])

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, which) for which in range(4)]:
            done.result()


@pytest.mark.parametrize("portable", [False, True])
def test_float_layers(portable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if portable:
        monkeypatch.setenv("BITSTRATA_KERNELS", "portable")
    rng = np.random.default_rng(0)
    cases = [
        (conv(stride=(2, 2), padding=(3, 3, 3, 3)), (64, 3, 7, 7)),
        (conv(padding=(0, 1, 2, 0), dilation=(1, 2)), (17, 5, 2, 3)),
        (conv(groups=4, padding=(1, 1, 1, 1)), (12, 2, 3, 3)),
        (conv(groups=9), (9, 1, 3, 2)),
    ]
    for node, shape in cases:
        weight = Weight(name="c", shape=shape, store="float32")
        graph = Graph(weights=(weight,), nodes=(node,), outputs=("c",))
        scale, bias = rng.normal(size=(2, shape[0])).astype(np.float32)
        kernel = (rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        own = Graph(weights=(Weight(name="c", shape=shape, store="float32", own=True),), nodes=(node,), outputs=("c",))
        x = rng.normal(size=(2, shape[1] * node.groups, 15, 14)).astype(np.float32)
        for network, floats, owned in [(graph, {"c": kernel}, {}), (own, {}, {"c": kernel})]:
            parts = (network, 4, View("v", {}, {"c": Table(scale, bias)}, owned), {}, floats)
            got = NativeSession(*parts, threads=2)(x)
            np.testing.assert_allclose(got, ReferenceSession(*parts)(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": (3, 2), "dilation": (2, 3), "padding": (1, 2, 2, 1)},
        {"kernel": (2, 3), "dilation": (3, 1), "padding": (2, 1, 0, 1), "stride": (1, 2)},
        {"kernel": (4, 2), "dilation": (2, 2), "padding": (3, 3, 1, 0), "stride": (3, 3), "ceil": True},
    ],
)
def test_dilated_pooling(options: dict[str, object]) -> None:
    x = np.random.default_rng(0).normal(size=(2, 19, 11, 12)).astype(np.float32)
    graph = Graph(weights=(), nodes=(ops.MaxPool(name="y", inputs=("input",), **options),), outputs=("y",))  # type: ignore[arg-type]
    parts = (graph, 4, View("v", {}, {}), {}, {})
    np.testing.assert_array_equal(NativeSession(*parts)(x), ReferenceSession(*parts)(x))


def test_activations_to_the_last_bit() -> None:
    values = np.concatenate(
        [
            np.linspace(-100, 100, 20_011, dtype=np.float32),
            np.random.default_rng(0).normal(size=5_000).astype(np.float32) * 5,
            np.array([0.0, -0.0, -3.0, 3.0, 1e-38, -1e-38, 3e38, -3e38, 88.0, -87.0], np.float32),
        ]
    )
    x = values.reshape(1, 1, -1, 1)
    for op in ops.ACTIVATIONS:
        graph = Graph(weights=(), nodes=(op(name="y", inputs=("input",)),), outputs=("y",))
        parts = (graph, 4, View("v", {}, {}), {}, {})
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(NativeSession(*parts)(x), ReferenceSession(*parts)(x), err_msg=op.__name__)


@pytest.mark.parametrize("zero_point", [0, 1, 7, 15])
def test_input_codes_at_the_halves(zero_point: int) -> None:
    """Half rounds to even, and everything beyond the range is clamped."""
    values = np.concatenate([np.arange(-40, 40, 0.25), [1e30, -1e30, np.inf, -np.inf]]).astype(np.float32)
    weight = Weight(name="c", shape=(1, 1, 1, 1))
    graph = Graph(weights=(weight,), nodes=(conv(),), outputs=("c",))
    table = Table(np.ones(1, np.float32), np.zeros(1, np.float32), np.float32(0.5), zero_point)
    parts = (graph, 4, View("v", {"c": 4}, {"c": table}), {"c": np.ones((1, 1, 1, 1), np.int8)}, {})
    x = values.reshape(1, 1, 1, -1)
    np.testing.assert_array_equal(NativeSession(*parts)(x), ReferenceSession(*parts)(x))


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
@pytest.mark.parametrize("outputs", [8, 13, 16, 40])
@pytest.mark.parametrize("activation", [None, ops.Relu, ops.Relu6, ops.Silu])
def test_codes_between_layers(
    isa: str, outputs: int, activation: type[ops.Op] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every instruction set makes the same codes: all activations, numbers too large for 32 bits, several readers."""
    monkeypatch.setenv("BITSTRATA_KERNELS", isa)
    rng = np.random.default_rng(outputs)
    weights = (Weight(name="a", shape=(outputs, 5, 3, 3)), Weight(name="b", shape=(7, outputs, 1, 1)))
    nodes: list[ops.Op] = [ops.Conv(name="a", inputs=("input",), padding=(1, 1, 1, 1))]
    if activation is not None:
        nodes.append(activation(name="r", inputs=("a",)))
    nodes.append(ops.Conv(name="b", inputs=(nodes[-1].name,)))
    integers = {weight.name: rng.integers(-8, 8, weight.shape).astype(np.int8) for weight in weights}
    for size, zero_point, several in [(0.01, 0, False), (0.01, 5, True), (1e30, 3, False), (3e3, 0, True)]:
        scale = (rng.normal(size=outputs) * size).astype(np.float32)
        bias = (rng.normal(size=outputs) * min(size, 1e3)).astype(np.float32)
        tables = {
            "a": Table(scale, bias, np.float32(0.3), 2),
            "b": Table(np.ones(7, np.float32), np.zeros(7, np.float32), np.float32(0.21), zero_point),
        }
        graph = Graph(weights=weights, nodes=tuple(nodes), outputs=("b", nodes[-2].name) if several else ("b",))
        parts = (graph, 4, View("v", {"a": 4, "b": 4}, tables), integers, {})
        x = rng.normal(size=(2, 5, 9, 7)).astype(np.float32)
        with np.errstate(over="ignore"):
            wanted = ReferenceSession(*parts)(x)
        for threads in (1, 2):
            found = NativeSession(*parts, threads=threads)(x)
            for got, value in zip(found, wanted, strict=True):  # outputs, or samples of the only one
                np.testing.assert_array_equal(got, value)


def test_the_environment_bounds_the_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = ["portable", "avx2", "avx512"]
    there = {name.partition(".")[0] for name in _native.kernel_names()}
    for index, most in enumerate(sets):
        monkeypatch.setenv("BITSTRATA_KERNELS", most)
        assert _native.isa() == [one for one in sets[: index + 1] if one in there][-1]
        kernels = NativeSession(*small_network().parts()).kernels().values()
        assert {name.partition(".")[0] for name in kernels} <= set(sets[: index + 1])


def test_what_a_call_accepts() -> None:
    parts = small_network().parts()
    session = NativeSession(*parts, threads=1)
    x = small_network().input(2)
    wanted = session(x)
    assert_same(session(x.astype(np.float64)), wanted)
    assert_same(session(np.asfortranarray(x)), wanted)
    assert_same(session(np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)), wanted)
    assert_same(session(np.repeat(x, 2, axis=0)[::2]), wanted)
    for bad in [x[0], x[:, :5], x[:0], np.array([["a"]]), x.astype(complex), None]:
        with pytest.raises(BadInput):
            session(bad)  # type: ignore[arg-type]


def test_results_belong_to_the_caller() -> None:
    parts = small_network().parts()
    session = NativeSession(*parts, threads=1)
    x = small_network().input()
    first = session(x)
    kept = [one.copy() for one in first]
    session(x + 1)
    assert_same(first, tuple(kept))


def test_one_output_is_not_a_tuple() -> None:
    graph, *rest = small_network().parts()
    one = Graph(weights=graph.weights, nodes=graph.nodes, outputs=graph.outputs[:1])
    result = NativeSession(one, *rest)(small_network().input())
    assert isinstance(result, np.ndarray)
    assert result.shape == (1, 70)


def test_the_input_can_be_an_output() -> None:
    graph = Graph(weights=(), nodes=(ops.Relu(name="y", inputs=("input",)),), outputs=("input", "y", "input"))
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
    assert_same(NativeSession(graph, 4, View("v", {}, {}), {}, {})(x), (x, np.maximum(x, 0), x))


def test_kernels_are_told() -> None:
    session = NativeSession(*small_network().parts())
    assert set(session.kernels()) == {weight.name for weight in session.graph.weights}
    assert set(session.kernels().values()) <= set(_native.kernel_names())


def test_bad_parts() -> None:
    graph, source_bits, view, weights, floats = small_network().parts()
    name = graph.weights[0].name
    with pytest.raises(BadCodes, match=name):
        NativeSession(graph, source_bits, view, {**weights, name: weights[name][:, 1:]}, floats)
    with pytest.raises(BadTable, match=name):
        NativeSession(graph, source_bits, view, {**weights, name: np.full_like(weights[name], 99)}, floats)
    table = replace(view.tables[name], scale=np.ones(3, np.float32))
    with pytest.raises(BadTable, match=name):
        NativeSession(graph, source_bits, replace(view, tables={**view.tables, name: table}), weights, floats)
    with pytest.raises(BadOption, match="threads=0"):
        NativeSession(graph, source_bits, view, weights, floats, threads=0)


# The compiled side trusts no plan


def test_buffers_must_lie_in_the_arena() -> None:
    program = _native.Program()
    shape, none = (1, 2, 2, 3), (0, 0, 0, 0)
    small = _native.Buffer(0, shape, none, False)
    for buffer in [_native.Buffer(64, shape, none, False), _native.Buffer(0, (1, 2, 3, 3), none, False)]:
        plan = _native.Plan(program, 112, shape)
        plan.add("input", -1, [], None, "none", [_native.Output(small, 0.0, 0, 0)], [], 0.0, 0)
        with pytest.raises(ValueError, match="over the end"):
            plan.add("copy", -1, [small], None, "none", [_native.Output(buffer, 0.0, 0, 0)], [], 0.0, 0)
        with pytest.raises(ValueError, match="over the end"):
            plan.add("copy", -1, [buffer], None, "none", [_native.Output(small, 0.0, 0, 0)], [], 0.0, 0)
        with pytest.raises(ValueError, match="over the end"):
            plan.add_result(buffer)
    with pytest.raises(ValueError, match="overflow"):
        _native.Buffer(0, (2**31, 2**31, 2**31, 2**31), none, False)
    with pytest.raises(ValueError, match="aligned"):
        _native.Buffer(8, shape, none, False)


@pytest.mark.parametrize(
    ("kind", "source", "result", "parameters"),
    [
        ("copy", (1, 2, 2, 3), (1, 2, 2, 4), []),
        ("copy", (1, 2, 2, 3), (1, 2, 2, 3), [1]),
        ("reshape", (1, 2, 2, 3), (1, 1, 1, 13), []),
        ("slice", (1, 2, 2, 3), (1, 2, 2, 2), [1, 2, 1]),
        ("slice", (1, 2, 2, 3), (1, 2, 2, 2), [1, 0, 3]),
        ("slice", (1, 2, 2, 3), (1, 2, 3, 2), [1, 0, 1]),
        ("max_pool", (1, 2, 2, 3), (1, 2, 2, 3), [0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0]),
        ("max_pool", (1, 2, 2, 3), (1, 2, 2, 3), [1, 1]),
        ("multiply", (1, 2, 2, 3), (1, 2, 2, 3), []),
        ("pad", (2, 2, 2, 3), (1, 2, 2, 3), [0, 0, 0, 0]),
        ("pad", (1, 2, 2, 3), (1, 2, 2, 3), [0, 0, 0, 4]),
        ("convolution", (1, 2, 2, 3), (1, 2, 2, 3), []),
        ("nothing", (1, 2, 2, 3), (1, 2, 2, 3), []),
    ],
)
def test_steps_that_do_not_fit_are_refused(
    kind: str, source: tuple[int, int, int, int], result: tuple[int, int, int, int], parameters: list[int]
) -> None:
    none = (0, 0, 0, 0)
    plan = _native.Plan(_native.Program(), 4096, source)
    buffers = _native.Buffer(0, source, none, False), _native.Buffer(1024, result, none, False)
    with pytest.raises(ValueError, match=r"a |an |shapes|pooling|channels|factors|weights"):
        plan.add(kind, -1, [buffers[0]], None, "none", [_native.Output(buffers[1], 0.0, 0, 0)], parameters, 0.0, 0)


def test_a_convolution_cannot_read_outside_its_buffer() -> None:
    program = _native.Program()
    one = np.ones(4, np.float32)
    layer = program.add_quantised(np.zeros((4, 3, 3, 3), np.int8), (2, 2), (1, 1), 1, 2, 4, 0, one, one)
    plan = _native.Plan(program, 1 << 16, (1, 5, 5, 3))

    def add(
        shape: tuple[int, int, int, int], border: tuple[int, int, int, int], size: int, as_codes: bool = True
    ) -> None:
        source = _native.Buffer(0, shape, border, as_codes)
        result = _native.Output(_native.Buffer(1 << 15, (1, size, size, 4), (0, 0, 0, 0), False), 0.0, 0, 0)
        plan.add("convolution", layer, [source], None, "none", [result], [], 0.0, 0)

    add((1, 5, 5, 3), (1, 1, 1, 1), 3)
    add((1, 5, 5, 3), (0, 0, 0, 0), 2)
    for bad in [
        lambda: add((1, 5, 5, 3), (0, 0, 0, 0), 3),
        lambda: add((1, 5, 5, 3), (1, 0, 1, 1), 3),
        lambda: add((1, 5, 5, 4), (1, 1, 1, 1), 3),
        lambda: add((2, 5, 5, 3), (1, 1, 1, 1), 3),
        lambda: add((1, 5, 5, 3), (1, 1, 1, 1), 3, as_codes=False),
    ]:
        with pytest.raises(ValueError, match=r"windows|an input|codes"):
            bad()


def test_arrays_of_the_wrong_size_are_refused() -> None:
    plan = _native.Plan(_native.Program(), 4096, (1, 2, 2, 3))
    buffer = _native.Buffer(0, (1, 2, 2, 3), (0, 0, 0, 0), False)
    plan.add("input", -1, [], None, "none", [_native.Output(buffer, 0.0, 0, 0)], [], 0.0, 0)
    plan.add_result(buffer)
    x, out = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2), np.zeros((1, 3, 2, 2), np.float32)
    plan.run(x, [out], 1)
    np.testing.assert_array_equal(out, x)
    for given_x, results in [(x[:, :2], [out]), (x, []), (x, [out, out]), (x, [out[:, :2].copy()])]:
        with pytest.raises((ValueError, TypeError)):
            plan.run(given_x, results, 1)


# Processes


PROGRAM = """
import os, sys, threading, time
import numpy as np
from bitstrata import _native
from bitstrata.graph import Graph, View, ops
from bitstrata.runtime.native import NativeSession

graph = Graph(weights=(), nodes=(ops.Silu(name='y', inputs=('input',)),), outputs=('y',))
session = NativeSession(graph, 4, View('v', {}, {}), {}, {}, threads=3)
x = np.random.default_rng(0).normal(size=(2, 40, 60, 50)).astype(np.float32)
wanted = session(x)
assert _native.worker_count() == 2
"""


def finishes(program: str) -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM + program], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_fork_gets_threads_of_its_own() -> None:
    finishes("""
stop = False
def work():
    while not stop:
        session(x)
busy = [threading.Thread(target=work) for _ in range(2)]
for one in busy: one.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        same = all(np.array_equal(session(x), wanted) for _ in range(3))
        os._exit(0 if same and _native.worker_count() == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
stop = True
for one in busy: one.join()
assert np.array_equal(session(x), wanted)
""")


def test_the_process_ends_while_calls_are_running() -> None:
    finishes("""
def work():
    while True:
        session(x)
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
""")


def test_after_the_threads_are_stopped_calls_still_work() -> None:
    finishes("""
_native.stop_threads()
assert _native.worker_count() == 0
assert np.array_equal(session(x), wanted)
""")
