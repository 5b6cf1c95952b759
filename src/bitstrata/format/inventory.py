"""What lies in an artifact: bytes by file, view and layer, how much of them is information, and which codes occur."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from bitstrata.codes import Codes
from bitstrata.format import layout
from bitstrata.format.artifact import Artifact
from bitstrata.format.manifest import FORMAT_VERSION, ViewEntry
from bitstrata.format.tensors import DTYPES
from bitstrata.graph import Weight

FLOAT32_BYTES = 4


def describe(artifact: Artifact) -> dict[str, Any]:
    """Everything that `bitstrata inspect` shows, as JSON. Strata that are not there are left out of the histograms."""
    manifest = artifact.manifest
    files = {
        layout.MANIFEST: artifact.manifest_size,
        **{stratum.file: stratum.size for stratum in manifest.strata},
        **{view.file: view.size for view in manifest.views},
    }
    held = {file: (artifact.folder / file).exists() for file in files}
    information = _information(artifact)
    total = sum(files.values())
    # A float network with its normalisation folded: the weights, and one bias per channel.
    float32 = FLOAT32_BYTES * (sum(weight.count for weight in artifact.graph.weights) + _channels(artifact))
    return {
        "name": artifact.name,
        "version": artifact.version,
        "format_version": FORMAT_VERSION,
        "input": asdict(artifact.input),
        "widths": list(artifact.widths),
        "total_bytes": total,
        "files": files,
        "missing_files": [file for file, there in held.items() if not there],
        "information_bytes": information,
        "overhead_percent": round(100 * (total / information["all"] - 1), 3),
        "float32_bytes": float32,
        "times_smaller": round(float32 / total, 3),
        "strata": [{"file": one.file, "bits": one.bits, "bytes": one.size} for one in manifest.strata],
        "views": {entry.name: _view(artifact, entry, float32) for entry in manifest.views},
        "layers": _layers(artifact, held),
    }


def _information(artifact: Artifact) -> dict[str, int]:
    """Bytes without headers, padding and hashes."""
    graph, views = artifact.graph, len(artifact.views)
    codes = sum(weight.count for weight in layout.quantised_weights(graph)) * artifact.source_bits
    shared = sum(map(_float_bytes, layout.float_weights(graph)))
    own = sum(map(_float_bytes, layout.own_weights(graph))) * views
    # A scale and a bias per channel; a step and a zero point per layer that reads codes.
    tables = 2 * FLOAT32_BYTES * _channels(artifact) + (FLOAT32_BYTES + 1) * len(layout.code_readers(graph))
    found = {"codes": -(-codes // 8), "float_weights": shared + own, "tables": tables * views}
    return {**found, "all": sum(found.values())}


def _channels(artifact: Artifact) -> int:
    """Of all nodes that have tables."""
    return sum(artifact.shapes[node.name][1] for node in layout.tabled_nodes(artifact.graph))


def _float_bytes(weight: Weight) -> int:
    return weight.count * DTYPES[layout.FLOAT_TYPES[weight.store]].itemsize


def _view(artifact: Artifact, entry: ViewEntry, float32: int) -> dict[str, Any]:
    manifest = artifact.manifest
    needed = manifest.needed_strata(entry)
    fetched = artifact.manifest_size + entry.size + sum(stratum.size for stratum in needed)
    weights = layout.quantised_weights(artifact.graph)
    counts = sum(weight.count for weight in weights)
    bits = {weight.name: b for weight, b in zip(weights, entry.bits, strict=True)}
    return {
        "file": entry.file,
        "bytes": entry.size,
        "bits": bits,
        "mean_bits": round(sum(weight.count * bits[weight.name] for weight in weights) / counts, 3) if counts else None,
        "strata": [stratum.file for stratum in needed],
        "fetched_bytes": fetched,
        "times_smaller": round(float32 / fetched, 3),
        "segment_bytes": artifact.manifest_size + entry.size + _segment_bytes(artifact, bits),
    }


def _segment_bytes(artifact: Artifact, bits: dict[str, int]) -> int:
    """What a view computes with, where single segments are fetched: less than whole strata for a mixed one."""
    return sum(
        segment.size
        for index, stratum in enumerate(artifact.manifest.strata)
        for segment in artifact.manifest.segments_of(index)
        if bits.get(segment.weight, stratum.bits) >= stratum.bits
    )


def _layers(artifact: Artifact, held: dict[str, bool]) -> list[dict[str, Any]]:
    manifest = artifact.manifest
    sizes: dict[str, dict[str, int]] = {weight.name: {} for weight in artifact.graph.weights}
    for index, stratum in enumerate(manifest.strata):
        for segment in manifest.segments_of(index):
            sizes[segment.weight][stratum.file] = segment.size
    for weight in layout.own_weights(artifact.graph):
        for view in manifest.views:
            sizes[weight.name][view.file] = _float_bytes(weight)
    widths: list[int] = []
    for stratum in manifest.strata:
        if not held[stratum.file]:
            break
        widths.append(stratum.bits)
    return [
        {
            "name": weight.name,
            "shape": list(weight.shape),
            "store": weight.store,
            "own": weight.own,
            "weights": weight.count,
            "bytes": sizes[weight.name],
            "histograms": _histograms(artifact, weight, widths) if weight.quantised and widths else {},
        }
        for weight in artifact.graph.weights
    ]


def _histograms(artifact: Artifact, weight: Weight, widths: list[int]) -> dict[str, list[int]]:
    """How often each code occurs, from the lowest up, at each width."""
    highest = widths[-1]
    counts = histogram(artifact.weight_codes(weight, highest), highest)
    return {str(bits): counts.reshape(1 << bits, -1).sum(axis=1).tolist() for bits in widths}


def histogram(codes: Codes, bits: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    shifted = codes.reshape(-1).view(np.uint8) + np.uint8(1 << (bits - 1))  # wraps round to count from zero
    return np.bincount(shifted, minlength=1 << bits).astype(np.int64)
