"""How fast a view would run here and how much memory it takes, found out before any of its planes are fetched.

Time and memory depend on the graph and the widths, and next to nothing on the numbers: made-up ones do.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bitstrata import codes
from bitstrata.format import layout
from bitstrata.format.manifest import Manifest, check_manifest
from bitstrata.graph import Table, View
from bitstrata.runtime.native import NativeSession

#: Calls that are timed, after one that plans.
CALLS = 5


@dataclass(frozen=True)
class Trial:
    seconds: float
    """Of a call with one image, the median."""
    bytes: int
    """By how much the memory of the process grew."""


def try_view(manifest: Manifest, name: str, threads: int | None = None) -> Trial:
    """Builds and runs a view with made-up numbers."""
    before = resident_bytes()
    shape = (1, *manifest.input.shape)
    session = _session(manifest, name, threads)
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    session(x)
    times = []
    for _ in range(CALLS):
        started = time.perf_counter()
        session(x)
        times.append(time.perf_counter() - started)
    return Trial(statistics.median(times), max(resident_bytes() - before, 0))


def _session(manifest: Manifest, name: str, threads: int | None) -> NativeSession:
    rng = np.random.default_rng(0)
    graph, shapes = manifest.graph, check_manifest(manifest)
    entry = manifest.view(name)
    weights = layout.quantised_weights(graph)
    bits = {weight.name: width for weight, width in zip(weights, entry.bits, strict=True)}
    made = {}
    for weight in weights:
        # Most codes of trained layers are small; what sums can come to decides which kernels may take a layer.
        low, high = codes.code_range(bits[weight.name])
        spread = rng.standard_normal(weight.shape, dtype=np.float32) * np.float32((high + 1) / 3)
        made[weight.name] = np.clip(np.rint(spread), low, high).astype(np.int8)
    floats = {
        weight.name: rng.standard_normal(weight.shape, dtype=np.float32)
        for weight in graph.weights
        if not weight.quantised
    }
    tables = {}
    for node in layout.tabled_nodes(graph):
        channels = shapes[node.name][1]
        step = np.float32(1.0) if graph.is_quantised(node) else None
        tables[node.name] = Table(np.full(channels, 0.01, dtype=np.float32), np.zeros(channels, dtype=np.float32), step)
    own = {weight.name: floats[weight.name] for weight in layout.own_weights(graph)}
    shared = {weight.name: floats[weight.name] for weight in layout.float_weights(graph)}
    view = View(name, bits, tables, own)
    return NativeSession(graph, manifest.source_bits, view, made, shared, threads=threads)


def resident_bytes() -> int:
    """Of the memory of this process, what is in use; 0 where the system does not tell."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:")), 0)
