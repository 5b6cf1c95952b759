"""What it takes to have a network at all: ResNet-18 in bitstrata and in other engines, each in a process of its own.

    pip install "bitstrata[train,bench]"            # engines that are missing are left out
    python benchmarks/footprint.py

Import time counts everything, NumPy too, from compiled Python files, as an installer leaves them. Loading and the first
inference (batch 1; one thread, or as many as --threads gives every engine) are wall time, median over rounds in which
the engines take turns; the files were read before, so they come from the system's cache. Peak memory is the most that
the process held. Installed size is that of the package and all it depends on, less compiled Python; bitstrata's is that
of the bare package, which is all that a device needs.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import peer_engines as engines

import bitstrata
from bitstrata.format import Artifact, describe
from bitstrata.runtime.first_run import FirstRun, first_run

NET, SHAPE = "resnet18", (1, 3, 224, 224)
TORCH_WEIGHTS = "float.pt"

#: Row -> the distribution that a device installs, and the file that it loads.
PEERS = {
    "PyTorch, float32": ("torch", TORCH_WEIGHTS),
    "ONNX Runtime, float32": ("onnxruntime", "float-batch1.onnx"),
    "ONNX Runtime, int8": ("onnxruntime", "qdq-batch1.onnx"),
    "OpenVINO, float32": ("openvino", "float-batch1.onnx"),
    "OpenVINO, int8": ("openvino", "nncf-batch1.xml"),
}

# The clock starts before anything is imported.
PROGRAM = """
import sys, time
started = time.perf_counter()
import {module}
imported = time.perf_counter()
sys.path.insert(0, {folder!r})
import peer_first_run
peer_first_run.begin({module!r}, {file!r}, {shape!r}, {threads!r}, imported - started)
"""


def peer_run(module: str, file: Path, threads: int) -> FirstRun:
    folder = str(Path(__file__).parent)
    program = PROGRAM.format(module=module, file=str(file), shape=SHAPE, threads=threads, folder=folder)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore"}
    process = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    if process.returncode != 0:
        raise SystemExit(f"{module}, {file.name}: {process.stderr.strip().splitlines()[-1]}")
    return FirstRun(**json.loads(process.stdout.splitlines()[-1]))


def installed_bytes(name: str) -> int:
    """A distribution and all that it needs."""
    seen: dict[str, int] = {}
    waiting = [name]
    while waiting:
        one = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if one in seen:
            continue
        try:
            distribution = metadata.distribution(one)
        except metadata.PackageNotFoundError:  # for another system or version of Python
            continue
        seen[one] = _own_bytes(one, distribution)
        needs = [need for need in distribution.requires or () if "extra ==" not in need]
        waiting += [found[0] for need in needs if (found := re.match(r"[A-Za-z0-9._-]+", need))]
    return sum(seen.values())


def _own_bytes(name: str, distribution: metadata.Distribution) -> int:
    files = [Path(str(file.locate())) for file in distribution.files or ()]
    if name == "bitstrata":  # whose Python files lie elsewhere when it is installed for development
        from bitstrata import _native

        files = [*Path(bitstrata.__file__).parent.rglob("*"), Path(_native.__file__)]
    counted = {file.resolve() for file in files if file.suffix != ".pyc" and file.is_file()}
    return sum(file.stat().st_size for file in counted)


def model_bytes(file: Path) -> int:
    """With the weights that lie beside it."""
    return file.stat().st_size + (file.with_suffix(".bin").stat().st_size if file.suffix == ".xml" else 0)


def prepare(folder: Path) -> None:
    import torch

    if not (folder / "prepared").exists():  # as benchmarks/peers.py marks it
        for engine, reason in engines.prepare(NET, folder, (1,)).items():
            print(f"{engine}: {reason}", file=sys.stderr)
        (folder / "prepared").touch()
    if not (folder / TORCH_WEIGHTS).exists():
        torch.save(engines.float_net(NET).state_dict(), folder / TORCH_WEIGHTS)


def measure(folder: Path, rounds: int, threads: int) -> list[dict[str, Any]]:
    compileall.compile_dir(Path(bitstrata.__file__).parent, quiet=1)  # an install for development leaves that out
    path = engines.artifact(folder, NET)
    views = describe(Artifact.open(path))["views"]
    rows: dict[str, dict[str, Any]] = {}
    for view, found in views.items():
        rows[f"bitstrata, {view} bits"] = {
            "installed_bytes": installed_bytes("bitstrata"),
            "model_bytes": found["fetched_bytes"],
            "run": lambda view=view: first_run(path, view, SHAPE, threads),
        }
    for name, (module, file) in PEERS.items():
        if engines.version(engines.Engine(name, "", (module,))) is None or not (folder / file).exists():
            print(f"{name}: not installed, or its model could not be made", file=sys.stderr)
            continue
        rows[name] = {
            "installed_bytes": installed_bytes(module),
            "model_bytes": model_bytes(folder / file),
            "run": lambda module=module, file=file: peer_run(module, folder / file, threads),
        }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in rows}
    for number in range(rounds + 1):
        for name, row in rows.items():
            one = asdict(row["run"]())
            if number:  # the first round only fills the system's cache
                runs[name].append(one)
    return [
        {
            "name": name,
            "installed_bytes": row["installed_bytes"],
            "model_bytes": row["model_bytes"],
            **{key: float(np.median([one[key] for one in runs[name]])) for key in runs[name][0]},
        }
        for name, row in rows.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="processes of each engine (7)")
    parser.add_argument("--threads", type=int, default=1, help="of every engine, to load and to run (1)")
    parser.add_argument("--work", type=Path, help="where the networks are kept, and found again; default: nowhere")
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.work or Path(temporary)) / NET
        prepare(folder)
        rows = measure(folder, arguments.rounds, arguments.threads)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows) + "\n", encoding="utf-8")
    print("| engine | import ms | load ms | first run ms | load + first ms | peak MB | installed MB | model MB |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        load, first = 1000 * row["load_seconds"], 1000 * row["first_seconds"]
        print(
            f"| {row['name']} | {1000 * row['import_seconds']:.0f} | {load:.1f} | {first:.1f} | {load + first:.1f} | "
            f"{row['peak_bytes'] / 1e6:.1f} | {row['installed_bytes'] / 1e6:.1f} | {row['model_bytes'] / 1e6:.2f} |"
        )


if __name__ == "__main__":
    main()
