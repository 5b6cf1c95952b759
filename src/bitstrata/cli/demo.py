"""`bitstrata demo`: the whole idea on embedded data, in about a minute."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from bitstrata.cli import processes
from bitstrata.cli.output import print_json, print_table, say
from bitstrata.training import StratifiedNet, load_checkpoint, train_once
from bitstrata.training.fit import CHECKPOINT
from bitstrata.training.train_once import FLOAT_FOLDER
from bitstrata.zoo.data import load_data
from bitstrata.zoo.nets import build
from bitstrata.zoo.recipes import recipe

WIDTHS = (2, 3, 4)
FLOAT_BITS = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="DIR", help="keep the run in this folder; by default it is removed")
    parser.add_argument(
        "--threads", type=processes.positive, metavar="N", help="processor threads (1: the images are tiny)"
    )


def run(arguments: argparse.Namespace) -> None:
    if arguments.out is not None:
        _run(Path(arguments.out), arguments.threads, as_json=arguments.json)
        return
    with tempfile.TemporaryDirectory(prefix="bitstrata-demo-") as folder:
        _run(Path(folder), arguments.threads, as_json=arguments.json)


def _run(folder: Path, threads: int | None, *, as_json: bool) -> None:
    started = time.monotonic()
    chosen = recipe("digits")
    data = load_data(chosen.data)
    processes.use_threads(threads, data)
    torch.manual_seed(chosen.recipe.seed)
    classes, channels = len(data.input.labels), data.input.shape[0]
    say(f"{chosen.net} on {len(data.train)} images of handwritten digits, tested on {len(data.test)} others")
    net = train_once(
        build(chosen.net, classes, channels),
        data,
        chosen.recipe,
        folder=folder,
        widths=WIDTHS,
        description={"net": chosen.net, "classes": classes, "channels": channels, "data": chosen.data},
        say=say,
    )
    sizes = weight_bytes(net)
    accuracies = {
        **load_checkpoint(folder / FLOAT_FOLDER / CHECKPOINT)["history"][-1]["accuracy"],
        **load_checkpoint(folder / CHECKPOINT)["history"][-1]["accuracy"],
    }
    seconds = time.monotonic() - started
    if as_json:
        results = {name: {"top1": accuracies[name]["top1"], "weight_bytes": size} for name, size in sizes.items()}
        print_json({"net": chosen.net, "data": chosen.data, "results": results, "seconds": round(seconds, 1)})
        return
    print_table(
        ("width", "top-1", "weights", "of float"),
        [
            (
                name if name == "float" else f"{name} bits",
                f"{accuracies[name]['top1']:.2f} %",
                f"{size:,} bytes",
                f"{size / sizes['float']:.1%}",
            )
            for name, size in sizes.items()
        ],
    )
    widths = ", ".join(map(str, WIDTHS[:-1]))
    apart = sum(sizes[str(bits)] for bits in WIDTHS)
    print(
        f"\nThe {WIDTHS[-1]}-bit weights hold those of {widths} bits as their upper bits: one copy of "
        f"{sizes[str(WIDTHS[-1])]:,} bytes serves all\n{len(WIDTHS)} widths, where separate networks would take "
        f"{apart:,}. The first and last layer stay float and are counted.\n{seconds:.0f} seconds in all."
    )


def weight_bytes(net: StratifiedNet) -> dict[str, int]:
    """The bytes of all weights, in float and at each width: quantised ones at that width, the others at 32 bits."""
    quantised = sum(weight.numel() for weight in {layer.weight for _, layer in net.stratified_layers()})
    kept = sum(layer.weight.numel() for layer in net.model.modules() if isinstance(layer, (nn.Conv2d, nn.Linear)))
    kept_bytes = kept * FLOAT_BITS // 8
    sizes = {"float": quantised * FLOAT_BITS // 8 + kept_bytes}
    for bits in net.widths:
        sizes[str(bits)] = -(-quantised * bits // 8) + kept_bytes
    return sizes
