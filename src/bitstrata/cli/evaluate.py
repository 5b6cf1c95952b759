"""`bitstrata eval`: the accuracy of a trained network, at every width or at one."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from bitstrata.cli import processes
from bitstrata.cli.output import print_json, print_table
from bitstrata.errors import BadData
from bitstrata.training import Accuracy, StratifiedNet, evaluate, load_net
from bitstrata.training.evaluate import FLOAT
from bitstrata.zoo.data import Data, known_data, load_data

BATCH_SIZE = 250


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="the folder of a training run, or a checkpoint")
    parser.add_argument(
        "--data",
        metavar="SPEC",
        help=f"{', '.join(known_data())}; default: what it was trained on, if that needs no folder",
    )
    parser.add_argument("--bits", type=int, metavar="WIDTH", help="only this width")
    parser.add_argument("--limit", type=processes.positive, metavar="N", help="only the first N test samples")
    processes.add_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    net, content = load_net(arguments.path)
    description = content["description"]
    if arguments.bits is not None:
        net.at(arguments.bits)  # refuses a width that is not there before any data are read
    data = load_data(arguments.data or str(description.get("data", "")))
    _check_fit(data, description)
    processes.use_threads(arguments.threads, data)
    device = processes.device(arguments.device)
    started = time.monotonic()
    found = _accuracies(
        net.to(device), arguments.bits, data, arguments.limit, device, bool(content["recipe"]["channels_last"])
    )
    seconds = time.monotonic() - started
    if arguments.json:
        print_json(
            {
                "path": arguments.path,
                "net": description["net"],
                "data": data.name,
                "epochs": content["epoch"],
                "accuracy": {width: asdict(accuracy) for width, accuracy in found.items()},
                "seconds": round(seconds, 3),
            }
        )
        return
    print_table(
        ("width", "top-1", "top-5", "samples"),
        [(width, f"{one.top1:.2f}", f"{one.top5:.2f}", str(one.samples)) for width, one in found.items()],
    )


def _check_fit(data: Data, description: dict[str, Any]) -> None:
    channels, classes = data.input.shape[0], len(data.input.labels)
    if (channels, classes) != (description["channels"], description["classes"]):
        raise BadData(
            f"{data.name} has {channels} channels and {classes} classes; the network was trained for "
            f"{description['channels']} and {description['classes']}. Give the data it was trained on"
        )


def _accuracies(
    net: StratifiedNet, bits: int | None, data: Data, limit: int | None, device: torch.device, channels_last: bool
) -> dict[str, Accuracy]:
    # In the layout of training, so that the numbers are those of its log to the last digit.
    layout = torch.channels_last if channels_last else torch.contiguous_format
    net = net.to(memory_format=layout)  # type: ignore[call-overload]
    batches = _first(data.test.batches(BATCH_SIZE), limit)

    def prepare(x: Tensor) -> Tensor:
        return x.to(device, memory_format=layout)

    if bits is None:
        return evaluate(net, batches, prepare=prepare)
    return {str(bits): evaluate(net.at(bits), batches, prepare=prepare)[FLOAT]}


def _first(batches: Iterator[tuple[Tensor, Tensor]], limit: int | None) -> Iterator[tuple[Tensor, Tensor]]:
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
