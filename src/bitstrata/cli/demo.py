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
from bitstrata.device import load
from bitstrata.format import describe
from bitstrata.publish.destinations import open_destination
from bitstrata.publish.keys import generate, load_key
from bitstrata.publish.push import push
from bitstrata.publish.serve import Answer, serving
from bitstrata.runtime import Model
from bitstrata.training import StratifiedNet, load_checkpoint, train_once
from bitstrata.training.evaluate import FLOAT, accuracies
from bitstrata.training.fit import CHECKPOINT
from bitstrata.training.train_once import FLOAT_FOLDER
from bitstrata.zoo.data import Data, load_data
from bitstrata.zoo.nets import build
from bitstrata.zoo.recipes import recipe

WIDTHS = (2, 3, 4)
ARTIFACT, KEY, PUBLISHED, HOME = "demo.strata", "demo", "published", "device"
BATCH_SIZE = 250
TIMED_CALLS = 100


@dataclass(frozen=True)
class Row:
    """One line of the table: the float network, or a width on the device."""

    top1: float
    fetched: int
    """Bytes that came when the device went to this width."""
    bytes: int
    """That this width is made of, in all."""
    milliseconds: float
    """For one image on one thread, the median of many calls."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="keep everything here: the run, the artifact, what is published, the device's store",
    )
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
    say("packing, signing and publishing it")
    pack(net, folder / ARTIFACT, name=f"{chosen.data}-{chosen.net}", input=data.input)
    private, public = folder / f"{KEY}.key", folder / f"{KEY}.pub"
    if not private.exists():  # a demo that is kept may be run again
        generate(folder / KEY)
    push(folder / ARTIFACT, open_destination(str(folder / PUBLISHED)), key=load_key(private))
    rows = {FLOAT: _float_row(folder, data)}
    with _Counter(folder / PUBLISHED) as server:
        say(f"serving it at {server.address}; a device fetches the base, runs it, and upgrades twice")
        model = load(server.address, bits=WIDTHS[0], trust=public, home=folder / HOME, threads=1)
        for bits in WIDTHS:
            model.upgrade(bits)
            rows[str(bits)] = _device_row(model, data, server.taken())
    seconds = time.monotonic() - started
    if as_json:
        results = {name: vars(row) for name, row in rows.items()}
        facts = {"net": chosen.net, "data": chosen.data, "runtime": model.runtime}
        print_json({**facts, "results": results, "seconds": round(seconds, 1)})
        return
    print_table(
        ("width", "top-1", "fetched for it", "in all", "of float", "one image"),
        [
            (
                name if name == FLOAT else f"{name} bits",
                f"{row.top1:.2f} %",
                f"{row.fetched:,} bytes",
                f"{row.bytes:,} bytes",
                f"{row.bytes / rows[FLOAT].bytes:.1%}",
                f"{row.milliseconds:.3f} ms",
            )
            for name, row in rows.items()
        ],
    )
    print(
        f"\nThe weights of fewer bits are the upper bits of the others, so more bits are fetched on top of those that "
        f"are\nthere. Every byte came over HTTP, was signed for and verified. The float network was run by torch, the "
        f"widths by\nthe {model.runtime} runtime, without torch, on one thread. {seconds:.0f} seconds in all."
    )


class _Counter:
    """A published folder served on this machine, and the bytes of bodies that go out."""

    def __init__(self, folder: Path) -> None:
        self._serving = serving(folder, watch=self._watch)
        self._bytes = 0

    def __enter__(self) -> _Counter:
        self.address = self._serving.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._serving.__exit__(*error)

    def taken(self) -> int:
        """Bytes since the last time."""
        count, self._bytes = self._bytes, 0
        return count

    def _watch(self, answer: Answer) -> None:
        self._bytes += answer.bytes


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
    size = _parameter_bytes(model)
    return Row(content["history"][-1]["accuracy"][FLOAT]["top1"], size, size, milliseconds)


def _device_row(model: Model, data: Data, fetched: int) -> Row:
    """The view that the model runs now."""
    name = model.view
    session: Any = model.at(name)
    found = accuracies({name: on_tensors(session)}, data.test.batches(BATCH_SIZE))
    held = describe(model.artifact)["views"][name]["fetched_bytes"]
    return Row(found[name].top1, fetched, held, _median_milliseconds(session, _one_image(data).numpy()))


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
