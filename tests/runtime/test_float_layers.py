"""Float layers, pooling and the input's conversion, with every instruction set, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from bitstrata import _native, codes
from bitstrata.graph import Graph, Table, View, Weight, ops
from bitstrata.runtime.native import NativeSession
from bitstrata.runtime.reference import ReferenceSession

ISAS = [isa for isa in ("avx512", "avx2", "neon", "portable") if f"{isa}.float" in _native.kernel_names()]

Parts = tuple[Graph, int, View, dict[str, codes.Codes], dict[str, np.ndarray]]


def network(*nodes: ops.Op, weights: tuple[Weight, ...] = (), seed: int = 0) -> Parts:
    """Weights that are not stored as floats are quantised to two bits."""
    rng = np.random.default_rng(seed)
    tables = {}
    for weight in weights:
        outputs, inputs = weight.shape[0], int(np.prod(weight.shape[1:]))
        scale = (rng.normal(size=outputs) * inputs**-0.5).astype(np.float32)
        bias = rng.normal(size=outputs).astype(np.float32)
        tables[weight.name] = Table(scale, bias, np.float32(0.4), 1) if weight.quantised else Table(scale, bias)
    quantised = {w.name: rng.integers(-2, 2, w.shape).astype(np.int8) for w in weights if w.quantised}
    floats = {w.name: rng.normal(size=w.shape).astype(np.float32) for w in weights if not w.quantised}
    graph = Graph(weights=weights, nodes=nodes, outputs=(nodes[-1].name,))  # type: ignore[arg-type]
    return graph, 4, View("v", dict.fromkeys(quantised, 2), tables), quantised, floats


def floats(name: str, *shape: int) -> Weight:
    return Weight(name=name, shape=shape, store="float32")


def results(parts: Parts, x: np.ndarray, monkeypatch: pytest.MonkeyPatch, threads: int = 1) -> dict[str, np.ndarray]:
    found = {}
    for isa in ISAS:
        monkeypatch.setenv("BITSTRATA_KERNELS", isa)
        session = NativeSession(*parts, threads=threads)
        assert {name.split(".")[1] for name in session.kernels().values()} <= {"float", "float_winograd"} or parts[3]
        found[isa] = np.asarray(session(x))
    return found


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
def test_the_environment_chooses_the_instruction_set(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITSTRATA_KERNELS", isa)
    parts = network(ops.Conv(name="c", inputs=("input",)), weights=(floats("c", 4, 3, 1, 1),))
    assert NativeSession(*parts).kernels() == {"c": f"{isa}.float"}
    assert _native.isa() == isa


@pytest.mark.parametrize("outputs", [1, 15, 16, 17, 32, 40, 64])
@pytest.mark.parametrize(
    ("window", "stride", "padding", "groups", "inputs"),
    [
        ((7, 7), (2, 2), (3, 3, 3, 3), 1, 3),
        ((3, 3), (2, 2), (1, 1, 1, 1), 1, 3),
        ((3, 3), (1, 1), (1, 1, 1, 1), 1, 3),
        ((1, 1), (1, 1), (0, 0, 0, 0), 1, 9),
        ((2, 5), (3, 1), (0, 2, 1, 0), 1, 1),
        ((3, 3), (1, 2), (1, 0, 2, 1), 2, 6),
    ],
)
def test_convolutions(
    outputs: int,
    window: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    groups: int,
    inputs: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = ops.Conv(name="c", inputs=("input",), stride=stride, padding=padding, groups=groups)
    weight = floats("c", outputs * groups, inputs // groups, *window)
    parts = network(node, ops.Relu(name="r", inputs=("c",)), weights=(weight,))
    for height, width in [(7, 7), (9, 57), (23, 30)]:
        x = random(2, inputs, height, width)
        expected = ReferenceSession(*parts)(x)
        for isa, found in results(parts, x, monkeypatch).items():
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=isa)


def picture(*shape: int) -> np.ndarray:
    """Smooth, like a photograph, and far from zero in places: neighbours nearly cancel each other in a filter."""
    samples, channels, height, width = shape
    y, x = np.arange(height)[:, None] / height, np.arange(width) / width
    waves = [np.sin(3 * y + 5 * x + c) + 0.3 * np.sin(23 * x - 17 * y * c) for c in range(samples * channels)]
    return (np.round(np.stack(waves).reshape(shape) * 64) / 64 + 1.5).astype(np.float32)


@pytest.mark.parametrize("outputs", [16, 33, 64])
@pytest.mark.parametrize("inputs", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(7, 7), (64, 91), (23, 228)])
def test_winograd_first_layers_stay_near_the_exact_sums(
    inputs: int, outputs: int, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum of 147 products, one after another, has a root mean square error of about 2e-7 of its result's."""
    node = ops.Conv(name="c", inputs=("input",), stride=(2, 2), padding=(3, 3, 2, 3))
    parts = network(node, weights=(floats("c", outputs, inputs, 7, 7),))
    graph, bits, _, _, weights = parts
    plain = View("v", {}, {"c": Table(np.ones(outputs, np.float32), np.zeros(outputs, np.float32))})
    for x in (random(2, inputs, *size), picture(2, inputs, *size)):
        padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (3, 3), (2, 3)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (7, 7), axis=(2, 3))[:, :, ::2, ::2]
        exact = np.einsum("nchwyx,ocyx->nohw", windows, weights["c"].astype(np.float64))
        for isa, found in results((graph, bits, plain, {}, weights), x, monkeypatch, threads=2).items():
            error = np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2))
            assert error < 1e-6, isa


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [(7, 7), (11, 8), (64, 91)])
def test_what_an_earlier_run_left_in_memory_does_not_matter(
    isa: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BITSTRATA_KERNELS", isa)
    node = ops.Conv(name="c", inputs=("input",), stride=(2, 2), padding=(3, 3, 3, 3))
    parts = network(node, weights=(floats("c", 33, 3, 7, 7),))
    used, x = NativeSession(*parts), random(2, 3, *size)
    used(np.full((3, 3, size[0] + 20, size[1] + 20), np.nan, np.float32))
    np.testing.assert_allclose(np.asarray(used(x)), ReferenceSession(*parts)(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa != "portable"])
def test_winograd_is_for_first_layers_of_large_networks(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITSTRATA_KERNELS", isa)
    for shape, stride, kernel in [
        ((64, 3, 7, 7), 2, "float_winograd"),
        ((64, 3, 7, 7), 1, "float"),
        ((64, 5, 7, 7), 2, "float"),
        ((15, 3, 7, 7), 2, "float"),
        ((64, 3, 3, 3), 2, "float"),
    ]:
        node = ops.Conv(name="c", inputs=("input",), stride=(stride, stride))
        assert NativeSession(*network(node, weights=(floats("c", *shape),))).kernels() == {"c": f"{isa}.{kernel}"}


@pytest.mark.parametrize("batch", [1, 2, 5, 13, 50])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (7, 33), (64, 100), (130, 16), (33, 160)])
def test_linear_layers(batch: int, inputs: int, outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = network(ops.Linear(name="c", inputs=("input",)), weights=(floats("c", outputs, inputs),))
    x = random(batch, inputs)
    expected = ReferenceSession(*parts)(x)
    for isa, found in results(parts, x, monkeypatch, threads=2).items():
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=isa)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 16, 19, 70])
@pytest.mark.parametrize("size", [(1, 1), (1, 100), (5, 3), (17, 49)])
def test_the_input_is_converted_with_its_border(
    channels: int, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum over each window shows every place of the border: exact, because all numbers are small and whole."""
    node = ops.Conv(name="c", inputs=("input",), padding=(1, 2, 2, 1))
    parts = network(node, weights=(floats("c", 3, channels, 3, 3),))
    graph, bits, _, _, weights = parts
    ones = View("v", {}, {"c": Table(np.ones(3, np.float32), np.zeros(3, np.float32))})
    weights["c"] = np.random.default_rng(0).integers(-4, 5, weights["c"].shape).astype(np.float32)
    x = np.random.default_rng(1).integers(-9, 10, (3, channels, *size)).astype(np.float32)
    expected = ReferenceSession(graph, bits, ones, {}, weights)(x)
    for isa, found in results((graph, bits, ones, {}, weights), x, monkeypatch, threads=2).items():
        np.testing.assert_array_equal(found, expected, err_msg=isa)


POOLS: list[ops.Op] = [
    ops.MaxPool(name="p", inputs=("input",), kernel=(3, 3), stride=(2, 2), padding=(1, 1, 1, 1)),
    ops.MaxPool(name="p", inputs=("input",), kernel=(2, 2), stride=(2, 2)),
    ops.MaxPool(name="p", inputs=("input",), kernel=(3, 2), stride=(1, 2), dilation=(2, 3), padding=(1, 0, 0, 1)),
    ops.AvgPool(name="p", inputs=("input",), kernel=(3, 3), stride=(2, 2), padding=(1, 1, 1, 1)),
    ops.AvgPool(
        name="p", inputs=("input",), kernel=(3, 3), stride=(2, 1), padding=(1, 0, 1, 1), count_padding=True, ceil=True
    ),
    ops.AdaptiveAvgPool(name="p", inputs=("input",), size=(1, 1)),
    ops.AdaptiveAvgPool(name="p", inputs=("input",), size=(3, 4)),
    ops.AdaptiveMaxPool(name="p", inputs=("input",), size=(2, 5)),
    ops.Mean(name="p", inputs=("input",), axes=(2, 3)),
]


@pytest.mark.parametrize("node", POOLS, ids=lambda node: type(node).__name__)
@pytest.mark.parametrize("channels", [1, 16, 40, 64, 72, 130])
def test_pooling_to_the_bit(node: ops.Op, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = network(node)
    for batch, height, width in [(1, 7, 7), (3, 9, 26), (1, 20, 31)]:
        x = random(batch, channels, height, width)
        expected = ReferenceSession(*parts)(x)
        for isa, found in results(parts, x, monkeypatch, threads=2).items():
            np.testing.assert_array_equal(found, expected, err_msg=isa)


# Convolution and pooling together


def stem(pool: ops.Op, *more: ops.Op, outputs: tuple[str, ...] = ()) -> Parts:
    conv = ops.Conv(name="c", inputs=("input",), stride=(2, 2), padding=(3, 3, 3, 3))
    last = ops.Conv(name="q", inputs=("p",), padding=(1, 1, 1, 1))
    weights = (floats("c", 40, 3, 7, 7), Weight(name="q", shape=(5, 40, 3, 3)))
    parts = network(conv, ops.Relu(name="r", inputs=("c",)), pool, last, *more, weights=weights)
    return replace(parts[0], outputs=outputs or ("q",)), *parts[1:]


def same_but_for_single_codes(found: np.ndarray, expected: np.ndarray) -> None:
    """A sum that is rounded another way may flip a code, which changes a few results a little."""
    wrong = ~np.isclose(found, expected, rtol=1e-4, atol=1e-4)
    assert wrong.mean() < 0.01


WINDOWS: list[ops.Op] = [
    ops.MaxPool(name="p", inputs=("r",), kernel=(3, 3), stride=(2, 2), padding=(1, 1, 1, 1)),
    ops.MaxPool(name="p", inputs=("r",), kernel=(2, 2), stride=(2, 2), ceil=True),
    ops.MaxPool(name="p", inputs=("r",), kernel=(1, 1), stride=(3, 3)),
    ops.MaxPool(name="p", inputs=("r",), kernel=(3, 2), stride=(1, 1), dilation=(2, 1), padding=(1, 1, 0, 0)),
    ops.AvgPool(name="p", inputs=("r",), kernel=(5, 5), stride=(1, 2), padding=(2, 2, 1, 2)),
]


@pytest.mark.parametrize("pool", WINDOWS, ids=lambda node: f"{type(node).__name__}{node.kernel}")
@pytest.mark.parametrize("shape", [(1, 3, 96, 45), (3, 3, 31, 70), (2, 3, 12, 12)])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_pooled_first_layer(
    pool: ops.Op, shape: tuple[int, ...], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run together or apart, with any number of threads, the results are the same bits."""
    x = random(*shape)
    apart = stem(pool, outputs=("q", "r"))
    together = results(stem(pool), x, monkeypatch, threads)
    for isa, found in together.items():
        monkeypatch.setenv("BITSTRATA_KERNELS", isa)
        expected, _ = NativeSession(*apart, threads=1)(x)
        np.testing.assert_array_equal(found, expected, err_msg=isa)
        same_but_for_single_codes(found, np.asarray(ReferenceSession(*stem(pool))(x)))


def test_a_pooled_first_layer_that_others_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its result is then needed as a whole."""
    again = ops.AdaptiveAvgPool(name="z", inputs=("r",), size=(2, 2))
    parts = stem(WINDOWS[0], again, outputs=("q", "z"))
    x = random(2, 3, 50, 50)
    _, expected = ReferenceSession(*parts)(x)
    for isa in ISAS:
        monkeypatch.setenv("BITSTRATA_KERNELS", isa)
        _, found = NativeSession(*parts, threads=2)(x)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=isa)
