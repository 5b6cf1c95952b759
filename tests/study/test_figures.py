"""Pictures: well-formed, with what they must show, and with places that fit the values."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest
from study.constructed import errors, full_study, histograms, record, trace

from bitstrata.study import figures
from bitstrata.study.groups import Group, group_records
from bitstrata.study.plot import Scale, around, labels_of, round_step
from bitstrata.study.records import MixedPoint

DRAWINGS = (
    figures.weight_histograms,
    figures.minimum_norm_traces,
    figures.input_errors,
    figures.mixed_precision,
)
SVG = "{http://www.w3.org/2000/svg}"


def words(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("draw", DRAWINGS, ids=lambda draw: draw.__name__)
@pytest.mark.parametrize("seeds", [1, 3])
def test_pictures_are_well_formed_and_inside_their_frame(draw: Callable[[Group], str | None], seeds: int) -> None:
    svg = draw(group_records(full_study(seeds))[0])
    assert svg is not None
    root = ET.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert "nan" not in svg
    assert "inf" not in svg
    for line in root.iter(f"{SVG}polyline"):
        for place in line.attrib["points"].split():
            x, y = map(float, place.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height
    for box in root.iter(f"{SVG}rect"):
        assert float(box.attrib.get("y", 0)) + float(box.attrib["height"]) <= height


@pytest.mark.parametrize("draw", DRAWINGS, ids=lambda draw: draw.__name__)
def test_no_picture_without_its_records(draw: Callable[[Group], str | None]) -> None:
    assert draw(group_records([record("joint", 0, (1.0, 2.0, 3.0))])[0]) is None


def test_histograms_show_every_code_and_the_accuracy() -> None:
    svg = figures.weight_histograms(
        group_records([record("joint", 0, (60.0, 68.0, 70.0), histograms=histograms(5, 0))])[0]
    )
    assert svg is not None
    shown = words(svg)
    for bits in (2, 3, 4):
        assert {str(code) for code in range(-(2 ** (bits - 1)), 2 ** (bits - 1))} <= set(shown)
    assert "2 bits, top-1 60.0 %" in shown
    assert "(c) Joint training" in shown
    assert not any("LSQ" in text for text in shown)
    shares = [float(share) for share in re.findall(r"code -?\d+: ([\d.]+) %", svg)]
    assert sum(shares) == pytest.approx(300, abs=0.2)


def test_bars_have_the_height_of_their_share() -> None:
    svg = figures.weight_histograms(
        group_records([record("lsq", 0, (60.0,), histograms={"2": {"-2": 10, "-1": 40, "0": 30, "1": 20}})])[0]
    )
    assert svg is not None
    bars = [
        box
        for box in ET.fromstring(svg).iter(f"{SVG}rect")
        if (title := box.find(f"{SVG}title")) is not None and title.text
    ]
    heights = [float(box.attrib["height"]) for box in bars]
    assert [height / heights[1] for height in heights] == pytest.approx([0.25, 1, 0.75, 0.5], abs=0.01)


def test_traces_tell_widths_and_a_logarithmic_axis_where_needed() -> None:
    svg = figures.minimum_norm_traces(group_records([record("minimum-norm", 0, (1.0,), trace=trace(0))])[0])
    assert svg is not None
    assert {"2 bits", "3 bits", "4 bits", "epoch", "norm (logarithmic)"} <= set(words(svg))


def test_input_errors_name_layers_and_methods() -> None:
    records = [
        record("joint", 0, (1.0,), input_errors=errors(1, 0)),
        record("joint-cosine", 0, (1.0,), input_errors=errors(2, 0)),
    ]
    svg = figures.input_errors(group_records(records)[0])
    assert svg is not None
    assert {"self-distillation: none", "self-distillation: cosine", "head.conv", "shortcut"} <= set(words(svg))
    assert "self-distillation: KL" not in words(svg)


def test_mixed_precision_marks_uniform_widths() -> None:
    svg = figures.mixed_precision(group_records(full_study())[0])
    assert svg is not None
    assert {"uniform 2", "uniform 3", "uniform 4", "mixed, objective: weights", "mixed, objective: energy"} <= set(
        words(svg)
    )
    assert "top-1 accuracy (%)" in words(svg)


def test_seeds_with_unlike_budgets_are_drawn_as_dots_only() -> None:
    records = [
        record(
            "mixed", seed, (1.0,), mixed=[MixedPoint("weights", 2 + index, {}, 60.0, 90.0) for index in range(seed + 1)]
        )
        for seed in range(2)
    ]
    svg = figures.mixed_precision(group_records(records)[0])
    assert svg is not None
    assert svg.count('opacity="0.35"') == 3


def test_text_of_records_is_escaped() -> None:
    hostile = record("joint", 0, (1.0,), net="<script>&", input_errors=errors(1, 0))
    svg = figures.input_errors(group_records([hostile])[0])
    assert svg is not None
    assert "<script>" not in svg
    assert any("<script>&" in text for text in words(svg))


@pytest.mark.parametrize(("step", "expected"), [(0.3, 0.5), (1.0, 1.0), (2.1, 2.5), (7.0, 10.0), (0.021, 0.025)])
def test_round_steps(step: float, expected: float) -> None:
    assert round_step(step) == pytest.approx(expected)


def test_scales() -> None:
    plain = Scale(0, 10, 100, 300)
    assert [plain.place(value) for value in (0, 5, 10)] == [100, 200, 300]
    assert plain.ticks(5) == [0, 2, 4, 6, 8, 10]
    logarithmic = Scale(0.1, 10, 200, 0, logarithmic=True)
    assert logarithmic.place(1) == pytest.approx(100)
    assert logarithmic.place(0) == 200
    assert logarithmic.ticks() == pytest.approx([0.1, 0.2, 0.5, 1, 2, 5, 10])
    assert labels_of([2, 2.5, 3]) == ["2.0", "2.5", "3.0"]
    assert labels_of([0.1, 0.2, 0.5]) == ["0.1", "0.2", "0.5"]
    low, high = around([5.0, 5.0])
    assert low < 5 < high
