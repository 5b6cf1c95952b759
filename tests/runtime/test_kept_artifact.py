"""The artifact in the repository: what earlier versions wrote stays readable, and runs."""

from pathlib import Path

import numpy as np

from bitstrata.format import verify_artifact
from bitstrata.runtime import load

PATH = Path(__file__).resolve().parents[2] / "artifacts" / "cifar10-resnet20.strata"


def test_it_is_sound_and_small() -> None:
    verify_artifact(PATH)
    needed = ("manifest.json", "base.safetensors", "view-2.safetensors")
    assert sum((PATH / name).stat().st_size for name in needed) < 90_000


def test_every_width_runs_and_the_runtimes_agree() -> None:
    native, reference = load(PATH), load(PATH, runtime="reference")
    assert native.input.labels[:3] == ("airplane", "automobile", "bird")
    x = np.random.default_rng(0).standard_normal((4, 3, 32, 32)).astype(np.float32)
    for bits in (2, 3, 4):
        found, expected = native.at(bits)(x), reference.at(bits)(x)
        assert isinstance(found, np.ndarray)
        assert found.shape == (4, 10)
        # The float stem may flip a code; a trained network forgives that.
        np.testing.assert_allclose(found, expected, atol=0.05 * np.abs(expected).max())
