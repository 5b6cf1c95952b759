"""The paper's figures 5, 7 and 8, drawn from records: histograms of codes, traces, input errors, mixed precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from bitstrata.study.claims import OBJECTIVES, points_of
from bitstrata.study.groups import Group, accuracy_cell, widths_of
from bitstrata.study.plot import Panel, Scale, around
from bitstrata.study.records import InputError, RunRecord, TracePoint
from bitstrata.svg import FAINT, GREY, INK, RED, SHADES, WARM, Canvas, clipped

#: From the lowest width to the highest.
_WIDTH_COLOURS = (SHADES[1], WARM, RED, GREY, SHADES[0], SHADES[3], FAINT)
_OBJECTIVE_COLOURS = dict(zip(OBJECTIVES, (SHADES[1], WARM), strict=True))

_DASHES = "#aeb9c5"

_HISTOGRAM_COLUMNS = (
    ("lsq", "(a) LSQ, dedicated networks"),
    ("qat-finetune", "(b) QAT + fine-tuning"),
    ("joint", "(c) Joint training"),
)
_ERROR_METHODS = (("joint", "none", GREY), ("joint-kl", "KL", WARM), ("joint-cosine", "cosine", SHADES[1]))


def weight_histograms(group: Group) -> str | None:
    """Fig. 5: the share of weights that have each code, a column for each method and a row for each width."""
    runs = {method: [one for one in group.of(method) if one.histograms] for method, _ in _HISTOGRAM_COLUMNS}
    shown = [(method, title) for method, title in _HISTOGRAM_COLUMNS if runs[method]]
    if not shown:
        return None
    widths = sorted({width for records in runs.values() for one in records for width in one.histograms}, key=int)
    canvas = Canvas()
    _title(
        canvas,
        f"Weights by code, {group.name}",
        "Share of all quantised weights, mean over the seeds; bars: sample spread",
    )
    column = (canvas.inner + 24) / len(_HISTOGRAM_COLUMNS)
    y = 140.0
    for index, (_, title) in enumerate(shown):
        canvas.text(canvas.margin + index * column + 44, y - 32, title, size=15, weight=600)
    for width in widths:
        shares = {method: _shares(runs[method], width) for method, _ in shown}
        top = max((mean + spread for one in shares.values() for mean, spread in one.values()), default=1.0)
        for index, (method, _) in enumerate(shown):
            panel = Panel(canvas, canvas.margin + index * column + 44, y, column - 72, 150)
            note = f"{width} bits, top-1 {accuracy_cell(runs[method], width)} %".replace("\n", " ")
            _histogram(
                panel, shares[method], int(width), top, note if width in runs[method][0].accuracy else f"{width} bits"
            )
        y += 216
    return canvas.finish(y - 12)


def _shares(records: Sequence[RunRecord], width: str) -> dict[int, tuple[float, float]]:
    """By code: mean and spread of its share over the seeds, in per cent."""
    found: dict[int, list[float]] = {}
    counts = [one.histograms[width] for one in records if sum(one.histograms.get(width, {}).values())]
    codes = {int(code) for one in counts for code in one}
    for one in counts:
        total = sum(one.values())
        for code in codes:
            found.setdefault(code, []).append(100 * one.get(str(code), 0) / total)
    return {code: (fmean(values), _spread(values)) for code, values in sorted(found.items())}


def _histogram(panel: Panel, shares: dict[int, tuple[float, float]], width: int, top: float, note: str) -> None:
    canvas = panel.canvas
    upwards = panel.vertical(0, top * 1.16)
    panel.ticks_up(upwards, 4, " %")
    canvas.line([(panel.left, panel.bottom), (panel.right, panel.bottom)], FAINT, thickness=1)
    canvas.text(panel.left, panel.top - 4, note, size=12, colour=INK)
    if not shares:
        canvas.text(panel.left + 8, panel.bottom - 8, "not recorded", size=12, colour=FAINT)
        return
    low, high = min(-(1 << width - 1), *shares), max((1 << width - 1) - 1, *shares)
    step = panel.width / (high - low + 1)
    apart = math.ceil(16 / step)
    for code in range(low, high + 1):
        mean, spread = shares.get(code, (0.0, 0.0))
        x = panel.left + (code - low) * step
        y = upwards.place(mean)
        canvas.box(x + step * 0.08, y, step * 0.84, panel.bottom - y, SHADES[1], f"code {code}: {mean:.2f} %")
        if spread:
            panel.error_bar(x + step / 2, upwards.place(max(mean - spread, 0)), upwards.place(mean + spread))
        if (code - low) % apart == 0:
            canvas.text(x + step / 2, panel.bottom + 16, f"{code}", size=11, colour=FAINT, middle=True)
    canvas.text((panel.left + panel.right) / 2, panel.bottom + 34, "code", size=12, colour=FAINT, middle=True)


def minimum_norm_traces(group: Group) -> str | None:
    """Fig. 7 (a) and (b): weights of the combination and norms of the gradients over a minimum-norm run."""
    traces = [one.trace for one in group.of("minimum-norm") if one.trace]
    if not traces:
        return None
    widths = sorted({width for trace in traces for point in trace for width in point.norms}, key=int)
    canvas = Canvas()
    seeds = "1 seed" if len(traces) == 1 else f"mean over {len(traces)} seeds, shaded: sample spread between them"
    _title(
        canvas,
        f"Minimum-norm objective, {group.name}",
        f"Each point is a mean over the steps since the one before; {seeds}",
    )
    canvas.legend(98, [(_colour(index), f"{width} bits") for index, width in enumerate(widths)])
    panel_width = (canvas.inner - 2 * 56 - 24) / 2
    last = max(point.epoch for trace in traces for point in trace)
    curves = [{width: _curve(traces, width, norms=norms) for width in widths} for norms in (False, True)]
    left = Panel(canvas, canvas.margin + 56, 150, panel_width, 280)
    upwards = left.vertical(0, 1)
    left.frame("(a) Weight of each width", "epoch", "weight in the combination")
    _curves(left, upwards, curves[0], last)
    right = Panel(canvas, canvas.margin + 56 + panel_width + 80, 150, panel_width, 280)
    means = [mean for curve in curves[1].values() for _, mean, _ in curve if mean > 0]
    logarithmic = bool(means) and max(means) / min(means) > 12
    highest = max((mean + spread for curve in curves[1].values() for _, mean, spread in curve), default=1.0)
    upwards = right.vertical(min(means) / 1.3 if logarithmic else 0, (highest or 1) * 1.08, logarithmic=logarithmic)
    right.frame("(b) Norm of each width's gradient", "epoch", "norm" + (" (logarithmic)" if logarithmic else ""))
    _curves(right, upwards, curves[1], last)
    return canvas.finish(496)


def _curve(traces: Sequence[Sequence[TracePoint]], width: str, *, norms: bool) -> list[tuple[float, float, float]]:
    """Epoch, mean and spread over the seeds that have a point there."""
    found: dict[float, list[float]] = {}
    for trace in traces:
        for point in trace:
            value = (point.norms if norms else point.weights).get(width)
            if value is not None and math.isfinite(value):
                found.setdefault(round(point.epoch, 6), []).append(value)
    return [(epoch, fmean(values), _spread(values)) for epoch, values in sorted(found.items())]


def _curves(panel: Panel, upwards: Scale, curves: dict[str, list[tuple[float, float, float]]], last: float) -> None:
    across = panel.horizontal(0, last or 1.0)
    panel.ticks_up(upwards)
    panel.ticks_across(across)
    for index, curve in enumerate(curves.values()):
        if curve:
            panel.band(across, upwards, curve, _colour(index))


def input_errors(group: Group) -> str | None:
    """Fig. 7 (c): how much quantisation changes the inputs of the last layers at the lowest width."""
    runs = [
        (label, colour, [one.input_errors for one in group.of(method) if one.input_errors])
        for method, label, colour in _ERROR_METHODS
    ]
    runs = [(label, colour, errors) for label, colour, errors in runs if errors]
    if not runs:
        return None
    layers = list(dict.fromkeys(error.layer for _, _, seeds in runs for errors in seeds for error in errors))
    canvas = Canvas()
    _title(
        canvas,
        f"Input quantisation error at the lowest width, {group.name}",
        "The last quantised layers; mean over the seeds, bars: sample spread",
    )
    canvas.legend(98, [(colour, f"self-distillation: {label}") for label, colour, _ in runs])
    panel_width = (canvas.inner - 2 * 56 - 24) / 2
    for index, (title, relative) in enumerate((("(c) Norm of the error", False), ("Relative to the input", True))):
        panel = Panel(canvas, canvas.margin + 56 + index * (panel_width + 80), 150, panel_width, 260)
        panel.frame(title, "layer", "|a - â| / |a|" if relative else "|a - â|", below=54)
        _error_bars(panel, runs, layers, relative=relative)
    return canvas.finish(492)


def _error_bars(
    panel: Panel, runs: Sequence[tuple[str, str, list[list[InputError]]]], layers: Sequence[str], *, relative: bool
) -> None:
    def values(seeds: list[list[InputError]], layer: str) -> list[float]:
        return [one.relative if relative else one.norm for errors in seeds for one in errors if one.layer == layer]

    bars = {
        (label, layer): (fmean(found), _spread(found))
        for label, _, seeds in runs
        for layer in layers
        if (found := values(seeds, layer))
    }
    upwards = panel.vertical(0, max(mean + spread for mean, spread in bars.values()) * 1.08 or 1.0)
    panel.ticks_up(upwards)
    step = panel.width / len(layers)
    thickness = step * 0.76 / len(runs)
    for position, layer in enumerate(layers):
        start = panel.left + position * step + step * 0.12
        for index, (label, colour, _) in enumerate(runs):
            if (label, layer) not in bars:
                continue
            mean, spread = bars[label, layer]
            y, x = upwards.place(mean), start + index * thickness
            panel.canvas.box(x, y, thickness * 0.92, panel.bottom - y, colour, f"{layer}, {label}: {mean:.4g}")
            if spread:
                low, high = upwards.place(max(mean - spread, 0)), upwards.place(mean + spread)
                panel.error_bar(x + thickness * 0.46, low, high)
        panel.mark(start + step * 0.38, *_two_lines(layer, max(4, int(step / 7.6))))


def _two_lines(name: str, characters: int) -> tuple[str, ...]:
    """A long name is broken after one of its dots."""
    if len(name) <= characters or "." not in name:
        return (clipped(name, characters),)
    parent, _, last = name.rpartition(".")
    return clipped(f"{parent}.", characters), clipped(last, characters)


def mixed_precision(group: Group) -> str | None:
    """Fig. 8: top-1 against bits per weight, for both objectives, with the uniform widths beside."""
    records = [one for one in group.of("mixed") if one.mixed]
    if not records:
        return None
    uniform = [
        (int(width), [one.accuracy[width].top1 for one in records if width in one.accuracy])
        for width in widths_of(records)
    ]
    uniform = [(width, values) for width, values in uniform if values]
    names = sorted({point.objective for one in records for point in one.mixed}, key=_objective_order)
    canvas = Canvas()
    seeds = (
        "1 seed"
        if len(records) == 1
        else f"{len(records)} seeds: faint dots; their mean and sample spread: lines and bars"
    )
    _title(canvas, f"Mixed precision, {group.name}", f"Top-1 of networks over the planes of one joint network; {seeds}")
    colours = {name: _OBJECTIVE_COLOURS.get(name, GREY) for name in names}
    canvas.legend(
        98, [*((colours[name], f"mixed, objective: {name}") for name in names), (INK, "uniform widths (circles)")]
    )
    panel = Panel(canvas, canvas.margin + 56, 140, canvas.inner - 76, 380)
    bits = [point.bits_per_weight for one in records for point in one.mixed] + [width for width, _ in uniform]
    tops = [point.top1 for one in records for point in one.mixed] + [value for _, values in uniform for value in values]
    across, upwards = panel.horizontal(*around(bits, 0.04)), panel.vertical(*around(tops))
    panel.ticks_up(upwards, 6)
    panel.ticks_across(across, 8)
    panel.frame("", "bits per quantised weight", "top-1 accuracy (%)")
    for _, values in uniform:
        level = upwards.place(fmean(values))
        canvas.line([(panel.left, level), (panel.right, level)], _DASHES, thickness=1, dashed=True)
    for index, name in enumerate(names):
        # Points of the same budget stand beside each other.
        aside = 6 * (index - (len(names) - 1) / 2)
        moved = Scale(across.low, across.high, across.start + aside, across.end + aside)
        _mixed_curve(panel, moved, upwards, records, name, colours[name])
    for width, values in uniform:
        x, y = across.place(width), upwards.place(fmean(values))
        if len(values) > 1:
            spread = stdev(values)
            panel.error_bar(x, upwards.place(fmean(values) - spread), upwards.place(fmean(values) + spread))
        canvas.circle(x, y, 6, INK, hollow=True, title=f"uniform {width} bits: {fmean(values):.2f} %")
        canvas.text(x + 11, y + 18, f"uniform {width}", size=12, end=x > panel.right - 80)
    return canvas.finish(586)


def _mixed_curve(
    panel: Panel, across: Scale, upwards: Scale, records: Sequence[RunRecord], objective: str, colour: str
) -> None:
    """Every seed's points; where all seeds have equally many, those of the same rank make one point of the curve."""
    seeds = [points for one in records if (points := points_of(one, objective))]
    for points in seeds if len(seeds) > 1 else ():
        for point in points:
            panel.canvas.circle(
                across.place(point.bits_per_weight), upwards.place(point.top1), 2.6, colour, opacity=0.35
            )
    if len({len(points) for points in seeds}) != 1:
        return
    places = []
    for rank in zip(*seeds, strict=True):
        tops = [point.top1 for point in rank]
        mean, spread = fmean(tops), _spread(tops)
        x, y = across.place(fmean(point.bits_per_weight for point in rank)), upwards.place(mean)
        if spread:
            panel.error_bar(x, upwards.place(mean - spread), upwards.place(mean + spread), colour)
        places.append((x, y, f"{objective}, {fmean(point.bits_per_weight for point in rank):.2f} bits: {mean:.2f} %"))
    panel.canvas.line([(x, y) for x, y, _ in places], colour, thickness=2)
    for x, y, title in places:
        panel.canvas.circle(x, y, 4, colour, title=title)


def _title(canvas: Canvas, title: str, below: str) -> None:
    canvas.text(canvas.margin, 42, title, size=20, weight=600)
    canvas.text(canvas.margin, 66, below, colour=FAINT)


def _spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _colour(index: int) -> str:
    return _WIDTH_COLOURS[index % len(_WIDTH_COLOURS)]


def _objective_order(name: str) -> tuple[int, str]:
    return (OBJECTIVES.index(name) if name in OBJECTIVES else len(OBJECTIVES), name)
