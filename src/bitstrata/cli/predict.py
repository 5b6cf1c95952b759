"""`bitstrata predict`: what a network sees in images; needs no torch."""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from bitstrata.cli.output import print_json, print_table
from bitstrata.device import load
from bitstrata.errors import BadInput
from bitstrata.format import InputDescription
from bitstrata.graph.network import Floats
from bitstrata.runtime.images import normalise, read_image


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="ARTIFACT|SRC", help="a .strata folder, a model of this device, or where one is published"
    )
    parser.add_argument("images", metavar="IMAGE", nargs="+", help="image files, or .npy files of bytes (C, H, W)")
    parser.add_argument(
        "--bits",
        type=int,
        metavar="WIDTH",
        help="default: the highest width of an artifact, or what is held of a model",
    )
    parser.add_argument("--view", metavar="NAME", help="a view by name, in place of --bits")
    parser.add_argument("--top", type=int, default=3, metavar="N", help="how many labels to show (3)")
    parser.add_argument("--threads", type=int, metavar="N", help="default: all processors")


def run(arguments: argparse.Namespace) -> None:
    model = load(arguments.path, arguments.bits, view=arguments.view, threads=arguments.threads)
    results = []
    for path in arguments.images:
        image = read_image(path, model.input.shape, model.input.crop)
        started = time.perf_counter()
        output = model(normalise(image[None], model.input))
        seconds = time.perf_counter() - started
        if not isinstance(output, np.ndarray) or output.ndim != 2:
            raise BadInput("predict shows classes, and this network has other outputs; use bitstrata.load in Python")
        results.append(
            {"image": path, "milliseconds": round(1000 * seconds, 3), "classes": best(output[0], model, arguments.top)}
        )
    if arguments.json:
        print_json({"model": model.artifact.name, "view": model.view, "results": results})
        return
    rows = []
    for result in results:
        classes: Any = result["classes"]
        shown = ", ".join(f"{one['label']} {one['probability']:.1%}" for one in classes)
        rows.append((str(result["image"]), f"{result['milliseconds']} ms", shown))
    print_table(("image", "time", "classes"), rows)


def best(scores: Floats, model: Any, count: int) -> list[dict[str, Any]]:
    """The `count` most likely classes of one image, by softmax."""
    shifted = np.exp(scores.astype(np.float64) - scores.max())
    probabilities = shifted / shifted.sum()
    order = np.argsort(-probabilities, kind="stable")[:count]
    return [
        {"label": label_of(model.input, int(index)), "index": int(index), "probability": float(probabilities[index])}
        for index in order
    ]


def label_of(description: InputDescription, index: int) -> str:
    return description.labels[index] if index < len(description.labels) else f"class {index}"
