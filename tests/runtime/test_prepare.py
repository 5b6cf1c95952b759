"""Preparing a view: planes give what codes give, widths are switched without a trace, and nothing is loaded in vain."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from artifacts import write_small_artifact

from bitstrata import _native, codes
from bitstrata.errors import BadCodes, BadTable
from bitstrata.format.planes import PackedCodes, pack_planes, split_segment
from bitstrata.graph import Graph, Table, View, Weight, ops
from bitstrata.runtime import ReferenceSession, load
from bitstrata.runtime.native import NativeSession


def packed(values: codes.Codes, bits: int) -> PackedCodes:
    return PackedCodes(values.shape, tuple(split_segment(pack_planes(values, bits, 0, bits), values.size, bits)))


def one_layer(shape: tuple[int, ...], bits: int) -> tuple[Graph, View, codes.Codes]:
    """A single layer with every code of its width, in random places."""
    outputs, inputs, *window = shape
    node: ops.Conv | ops.Linear = ops.Linear(name="layer", inputs=("input",))
    if window:
        node = ops.Conv(name="layer", inputs=("input",), padding=(1, 1, 1, 1))
    weight = Weight(name="layer", shape=shape, store="planes")
    table = Table(np.ones(outputs, np.float32), np.zeros(outputs, np.float32), np.float32(0.5), 1)
    low, high = codes.code_range(bits)
    values = np.random.default_rng(bits).permutation(np.resize(np.arange(low, high + 1), outputs * inputs * 9))
    graph = Graph(weights=(weight,), nodes=(node,), outputs=("layer",))
    return graph, View("v", {"layer": bits}, {"layer": table}), values.astype(np.int8)[: weight.count].reshape(shape)


# One weight, parts of a byte, more than one stretch, and layers for Winograd kernels with odd channels.
SHAPES = [(1, 1), (3, 5), (7, 8), (130, 131), (5, 3, 3, 3), (33, 18, 3, 3), (40, 64, 3, 3), (16, 67, 3, 3)]


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_planes_give_what_codes_give(shape: tuple[int, ...], bits: int) -> None:
    graph, view, values = one_layer(shape, bits)
    x = np.random.default_rng(0).uniform(-2, 4, (2, shape[1], *(6, 7)[: len(shape) - 2])).astype(np.float32)
    for source_bits in {bits, min(bits + 2, 8), 8}:
        wanted = ReferenceSession(graph, source_bits, view, {"layer": values}, {})(x)
        for weights in (values, packed(values, bits)):
            found = NativeSession(graph, source_bits, view, {"layer": weights}, {}, threads=1)(x)
            np.testing.assert_array_equal(found, wanted)


def test_planes_that_do_not_fit() -> None:
    graph, view, values = one_layer((5, 3, 3, 3), 3)

    def session(weights: PackedCodes) -> NativeSession:
        return NativeSession(graph, 4, view, {"layer": weights}, {}, threads=1)

    good = packed(values, 3)
    with pytest.raises(BadCodes, match="'layer' have 2 planes, and the view says 3"):
        session(PackedCodes(good.shape, good.planes[:2]))
    with pytest.raises(BadCodes, match="'layer' have the shape"):
        session(PackedCodes((5, 3, 3, 2), good.planes))
    with pytest.raises(BadTable, match=r"layer.*a plane of another size"):
        session(PackedCodes(good.shape, (*good.planes[:2], good.planes[2][:-1])))


def chain(inputs: int, layers: int, bits: int) -> tuple[Graph, View, dict[str, codes.Codes]]:
    """Layers of growing size, one behind the other, each of another kind than the one before."""
    random = np.random.default_rng(layers)
    low, high = codes.code_range(bits)
    weights, nodes, tables, values = [], [], {}, {}
    before, name = inputs, "input"
    for index in range(layers):
        outputs, window = inputs + 13 * index, (1, 3)[index % 2]
        padding = (window // 2,) * 4
        nodes.append(ops.Conv(name=f"layer{index}", inputs=(name,), padding=padding))
        name = f"layer{index}"
        weights.append(Weight(name=name, shape=(outputs, before, window, window), store="planes"))
        values[name] = random.integers(low, high + 1, weights[-1].shape).astype(np.int8)
        scale = random.uniform(0.001, 0.01, outputs).astype(np.float32)
        tables[name] = Table(scale, np.zeros(outputs, np.float32), np.float32(0.5), 1)
        before = outputs
    graph = Graph(weights=tuple(weights), nodes=tuple(nodes), outputs=(name,))
    return graph, View("v", dict.fromkeys(values, bits), tables), values


@pytest.mark.parametrize("bits", [2, 4])
def test_threads_prepare_what_one_prepares(bits: int) -> None:
    graph, view, values = chain(48, 9, bits)
    x = np.random.default_rng(0).uniform(-2, 4, (1, 48, 9, 10)).astype(np.float32)
    planes = {name: packed(one, bits) for name, one in values.items()}
    wanted = NativeSession(graph, 4, view, values, {}, threads=1)
    for threads in (1, 2, 3, 32):
        found = NativeSession(graph, 4, view, planes, {}, threads=threads)
        assert found.kernels() == wanted.kernels()
        np.testing.assert_array_equal(found(x), wanted(x))
    np.testing.assert_array_equal(wanted(x), ReferenceSession(graph, 4, view, values, {})(x))


def test_planes_are_not_needed_once_they_are_prepared() -> None:
    graph, view, values = one_layer((40, 64, 3, 3), 3)
    x = np.random.default_rng(0).uniform(-2, 4, (1, 64, 6, 7)).astype(np.float32)
    memory = [bytearray(plane) for plane in packed(values, 3).planes]
    session = NativeSession(
        graph, 4, view, {"layer": PackedCodes(values.shape, tuple(map(memoryview, memory)))}, {}, threads=1
    )
    wanted = session(x)
    for plane in memory:
        plane[:] = bytes(len(plane))
        plane.clear()  # refused while anyone holds on to it
    np.testing.assert_array_equal(session(x), wanted)


def test_a_layer_is_prepared_before_it_is_used() -> None:
    program, one = _native.Program(), np.ones(8, np.float32)
    layer = program.add_planes([memoryview(bytes(8))] * 2, (8, 8, 1, 1), (1, 1), (1, 1), 1, 4, 0, one, one)
    with pytest.raises(ValueError, match="not prepared"):
        program.kernel(layer)
    program.prepare(1)
    program.prepare(1)  # nothing is left to do
    assert program.kernel(layer)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell")
def test_memory_of_sessions_is_given_back() -> None:
    graph, view, values = one_layer((256, 256, 3, 3), 2)
    x = np.zeros((1, 256, 64, 64), np.float32)
    weights = {"layer": packed(values, 2)}

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()

    kept = NativeSession(graph, 4, view, weights, {}, threads=1)

    def use_some(count: int) -> None:
        for _ in range(count):  # of some 11 MB each
            session = NativeSession(graph, 4, view, weights, {}, threads=1)
            np.testing.assert_array_equal(session(x), kept(x))

    use_some(3)  # what NumPy and the allocator keep for themselves
    before = resident()
    use_some(12)
    assert resident() < before + 40e6


def test_switching_equals_a_fresh_session(tmp_path: Path) -> None:
    path = write_small_artifact(tmp_path)
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 6)).astype(np.float32)
    fresh = {bits: load(path, bits, threads=1)(x) for bits in (2, 3, 4)}
    model = load(path, 2, threads=1)
    for bits in (2, 4, 3, 2, 3, 4, 4, 2):
        np.testing.assert_array_equal(model.at(bits)(x), fresh[bits])
    assert model.at(3) is model.at("3")  # prepared once


def test_loading_imports_only_what_it_needs(tmp_path: Path) -> None:
    program = f"""
import sys, bitstrata
bitstrata.load({str(write_small_artifact(tmp_path))!r}, 2, runtime="native")
idle = "format.writer", "format.inventory", "format.verification", "runtime.reference", "atomic"
print([name for name in idle if "bitstrata." + name in sys.modules])
from bitstrata.format import Verification, describe, verify_artifact, write_artifact
from bitstrata.runtime import ReferenceSession
import bitstrata.format, bitstrata.runtime
print(hasattr(bitstrata.format, "nothing"), hasattr(bitstrata.runtime, "nothing"))
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert process.stdout.split("\n")[:2] == ["[]", "False False"]
