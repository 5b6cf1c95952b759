"""`bitstrata demo`: the whole idea on embedded data, in about a minute."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bitstrata.capture import pack
from bitstrata.cli import processes
from bitstrata.cli.evaluate import on_tensors
from bitstrata.cli.output import print_json, print_table, say
from bitstrata.format import describe
from bitstrata.runtime import Model, load
from bitstrata.training import StratifiedNet, load_checkpoint, train_once
from bitstrata.training.evaluate import FLOAT, accuracies
from bitstrata.training.fit import CHECKPOINT
from bitstrata.training.train_once import FLOAT_FOLDER
from bitstrata.zoo.data import Data, load_data
from bitstrata.zoo.nets import build
from bitstrata.zoo.recipes import recipe

WIDTHS = (2, 3, 4)
ARTIFACT = "demo.strata"
BATCH_SIZE = 250
TIMED_CALLS = 100


@dataclass(frozen=True)
class Row:
    """One line of the table: the float network, or a width of the artifact."""

    top1: float
    bytes: int
    milliseconds: float
    """For one image on one thread, the median of many calls."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="DIR", help="keep the run and the artifact in this folder")
    parser.add_argument(
        "--threads", type=processes.positive, metavar="N", help="processor threads of training (1: the images are tiny)"
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
    net = _train(folder, data)
    say("packing it")
    pack(net, folder / ARTIFACT, name=f"{chosen.data}-{chosen.net}", input=data.input)
    model = load(folder / ARTIFACT, threads=1)
    say(f"running it on {len(data.test)} test images with the {model.runtime} runtime")
    rows = {FLOAT: _float_row(folder, data), **_artifact_rows(model, data)}
    total = describe(model.artifact)["total_bytes"]
    seconds = time.monotonic() - started
    if as_json:
        results = {name: vars(row) for name, row in rows.items()}
        facts = {"net": chosen.net, "data": chosen.data, "runtime": model.runtime, "artifact_bytes": total}
        print_json({**facts, "results": results, "seconds": round(seconds, 1)})
        return
    print_table(
        ("width", "top-1", "a device fetches", "of float", "one image"),
        [
            (
                name if name == FLOAT else f"{name} bits",
                f"{row.top1:.2f} %",
                f"{row.bytes:,} bytes",
                f"{row.bytes / rows[FLOAT].bytes:.1%}",
                f"{row.milliseconds:.3f} ms",
            )
            for name, row in rows.items()
        ],
    )
    apart = sum(rows[str(bits)].bytes for bits in WIDTHS)
    print(
        f"\nThe weights of fewer bits are the upper bits of the others: one artifact of {total:,} bytes serves all "
        f"{len(WIDTHS)}\nwidths, where separate files would take {apart:,}. The float network was run by torch, the "
        f"widths by\nthe {model.runtime} runtime, without torch, on one thread. {seconds:.0f} seconds in all."
    )


def _train(folder: Path, data: Data) -> StratifiedNet:
    chosen = recipe("digits")
    torch.manual_seed(chosen.recipe.seed)
    classes, channels = len(data.input.labels), data.input.shape[0]
    say(f"{chosen.net} on {len(data.train)} images of handwritten digits, tested on {len(data.test)} others")
    return train_once(
        build(chosen.net, classes, channels),
        data,
        chosen.recipe,
        folder=folder,
        widths=WIDTHS,
        description={
            "net": chosen.net,
            "classes": classes,
            "channels": channels,
            "data": chosen.data,
            "input": asdict(data.input),
        },
        say=say,
    )


def _float_row(folder: Path, data: Data) -> Row:
    chosen = recipe("digits")
    content = load_checkpoint(folder / FLOAT_FOLDER / CHECKPOINT)
    model = build(chosen.net, len(data.input.labels), data.input.shape[0]).eval()
    model.load_state_dict(content["model"])
    with torch.inference_mode():
        milliseconds = _median_milliseconds(model, _one_image(data))
    return Row(content["history"][-1]["accuracy"][FLOAT]["top1"], _parameter_bytes(model), milliseconds)


def _artifact_rows(model: Model, data: Data) -> dict[str, Row]:
    image = _one_image(data).numpy()
    sessions: dict[str, Any] = {name: model.at(name) for name in model.views}
    networks = {name: on_tensors(session) for name, session in sessions.items()}
    found = accuracies(networks, data.test.batches(BATCH_SIZE))
    views = describe(model.artifact)["views"]
    return {
        name: Row(found[name].top1, views[name]["fetched_bytes"], _median_milliseconds(session, image))
        for name, session in sessions.items()
    }


def _one_image(data: Data) -> Tensor:
    x, _ = next(iter(data.test.batches(1)))
    return x


def _median_milliseconds(network: Callable[[Any], Any], x: Any) -> float:
    times = []
    for _ in range(TIMED_CALLS):
        started = time.perf_counter()
        network(x)
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)


def _parameter_bytes(model: nn.Module) -> int:
    """Of everything a float file holds: parameters, and the statistics of its norms."""
    return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
