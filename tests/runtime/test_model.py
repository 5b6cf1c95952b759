"""`load`: one artifact, every view, read lazily, from any thread."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from artifacts import small_network, write_small_artifact

import bitstrata
from bitstrata import codes
from bitstrata.errors import BadArtifact, BadInput, BadOption, UnknownView
from bitstrata.runtime import Model, ReferenceSession, load

RUNTIMES = ("native", "reference")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_small_artifact(tmp_path)


def image(seed: int = 0, batch: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((batch, 3, 8, 6)).astype(np.float32)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_view_runs_what_was_packed(path: Path, runtime: str) -> None:
    network = small_network()
    model = load(path, runtime=runtime)
    for view in network.views:
        bits = int(view.name)
        weights = {name: codes.shift_down(source, 4, bits) for name, source in network.codes.items()}
        expected = ReferenceSession(network.graph, 4, view, weights, network.floats)(image())
        np.testing.assert_allclose(model.at(bits)(image()), expected, rtol=1e-5, atol=1e-5)
    assert model.views == ("2", "3", "4")


def test_the_default_is_the_highest_width_and_can_be_chosen(path: Path) -> None:
    x = image()
    model = bitstrata.load(path)
    assert isinstance(model, Model)
    np.testing.assert_array_equal(model(x), model.at(4)(x))
    np.testing.assert_array_equal(load(path, 2)(x), model.at("2")(x))
    np.testing.assert_array_equal(load(path, view="3")(x), model.at(3)(x))
    assert not np.array_equal(model.at(2)(x), model.at(4)(x))


def test_reads_only_what_a_width_needs(path: Path) -> None:
    for unneeded in ("enhance-3", "enhance-4", "view-3", "view-4"):
        (path / f"{unneeded}.safetensors").unlink()
    model = load(path, bits=2)
    assert np.isfinite(model(image())).all()
    with pytest.raises(BadArtifact):
        model.at(3)
    assert np.isfinite(model(image())).all()  # and goes on working


def test_switching_reads_nothing_twice(path: Path) -> None:
    model = load(path, bits=4)
    expected = model(image())
    for file in ("base", "enhance-3", "enhance-4", "view-4"):
        (path / f"{file}.safetensors").write_bytes(b"gone")
    assert model.at(4) is model.at(4)
    np.testing.assert_array_equal(model(image()), expected)
    assert np.isfinite(model.at(3)(image())).all()  # its strata are here already; only its tables are read


def test_sessions_are_safe_to_call_from_several_threads(path: Path) -> None:
    model = load(path, threads=2)
    expected = {bits: [model.at(bits)(image(seed)) for seed in range(4)] for bits in (2, 3, 4)}
    fresh = load(path, threads=2)
    wrong: list[str] = []

    def call(seed: int) -> None:
        for _ in range(25):
            for bits in (4, 2, 3):
                if not np.array_equal(fresh.at(bits)(image(seed)), expected[bits][seed]):
                    wrong.append(f"{bits} bits, seed {seed}")

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_any_batch_and_size(path: Path) -> None:
    native, reference = load(path), load(path, runtime="reference")
    for shape in ((1, 3, 8, 6), (5, 3, 8, 6), (1, 3, 1, 1), (2, 3, 33, 17)):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(native(x), reference(x), rtol=1e-4, atol=1e-4)


def test_refuses(path: Path) -> None:
    with pytest.raises(UnknownView, match="2, 3, 4"):
        load(path, bits=5)
    with pytest.raises(UnknownView, match="'small'"):
        load(path, view="small")
    with pytest.raises(BadOption, match="not both"):
        load(path, 2, view="2")
    with pytest.raises(BadOption, match="runtime"):
        load(path, runtime="fast")  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="threads"):
        load(path, threads=0)
    with pytest.raises(BadInput, match="channels"):
        load(path)(np.zeros((1, 4, 8, 6), np.float32))
    with pytest.raises(BadArtifact):
        load(path.parent)


def test_runs_where_torch_is_missing_and_without_pickle(path: Path) -> None:
    program = f"""
import sys
for name in ("torch", "safetensors"):
    sys.modules[name] = None
import numpy  # which loads pickle for itself
before = set(sys.modules)
import bitstrata
model = bitstrata.load({str(path)!r}, bits=2)
print(model(numpy.zeros((1, 3, 8, 6), numpy.float32)).shape)
print(sorted({{"pickle", "_pickle"}} & (set(sys.modules) - before)))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["(1, 3)", "[]"]
