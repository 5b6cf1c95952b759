"""`allocate`: budgets in three units, and what an allocation comes to."""

import itertools

import pytest
import torch
from allocation.test_objectives import SHAPE, Shared, grouped
from capture.parity import prepared

from bitstrata.allocation import Allocator, allocate
from bitstrata.errors import BadBudget
from bitstrata.format.layout import quantised_weights, stored_weights, stratum_tensors
from bitstrata.graph import Graph, Weight, ops


def brute_force(allocator: Allocator, budget: float) -> float:
    items = allocator.items
    return min(
        sum(item.errors[allocator.widths.index(bits)] for item, bits in zip(items, chosen, strict=True))
        for chosen in itertools.product(allocator.widths, repeat=len(items))
        if sum(item.count * bits for item, bits in zip(items, chosen, strict=True)) <= budget
    )


@pytest.mark.parametrize("bits", [2.0, 2.2, 2.75, 3.0, 3.9, 4.0, 9.0])
@pytest.mark.parametrize("objective", ["weights", "energy"])
def test_least_error_within_the_mean_width(bits: float, objective: str) -> None:
    net = grouped()
    batches = [torch.randn(SHAPE)]
    found = allocate(net, bits_per_weight=bits, objective=objective, batches=batches)  # type: ignore[arg-type]
    allocator = Allocator(net, objective, batches)  # type: ignore[arg-type]
    assert found.error == pytest.approx(brute_force(allocator, bits * allocator.count))
    assert found.objective == objective
    assert found.bits_per_weight <= bits
    counts = {name: layer.weight.numel() for name, layer in net.stratified_layers()}
    assert found.widths.keys() == counts.keys()
    assert found.total_bits == sum(counts[name] * width for name, width in found.widths.items())
    assert found.bits_per_weight == found.total_bits / sum(counts.values())
    assert found == allocate(net, total_bits=int(bits * allocator.count), objective=objective, batches=batches)  # type: ignore[arg-type]


def test_the_ends_of_the_range_are_the_uniform_networks() -> None:
    net = grouped()
    assert set(allocate(net, bits_per_weight=2).widths.values()) == {2}
    assert set(allocate(net, bits_per_weight=4).widths.values()) == {4}
    assert allocate(net, bits_per_weight=4).error == 0.0
    assert allocate(net, bits_per_weight=2) == Allocator(net).uniform(2)


def test_bytes_are_those_of_the_stored_segments() -> None:
    net = grouped()
    graph = Graph(
        weights=tuple(Weight(name=f"w{n}", shape=tuple(one.weight.shape)) for n, one in net.stratified_layers()),
        nodes=(ops.Relu(name="relu", inputs=("input",)),),
        outputs=("relu",),
    )
    assert len(quantised_weights(graph)) == len(stored_weights(graph, 1)) == 4
    segments = [{one.name: one.size for one in stratum_tensors(graph, (2, 3, 4), index)} for index in range(3)]
    for budget in (sum(segments[0].values()), 700, 1000, 10_000):
        found = allocate(net, total_bytes=budget)
        stored = sum(segments[i][f"w{n}"] for n, bits in found.widths.items() for i in range(bits - 1))
        assert found.total_bytes == stored <= budget
    with pytest.raises(BadBudget, match=f"at 2 bits the planes take {sum(segments[0].values())}"):
        allocate(net, total_bytes=sum(segments[0].values()) - 1)


def test_layers_that_share_a_weight_have_one_width_and_one_price() -> None:
    net = prepared(Shared(), SHAPE)
    count = 8 * 8 * 9 + 8 * 8
    found = allocate(net, bits_per_weight=3)
    assert found.widths["one"] == found.widths["other"]
    assert found.total_bits <= 3 * count
    assert allocate(net, bits_per_weight=4).total_bits == 4 * count
    assert [layer.count for layer in found.layers] == [8 * 8 * 9, 0, 8 * 8]


def test_budgets_that_cannot_be_kept_say_what_can() -> None:
    net = grouped()
    count = sum(layer.weight.numel() for _, layer in net.stratified_layers())
    with pytest.raises(BadBudget, match=r"1\.9 bits per weight are too few: the lowest width is 2 bits"):
        allocate(net, bits_per_weight=1.9)
    for nothing in (0.0, -3.0, float("nan")):
        with pytest.raises(BadBudget, match="are too few"):
            allocate(net, bits_per_weight=nothing)
    assert allocate(net, bits_per_weight=float("inf")) == Allocator(net).uniform(4)
    with pytest.raises(BadBudget, match=f"takes {2 * count:,} bits for {count:,} weights"):
        allocate(net, total_bits=5)
    for wrong in ({}, {"bits_per_weight": 3, "total_bits": 9}):
        with pytest.raises(BadBudget, match="give one budget"):
            allocate(net, **wrong)  # type: ignore[arg-type]
