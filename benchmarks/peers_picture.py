"""The plot of benchmarks/peers.py: images per second of every engine, network by network."""

from __future__ import annotations

from typing import Any

from bitstrata.svg import FAINT, GREY, SHADES, WARM, Canvas

_ROW, _NAME_WIDTH, _NUMBER_WIDTH = 24, 220, 250


def draw(report: dict[str, Any]) -> str:
    """A group of bars for each network, of the first batch size and number of threads that were measured."""
    canvas = Canvas()
    first = report["tables"][0]
    tables = [one for one in report["tables"] if (one["batch"], one["threads"]) == (first["batch"], first["threads"])]
    threads = f"{first['threads']} {'thread' if first['threads'] == 1 else 'threads'}"
    canvas.text(canvas.margin, 48, f"Images per second, batch {first['batch']}, {threads}", size=24, weight=600)
    found = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    canvas.text(canvas.margin, 72, report["machine"], colour=FAINT)
    canvas.text(canvas.margin, 90, found, colour=FAINT)
    canvas.legend(120, [(SHADES[1], "bitstrata"), (WARM, "int8 engines"), (GREY, "float32")])
    y = 130.0
    for table in tables:
        y = _network(canvas, table, y + 36)
    return canvas.finish(y + 24)


def _network(canvas: Canvas, table: dict[str, Any], y: float) -> float:
    canvas.text(canvas.margin, y, table["net"], size=16, weight=600)
    y += 10
    rows = sorted(table["rows"].values(), key=lambda row: row["seconds"]["median"])
    rates = [table["batch"] / row["seconds"]["median"] for row in rows]
    scale = (canvas.inner - _NAME_WIDTH - _NUMBER_WIDTH) / max(rates)
    x = canvas.margin + _NAME_WIDTH
    for row, rate in zip(rows, rates, strict=True):
        ours = row["engine"] == "bitstrata"
        colour = SHADES[1] if ours else WARM if row["precision"] == "int8" else GREY
        canvas.rule(y)
        canvas.text(canvas.margin, y + 16, f"{row['engine']}, {row['precision']}", weight=600 if ours else 400)
        canvas.box(x, y + 4, rate * scale, _ROW - 8, colour, f"{1000 * row['seconds']['median']:.2f} ms")
        note = f"{rate:,.1f}"
        ratio = table["times_as_fast"].get(row["precision"]) if ours else None
        if ratio is not None:
            note += f", {ratio['median']:.2f} times the fastest int8 engine"
        canvas.text(x + rate * scale + 8, y + 16, note, size=11, colour=FAINT)
        y += _ROW
    canvas.rule(y)
    return y
