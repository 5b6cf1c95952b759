"""What does more work cost: time against image side, batch, channels and threads, and is there a cliff anywhere?

    python benchmarks/cost.py --json cost.json --picture cost.svg

ResNet-18 with random weights runs at image sides from 32 to 448, in batches of 1 to 32 and on all numbers of threads;
stacks of four convolutions (3x3, 1x1, 3x3 of every second pixel, depthwise 3x3) on 28 x 28 pixels run with 8 to 512
channels. Points of one curve take turns. Time per work, drawn on axes of powers of two, falls or stays level as work
grows; a point that costs over `CLIFF` times as much per multiplication as the next smaller one is named.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cost_picture import draw
from torch import nn

import bitstrata as bs
from bitstrata.runtime.measure import Spread, in_turns
from bitstrata.runtime.model import Model, load
from bitstrata.runtime.native import available_processors
from bitstrata.zoo.nets import build

WIDTHS = (2, 3, 4)
SIDES = (32, 48, 56, 64, 96, 112, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448)
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
CHANNELS = (8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512)
STACK_SIDE = 28
#: How much dearer a multiplication may be than at the next smaller size before it is called a cliff.
CLIFF = 1.3


def packed(model: nn.Module, shape: tuple[int, int, int], folder: Path) -> Path:
    """A network with random weights as an artifact."""
    net = bs.stratify(model, widths=WIDTHS)
    net.calibrate([torch.randn(4, *shape)])
    net.eval()
    bs.pack(net, folder, example=torch.zeros(1, *shape))
    return folder


def stack(kind: str, channels: int) -> nn.Module:
    """A float layer in front and one behind, and four quantised layers of one kind between them."""

    def layer() -> nn.Module:
        kernel, stride, groups = {
            "3x3": (3, 1, 1),
            "1x1": (1, 1, 1),
            "3x3/2": (3, 2, 1),
            "depthwise": (3, 1, channels),
        }[kind]
        conv = nn.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=groups, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(channels), nn.ReLU())

    front = nn.Sequential(nn.Conv2d(3, channels, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
    return nn.Sequential(
        front, *(layer() for _ in range(4)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)
    )


def curve(points: Sequence[int], call_of: Callable[[int], Callable[[], object]], seconds: float) -> list[Spread]:
    """Times of all points of a curve, in turns."""
    times = in_turns({str(point): call_of(point) for point in points}, seconds)
    return [Spread.of(times[str(point)].steady) for point in points]


def noise(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def row(
    title: str, axis: str, view: str, points: Sequence[int], work: Sequence[float], spreads: list[Spread]
) -> dict[str, Any]:
    """One curve; `work` is what time is divided by: it grows as the multiplications do."""
    per_work = [spread.median / amount for spread, amount in zip(spreads, work, strict=True)]
    cliffs = [
        point for point, before, now in zip(points[1:], per_work, per_work[1:], strict=False) if now > CLIFF * before
    ]
    return {
        "title": title,
        "axis": axis,
        "view": view,
        "points": list(points),
        "seconds": [spread.median for spread in spreads],
        "lower": [spread.lower for spread in spreads],
        "upper": [spread.upper for spread in spreads],
        "per_work": [value / per_work[0] for value in per_work],
        "cliffs": cliffs,
    }


def layer_curves(kind: str, folder: Path, seconds: float) -> list[dict[str, Any]]:
    """Time of the four layers alone, against channels."""
    models: dict[int, Model] = {}
    for channels in CHANNELS:
        path = packed(
            stack(kind, channels), (3, STACK_SIDE, STACK_SIDE), folder / f"{kind.replace('/', '-')}-{channels}"
        )
        models[channels] = load(path, threads=1)
    x = noise(1, 3, STACK_SIDE, STACK_SIDE)
    order = 1 if kind == "depthwise" else 2
    curves = []
    for bits in WIDTHS:
        sessions = {channels: model.at(bits) for channels, model in models.items()}
        spreads = curve(CHANNELS, lambda channels, sessions=sessions: lambda: sessions[channels](x), seconds)
        work = [float(channels**order) for channels in CHANNELS]
        curves.append(row(f"four layers of {kind}", "channels", str(bits), CHANNELS, work, spreads))
    return curves


def measure(folder: Path, seconds: float, say: Callable[[str], None]) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    path = packed(build("resnet18", 1000, 3), (3, 224, 224), folder / "resnet18")
    curves = []
    for threads in range(1, available_processors() + 1):
        model = load(path, threads=threads)
        title = f"ResNet-18, {threads} {'thread' if threads == 1 else 'threads'}"
        for bits in WIDTHS if threads == 1 else WIDTHS[:1]:
            session = model.at(bits)
            say(f"{title}, {bits} bits: image side")
            inputs = {side: noise(1, 3, side, side) for side in SIDES}
            spreads = curve(SIDES, lambda side, session=session, x=inputs: lambda: session(x[side]), seconds)
            work = [float(side * side) for side in SIDES]
            curves.append(row(title, "image side", str(bits), SIDES, work, spreads))
            say(f"{title}, {bits} bits: batch")
            inputs = {batch: noise(batch, 3, 112, 112) for batch in BATCHES}
            spreads = curve(BATCHES, lambda batch, session=session, x=inputs: lambda: session(x[batch]), seconds)
            curves.append(row(f"{title}, 112 x 112", "batch", str(bits), BATCHES, [float(b) for b in BATCHES], spreads))
    for kind in ("3x3", "1x1", "3x3/2", "depthwise"):
        say(f"four layers of {kind}: channels")
        curves += layer_curves(kind, folder, seconds)
    return curves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.3, help="of measuring each point (0.3)")
    parser.add_argument("--json", type=Path, help="write everything that was measured to this file")
    parser.add_argument("--picture", type=Path, help="draw the curves to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        curves = measure(Path(folder), arguments.seconds, lambda text: print(text, flush=True))
    for one in curves:
        cost = "  ".join(
            f"{point}:{1000 * value:.3g}" for point, value in zip(one["points"], one["seconds"], strict=True)
        )
        print(f"{one['title']}, {one['view']} bits, ms by {one['axis']}: {cost}")
        for point in one["cliffs"]:
            print(f"  cliff at {one['axis']} {point}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"curves": curves}, indent=1) + "\n", encoding="utf-8")
    if arguments.picture:
        arguments.picture.write_text(draw(curves), encoding="utf-8")


if __name__ == "__main__":
    main()
