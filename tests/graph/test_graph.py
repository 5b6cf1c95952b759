"""Graphs and views: what is found out about them before they are trusted."""

import dataclasses
import time
from typing import Any

import msgspec
import numpy as np
import pytest
from format.samples import INPUT, network, small_graph

from bitstrata.errors import (
    BadShape,
    BadStep,
    BadTable,
    DuplicateName,
    GraphCycle,
    TooLarge,
    UndefinedValue,
    ZeroSize,
)
from bitstrata.graph import Graph, Weight, check_graph, check_view, infer_shapes
from bitstrata.graph.ops import Conv, Linear, Relu

SHAPE = (1, *INPUT.shape)


def test_shapes_of_all_values() -> None:
    shapes = check_graph(small_graph(), 4, SHAPE)
    assert shapes["input"] == SHAPE
    assert shapes["stem"] == shapes["sum"] == (1, 5, 5, 4)
    assert shapes["head"] == (1, 2)


def test_batch_height_and_width_are_free() -> None:
    assert infer_shapes(small_graph(), (7, 3, 30, 11))["sum"] == (7, 5, 15, 6)
    with pytest.raises(BadShape, match="stem"):
        infer_shapes(small_graph(), (7, 4, 30, 11))


def test_a_graph_in_json_and_back() -> None:
    graph = small_graph()
    assert msgspec.json.decode(msgspec.json.encode(graph), type=Graph) == graph


def test_weights_of_nodes() -> None:
    graph = small_graph()
    depthwise = next(node for node in graph.nodes if node.name == "depthwise")
    relu = next(node for node in graph.nodes if node.name == "relu")
    stem = graph.nodes[0]
    found = graph.weight_of(depthwise)
    assert found is not None
    assert found.name == "block.depthwise"
    assert graph.weight_of(relu) is None
    assert graph.is_quantised(depthwise)
    assert not graph.is_quantised(stem)
    with pytest.raises(UndefinedValue, match="nothing"):
        graph.weight_of(Linear(name="nothing", inputs=("relu",)))


def single(shape: tuple[int, ...], **fields: Any) -> Graph:
    return Graph(
        weights=(Weight(name="c", shape=shape, **fields),), nodes=(Conv(name="c", inputs=("input",)),), outputs=("c",)
    )


def changed(**fields: Any) -> Graph:
    return msgspec.structs.replace(small_graph(), **fields)


GRAPH = small_graph()


