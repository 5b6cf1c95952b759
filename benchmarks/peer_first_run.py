"""What the process of a peer does for benchmarks/footprint.py: loads, runs once, and says what that took.

Nothing of bitstrata is imported here but the network that torch needs, so that the memory is the peer's own.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from peer_engines import Call, open_onnxruntime, open_openvino


def begin(module: str, file: str, shape: tuple[int, ...], threads: int, import_seconds: float) -> None:
    """Prints the fields of `FirstRun`."""
    imported_bytes = _peak_bytes()
    x = np.resize(np.arange(-2, 2, 0.01, dtype=np.float32), shape)  # as `bitstrata.runtime.first_run` has it
    if module == "torch":
        import bitstrata.zoo.nets  # noqa: F401 (the network's own code is no part of loading)
    begun = time.perf_counter()
    if module == "torch":
        call = _open_torch(file, threads)
    else:
        call = (open_onnxruntime if module == "onnxruntime" else open_openvino)(Path(file), threads)
    loaded = time.perf_counter()
    call(x)
    done = time.perf_counter()
    found = {
        "import_seconds": import_seconds,
        "load_seconds": loaded - begun,
        "first_seconds": done - loaded,
        "imported_bytes": imported_bytes,
        "peak_bytes": _peak_bytes(),
    }
    print(json.dumps(found))


def _open_torch(file: str, threads: int) -> Call:
    import torch

    from bitstrata.zoo.nets import resnet18

    torch.set_num_threads(threads)
    with torch.device("meta"):
        net = resnet18()
    net.load_state_dict(torch.load(file, weights_only=True), assign=True)
    net.eval()

    def call(x: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return net(torch.from_numpy(x)).numpy()

    return call


def _peak_bytes() -> int | None:
    """As `bitstrata.runtime.first_run` has it."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")), None)
