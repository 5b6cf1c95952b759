"""Small artifacts for the tests of what runs them, made without torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bitstrata import codes
from bitstrata.format import InputDescription, write_artifact
from bitstrata.graph import Graph, Network, Table, View, Weight, ops

LABELS = ("cat", "dog", "owl")
INPUT = InputDescription((3, 8, 6), (0.5, 0.4, 0.3), (0.2, 0.25, 0.3), LABELS)


def small_network(widths: tuple[int, ...] = (2, 3, 4), seed: int = 0) -> Network:
    """A float stem, a residual block of two quantised layers, and a float classifier, with random numbers."""
    rng = np.random.default_rng(seed)
    graph = Graph(
        weights=(
            Weight(name="stem", shape=(8, 3, 3, 3), store="float32"),
            Weight(name="first", shape=(8, 8, 3, 3)),
            Weight(name="second", shape=(8, 8, 1, 1)),
            Weight(name="head", shape=(3, 8), store="float32"),
        ),
        nodes=(
            ops.Conv(name="stem", inputs=("input",), padding=(1, 1, 1, 1)),
            ops.Relu(name="stem.relu", inputs=("stem",)),
            ops.Conv(name="first", inputs=("stem.relu",), padding=(1, 1, 1, 1)),
            ops.Silu(name="first.silu", inputs=("first",)),
            ops.Conv(name="second", inputs=("first.silu",)),
            ops.Add(name="sum", inputs=("second", "stem.relu")),
            ops.Mean(name="mean", inputs=("sum",), axes=(2, 3)),
            ops.Linear(name="head", inputs=("mean",)),
        ),
        outputs=("head",),
    )

    def table(channels: int, scale: float, step: float | None = None, zero_point: int = 0) -> Table:
        factor = (scale * rng.standard_normal(channels)).astype(np.float32)
        bias = rng.standard_normal(channels).astype(np.float32)
        return Table(factor, bias, None if step is None else np.float32(step), zero_point)

    low, high = codes.code_range(widths[-1])
    return Network(
        graph=graph,
        widths=widths,
        codes={
            weight.name: rng.integers(low, high + 1, weight.shape).astype(np.int8)
            for weight in graph.weights
            if weight.quantised
        },
        floats={
            weight.name: rng.standard_normal(weight.shape).astype(np.float32)
            for weight in graph.weights
            if not weight.quantised
        },
        views=tuple(
            View(
                str(bits),
                {"first": bits, "second": bits},
                {
                    "stem": table(8, 0.2),
                    "first": table(8, 0.02, 4 / 2**bits),
                    "second": table(8, 0.02, 3 / 2**bits, 1),
                    "head": table(3, 0.5),
                },
            )
            for bits in widths
        ),
    )


def write_small_artifact(folder: Path, widths: tuple[int, ...] = (2, 3, 4)) -> Path:
    path = folder / "small.strata"
    write_artifact(path, small_network(widths), name="small", input=INPUT)
    return path
