"""`pack`: what is written down is what was captured."""

from pathlib import Path

import numpy as np
import pytest
import torch
from capture.parity import prepared, session
from torch import nn

from bitstrata.capture import capture, pack
from bitstrata.errors import BadInput
from bitstrata.format import Artifact, InputDescription
from bitstrata.training.net import StratifiedNet


@pytest.fixture
def net() -> StratifiedNet:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)
    )
    prepared_net: StratifiedNet = prepared(model, (2, 3, 8, 8))
    return prepared_net


def test_written_and_read(net: StratifiedNet, tmp_path: Path) -> None:
    description = InputDescription((3, 8, 8), mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2), labels=("cat", "dog"))
    pack(net, tmp_path / "tiny.strata", input=description, version=3)
    artifact = Artifact.open(tmp_path / "tiny.strata")
    network = capture(net, torch.empty(1, 3, 8, 8))
    assert (artifact.manifest.name, artifact.manifest.version) == ("tiny", 3)
    assert artifact.manifest.graph == network.graph
    assert artifact.manifest.input == description


def test_same_bytes_from_an_example(net: StratifiedNet, tmp_path: Path) -> None:
    first = pack(net, tmp_path / "a.strata", example=torch.randn(5, 3, 8, 8), name="model")
    pack(net, tmp_path / "b.strata", example=torch.randn(1, 3, 8, 8), name="model")
    files = sorted(path.name for path in (tmp_path / "a.strata").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "b.strata").iterdir())
    for file in files:
        assert (tmp_path / "a.strata" / file).read_bytes() == (tmp_path / "b.strata" / file).read_bytes()
    assert first.input.shape == (3, 8, 8)
    assert first.input.std == (1.0, 1.0, 1.0)


def test_the_sessions_of_both_agree(net: StratifiedNet) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 9, 7)).astype(np.float32)
    large, small = (capture(net, torch.empty(shape)) for shape in ((4, 3, 20, 30), (1, 3, 5, 5)))
    assert large.graph == small.graph
    for bits in net.widths:
        np.testing.assert_array_equal(session(large, bits)(x), session(small, bits)(x))


def test_without_example_or_input(net: StratifiedNet, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="example"):
        pack(net, tmp_path / "a.strata")
    with pytest.raises(BadInput, match=r"\(3, 8\)"):
        pack(net, tmp_path / "a.strata", example=torch.empty(3, 8))
