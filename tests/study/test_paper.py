"""The paper's numbers: the tables agree with each other, and the notes on them with the networks."""

import re

import pytest
import torch
from torch import nn

from bitstrata.study import paper
from bitstrata.study.paper import TABLES, PaperBlock, PaperRow, PaperTable
from bitstrata.zoo.nets import build


def rows() -> list[tuple[PaperTable, PaperBlock, PaperRow]]:
    return [(table, block, row) for table in TABLES for block in table.blocks for row in block.rows]


def block_of(table: PaperTable, network: str) -> dict[str, PaperRow]:
    return next({row.method: row for row in block.rows} for block in table.blocks if block.network == network)


def test_nine_tables_in_order() -> None:
    assert [table.number for table in TABLES] == list(range(1, 10))
    assert {row.method for _, _, row in rows()} | {"float", "mixed"} == set(paper.LABELS)


def test_the_same_network_has_the_same_numbers_in_every_table() -> None:
    seen: dict[tuple[str, str, str], set[tuple[float | None, ...]]] = {}
    for table, block, row in rows():
        # Table 7 has MobileNetV2 with self-distillation in the place of the joint network: a note says so.
        if any(value is not None for value in row.top1) and (table.number, block.network) != (7, "MobileNetV2"):
            seen.setdefault((block.network, block.data, row.method), set()).add(row.top1)
    assert {key: values for key, values in seen.items() if len(values) > 1} == {}
    assert block_of(paper.COMPENSATION, "MobileNetV2")["joint"].top1 == (
        block_of(paper.LARGE_IMAGES, "MobileNetV2")["joint-cosine"].top1
    )


def test_percentages_are_percentages() -> None:
    for _, _, row in rows():
        for top1, top5 in zip(row.top1, row.top5, strict=True):
            assert top1 is None or 30 < top1 < 80
            assert top5 is None or (top1 is not None and top1 < top5 < 94)


def network(name: str) -> tuple[int, int, int, int]:
    """Parameters, norm channels, parameters of the first and last layer, and weights between them."""
    with torch.device("meta"):
        net = build(name)
    layers = [module for module in net.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    ends = sum(value.numel() for layer in (layers[0], layers[-1]) for value in layer.parameters())
    channels = sum(module.num_features for module in net.modules() if isinstance(module, nn.BatchNorm2d))
    between = sum(layer.weight.numel() for layer in layers[1:-1])
    return sum(value.numel() for value in net.parameters()), channels, ends, between


@pytest.mark.parametrize(("name", "printed"), [("resnet18", "ResNet-18"), ("resnet34", "ResNet-34")])
def test_norm_counts_are_ten_times_too_large(name: str, printed: str) -> None:
    parameters, channels, _, _ = network(name)
    counted = {"norms-shared": 4, "norms-statistics": 2 + 3 * 2, "joint": 3 * 4}
    for method, numbers in counted.items():
        millions, share = re.findall(r"[\d.]+", block_of(paper.NORMS, printed)[method].extra)
        assert float(millions) == pytest.approx(10 * channels * numbers / 1e6, abs=0.006)
        assert float(share) == pytest.approx(1000 * channels * numbers / parameters, abs=0.2)
    note = " ".join(paper.NORMS.notes)
    assert f"{channels:,}" in note


def test_weight_sizes_are_the_planes_and_the_float_ends() -> None:
    _, _, ends, between = network("resnet50")
    extras = {row.method: float(row.extra.rstrip("M")) for row in paper.SCALABLE.blocks[0].rows}
    assert extras["joint"] == pytest.approx((4 * between + 32 * ends) / 1e6, abs=0.06)
    assert extras["adabits"] == pytest.approx(32 * (between + ends) / 1e6, abs=0.06)


@pytest.mark.parametrize(
    ("name", "printed", "of_all"), [("resnet18", "ResNet-18", 8.9), ("resnet50", "ResNet-50", 16.1)]
)
def test_additional_parameters_are_a_share_of_the_quantised_weights(name: str, printed: str, of_all: float) -> None:
    parameters, _, ends, between = network(name)
    millions, share = map(float, re.findall(r"[\d.]+", block_of(paper.OWN_ENDS, printed)["own-ends"].extra))
    assert millions == pytest.approx(2 * ends / 1e6, abs=0.006)
    assert share == pytest.approx(100 * 2 * ends / between, abs=0.06)
    assert of_all == pytest.approx(100 * 2 * ends / parameters, abs=0.06)
    assert f"{of_all} %" in paper.OWN_ENDS.notes[0]


def test_noted_leads_over_lsq() -> None:
    def lead(network: str, method: str, place: int) -> float:
        block = block_of(paper.LARGE_IMAGES, network)
        ours, theirs = block[method].top1[place], block["lsq"].top1[place]
        assert ours is not None
        assert theirs is not None
        return round(ours - theirs, 1)

    assert [lead("ResNet-18", "joint-cosine", place) for place in (0, 1)] == [0.6, 0.7]
    assert [lead("MobileNetV2", "joint-cosine", place) for place in (0, 2)] == [3.9, 1.2]
    assert [lead("ResNet-18", "joint", place) for place in (0, 1)] == [0.2, 0.5]
    assert [lead("MobileNetV2", "joint", place) for place in (0, 2)] == [0.7, 0.8]
