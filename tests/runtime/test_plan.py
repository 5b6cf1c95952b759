"""The plan: what is fused, in which forms results are kept, and that no two live buffers share memory."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bitstrata.graph import Graph, Table, View, Weight, check_graph, ops
from bitstrata.runtime.plan import ALIGNMENT, SLACK, Arena, Key, Layout, Plan, Step, Stored, lay_out, plan

FLOATS = Stored()


def quantised(name: str, source: str, channels: int = 4, **options: object) -> tuple[Weight, ops.Op]:
    weight = Weight(name=name, shape=(channels, channels, 3, 3))
    node = ops.Conv(name=name, inputs=(source,), padding=(1, 1, 1, 1), **options)  # type: ignore[arg-type]
    return weight, node


def planned(weights: list[Weight], nodes: list[ops.Op], *outputs: str, channels: int = 4) -> tuple[Graph, Plan]:
    graph = Graph(weights=tuple(weights), nodes=tuple(nodes), outputs=outputs)  # type: ignore[arg-type]
    check_graph(graph, 4, (2, channels, 9, 7))
    tables = {
        node.name: Table(
            np.ones(channels, np.float32),
            np.zeros(channels, np.float32),
            np.float32(0.5) if graph.is_quantised(node) else None,
            zero_point=3 if graph.is_quantised(node) else 0,
        )
        for node in nodes
        if node.has_table
    }
    view = View("4", {weight.name: 4 for weight in weights if weight.quantised}, tables)
    return graph, plan(graph, view)


def by_value(steps: Plan) -> dict[str, Step]:
    return {step.value: step for step in steps.steps}


def codes_for(reader: str, padding: tuple[int, int, int, int] = (1, 1, 1, 1)) -> Stored:
    return Stored(reader, padding, np.float32(0.5), 3, 15)


def residual_block() -> tuple[list[Weight], list[ops.Op]]:
    parts = [quantised("a", "start"), quantised("b", "middle")]
    nodes = [
        ops.Relu(name="start", inputs=("input",)),
        parts[0][1],
        ops.Relu(name="middle", inputs=("a",)),
        parts[1][1],
        ops.Add(name="sum", inputs=("b", "start")),
        ops.Relu(name="end", inputs=("sum",)),
    ]
    return [weight for weight, _ in parts], nodes


def test_a_residual_block_is_three_steps() -> None:
    _, steps = planned(*residual_block(), "end")
    assert [step.value for step in steps.steps] == ["start", "middle", "end"]
    start, middle, end = steps.steps
    # The input's activation is fused into the conversion of the input, and both readers get their own form.
    assert start.node is None
    assert isinstance(start.activation, ops.Relu)
    assert start.stored == (FLOATS, codes_for("a"))
    assert middle.stored == (codes_for("b"),)
    assert end.residual == "start"
    assert end.activation is not None
    assert end.activation.name == "end"
    assert end.reads == (("middle", "b"), ("start", None))
    assert end.stored == (FLOATS,)


def test_a_shortcut_that_is_computed_later_takes_the_other_as_its_residual() -> None:
    parts = [quantised("a", "input"), quantised("shortcut", "input")]
    nodes = [parts[0][1], parts[1][1], ops.Add(name="sum", inputs=("a", "shortcut"))]
    _, steps = planned([weight for weight, _ in parts], nodes, "sum")
    assert [step.value for step in steps.steps] == ["input", "a", "sum"]
    assert steps.steps[2].node is not None
    assert steps.steps[2].node.name == "shortcut"
    assert steps.steps[2].residual == "a"


@pytest.mark.parametrize("output", ["b", "sum"])
def test_what_is_an_output_is_not_fused_away(output: str) -> None:
    _, steps = planned(*residual_block(), "end", output)
    found = by_value(steps)
    assert found[output].stored == (FLOATS,)
    assert found["end"].activation is not None


def test_a_value_with_two_readers_is_kept() -> None:
    weight, node = quantised("a", "input")
    nodes = [node, ops.Relu(name="relu", inputs=("a",)), ops.Silu(name="silu", inputs=("a",))]
    _, steps = planned([weight], nodes, "relu", "silu")
    assert [step.value for step in steps.steps] == ["input", "a", "relu", "silu"]
    assert steps.steps[2].activation is steps.steps[2].node


def test_an_activation_before_an_addition_is_not_moved_behind_it() -> None:
    weight, node = quantised("a", "input")
    nodes = [node, ops.Relu(name="relu", inputs=("a",)), ops.Add(name="sum", inputs=("relu", "input"))]
    _, steps = planned([weight], nodes, "sum")
    assert [step.value for step in steps.steps] == ["input", "relu", "sum"]
    assert steps.steps[1].residual is None
    assert isinstance(steps.steps[2].node, ops.Add)


def test_a_value_added_to_itself() -> None:
    nodes: list[ops.Op] = [ops.Relu(name="relu", inputs=("input",)), ops.Add(name="sum", inputs=("relu", "relu"))]
    _, steps = planned([], nodes, "sum")
    assert [step.value for step in steps.steps] == ["relu", "sum"]
    assert steps.steps[1].residual is None


def test_what_no_output_needs_is_not_computed() -> None:
    nodes: list[ops.Op] = [ops.Relu(name="relu", inputs=("input",)), ops.Silu(name="unused", inputs=("relu",))]
    _, steps = planned([], nodes, "relu")
    assert [step.value for step in steps.steps] == ["relu"]


def test_padded_float_layers_get_a_form_of_their_own() -> None:
    weights = [
        Weight(name="padded", shape=(4, 4, 3, 3), store="float32"),
        Weight(name="plain", shape=(4, 4, 1, 1), store="float32"),
    ]
    nodes: list[ops.Op] = [
        ops.Conv(name="padded", inputs=("input",), padding=(1, 0, 2, 1)),
        ops.Conv(name="plain", inputs=("input",)),
    ]
    _, steps = planned(weights, nodes, "padded", "plain")
    assert steps.steps[0].stored == (FLOATS, Stored("padded", (1, 0, 2, 1)))


def test_flattened_vectors_are_the_same_buffer() -> None:
    weight = Weight(name="linear", shape=(4, 4))
    nodes: list[ops.Op] = [
        ops.AdaptiveAvgPool(name="pool", inputs=("input",), size=(1, 1)),
        ops.Flatten(name="flat", inputs=("pool",)),
        ops.Linear(name="linear", inputs=("flat",)),
        ops.Reshape(name="image", inputs=("linear",), shape=(4, 1, 1)),
    ]
    _, steps = planned([weight], nodes, "image", "flat")
    assert [step.value for step in steps.steps] == ["input", "pool", "linear"]
    assert steps.steps[1].stored == (FLOATS, codes_for("linear", (0, 0, 0, 0)))
    assert steps.outputs == ("linear", "pool")


def test_flattening_an_image_is_a_step() -> None:
    _, steps = planned([], [ops.Flatten(name="flat", inputs=("input",))], "flat")
    assert [step.value for step in steps.steps] == ["input", "flat"]


def live_spans(steps: Plan, layout: Layout) -> list[tuple[int, int, int, int]]:
    """First step, last step, first byte, end of every buffer."""
    spans = []
    for (value, reader), place in layout.places.items():
        born = next(index for index, step in enumerate(steps.steps) if step.value == value)
        readers = [index for index, step in enumerate(steps.steps) if (value, reader) in step.reads]
        if reader is None and value in steps.outputs:
            readers.append(len(steps.steps))
        died = max(readers)
        if died < len(steps.steps) and is_overwritten(steps.steps[died], (value, reader), layout):
            died -= 1  # element by element, while it is read for the last time
        spans.append((born, died, place.offset, place.offset + place.bytes))
    return spans


def is_overwritten(step: Step, key: Key, layout: Layout) -> bool:
    """Whether a step's floats take the place of its residual, and it reads that as nothing else."""
    if step.residual is None or step.reads[-1] != key or key in step.reads[:-1]:
        return False
    place = layout.places[key]
    return any(layout.places[step.value, form.reader] == place for form in step.stored if form.step is None)


