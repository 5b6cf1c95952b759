"""The plot of benchmarks/cost.py: a panel for each title and axis, a line for each width; axes in powers of two."""

from __future__ import annotations

import math
from typing import Any

from bitstrata.svg import FAINT, RULE, SHADES, WARM, Canvas

_COLUMNS, _WIDTH, _HEIGHT, _GAP = 2, 430, 250, 70
_COLOURS = {"4": SHADES[0], "3": SHADES[1], "2": WARM}


def draw(curves: list[dict[str, Any]]) -> str:
    canvas = Canvas()
    canvas.text(canvas.margin, 48, "What more work costs", size=24, weight=600)
    canvas.text(
        canvas.margin, 72, "milliseconds of a call, median; one division up or right is a doubling", colour=FAINT
    )
    canvas.legend(100, [(colour, f"{view} bits") for view, colour in _COLOURS.items()])
    panels: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for curve in curves:
        panels.setdefault((curve["title"], curve["axis"]), []).append(curve)
    y = 130.0
    for index, ((title, axis), lines) in enumerate(panels.items()):
        column = index % _COLUMNS
        x = canvas.margin + column * (_WIDTH + _GAP) + 44
        _panel(canvas, x, y, f"{title}: {axis}", lines)
        if column == _COLUMNS - 1:
            y += _HEIGHT + 80
    if len(panels) % _COLUMNS:
        y += _HEIGHT + 80
    return canvas.finish(y)


def _panel(canvas: Canvas, x: float, y: float, title: str, lines: list[dict[str, Any]]) -> None:
    canvas.text(x, y + 14, title, weight=600)
    top, width, height = y + 26, _WIDTH - 44, _HEIGHT - 26
    points = [math.log2(point) for line in lines for point in line["points"]]
    times = [math.log2(1000 * value) for line in lines for value in line["seconds"]]
    left, right = math.floor(min(points)), math.ceil(max(points))
    low, high = math.floor(min(times)), math.ceil(max(times))

    def place(point: float, milliseconds: float) -> tuple[float, float]:
        across = (math.log2(point) - left) / (right - left)
        up = (math.log2(milliseconds) - low) / (high - low)
        return x + across * width, top + (1 - up) * height

    for power in range(low, high + 1):
        level = place(2.0**left, 2.0**power)[1]
        canvas.box(x, level, width, 1, RULE)
        canvas.text(x - 6, level + 4, f"{2.0**power:g}", size=11, colour=FAINT, end=True)
    for power in range(left, right + 1):
        along = place(2.0**power, 2.0**low)[0]
        canvas.box(along, top, 1, height, RULE)
        canvas.text(along + 8, top + height + 16, f"{2**power}", size=11, colour=FAINT, end=True)
    for line in lines:
        colour = _COLOURS.get(line["view"], FAINT)
        places = [place(point, 1000 * value) for point, value in zip(line["points"], line["seconds"], strict=True)]
        canvas.line(places, colour)
        for (along, level), point, value in zip(places, line["points"], line["seconds"], strict=True):
            canvas.box(along - 2, level - 2, 4, 4, colour, f"{point}: {1000 * value:.3g} ms")
