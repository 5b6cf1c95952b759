"""What lies in an artifact as a picture: an SVG, drawn from what `describe` found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bitstrata.format.layout import MANIFEST
from bitstrata.svg import FAINT, GREY, RED, SHADES, WARM, Canvas, clipped

#: Strata from the base up, then what is no plane.
_PLANES = SHADES
_FLOAT, _TABLES, _MANIFEST = WARM, RED, GREY
_EVEN, _ODD = SHADES[1], SHADES[3]

_WIDTH, _MARGIN, _ROW = 1080, 36, 28
_NAME_WIDTH, _BAR_WIDTH, _HISTOGRAM_WIDTH = 230, 420, 220


def draw(found: dict[str, Any], view: str | None = None) -> str:
    """The picture: what a device fetches for each view, then a row per layer with its bytes and its codes."""
    picture = Canvas(_WIDTH, _MARGIN)
    source = found["widths"][-1]
    shown = {name: one for name, one in found["views"].items() if view in (None, name)}
    picture.text(_MARGIN, 48, f"{found['name']}, version {found['version']}", size=24, weight=600)
    picture.text(
        _MARGIN,
        72,
        f"{_bytes(found['total_bytes'])} in all, {found['times_smaller']:.1f} times smaller than float32; "
        f"widths {', '.join(map(str, found['widths']))} bits; {found['overhead_percent']:.1f} % overhead",
        colour=FAINT,
    )
    y = _legend(picture, found, 100)
    y = _fetched(picture, found, shown, y + 34)
    y = _layers(picture, found, shown[view]["bits"] if view is not None else None, source, y + 40)
    return picture.finish(y + 20)


def _stack(
    picture: Canvas, x: float, y: float, height: float, scale: float, parts: Sequence[tuple[str, int, str]]
) -> float:
    """Bars one after another, each (colour, bytes, title); where they end."""
    for colour, size, title in parts:
        width = size * scale
        # A hair of paper between parts, as long as it does not hide them.
        picture.box(x, y, max(width - 1, width * 0.7, 0.3), height, colour, title)
        x += width
    return x


def _legend(picture: Canvas, found: dict[str, Any], y: float) -> float:
    entries = [
        (_PLANES[index], f"base: {one['bits']} bits" if index == 0 else f"enhance to {one['bits']}")
        for index, one in enumerate(found["strata"])
    ]
    entries += [(_FLOAT, "float weights"), (_TABLES, "tables of the view"), (_MANIFEST, "manifest")]
    picture.legend(y, entries)
    return y


def _fetched(picture: Canvas, found: dict[str, Any], views: dict[str, dict[str, Any]], y: float) -> float:
    picture.text(_MARGIN, y, "What a device fetches", size=16, weight=600)
    y += 14
    floats = sum(layer["bytes"].get("base.safetensors", 0) for layer in found["layers"] if layer["store"] != "planes")
    colours = {one["file"]: _PLANES[index] for index, one in enumerate(found["strata"])}
    scale = (_WIDTH - 2 * _MARGIN - 330) / max(view["fetched_bytes"] for view in found["views"].values())
    for name, view in views.items():
        parts = [(_MANIFEST, found["files"][MANIFEST], f"manifest: {_bytes(found['files'][MANIFEST])}")]
        for file in view["strata"]:
            size = found["files"][file]
            if file == "base.safetensors" and floats:
                parts.append((_FLOAT, floats, f"float weights: {_bytes(floats)}"))
                size -= floats
            parts.append((colours[file], size, f"{file}: {_bytes(size)}"))
        parts.append((_TABLES, view["bytes"], f"{view['file']}: {_bytes(view['bytes'])}"))
        picture.text(_MARGIN, y + 19, f"view {clipped(name, 14)}", weight=600)
        end = _stack(picture, _MARGIN + 120, y + 4, 18, scale, parts)
        picture.text(end + 10, y + 19, f"{_bytes(view['fetched_bytes'])}, {view['times_smaller']:.1f} x smaller")
        y += _ROW
    return y


def _layers(picture: Canvas, found: dict[str, Any], bits: dict[str, int] | None, source: int, y: float) -> float:
    """A row per layer; with `bits` only the planes and codes of those widths."""
    bar_x = _MARGIN + _NAME_WIDTH
    histogram_x = _WIDTH - _MARGIN - _HISTOGRAM_WIDTH
    codes = f"at {source} bits" if bits is None else "in this view"
    picture.text(_MARGIN, y, "Layers", size=16, weight=600)
    picture.text(bar_x, y, "bytes by stratum", colour=FAINT)
    picture.text(histogram_x, y, f"histogram of codes {codes}", colour=FAINT)
    y += 10
    largest = max(sum(_stratum_bytes(found, layer, None).values()) for layer in found["layers"])
    scale = _BAR_WIDTH / largest
    colours = {one["file"]: _PLANES[index] for index, one in enumerate(found["strata"])}
    for layer in found["layers"]:
        width = None if bits is None else bits.get(layer["name"])
        picture.rule(y)
        picture.text(_MARGIN, y + 19, clipped(layer["name"], 30))
        sizes = _stratum_bytes(found, layer, width)
        end = _stack(
            picture,
            bar_x,
            y + 6,
            _ROW - 11,
            scale,
            [
                (colours[file] if layer["store"] == "planes" else _FLOAT, size, f"{file}: {_bytes(size)}")
                for file, size in sizes.items()
            ],
        )
        picture.text(end + 6, y + 18, _bytes(sum(sizes.values())), size=11, colour=FAINT)
        counts = layer["histograms"].get(str(width or source))
        if counts is not None:
            _histogram(picture, counts, found["widths"][0], histogram_x, y + 2)
        elif layer["store"] != "planes":
            picture.text(histogram_x, y + 18, layer["store"], size=11, colour=FAINT)
        else:
            picture.text(histogram_x, y + 18, "strata not fetched", size=11, colour=FAINT)
        y += _ROW
    picture.rule(y)
    picture.text(
        histogram_x,
        y + 18,
        f"shades: the {1 << found['widths'][0]} codes at {found['widths'][0]} bits",
        size=11,
        colour=FAINT,
    )
    return y + 24


def _stratum_bytes(found: dict[str, Any], layer: dict[str, Any], bits: int | None) -> dict[str, int]:
    """A layer's bytes by file, up to a width; own weights once, for there is one in every view."""
    if layer["own"]:
        return dict([next(iter(layer["bytes"].items()))])
    lifts = {one["file"]: one["bits"] for one in found["strata"]}
    return {file: size for file, size in layer["bytes"].items() if bits is None or lifts[file] <= bits}


def _histogram(picture: Canvas, counts: list[int], base_bits: int, x: float, y: float) -> None:
    """Bars from the lowest code to the highest; neighbours that share a code at the base width share a shade."""
    step = _HISTOGRAM_WIDTH / len(counts)
    merged = max(1, len(counts) >> base_bits)
    top = max(counts)
    for index, count in enumerate(counts):
        height = (_ROW - 4) * count / top
        colour = _EVEN if index // merged % 2 == 0 else _ODD
        title = f"code {index - len(counts) // 2}: {count:,} of {sum(counts):,}"
        picture.box(x + index * step, y + _ROW - 4 - height, step * 0.86, height, colour, title)


def _bytes(size: int) -> str:
    for unit, limit in (("bytes", 10_000), ("kB", 10_000_000), ("MB", 10_000_000_000)):
        if size < limit:
            return f"{size:,} bytes" if unit == "bytes" else f"{size * 10_000 / limit:,.1f} {unit}"
    return f"{size / 1e9:,.1f} GB"
