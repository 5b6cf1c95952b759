"""Mixed precision as pictures: which layer has which width, and accuracy against size."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bitstrata.allocation.allocate import Allocation, Layer
from bitstrata.allocation.curve import Curve, Point
from bitstrata.svg import FAINT, INK, RULE, SHADES, WARM, Canvas, clipped

_ROW = 26
_NAME_WIDTH, _BAR_WIDTH, _NUMBER_WIDTH = 220, 330, 150


def draw_choice(allocation: Allocation, widths: Sequence[int], title: str) -> str:
    """A row per layer: a bar of its size in the shade of its width, and its error at every width."""
    canvas = Canvas()
    canvas.text(canvas.margin, 48, title, size=24, weight=600)
    canvas.text(
        canvas.margin,
        72,
        f"{allocation.bits_per_weight:.3f} bits per weight, {allocation.total_bytes:,} bytes of planes; "
        f"error {allocation.error:.4g} ({allocation.objective})",
        colour=FAINT,
    )
    shades = _shades(widths)
    canvas.legend(
        100, [*((shades[bits], f"{bits} bits") for bits in widths), (WARM, "its error"), (SHADES[5], "at other widths")]
    )
    layers = [layer for layer in allocation.layers if layer.count]
    bar_x = canvas.margin + _NAME_WIDTH
    errors_x = bar_x + _BAR_WIDTH + _NUMBER_WIDTH
    y = 136.0
    canvas.text(canvas.margin, y, "Layers", size=16, weight=600)
    canvas.text(bar_x, y, "weights", colour=FAINT)
    canvas.text(errors_x, y, f"error at {', '.join(map(str, widths))} bits, square root", colour=FAINT)
    y += 10
    scale = _BAR_WIDTH / max(layer.count for layer in layers)
    tallest = max((error for layer in layers for error in layer.errors.values()), default=0.0) or 1.0
    for layer in layers:
        canvas.rule(y)
        canvas.text(canvas.margin, y + 18, clipped(layer.name, 30))
        length = max(layer.count * scale, 1.0)
        canvas.box(bar_x, y + 5, length, _ROW - 9, shades[layer.bits], f"{layer.name}: {layer.bits} bits")
        canvas.text(bar_x + length + 8, y + 18, f"{layer.count:,} x {layer.bits}", size=11, colour=FAINT)
        _errors(canvas, layer, errors_x, canvas.width - canvas.margin - errors_x - 80, y, tallest)
        y += _ROW
    canvas.rule(y)
    return canvas.finish(y + 24)


def _errors(canvas: Canvas, layer: Layer, x: float, room: float, y: float, tallest: float) -> None:
    """A thin bar for each width, the lowest width on top."""
    height = (_ROW - 6) / len(layer.errors)
    for index, (bits, error) in enumerate(layer.errors.items()):
        # Errors span orders of magnitude; their roots are distances between weights, which do not.
        length = room * math.sqrt(max(error, 0.0) / tallest)
        colour = WARM if bits == layer.bits else SHADES[5]
        title = f"{layer.name} at {bits} bits: {error:.4g}"
        canvas.box(x, y + 3 + index * height, max(length, 1.5), height - 1, colour, title)
    canvas.text(canvas.width - canvas.margin, y + 18, f"{layer.error:.3g}", size=11, colour=FAINT, end=True)


def draw_curve(found: Curve, title: str) -> str:
    """Top-1 over the bytes of all planes: the mixed networks as a line, the uniform widths beside it."""
    canvas = Canvas()
    canvas.text(canvas.margin, 48, title, size=24, weight=600)
    canvas.text(canvas.margin, 72, "top-1 accuracy against the bytes of the planes", colour=FAINT)
    canvas.legend(100, [(SHADES[1], "a width for each layer"), (WARM, "one width for all")])
    points = [*found.mixed, *found.uniform.values()]
    sizes = [point.allocation.total_bytes for point in points]
    left, right, top, bottom = canvas.margin + 56, canvas.width - canvas.margin - 24, 130.0, 520.0
    low, high, step = _scale([point.accuracy.top1 for point in points])

    def place(point: Point) -> tuple[float, float]:
        span = max(sizes) - min(sizes) or 1
        across = (point.allocation.total_bytes - min(sizes)) / span
        upwards = (point.accuracy.top1 - low) / (high - low)
        return left + 20 + (right - left - 40) * across, bottom - (bottom - top) * upwards

    for index in range(round((high - low) / step) + 1):
        value = low + index * step
        y = bottom - (bottom - top) * (value - low) / (high - low)
        canvas.box(left, y, right - left, 1, RULE)
        canvas.text(left - 10, y + 4, f"{value:g} %", size=11, colour=FAINT, end=True)
    for point in found.uniform.values():
        x, y = place(point)
        canvas.box(x, y, 1, bottom - y, RULE)
    canvas.line([place(point) for point in found.mixed], SHADES[1])
    for point in found.mixed:
        x, y = place(point)
        canvas.box(x - 4, y - 4, 8, 8, SHADES[1], _described(point))
    for bits, point in found.uniform.items():
        x, y = place(point)
        canvas.box(x - 5, y - 5, 10, 10, WARM, f"{bits} bits for all: {_described(point)}")
        # Below the axis, where no line crosses the text.
        canvas.box(x, bottom, 1, 6, INK)
        # The first label to the right of its tick, all others to the left: none leaves the picture.
        end = x > left + 40
        canvas.text(x, bottom + 22, f"{bits} bits: {point.accuracy.top1:.2f} %", weight=600, end=end)
        canvas.text(x, bottom + 40, _size(point), size=11, colour=FAINT, end=end)
    return canvas.finish(bottom + 62)


def _scale(values: list[float]) -> tuple[float, float, float]:
    """Whole steps around all values: the lowest line, the highest, and the distance between two."""
    span = max(max(values) - min(values), 0.5)
    step = next(one for one in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0) if span / one <= 8 or one == 20.0)
    low = math.floor((min(values) - 0.4 * step) / step) * step
    return low, math.ceil((max(values) + 0.2 * step) / step) * step, step


def _shades(widths: Sequence[int]) -> dict[int, str]:
    """Darker for more bits."""
    return {bits: SHADES[index] for index, bits in enumerate(reversed(widths))}


def _size(point: Point) -> str:
    return f"{point.allocation.total_bytes:,} bytes"


def _described(point: Point) -> str:
    bits = point.allocation.bits_per_weight
    return f"{bits:.3f} bits per weight, {_size(point)}, top-1 {point.accuracy.top1:.2f} %"
