"""`bench`: everything that `bitstrata bench` says about an artifact on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from bitstrata import _native
from bitstrata.errors import BadOption, UnknownView
from bitstrata.graph.network import Floats
from bitstrata.runtime.first_run import FirstRun, first_run
from bitstrata.runtime.measure import Spread, in_turns
from bitstrata.runtime.model import Model, load
from bitstrata.runtime.native import NativeSession, available_processors
from bitstrata.runtime.profile import Machine, Part, profile

#: Runs of which the per-layer times are medians.
PROFILE_ROUNDS = 21


@dataclass(frozen=True)
class Speed:
    """One view with one batch size and one number of threads. Times are in seconds."""

    view: str
    batch: int
    threads: int
    latency: Spread
    """Of a call, whatever its batch."""
    images_per_second: float
    switch_seconds: float
    """How much longer the first call takes after another view has run, choosing the session included."""


@dataclass(frozen=True)
class Layers:
    """The parts of a run of one view."""

    view: str
    batch: int
    threads: int
    parts: list[Part]


@dataclass(frozen=True)
class Report:
    model: str
    shape: tuple[int, int, int]
    """Channels, height, width of an image."""
    isa: str
    machine: Machine
    speeds: list[Speed]
    layers: list[Layers]
    """For the first batch size and number of threads."""
    first_runs: dict[str, FirstRun]
    prepare_seconds: dict[str, float]
    """To build the session of a view on a model that is loaded."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def bench(
    path: str | Path,
    views: Sequence[str] | None = None,
    *,
    batches: Sequence[int] = (1,),
    threads: Sequence[int] | None = None,
    size: tuple[int, int] | None = None,
    seconds: float = 2.0,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Measures the views of an artifact in turns; noise is their input.

    views       names; by default all that the artifact holds
    threads     by default all processors that this process may use
    size        height and width of images; by default those that the artifact says
    seconds     how long to measure each view for, with each batch size and number of threads
    """
    for name, numbers in (("batch", batches), ("threads", threads or ())):
        if any(number < 1 for number in numbers):
            raise BadOption(f"{name}={min(numbers)}: at least one is needed")
    if not seconds >= 0:
        raise BadOption(f"seconds={seconds}: a time is not negative")
    counts = list(threads or [available_processors()])
    say("measuring the machine")
    machine = Machine.measure()
    model = _native_model(path, views[0] if views else None, counts[0])
    names = list(dict.fromkeys(views or model.views))
    for name in names:
        if name not in model.views:
            raise UnknownView(f"this artifact holds the views {', '.join(model.views)}, not {name!r}")
    channels, height, width = model.input.shape
    height, width = size or (height, width)
    prepared = {name: _preparation(path, name, names, counts[0]) for name in names}
    rng = np.random.default_rng(0)
    speeds, layers = [], []
    for count in counts:
        model = model if count == counts[0] else _native_model(path, names[0], count)
        for batch in batches:
            x = rng.standard_normal((batch, channels, height, width), dtype=np.float32)
            say(f"{count} {'thread' if count == 1 else 'threads'}, batch {batch}")
            speeds += _speeds(model, names, x, count, seconds)
            if count == counts[0] and batch == batches[0]:
                for name in names:
                    session = cast(NativeSession, model.at(name))
                    layers.append(Layers(name, batch, count, profile(session, x, machine, PROFILE_ROUNDS)))
    say("loading, each view in a process of its own")
    shape = (batches[0], channels, height, width)
    return Report(
        model=model.artifact.name,
        shape=(channels, height, width),
        isa=_native.isa(),
        machine=machine,
        speeds=speeds,
        layers=layers,
        first_runs={name: first_run(path, name, shape, counts[0]) for name in names},
        prepare_seconds=prepared,
    )


def _native_model(path: str | Path, view: str | None, threads: int) -> Model:
    return load(path, view=view, threads=threads, runtime="native")


def _preparation(path: str | Path, name: str, names: Sequence[str], threads: int) -> float:
    """How long `at` takes the first time, on a model that holds another view where there is another."""
    other = next((one for one in names if one != name), name)
    model = _native_model(path, other, threads)
    if other == name:
        model = Model(model.artifact, name, threads=threads, runtime="native")
    started = time.perf_counter()
    model.at(name)
    return time.perf_counter() - started


def _speeds(model: Model, names: Sequence[str], x: Floats, threads: int, seconds: float) -> list[Speed]:
    def call(name: str) -> Callable[[], object]:
        return lambda: model.at(name)(x)

    times = in_turns({name: call(name) for name in names}, seconds)
    speeds = []
    for name in names:
        latency = Spread.of(times[name].steady)
        switch = max(Spread.of(times[name].first).median - latency.median, 0.0)
        speeds.append(Speed(name, len(x), threads, latency, len(x) / latency.median, switch))
    return speeds
