"""The model card says what was measured, and nothing breaks out of its tables."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from format.samples import INPUT, network
from publishing import release

from bitstrata.errors import CannotPublish
from bitstrata.format import Artifact, write_artifact
from bitstrata.publish.card import MARK, card, read_facts

EXPECTED = Path(__file__).with_name("card.md")

ACCURACY: dict[str, Any] = {
    "path": "small.strata",
    "model": "small",
    "runtime": "native",
    "data": "digits",
    "accuracy": {
        "2": {"top1": 91.234, "top5": 99.5, "samples": 1797},
        "4": {"top1": 97.5, "top5": 100.0, "samples": 1797},
    },
    "seconds": 0.5,
}
LATENCY: dict[str, Any] = {
    "model": "small",
    "shape": [3, 9, 7],
    "isa": "avx2",
    "machine": {},
    "speeds": [
        {"view": view, "batch": batch, "threads": 1, "latency": {"median": seconds, "lower": 0, "upper": 0, "p95": 0}}
        for batch in (8, 1)
        for view, seconds in (("2", 0.00025 * batch), ("3", 0.0003 * batch), ("4", 0.000375 * batch))
    ],
}


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    write_artifact(tmp_path / "small.strata", network(mixed=True), name="small", input=INPUT)
    return Artifact.open(tmp_path / "small.strata")


def facts(tmp_path: Path, accuracy: Any = ACCURACY, latency: Any = LATENCY, **options: Any) -> Any:
    for name, value in (("eval.json", accuracy), ("bench.json", latency)):
        (tmp_path / name).write_text(json.dumps(value))
    return read_facts("small", tmp_path / "eval.json", tmp_path / "bench.json", **options)


def test_the_card_is_as_it_was_written_down(artifact: Artifact, tmp_path: Path) -> None:
    found = card(artifact, release(3), facts(tmp_path, address="https://models.example/small"), signed=True)
    assert found == EXPECTED.read_text(encoding="utf-8")


def test_the_front_matter_is_what_hubs_read(artifact: Artifact) -> None:
    text = card(artifact, release(name="1.0"), read_facts("1.0"), signed=False)
    _, front, body = text.split("---\n", 2)
    found = yaml.safe_load(front)
    assert found["library_name"] == "bitstrata"
    assert found["model_name"] == "1.0"
    assert "bitstrata" in found["tags"]
    assert MARK in body


def test_without_measurements_there_are_no_columns_for_them(artifact: Artifact) -> None:
    text = card(artifact, release(), read_facts("small"), signed=False)
    assert "top-1" not in text
    assert "latency" not in text
    assert "--trust" not in text
    assert "bitstrata pull ADDRESS --bits 2\n" in text


def test_every_table_has_rows_of_one_length(artifact: Artifact, tmp_path: Path) -> None:
    hostile = {**ACCURACY, "data": "a|b\n| <script>`[x](y)"}
    text = card(artifact, release(), facts(tmp_path, hostile), signed=False)
    assert "<script>" not in text
    lengths = {
        tuple({line.count("|") for line in block.splitlines()})
        for block in text.split("\n\n")
        if block.startswith("| ")
    }
    assert all(len(one) == 1 for one in lengths)


@pytest.mark.parametrize(
    ("accuracy", "latency", "message"),
    [
        ({**ACCURACY, "model": "other"}, LATENCY, "eval.json is about 'other'"),
        (ACCURACY, {**LATENCY, "model": "other"}, "bench.json is about 'other'"),
        ({"accuracy": {}}, LATENCY, "eval.json is not what `bitstrata eval"),
        (ACCURACY, {**LATENCY, "speeds": []}, "holds no measurement"),
        (ACCURACY, [], "bench.json is not what `bitstrata bench"),
    ],
)
def test_reports_that_do_not_fit_are_refused(tmp_path: Path, accuracy: Any, latency: Any, message: str) -> None:
    with pytest.raises(CannotPublish, match=message):
        facts(tmp_path, accuracy, latency)


def test_a_report_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CannotPublish, match="cannot be read"):
        read_facts("small", accuracy=tmp_path / "missing.json")