def assert_apart(spans: list[tuple[int, int, int, int]]) -> None:
    for index, (born, died, begin, end) in enumerate(spans):
        for other_born, other_died, other_begin, other_end in spans[:index]:
            apart_in_time = died < other_born or other_died < born
            assert apart_in_time or end <= other_begin or other_end <= begin


def test_no_two_live_buffers_overlap() -> None:
    weights, nodes = [], []
    names = ["input"]
    numbers = random.Random(0)
    for index in range(60):
        kind = numbers.choice(["conv", "add", "relu", "pool", "concat_slice"])
        source = numbers.choice(names[-6:])
        name = f"n{index}"
        if kind == "conv":
            weight, node = quantised(name, source)
            weights.append(weight)
            nodes.append(node)
        elif kind == "add":
            nodes.append(ops.Add(name=name, inputs=(source, numbers.choice(names[-6:]))))
        elif kind == "relu":
            nodes.append(ops.Relu(name=name, inputs=(source,)))
        elif kind == "pool":
            nodes.append(ops.MaxPool(name=name, inputs=(source,), kernel=(3, 3), padding=(1, 1, 1, 1)))
        else:
            nodes.append(ops.Concat(name=f"c{index}", inputs=(source, numbers.choice(names[-6:]))))
            nodes.append(ops.Slice(name=name, inputs=(f"c{index}",), axis=1, start=2, stop=6))
        names.append(name)
    graph, steps = planned(weights, nodes, names[-1], names[-2], names[30])
    scratch = [100 * (index % 3) for index in range(len(steps.steps))]
    for shape in [(1, 4, 9, 7), (3, 4, 5, 5)]:
        layout = lay_out(steps, check_graph(graph, 4, shape), lambda index: scratch[index])
        spans = live_spans(steps, layout)
        workspaces = [
            (index, index, offset, offset + scratch[index])
            for index, offset in enumerate(layout.workspaces)
            if scratch[index]
        ]
        assert_apart(spans + workspaces)
        assert all(begin % ALIGNMENT == 0 and end <= layout.arena_bytes for _, _, begin, end in spans + workspaces)
        # And memory is used again: all buffers side by side would need far more.
        assert layout.arena_bytes < sum(end - begin for _, _, begin, end in spans) / 2


