"""`bitstrata eval`: the accuracy of a trained network or an artifact, at every width or at one."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bitstrata.cli import processes
from bitstrata.cli.output import print_json, print_table
from bitstrata.errors import BadData
from bitstrata.format import MANIFEST
from bitstrata.runtime import load
from bitstrata.training import Accuracy, StratifiedNet, evaluate, load_net
from bitstrata.training.evaluate import FLOAT, accuracies
from bitstrata.zoo.data import Data, known_data, load_data

BATCH_SIZE = 250


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="PATH", help="the folder of a training run, a checkpoint, or a .strata artifact"
    )
    parser.add_argument(
        "--data",
        metavar="SPEC",
        help=f"{', '.join(known_data())}; default: what it was trained on, if that needs no folder",
    )
    parser.add_argument("--bits", type=int, metavar="WIDTH", help="only this width")
    parser.add_argument("--limit", type=processes.positive, metavar="N", help="only the first N test samples")
    processes.add_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    started = time.monotonic()
    if (Path(arguments.path) / MANIFEST).is_file():
        data, found, facts = _run_artifact(arguments)
    else:
        data, found, facts = _run_checkpoint(arguments)
    seconds = time.monotonic() - started
    if arguments.json:
        print_json(
            {
                "path": arguments.path,
                **facts,
                "data": data.name,
                "accuracy": {width: asdict(accuracy) for width, accuracy in found.items()},
                "seconds": round(seconds, 3),
            }
        )
        return
    print_table(
        ("width", "top-1", "top-5", "samples"),
        [(width, f"{one.top1:.2f}", f"{one.top5:.2f}", str(one.samples)) for width, one in found.items()],
    )


def _run_checkpoint(arguments: argparse.Namespace) -> tuple[Data, dict[str, Accuracy], dict[str, Any]]:
    """In torch, as in training."""
    net, content = load_net(arguments.path)
    description = content["description"]
    if arguments.bits is not None:
        net.at(arguments.bits)  # refuses a width that is not there before any data are read
    data = load_data(arguments.data or str(description.get("data", "")))
    check_fit(data, description["channels"], description["classes"])
    processes.use_threads(arguments.threads, data)
    device = processes.device(arguments.device)
    found = _accuracies(
        net.to(device), arguments.bits, data, arguments.limit, device, bool(content["recipe"]["channels_last"])
    )
    return data, found, {"net": description["net"], "epochs": content["epoch"]}


def _run_artifact(arguments: argparse.Namespace) -> tuple[Data, dict[str, Accuracy], dict[str, Any]]:
    """By the integer kernels, as on a device."""
    model = load(arguments.path, arguments.bits, threads=arguments.threads)
    if arguments.data is None:
        raise BadData("an artifact does not know its data: give --data")
    data = load_data(arguments.data)
    check_fit(data, model.input.shape[0], len(model.input.labels))
    views = [str(arguments.bits)] if arguments.bits is not None else model.views
    networks = {name: on_tensors(model.at(name)) for name in views}
    found = accuracies(networks, first(data.test.batches(BATCH_SIZE), arguments.limit))
    return data, found, {"model": model.artifact.name, "runtime": model.runtime}


def on_tensors(session: Any) -> Callable[[Tensor], Tensor]:
    """A session of the runtime as a function of torch tensors."""
    return lambda x: torch.from_numpy(session(x.numpy()))


def check_fit(data: Data, channels: int, classes: int) -> None:
    """Raises where data are not of the kind that a network takes and tells apart."""
    found = data.input.shape[0], len(data.input.labels)
    if found != (channels, classes):
        raise BadData(
            f"{data.name} has {found[0]} channels and {found[1]} classes; the network was trained for {channels} and "
            f"{classes}. Give the data it was trained on"
        )


def _accuracies(
    net: StratifiedNet, bits: int | None, data: Data, limit: int | None, device: torch.device, channels_last: bool
) -> dict[str, Accuracy]:
    # In the layout of training, so that the numbers are those of its log to the last digit.
    layout = torch.channels_last if channels_last else torch.contiguous_format
    net = net.to(memory_format=layout)  # type: ignore[call-overload]
    batches = first(data.test.batches(BATCH_SIZE), limit)

    def prepare(x: Tensor) -> Tensor:
        return x.to(device, memory_format=layout)

    if bits is None:
        return evaluate(net, batches, prepare=prepare)
    return {str(bits): evaluate(net.at(bits), batches, prepare=prepare)[FLOAT]}


def first(batches: Iterator[tuple[Tensor, Tensor]], limit: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    """The first `limit` samples."""
    left = limit
    for x, y in batches:
        if left is None:
            yield x, y
            continue
        yield x[:left], y[:left]
        left -= len(y)
        if left <= 0:
            return
