"""The manifest's schema, and the description of inputs."""

import dataclasses
from typing import Any

import msgspec
import pytest
from format.samples import INPUT, network
from format.schema import PATH, schema

from bitstrata.errors import BadInputDescription
from bitstrata.format import InputDescription
from bitstrata.format.manifest import decode_manifest, encode_manifest
from bitstrata.format.writer import encode_artifact
from bitstrata.graph.ops import Conv, MaxPool


def test_the_schema_is_that_of_the_code() -> None:
    assert PATH.read_text(encoding="utf-8") == schema(), "run: python tests/format/schema.py"


def test_spelled_out_defaults_leave_no_trace() -> None:
    spelled = Conv(name="c", inputs=("a",), stride=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), groups=1)
    assert msgspec.json.encode(spelled) == msgspec.json.encode(Conv(name="c", inputs=("a",)))
    pool = MaxPool(name="p", inputs=("a",), kernel=(2, 2), stride=(1, 1), ceil=False)
    assert b"stride" not in msgspec.json.encode(pool)


def test_a_description_that_msgspec_made_is_written_in_full() -> None:
    made = msgspec.convert({"shape": (3, 9, 7), "mean": (0.5,) * 3, "std": (0.5,) * 3}, InputDescription)
    manifest, files = encode_artifact(network(), name="net", input=made)
    assert b'"crop":1.0' in files["manifest.json"]
    assert b'"labels":[]' in files["manifest.json"]
    assert encode_manifest(decode_manifest(files["manifest.json"])) == files["manifest.json"]
    assert manifest.input == made


def test_labels_of_any_script() -> None:
    labels = ("Straße", "猫", "بطة", "नमस्ते", "👩‍🔬", "a b-c/d.e")
    assert dataclasses.replace(INPUT, labels=labels).labels == labels
    assert dataclasses.replace(INPUT, labels=()).labels == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": (3, 0, 7)},
        {"shape": (3, 7)},
        {"shape": (3, 2**25, 1)},
        {"shape": (3, 2**20, 2**20)},
        {"mean": (0.5, 0.5)},
        {"mean": (0.5, 0.5, float("nan"))},
        {"std": (0.5, 0.5)},
        {"std": (0.5, 0.5, 0.0)},
        {"std": (0.5, 0.5, float("inf"))},
        {"std": (0.5, 0.5, float("nan"))},
        {"crop": 0.0},
        {"crop": 1.5},
        {"crop": float("nan")},
        {"labels": ("",)},
        {"labels": ("a\n",)},
        {"labels": ("\x9b31m",)},
        {"labels": ("\u2066a",)},
        {"labels": ("\ud800",)},
        {"labels": ("a" * 129,)},
        {"labels": ("a",) * 65_537},
    ],
)
def test_what_describes_no_input(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInputDescription, match=next(iter(wrong))):
        dataclasses.replace(INPUT, **wrong)
