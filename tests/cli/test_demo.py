"""`bitstrata demo`, with a recipe that is shorter still."""

import json
from pathlib import Path

import pytest

from bitstrata.cli import demo
from bitstrata.cli.main import main
from bitstrata.training import Recipe, load_net, stratify
from bitstrata.zoo.nets import build
from bitstrata.zoo.recipes import NamedRecipe


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = NamedRecipe(Recipe(epochs=1, float_epochs=1, batch_size=512), "one epoch each", "resnet8", "digits")
    monkeypatch.setattr(demo, "recipe", lambda name: recipe)


def test_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["demo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["width", "float", "2", "3", "4"]
    assert list(tmp_path.iterdir()) == []  # what it trained is gone


def test_keeps_the_run_where_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(tmp_path / "run"), "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert list(results) == ["float", "2", "3", "4"]
    net, content = load_net(tmp_path / "run")
    assert results["2"]["top1"] == content["history"][-1]["accuracy"]["2"]["top1"]
    assert net.widths == (2, 3, 4)


def test_weight_bytes() -> None:
    """ResNet-8: a stem of 9 * 16, six 3x3 convolutions, two 1x1 shortcuts, and a classifier of 64 * 10."""
    quantised = 9 * (2 * 16 * 16 + 16 * 32 + 32 * 32 + 32 * 64 + 64 * 64) + 16 * 32 + 32 * 64
    ends = 4 * (9 * 16 + 640)
    sizes = demo.weight_bytes(stratify(build("resnet8", classes=10, channels=1)))
    assert sizes == {
        "float": 4 * quantised + ends,
        "2": quantised * 2 // 8 + ends,
        "3": quantised * 3 // 8 + ends,
        "4": quantised * 4 // 8 + ends,
    }
