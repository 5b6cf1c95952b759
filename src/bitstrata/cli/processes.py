"""Where a command computes: which device, how many threads, and together with which other processes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from bitstrata.zoo.data import Data

#: Up to this many pixels an image is so small that a second thread costs more than it brings.
SMALL_IMAGE_PIXELS = 16 * 16


def add_arguments(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--threads", type=positive, metavar="N", help="processor threads for each process")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def use_threads(threads: int | None, data: Data) -> None:
    """As many threads as were asked for; where nothing was said, one for tiny images and torch's choice otherwise."""
    _, height, width = data.input.shape
    if threads is not None:
        torch.set_num_threads(threads)
    elif height * width <= SMALL_IMAGE_PIXELS:
        torch.set_num_threads(1)


def device(choice: str | None) -> torch.device:
    """The device of this process; under torchrun, each process has a GPU of its own."""
    name = choice or ("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cpu":
        return torch.device("cpu")
    chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(chosen)
    return chosen


@contextmanager
def process_group(used: torch.device) -> Iterator[None]:
    """Joins the processes that torchrun started, if it did."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "RANK" not in os.environ:
        yield
        return
    dist.init_process_group("nccl" if used.type == "cuda" else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()
