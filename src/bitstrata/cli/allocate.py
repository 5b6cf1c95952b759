"""`bitstrata allocate`: mixed precision. A width for each layer within a budget, added to an artifact as a view."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from bitstrata.allocation import Allocation, Allocator, add_mixed_view, mixed_network
from bitstrata.allocation.curve import Curve, Point, budgets, curve
from bitstrata.allocation.objectives import Objective
from bitstrata.atomic import write_atomically
from bitstrata.cli import processes
from bitstrata.cli.allocate_picture import draw_choice, draw_curve
from bitstrata.cli.evaluate import BATCH_SIZE, check_fit, first, on_tensors
from bitstrata.cli.output import print_json, print_table, say
from bitstrata.errors import BadBudget, BadOption
from bitstrata.format import Artifact, describe
from bitstrata.format.views import check_free
from bitstrata.runtime import load
from bitstrata.training import Accuracy, StratifiedNet, load_net
from bitstrata.training.evaluate import accuracies
from bitstrata.zoo.data import Data, known_data, load_data

#: Batches of training data for statistics and energies, where neither the flag nor the recipe says how many.
BATCHES = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="the folder of a training run, or a checkpoint")
    parser.add_argument(
        "artifact", metavar="ARTIFACT", nargs="?", help="the artifact that it was packed to; --curve needs none"
    )
    parser.add_argument(
        "--data",
        metavar="SPEC",
        help=f"{', '.join(known_data())}; default: what it was trained on, if that needs no folder",
    )
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--bits-per-weight", type=float, metavar="X", help="the budget as a mean width")
    budget.add_argument("--bytes", type=processes.positive, metavar="N", help="the budget in bytes of stored planes")
    budget.add_argument(
        "--curve",
        type=processes.positive,
        metavar="N",
        help="N budgets from the lowest to the highest width: the accuracy of each; adds no view",
    )
    parser.add_argument(
        "--objective",
        choices=get_args(Objective),
        default="weights",
        help="error of the weights, or the same weighted by the energy of the activations; default: weights",
    )
    parser.add_argument("--name", default="mixed-a", help="the name of the view; default: mixed-a")
    parser.add_argument("--replace", action="store_true", help="a view of that name gives way")
    parser.add_argument(
        "--model-version", type=processes.positive, metavar="N", help="of the artifact; default: as it is"
    )
    parser.add_argument(
        "--batches",
        type=processes.positive,
        metavar="N",
        help=f"training batches for statistics and energies; default: as in training, else {BATCHES}",
    )
    parser.add_argument("--evaluate", action="store_true", help="measure the accuracy of the new view too")
    parser.add_argument("--limit", type=processes.positive, metavar="N", help="only the first N test samples")
    parser.add_argument("--picture", metavar="FILE.svg", help="draw the choice, or the curve")
    processes.add_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    if arguments.curve is None:
        if arguments.artifact is None:
            raise BadOption("name the artifact that the view is to be added to: bitstrata allocate RUN ARTIFACT ...")
        check_free(Artifact.open(arguments.artifact), arguments.name, replace=arguments.replace)
    net, content = load_net(arguments.path)
    _check_budget(net, arguments)
    description, recipe = content["description"], content["recipe"]
    data = load_data(arguments.data or str(description.get("data", "")), limit=description.get("limit"))
    check_fit(data, description["channels"], description["classes"])
    processes.use_threads(arguments.threads, data)
    device = processes.device(arguments.device)
    layout = torch.channels_last if recipe["channels_last"] else torch.contiguous_format
    net = net.to(device, memory_format=layout)  # type: ignore[call-overload]

    def prepare(x: Tensor) -> Tensor:
        return x.to(device, memory_format=layout)

    count = arguments.batches or recipe["norm_batches"] or BATCHES
    # The batches that the norms of the uniform widths were last estimated from: the networks differ in widths alone.
    epoch = max(content["epoch"] - 1, 0)
    batches = data.train.batches(recipe["batch_size"], training=True, epoch=epoch, seed=recipe["seed"])
    inputs = [prepare(x) for x, _ in islice(batches, count)]
    allocator = Allocator(net, arguments.objective, inputs)
    if arguments.curve is not None:
        _run_curve(arguments, net, allocator, inputs, data, prepare)
    else:
        _run_budget(arguments, net, allocator, inputs, data)


def _check_budget(net: StratifiedNet, arguments: argparse.Namespace) -> None:
    """What can be refused before any data are read."""
    if arguments.curve is not None:
        budgets(net.widths, arguments.curve)
    elif arguments.bits_per_weight is not None and not arguments.bits_per_weight >= net.widths[0]:
        raise BadBudget(
            f"{arguments.bits_per_weight:g} bits per weight are too few: the lowest width is {net.widths[0]}"
        )


def _run_budget(
    arguments: argparse.Namespace, net: StratifiedNet, allocator: Allocator, inputs: list[Tensor], data: Data
) -> None:
    allocation = allocator.solve(bits_per_weight=arguments.bits_per_weight, total_bytes=arguments.bytes)
    mixed = mixed_network(net, allocation.widths, inputs)
    add_mixed_view(
        arguments.artifact, net, mixed, arguments.name, replace=arguments.replace, version=arguments.model_version
    )
    report = describe(Artifact.open(arguments.artifact))["views"][arguments.name]
    accuracy = _accuracy_of_view(arguments, data) if arguments.evaluate else None
    _picture(
        arguments, lambda: draw_choice(allocation, net.widths, f"{Path(arguments.artifact).stem}, {arguments.name}")
    )
    if arguments.json:
        print_json(
            {
                "artifact": arguments.artifact,
                "view": arguments.name,
                **_facts(allocation),
                "view_bytes": report["bytes"],
                "fetched_bytes": report["segment_bytes"],
                "layers": [
                    {
                        "name": layer.name,
                        "weights": layer.count,
                        "bits": layer.bits,
                        "error": layer.error,
                        "errors": {str(bits): error for bits, error in layer.errors.items()},
                    }
                    for layer in allocation.layers
                ],
                "accuracy": None if accuracy is None else asdict(accuracy),
            }
        )
        return
    _print_choice(allocation)
    print(
        f"\nview {arguments.name} of {arguments.artifact}: {report['bytes']:,} bytes of tables; "
        f"a device fetches {report['segment_bytes']:,} bytes for it"
    )
    if accuracy is not None:
        print(f"top-1 {accuracy.top1:.2f}, top-5 {accuracy.top5:.2f} on {accuracy.samples} samples")


def _accuracy_of_view(arguments: argparse.Namespace, data: Data) -> Accuracy:
    """By the integer kernels, as on a device."""
    session = load(arguments.artifact, view=arguments.name, threads=arguments.threads).at(arguments.name)
    return accuracies({arguments.name: on_tensors(session)}, first(data.test.batches(BATCH_SIZE), arguments.limit))[
        arguments.name
    ]


def _run_curve(
    arguments: argparse.Namespace,
    net: StratifiedNet,
    allocator: Allocator,
    inputs: list[Tensor],
    data: Data,
    prepare: Callable[[Tensor], Tensor],
) -> None:
    say(f"evaluating {arguments.curve} budgets and {len(net.widths)} uniform widths on {data.name}")
    found = curve(
        net, allocator, arguments.curve, inputs, first(data.test.batches(BATCH_SIZE), arguments.limit), prepare=prepare
    )
    _picture(arguments, lambda: draw_curve(found, f"{Path(arguments.path).name}: mixed precision on {data.name}"))
    if arguments.json:
        print_json(
            {
                "path": arguments.path,
                "data": data.name,
                "mixed": [_point(point) for point in found.mixed],
                "uniform": {str(bits): _point(point) for bits, point in found.uniform.items()},
            }
        )
        return
    _print_curve(found)


def _picture(arguments: argparse.Namespace, draw: Callable[[], str]) -> None:
    if arguments.picture is not None:
        write_atomically(arguments.picture, draw().encode())
        say(f"the picture is in {arguments.picture}")


def _facts(allocation: Allocation) -> dict[str, Any]:
    return {
        "objective": allocation.objective,
        "error": allocation.error,
        "total_bits": allocation.total_bits,
        "total_bytes": allocation.total_bytes,
        "bits_per_weight": allocation.bits_per_weight,
    }


def _point(point: Point) -> dict[str, Any]:
    return {
        "budget": point.budget,
        **_facts(point.allocation),
        "widths": point.allocation.widths,
        "accuracy": asdict(point.accuracy),
    }


def _print_choice(allocation: Allocation) -> None:
    rows = [
        (layer.name, f"{layer.count:,}" if layer.count else "shared", str(layer.bits), f"{layer.error:.4g}")
        for layer in allocation.layers
    ]
    total = sum(layer.count for layer in allocation.layers)
    rows.append(("all", f"{total:,}", f"{allocation.bits_per_weight:.3f}", f"{allocation.error:.4g}"))
    print_table(("layer", "weights", "width", "error"), rows)


def _print_curve(found: Curve) -> None:
    points = [(f"{point.budget:.3f}", point) for point in found.mixed]
    points += [(f"{bits}, uniform", point) for bits, point in found.uniform.items()]
    print_table(
        ("budget", "bits/weight", "bytes", "error", "top-1", "top-5"),
        [
            (
                name,
                f"{point.allocation.bits_per_weight:.3f}",
                f"{point.allocation.total_bytes:,}",
                f"{point.allocation.error:.4g}",
                f"{point.accuracy.top1:.2f}",
                f"{point.accuracy.top5:.2f}",
            )
            for name, point in points
        ],
    )
