"""The bare install in an environment of its own: no torch, and yet an artifact runs there."""

import json
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
from artifacts import write_small_artifact

from bitstrata.runtime import load

ROOT = Path(__file__).resolve().parent.parent

PROGRAM = """
import importlib.util, json, sys
import numpy
before = set(sys.modules)  # NumPy loads pickle for itself
import bitstrata
model = bitstrata.load(sys.argv[1], bits=2)
x = numpy.linspace(-1, 1, 2 * 3 * 8 * 6, dtype=numpy.float32).reshape(2, 3, 8, 6)
print(json.dumps({
    "torch": importlib.util.find_spec("torch") is not None,
    "pickle": sorted({"pickle", "_pickle", "torch"} & (set(sys.modules) - before)),
    "runtime": model.runtime,
    "results": {view: model.at(view)(x).tolist() for view in model.views},
}))
"""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_artifact_runs_where_torch_was_never_installed(tmp_path: Path) -> None:
    artifact = write_small_artifact(tmp_path)
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    wheels = tmp_path / "wheels"
    pip = ["-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run(
        [sys.executable, *pip, "wheel", "--no-build-isolation", "--no-deps", "-w", str(wheels), str(ROOT)], check=True
    )
    (wheel,) = wheels.iterdir()
    subprocess.run([str(python), *pip, "install", "-c", str(ROOT / "constraints.txt"), str(wheel)], check=True)

    done = subprocess.run(
        [str(python), "-c", PROGRAM, str(artifact)], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    found = json.loads(done.stdout)
    assert found["torch"] is False
    assert found["pickle"] == []
    assert found["runtime"] == "native"
    x = np.linspace(-1, 1, 2 * 3 * 8 * 6, dtype=np.float32).reshape(2, 3, 8, 6)
    here = load(artifact)
    for view, values in found["results"].items():
        np.testing.assert_array_equal(np.float32(values), here.at(view)(x))

    command = environment / "bin" / "bitstrata"
    for arguments in (["verify", str(artifact)], ["inspect", str(artifact), "--json"], ["doctor"]):
        subprocess.run([str(command), *arguments], check=True, capture_output=True, cwd=tmp_path)
