"""A panel with axes on a canvas: where values lie, ticks at round numbers, curves with their spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bitstrata.svg import FAINT, INK, RULE, Canvas


@dataclass(frozen=True)
class Scale:
    """Maps values to places along one axis; pixels may run backwards, as they do upwards."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        low, high = self.low, self.high
        if self.logarithmic:
            value, low, high = math.log(max(value, self.low)), math.log(low), math.log(high)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Round numbers inside the range."""
        if self.logarithmic:
            return _log_ticks(self.low, self.high, about)
        step = round_step((self.high - self.low) / about)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]


def round_step(step: float) -> float:
    """The next of 1, 2, 2.5 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step * (1 - 1e-9))


def labels_of(ticks: Sequence[float]) -> list[str]:
    """Evenly spaced ticks with equally many decimals; others as short as they can be."""
    short = [f"{tick:.6g}" for tick in ticks]
    steps = [after - before for before, after in pairwise(ticks)]
    if not steps or max(steps) > 1.001 * min(steps):
        return short
    decimals = max(len(label.partition(".")[2]) for label in short)
    return [f"{tick:.{decimals}f}" for tick in ticks]


def _log_ticks(low: float, high: float, about: int) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1.0,) if len(powers) > about + 1 else (1.0, 2.0, 5.0)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    return [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


def around(values: Sequence[float], share: float = 0.08) -> tuple[float, float]:
    """A range with some air around the values, never empty."""
    low, high = min(values), max(values)
    air = (high - low) * share or max(abs(high) * 0.05, 0.5)
    return low - air, high + air


class Panel:
    """The frame of one plot, with a title above and names at its axes."""

    def __init__(self, canvas: Canvas, left: float, top: float, width: float, height: float) -> None:
        self.canvas = canvas
        self.left, self.top, self.width, self.height = left, top, width, height

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def horizontal(self, low: float, high: float) -> Scale:
        return Scale(low, high, self.left, self.right)

    def vertical(self, low: float, high: float, *, logarithmic: bool = False) -> Scale:
        return Scale(low, high, self.bottom, self.top, logarithmic)

    def frame(self, title: str, across: str, upwards: str, *, below: float = 38) -> None:
        canvas = self.canvas
        canvas.text(self.left, self.top - 14, title, size=15, weight=600)
        canvas.line([(self.left, self.bottom), (self.right, self.bottom)], FAINT, thickness=1)
        canvas.text((self.left + self.right) / 2, self.bottom + below, across, size=12, colour=FAINT, middle=True)
        canvas.text(
            self.left - 46, (self.top + self.bottom) / 2, upwards, size=12, colour=FAINT, middle=True, upwards=True
        )

    def ticks_up(self, scale: Scale, about: int = 5, unit: str = "") -> None:
        ticks = scale.ticks(about)
        for tick, label in zip(ticks, labels_of(ticks), strict=True):
            y = scale.place(tick)
            if tick != scale.low or scale.logarithmic:
                self.canvas.box(self.left, y - 0.5, self.width, 1, RULE)
            self.canvas.text(self.left - 8, y + 4, f"{label}{unit}", size=12, colour=FAINT, end=True)

    def ticks_across(self, scale: Scale, about: int = 6) -> None:
        ticks = scale.ticks(about)
        for tick, label in zip(ticks, labels_of(ticks), strict=True):
            self.mark(scale.place(tick), label)

    def mark(self, x: float, *lines: str) -> None:
        """A tick at the lower axis."""
        self.canvas.line([(x, self.bottom), (x, self.bottom + 5)], FAINT, thickness=1)
        for index, line in enumerate(lines):
            self.canvas.text(x, self.bottom + 19 + 14 * index, line, size=12, colour=FAINT, middle=True)

    def band(self, across: Scale, upwards: Scale, curve: Sequence[tuple[float, float, float]], colour: str) -> None:
        """A curve of (x, mean, spread), with its spread as a shade around it."""
        if any(spread for _, _, spread in curve):
            upper = [(across.place(x), self._inside(upwards.place(mean + spread))) for x, mean, spread in curve]
            lower = [(across.place(x), self._inside(upwards.place(mean - spread))) for x, mean, spread in curve]
            self.canvas.area([*upper, *reversed(lower)], colour, 0.18)
        self.canvas.line([(across.place(x), upwards.place(mean)) for x, mean, _ in curve], colour, thickness=2)

    def error_bar(self, x: float, low: float, high: float, colour: str = INK) -> None:
        """Between two places of the upward axis, with a foot at each end."""
        low, high = self._inside(low), self._inside(high)
        self.canvas.line([(x, low), (x, high)], colour, thickness=1.2)
        for y in (low, high):
            self.canvas.line([(x - 4, y), (x + 4, y)], colour, thickness=1.2)

    def _inside(self, y: float) -> float:
        return min(max(y, self.top), self.bottom)
