"""Where the time of a run goes, layer by layer, and how near that is to what the machine can do at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from bitstrata import _native
from bitstrata.graph import INPUT, Graph, infer_shapes, ops
from bitstrata.graph.network import Floats
from bitstrata.graph.ops import Shape
from bitstrata.runtime.native import NativeSession, StepTime
from bitstrata.runtime.plan import SLACK, Key, Step, Stored, buffer_bytes, image_shape

#: Bytes: what the read rate of each memory is measured with.
CACHE_SIZES = (16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)


@dataclass(frozen=True)
class Machine:
    """What one thread of this machine can do at most, per second; measured, not looked up."""

    byte_macs: float
    float_macs: float
    read_bytes: Mapping[int, float]
    """By the size of what is read again and again."""

    @classmethod
    def measure(cls) -> Machine:
        return cls(
            _native.multiply_rate(False),
            _native.multiply_rate(True),
            {size: _native.read_rate(size) for size in CACHE_SIZES},
        )

    def read_rate(self, working_set: int) -> float:
        """Of the smallest memory measured that holds so many bytes."""
        return next(
            (rate for size, rate in self.read_bytes.items() if size >= working_set), [*self.read_bytes.values()][-1]
        )


@dataclass(frozen=True)
class Part:
    """One step of a run: a layer with all that is fused into it, or anything else that takes time."""

    name: str
    kernel: str
    macs: int
    bytes: int
    """Weights and input read, results written."""
    seconds: float
    limit_seconds: float
    """The least that multiplying one by one, or moving the bytes, would take. Kernels that save multiplications may
    beat it."""

    @property
    def macs_per_second(self) -> float:
        return self.macs / self.seconds if self.seconds else 0.0


#: No pooling is so quick; the clock alone takes some of it.
JOINED_SECONDS = 5e-7


def profile(session: NativeSession, x: Floats, machine: Machine, rounds: int = 20) -> list[Part]:
    """The parts of a run, with the median time of each over some rounds."""
    session.profile(x)
    runs = [session.profile(x) for _ in range(max(rounds, 1))]
    shapes = infer_shapes(session.graph, x.shape)
    sizes = {
        (one.step.value, form.reader): _bytes(form, shapes[one.step.value])
        for one in runs[0]
        if one.step is not None
        for form in one.step.stored
    }
    measured = [
        (times[0], _macs(session.graph, times[0].step, shapes), float(np.median([one.seconds for one in times])))
        for times in zip(*runs, strict=True)
    ]
    moved = [_moved(session.graph, one, sizes, shapes) for one, _, _ in measured]
    # Between two runs of a layer all the others come, so that its weights lie where all of them fit.
    rate = machine.read_rate(sum(_weight_bytes(session.graph, one.step) for one, _, _ in measured))
    parts: list[Part] = []
    for (one, macs, seconds), size in zip(measured, moved, strict=True):
        quantised = one.step is not None and one.step.node is not None and session.graph.is_quantised(one.step.node)
        peak = machine.byte_macs if quantised else machine.float_macs
        limit = max(macs / peak, size / rate) / session.threads
        if parts and _joined(parts[-1], one, seconds):
            parts[-1] = replace(parts[-1], name=f"{parts[-1].name}, {_name(one)}")
        else:
            parts.append(Part(_name(one), one.kernel, macs, size, seconds, limit))
    return parts


def _joined(before: Part, one: StepTime, seconds: float) -> bool:
    """Whether it is a pooling that ran together with the float layer before it: nothing is left to time then."""
    pools = one.step is not None and isinstance(one.step.node, (ops.MaxPool, ops.AvgPool))
    return pools and "float" in before.kernel and seconds < JOINED_SECONDS


def _name(one: StepTime) -> str:
    if one.step is None:
        return "(results)"
    return f"({INPUT})" if one.step.node is None else one.step.node.name


def _macs(graph: Graph, step: Step | None, shapes: Mapping[str, Shape]) -> int:
    """Nominal multiply-accumulates: taps on padding count, as everybody counts them."""
    if step is None or not isinstance(step.node, (ops.Conv, ops.Linear)):
        return 0
    weight = graph.weight_of(step.node)
    assert weight is not None
    batch, height, width, _ = image_shape(shapes[step.node.name])
    return batch * height * width * weight.count


def _weight_bytes(graph: Graph, step: Step | None) -> int:
    """As kernels hold them: a byte for each code."""
    weight = graph.weight_of(step.node) if step is not None and step.node is not None else None
    return 0 if weight is None else weight.count * (1 if weight.quantised else 4)


def _moved(graph: Graph, one: StepTime, sizes: Mapping[Key, int], shapes: Mapping[str, Shape]) -> int:
    step = one.step
    if step is None:
        return 2 * sum(4 * math.prod(shapes[name]) for name in graph.outputs)
    given = 4 * math.prod(shapes[INPUT]) if step.node is None else 0
    read = sum(sizes[key] for key in step.reads)
    written = sum(sizes[step.value, form.reader] for form in step.stored)
    return given + read + written + _weight_bytes(graph, step)


def _bytes(form: Stored, shape: Shape) -> int:
    return buffer_bytes(image_shape(shape), form.padding, form.step is not None) - SLACK
