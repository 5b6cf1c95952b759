"""What it takes to begin: one view loaded and run once, in a process of its own, with its times and its memory.

A process that has done other things before cannot tell: its peak memory is theirs too, and its files are in its caches.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bitstrata.errors import BitstrataError

# The clock starts before anything of ours is imported.
_PROGRAM = """
import sys, time
started = time.perf_counter()
from bitstrata.runtime.first_run import begin
begin(started, sys.argv[1])
"""


@dataclass(frozen=True)
class FirstRun:
    """Seconds, and bytes of resident memory; None where the system does not tell."""

    import_seconds: float
    load_seconds: float
    first_seconds: float
    """The first call after loading: plans the input shape, then runs."""
    imported_bytes: int | None
    """Before anything is loaded: the interpreter, NumPy and bitstrata."""
    peak_bytes: int | None


def first_run(path: str | Path, view: str, shape: tuple[int, ...], threads: int | None = None) -> FirstRun:
    """Measures a view of an artifact with an input of that shape, in a new process."""
    import subprocess  # not in the new process, which would measure this import too

    request = json.dumps({"path": str(path), "view": view, "shape": shape, "threads": threads})
    command = [sys.executable, "-c", _PROGRAM, request]
    process = subprocess.run(command, capture_output=True, text=True)  # noqa: S603 (no shell; the request is one word)
    if process.returncode != 0:
        reason = process.stderr.strip().rpartition("\n")[2]
        raise BitstrataError(f"{path}: view {view!r} could not be measured in a process of its own: {reason}")
    return FirstRun(**json.loads(process.stdout))


def begin(started: float, request: str) -> None:
    """What the new process does; `started` is when it began to import."""
    import numpy as np

    from bitstrata.runtime import load, native  # noqa: F401 (an import that loading would do)

    imported = time.perf_counter()
    asked = json.loads(request)
    imported_bytes = peak_bytes()
    x = np.resize(np.arange(-2, 2, 0.01, dtype=np.float32), asked["shape"])  # random numbers take memory of their own
    begun = time.perf_counter()
    model = load(asked["path"], view=asked["view"], threads=asked["threads"])
    loaded = time.perf_counter()
    model(x)
    done = time.perf_counter()
    found = FirstRun(imported - started, loaded - begun, done - loaded, imported_bytes, peak_bytes())
    sys.stdout.write(json.dumps(asdict(found)))


def peak_bytes() -> int | None:
    """The most memory that this process has held so far."""
    # Not getrusage: its number also counts the process that started this one.
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None