@pytest.mark.parametrize(
    ("graph", "error", "message"),
    [
        (single((1, 3, 0, 1)), ZeroSize, "'c'"),
        (single((1, 3, 1)), BadShape, "dimensions"),
        (single((2**25, 3, 1, 1)), TooLarge, "'c'"),
        (single((1, 3, 1, 1), own=True), BadShape, "own"),
        (changed(weights=(*GRAPH.weights, GRAPH.weights[0])), DuplicateName, "stem"),
        (changed(weights=GRAPH.weights[1:]), UndefinedValue, "stem"),
        (changed(weights=(*GRAPH.weights, Weight(name="more", shape=(1, 1)))), UndefinedValue, "more"),
        (changed(nodes=(*GRAPH.nodes, Relu(name="sum", inputs=("stem",)))), DuplicateName, "sum"),
        (changed(nodes=(*GRAPH.nodes, Relu(name="input", inputs=("stem",)))), DuplicateName, "input"),
        (changed(nodes=(*GRAPH.nodes, Relu(name="self", inputs=("self",)))), GraphCycle, "self"),
        (changed(nodes=tuple(reversed(GRAPH.nodes))), GraphCycle, "later"),
        (changed(nodes=(*GRAPH.nodes, Relu(name="x", inputs=("nowhere",)))), UndefinedValue, "nowhere"),
        (changed(outputs=("nowhere",)), UndefinedValue, "nowhere"),
    ],
)
def test_what_no_graph_is(graph: Graph, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        check_graph(graph, 4, SHAPE)
    assert type(caught.value) is error


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_accumulators_end_where_31_bits_do(bits: int) -> None:
    # Half source steps reach to 2^K, and activation codes to 2^K - 1.
    most = (2**31 - 1) // ((1 << bits) * ((1 << bits) - 1))
    inputs = min(most, 2**24)
    check_graph(single((1, inputs, 1, 1)), bits, (1, inputs, 1, 1))
    if most < 2**24:
        with pytest.raises(TooLarge, match="32-bit"):
            check_graph(single((1, most + 1, 1, 1)), bits, (1, most + 1, 1, 1))
        check_graph(single((1, most + 1, 1, 1), store="float32"), bits, (1, most + 1, 1, 1))


def test_a_large_graph_is_checked_in_little_time() -> None:
    count = 8000
    graph = Graph(
        weights=tuple(Weight(name=f"n{i}", shape=(3, 3, 1, 1)) for i in range(count)),
        nodes=tuple(Conv(name=f"n{i}", inputs=(f"n{i - 1}" if i else "input",)) for i in range(count)),
        outputs=(f"n{count - 1}",),
    )
    began = time.process_time()
    check_graph(graph, 4, SHAPE)
    assert time.process_time() - began < 1


# Views


PACKED = network(small_graph(own=True))
SHAPES = check_graph(PACKED.graph, 4, SHAPE)
VIEW = PACKED.views[0]


def table(node: str, **fields: Any) -> Any:
    tables = {**VIEW.tables, node: dataclasses.replace(VIEW.tables[node], **fields)}
    return dataclasses.replace(VIEW, tables=tables)


def test_sound_views() -> None:
    for view in PACKED.views:
        check_view(view, PACKED.graph, PACKED.widths, SHAPES)


FLOATS = np.zeros(5, np.float32)


@pytest.mark.parametrize(
    ("view", "error", "message"),
    [
        (dataclasses.replace(VIEW, bits={}), BadTable, "widths"),
        (dataclasses.replace(VIEW, bits={**VIEW.bits, "stem": 2}), BadTable, "widths"),
        (dataclasses.replace(VIEW, bits={**VIEW.bits, "block.pointwise": 5}), BadTable, "block.pointwise"),
        (dataclasses.replace(VIEW, tables={}), BadTable, "tables"),
        (dataclasses.replace(VIEW, own={}), BadTable, "own"),
        (dataclasses.replace(VIEW, own={"stem": FLOATS}), BadTable, "stem"),
        (dataclasses.replace(VIEW, own={"stem": np.full((5, 3, 3, 3), np.nan, np.float32)}), BadTable, "stem"),
        (table("norm", scale=FLOATS[:4]), BadTable, "norm"),
        (table("norm", bias=np.zeros((5, 1), np.float32)), BadTable, "norm"),
        (table("norm", scale=FLOATS + np.inf), BadTable, "norm"),
        (table("norm", bias=FLOATS + np.nan), BadTable, "norm"),
        (table("norm", step=np.float32(1)), BadTable, "floats"),
        (table("stem", step=np.float32(1)), BadTable, "floats"),
        (table("depthwise", step=None), BadStep, "depthwise"),
        (table("depthwise", step=np.float32(0)), BadStep, "depthwise"),
        (table("depthwise", step=np.float32(-1)), BadStep, "depthwise"),
        (table("depthwise", step=np.float32("inf")), BadStep, "depthwise"),
        (table("depthwise", step=np.float32("nan")), BadStep, "depthwise"),
        (table("depthwise", step=np.float32(1e-45)), BadStep, "depthwise"),
        (table("depthwise", zero_point=4), BadTable, "zero point"),
        (table("depthwise", zero_point=-1), BadTable, "zero point"),
    ],
)
def test_what_no_view_is(view: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        check_view(view, PACKED.graph, PACKED.widths, SHAPES)
    assert type(caught.value) is error
