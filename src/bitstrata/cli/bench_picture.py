"""The time of every layer beside the least that this machine could need for it: an SVG for `bitstrata bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitstrata.svg import FAINT, SHADES, WARM, Canvas, clipped

if TYPE_CHECKING:
    from bitstrata.runtime.bench import Layers, Report

_ROW, _NAME_WIDTH, _NUMBER_WIDTH = 24, 250, 190
#: Parts that take less than this share of a run are drawn as one.
_LEAST_SHARE = 0.002


def draw(report: Report) -> str:
    """A bar per layer and view; the orange one inside is its limit."""
    canvas = Canvas()
    channels, height, width = report.shape
    first = report.layers[0]
    threads = f"{first.threads} {'thread' if first.threads == 1 else 'threads'}"
    canvas.text(canvas.margin, 48, f"{report.model}: where the time goes", size=24, weight=600)
    canvas.text(
        canvas.margin,
        72,
        f"{channels} x {height} x {width}, batch {first.batch}, {threads}, kernels for {report.isa}; one thread can do "
        f"{report.machine.byte_macs / 1e9:.0f} GMAC/s on bytes and {report.machine.float_macs / 1e9:.0f} on floats",
        colour=FAINT,
    )
    longest = max(part.seconds for layers in report.layers for part in layers.parts)
    scale = (canvas.inner - _NAME_WIDTH - _NUMBER_WIDTH) / longest
    canvas.legend(100, [(SHADES[1], "time"), (WARM, "limit: multiplying one by one, or moving the bytes")])
    y = 120.0
    for layers in report.layers:
        y = _view(canvas, layers, scale, y + 28)
    return canvas.finish(y + 24)


def _view(canvas: Canvas, layers: Layers, scale: float, y: float) -> float:
    total = sum(part.seconds for part in layers.parts)
    limit = sum(part.limit_seconds for part in layers.parts)
    canvas.text(canvas.margin, y, f"view {layers.view}: {_ms(total)}, limit {_ms(limit)}", size=16, weight=600)
    y += 10
    x = canvas.margin + _NAME_WIDTH
    small = 0.0
    for part in layers.parts:
        if part.seconds < _LEAST_SHARE * total:
            small += part.seconds
            continue
        canvas.rule(y)
        canvas.text(canvas.margin, y + 16, clipped(part.name, 34))
        title = f"{part.name}: {part.kernel}, {part.macs / 1e6:.1f} MMAC, {part.bytes / 1e3:.0f} kB"
        canvas.box(x, y + 4, part.seconds * scale, _ROW - 8, SHADES[1], title)
        canvas.box(x, y + 9, part.limit_seconds * scale, _ROW - 18, WARM, f"limit: {_ms(part.limit_seconds)}")
        rate = f", {part.macs_per_second / 1e9:.0f} GMAC/s" if part.macs else ""
        end = x + max(part.seconds, part.limit_seconds) * scale
        canvas.text(end + 8, y + 16, f"{_ms(part.seconds)}{rate}", size=11, colour=FAINT)
        y += _ROW
    if small:
        canvas.rule(y)
        canvas.text(canvas.margin, y + 16, "all the rest", colour=FAINT)
        canvas.box(x, y + 4, small * scale, _ROW - 8, SHADES[3])
        canvas.text(x + small * scale + 8, y + 16, _ms(small), size=11, colour=FAINT)
        y += _ROW
    canvas.rule(y)
    return y


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
