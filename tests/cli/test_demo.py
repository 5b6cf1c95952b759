"""`bitstrata demo`, with a recipe that is shorter still."""

import json
from pathlib import Path

import pytest

from bitstrata.cli import demo
from bitstrata.cli.main import main
from bitstrata.training import Recipe, load_net
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
    assert net.widths == (2, 3, 4)
    simulated = content["history"][-1]["accuracy"]
    for width in ("2", "3", "4"):
        # One of 360 test images may go another way where the float stem differs in its last bit.
        assert abs(results[width]["top1"] - simulated[width]["top1"]) <= 100 / 360 + 1e-6
        assert results[width]["milliseconds"] > 0
    files = {file.name: file.stat().st_size for file in (tmp_path / "run" / demo.ARTIFACT).iterdir()}
    assert results["2"]["bytes"] == sum(
        files[name] for name in ("manifest.json", "base.safetensors", "view-2.safetensors")
    )
    assert results["2"]["fetched"] - results["2"]["bytes"] < 1000  # the release besides
    for width, name in (("3", "enhance-3.safetensors"), ("4", "enhance-4.safetensors")):
        assert results[width]["fetched"] == files[name] + files[f"view-{width}.safetensors"]
    assert results["2"]["bytes"] < results["3"]["bytes"] < results["4"]["bytes"] < results["float"]["bytes"]