@pytest.mark.parametrize("again", [False, True])
def test_the_sum_takes_the_place_of_a_residual_that_is_not_read_again(again: bool) -> None:
    weights, nodes = residual_block()
    if again:
        nodes.append(ops.Add(name="more", inputs=("end", "start")))
    graph, steps = planned(weights, nodes, nodes[-1].name)
    layout = lay_out(steps, check_graph(graph, 4, (1, 4, 9, 7)))
    assert (layout.places["end", None] == layout.places["start", None]) is not again
    assert_apart(live_spans(steps, layout))


def test_what_is_input_and_residual_at_once_stays() -> None:
    weight = Weight(name="a", shape=(4, 4, 1, 1), store="float32")
    node = ops.Conv(name="a", inputs=("start",))
    nodes = [ops.Relu(name="start", inputs=("input",)), node, ops.Add(name="sum", inputs=("a", "start"))]
    graph, steps = planned([weight], nodes, "sum")
    layout = lay_out(steps, check_graph(graph, 4, (1, 4, 9, 7)))
    assert layout.places["sum", None].offset not in {layout.places[key].offset for key in steps.steps[-1].reads}


def test_sizes_of_buffers() -> None:
    _, steps = planned(*residual_block(), "end")
    graph, _ = planned(*residual_block(), "end")
    layout = lay_out(steps, check_graph(graph, 4, (2, 4, 9, 7)))
    assert layout.places["start", None].bytes == 2 * 9 * 7 * 4 * 4 + SLACK
    assert layout.places["start", "a"].bytes == 2 * 11 * 9 * 4 + SLACK
    assert layout.places["start", "a"].shape == (2, 9, 7, 4)


def test_the_arena_takes_the_smallest_stretch_that_fits() -> None:
    arena = Arena()
    large, kept, small, last = arena.take(1000), arena.take(64), arena.take(128), arena.take(64)
    assert (large, kept, small, last) == (0, 1024, 1088, 1216)
    arena.give_back(large, 1000)
    arena.give_back(small, 128)
    assert arena.take(100) == small
    assert arena.take(64) == large
    arena.give_back(last, 64)
    # The free end is grown, not left behind.
    assert arena.take(640) == 64
    assert arena.take(256) == 704
    assert arena.take(1024) == last
    assert arena.size == last + 1024


def test_neighbours_join_when_given_back() -> None:
    arena = Arena()
    places = [arena.take(64) for _ in range(5)]
    for index in (1, 3, 2):
        arena.give_back(places[index], 64)
    assert arena.take(192) == places[1]
    assert arena.size == 320
