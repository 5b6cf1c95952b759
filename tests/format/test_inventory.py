"""What `describe` says of an artifact."""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from format.samples import INPUT, network, small_graph

from bitstrata.cli.inspect_picture import draw
from bitstrata.errors import WrongHash
from bitstrata.format import Artifact, describe, write_artifact
from bitstrata.format.inventory import histogram

PACKED = network(small_graph(own=True), widths=(2, 3, 8), mixed=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_artifact(tmp_path / "net.strata", PACKED, name="net", version=3, input=INPUT)
    return tmp_path / "net.strata"


def test_bytes_are_those_of_the_files(path: Path) -> None:
    found = describe(Artifact.open(path))
    assert json.loads(json.dumps(found))["name"] == "net"
    assert found["files"] == {file.name: file.stat().st_size for file in path.iterdir()}
    assert found["total_bytes"] == sum(found["files"].values())
    assert found["missing_files"] == []
    three = found["views"]["3"]
    assert three["strata"] == ["base.safetensors", "enhance-3.safetensors"]
    needed = ("manifest.json", "base.safetensors", "enhance-3.safetensors", "view-3.safetensors")
    assert three["fetched_bytes"] == sum(found["files"][file] for file in needed)


def test_information(path: Path) -> None:
    found = describe(Artifact.open(path))
    information = found["information_bytes"]
    assert information["codes"] == 45 + 25  # eight bits each
    assert information["float_weights"] == 2 * 5 * 2 + 4 * (5 * 3 * 9 * 4)  # a float16 head, and a stem in every view
    channels = 5 + 5 + 5 + 5 + 2
    assert information["tables"] == 4 * (channels * 8 + 2 * 5)
    assert information["all"] == sum(information[kind] for kind in ("codes", "float_weights", "tables"))
    assert found["overhead_percent"] == pytest.approx(100 * (found["total_bytes"] / information["all"] - 1), abs=1e-3)
    assert found["float32_bytes"] == 4 * (135 + 45 + 25 + 10 + channels)


def test_a_mixed_view_needs_only_some_segments(path: Path) -> None:
    found = describe(Artifact.open(path))
    view = found["views"]["mixed-a"]
    assert view["bits"] == {"block.depthwise": 2, "block.pointwise": 3}
    assert view["mean_bits"] == pytest.approx((2 * 45 + 3 * 25) / 70, abs=1e-3)
    segments = 64 + 64 + 64 + 64  # two weights and the head in the base, one weight above it
    assert view["segment_bytes"] == found["files"]["manifest.json"] + view["bytes"] + segments


def test_histograms_count_the_codes_of_every_width(path: Path) -> None:
    artifact = Artifact.open(path)
    for layer in describe(artifact)["layers"]:
        if layer["store"] != "planes":
            assert layer["histograms"] == {}
            continue
        assert [*layer["histograms"]] == ["2", "3", "8"]
        for bits, counts in layer["histograms"].items():
            values, occurrences = np.unique(artifact.codes(bits)[layer["name"]], return_counts=True)
            expected = np.zeros(1 << int(bits), dtype=int)
            expected[values.astype(int) + (1 << int(bits)) // 2] = occurrences
            assert counts == expected.tolist()


def test_histogram_ends() -> None:
    assert histogram(np.array([-128, 127, 127], dtype=np.int8), 8)[[0, 255]].tolist() == [1, 2]
    assert histogram(np.array([-2, 1, 0, 0], dtype=np.int8), 2).tolist() == [1, 0, 2, 1]


def test_what_a_device_holds_of_it(path: Path) -> None:
    for file in ("enhance-3.safetensors", "view-3.safetensors"):
        (path / file).unlink()
    found = describe(Artifact.open(path))
    assert found["missing_files"] == ["enhance-3.safetensors", "view-3.safetensors"]
    assert [*found["layers"][1]["histograms"]] == ["2"]
    assert "strata not fetched" in draw(found)
    damaged = bytearray((path / "base.safetensors").read_bytes())
    damaged[-1] ^= 1
    (path / "base.safetensors").write_bytes(damaged)
    with pytest.raises(WrongHash):
        describe(Artifact.open(path))


@pytest.mark.parametrize("view", [None, "2", "mixed-a"])
def test_the_picture(path: Path, view: str | None) -> None:
    drawn = draw(describe(Artifact.open(path)), view)
    root = ElementTree.fromstring(drawn)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    boxes = [element for element in root.iter() if element.tag.endswith("rect")]
    for box in boxes:
        x, y = float(box.get("x", "0")), float(box.get("y", "0"))
        assert 0 <= x <= x + float(box.attrib["width"]) <= width
        assert 0 <= y <= y + float(box.attrib["height"]) <= height
    titles = [element.text or "" for element in root.iter() if element.tag.endswith("title")]
    texts = [element.text or "" for element in root.iter() if element.tag.endswith("text")]
    assert "net, version 3" in texts
    assert all(layer.name in texts for layer in PACKED.graph.weights)
    codes = sum(title.startswith("code ") for title in titles)
    assert codes == {None: 2 * 256, "2": 2 * 4, "mixed-a": 4 + 8}[view]
    assert drawn == draw(describe(Artifact.open(path)), view)
