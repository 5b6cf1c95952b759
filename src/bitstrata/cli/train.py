"""`bitstrata train`: a float network in, one that runs at every width out."""

from __future__ import annotations

import argparse
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch

from bitstrata.cli import processes
from bitstrata.cli.output import print_json, print_table, say
from bitstrata.cli.settings import Method, Run, Settings, settle
from bitstrata.errors import UnknownNet
from bitstrata.training import Recipe, distributed, load_checkpoint, train_once
from bitstrata.training.calibration import ActivationInit
from bitstrata.training.fit import CHECKPOINT
from bitstrata.training.options import NormMode
from bitstrata.training.quantiser_kinds import QuantizerName
from bitstrata.training.stratify import Ends
from bitstrata.training.train_once import FLOAT_FOLDER
from bitstrata.training.weight_steps import WeightInit
from bitstrata.zoo.data import Data, known_data, load_data
from bitstrata.zoo.nets import build, names
from bitstrata.zoo.recipes import RECIPES

# A flag that is not given leaves no trace, so that the file's value, or the recipe's, stands.
_ABSENT = argparse.SUPPRESS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    run = parser.add_argument_group("run", "what to train; without any of these, digits with resnet8")
    run.add_argument(
        "--net", default=_ABSENT, help=f"{', '.join(names())}; torchvision:NAME and timm:NAME if installed"
    )
    run.add_argument(
        "--net-option", dest="net_options", action="append", type=_key_and_value, default=_ABSENT, metavar="KEY=VALUE",
        help="an option of the network, as in blocks=5; may be repeated",
    )  # fmt: skip
    run.add_argument("--data", default=_ABSENT, metavar="SPEC", help=", ".join(known_data()))
    run.add_argument("--limit", type=processes.positive, default=_ABSENT, metavar="N", help="only N training samples")
    run.add_argument("--recipe", default=_ABSENT, metavar="NAME", help=", ".join(RECIPES))
    run.add_argument(
        "--weights", default=_ABSENT, metavar="FILE", help="float weights to start from (.safetensors, .pt)"
    )
    run.add_argument("--widths", type=_widths, default=_ABSENT, metavar="2,3,4")
    run.add_argument(
        "--method", choices=get_args(Method), default=_ABSENT, help="all widths together, or LSQ for a single one"
    )
    run.add_argument(
        "--out",
        default=_ABSENT,
        metavar="DIR",
        help="folder of the run (runs/DATA-NET); continues the run that is there",
    )
    run.add_argument("--config", metavar="FILE", help="a TOML file with tables [run], [recipe], [stratify]; flags win")

    recipe = parser.add_argument_group("recipe", "these change the recipe")
    _add_recipe_flags(recipe)

    options = parser.add_argument_group("stratify", "how the network is stratified")
    for name, meaning in (
        ("quantise", "only these layers, with * and ?; may be repeated"),
        ("keep-float", "not these modules, with * and ?; may be repeated"),
    ):
        options.add_argument(f"--{name}", action="append", default=_ABSENT, metavar="NAME", help=meaning)
    for name, choices in (
        ("ends", Ends),
        ("norms", NormMode),
        ("quantizer", QuantizerName),
        ("weight-init", WeightInit),
        ("activation-init", ActivationInit),
    ):
        options.add_argument(f"--{name}", choices=get_args(choices), default=_ABSENT)
    for name in ("per-channel", "compensated", "normalise-step-gradients"):
        options.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=_ABSENT)

    other = parser.add_argument_group("other")
    processes.add_arguments(other)
    other.add_argument("--tensorboard", action="store_true", help="write curves into the folder of the run")
    other.add_argument(
        "--checkpoint-minutes",
        type=float,
        default=5.0,
        metavar="X",
        help="time between checkpoints within an epoch (5)",
    )


def run(arguments: argparse.Namespace) -> None:
    settings = _settings(arguments)
    device = processes.device(arguments.device)
    with processes.process_group(device):
        first = distributed.rank() == 0
        data = load_data(settings.run.data, limit=settings.run.limit)
        processes.use_threads(arguments.threads, data)
        train_once(
            _model(settings, data).to(device),
            data,
            settings.recipe,
            folder=settings.run.out,
            widths=settings.run.widths,
            options=settings.stratify,
            description=_description(settings, data),
            weights=settings.run.weights,
            tensorboard=arguments.tensorboard,
            checkpoint_minutes=arguments.checkpoint_minutes,
            say=say if first else lambda text: None,
        )
        if first:
            _report(settings, as_json=arguments.json)


def _model(settings: Settings, data: Data) -> torch.nn.Module:
    # Seeded, so that a run that was stopped before its first checkpoint starts from the same weights again.
    torch.manual_seed(settings.recipe.seed)
    channels, _, _ = data.input.shape
    try:
        return build(settings.run.net, len(data.input.labels), channels, **settings.run.net_options)
    except TypeError as error:
        raise UnknownNet(f"{settings.run.net} cannot be built with {settings.run.net_options}: {error}") from error


def _description(settings: Settings, data: Data) -> dict[str, Any]:
    """What the checkpoint keeps: enough to build the network again, and what it was made from. Folders are left out,
    as a run may be continued where they have other names."""
    run = settings.run
    return {
        "net": run.net,
        "classes": len(data.input.labels),
        "channels": data.input.shape[0],
        "net_options": run.net_options,
        "method": run.method,
        "data": run.data.partition(":")[0].partition("?")[0],
        "limit": run.limit,
        "input": asdict(data.input),
        "weights": Path(run.weights).name if run.weights is not None else None,
    }


def _report(settings: Settings, *, as_json: bool) -> None:
    folder = Path(settings.run.out)
    history = load_checkpoint(folder / CHECKPOINT)["history"]
    float_checkpoint = folder / FLOAT_FOLDER / CHECKPOINT
    float_history = load_checkpoint(float_checkpoint)["history"] if float_checkpoint.exists() else []
    if as_json:
        print_json(
            {
                "run": asdict(settings.run),
                "recipe": settings.recipe.as_dict(),
                "stratify": settings.stratify,
                "float_history": float_history,
                "history": history,
                "accuracy": history[-1]["accuracy"],
                "seconds": sum(epoch["seconds"] for epoch in (*float_history, *history)),
                "checkpoint": str(folder / CHECKPOINT),
            }
        )
        return
    rows = []
    for phase in (float_history, history):
        seconds = sum(epoch["seconds"] for epoch in phase)
        for width, accuracy in phase[-1]["accuracy"].items() if phase else ():
            rows.append((width, f"{accuracy['top1']:.2f}", f"{accuracy['top5']:.2f}", f"{seconds:.1f}"))
    print_table(("width", "top-1", "top-5", "seconds"), rows)
    if len(history[-1]["accuracy"]) > 1:
        print("The widths were trained together: their seconds are those of the one run.")
    print(f"checkpoint: {folder / CHECKPOINT}")


def _settings(arguments: argparse.Namespace) -> Settings:
    given = vars(arguments)
    run = {entry.name: given[entry.name] for entry in fields(Run) if entry.name in given}
    if "net_options" in run:
        run["net_options"] = dict(run["net_options"])
    recipe = {entry.name: given[entry.name] for entry in _recipe_fields() if entry.name in given}
    names_of_options = (
        "quantise",
        "keep_float",
        "ends",
        "norms",
        "quantizer",
        "weight_init",
        "activation_init",
        "per_channel",
    )
    stratify = {
        name: given[name] for name in (*names_of_options, "compensated", "normalise_step_gradients") if name in given
    }
    return settle(arguments.config, run, recipe, stratify)


def _recipe_fields() -> list[Any]:
    return [entry for entry in fields(Recipe) if entry.name != "version"]


def _add_recipe_flags(group: Any) -> None:
    """One flag for each field of `Recipe`."""
    types = get_type_hints(Recipe)
    for entry in _recipe_fields():
        flag, kind = f"--{entry.name.replace('_', '-')}", types[entry.name]
        if kind is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=_ABSENT)
        elif get_origin(kind) is Literal:
            group.add_argument(flag, choices=get_args(kind), default=_ABSENT)
        else:
            group.add_argument(flag, type=kind, default=_ABSENT, metavar="N" if kind is int else "X")


def _widths(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _key_and_value(text: str) -> tuple[str, bool | int | float | str]:
    key, equals, value = text.partition("=")
    if not (key.isidentifier() and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    if value in ("true", "false"):
        return key, value == "true"
    for kind in (int, float):
        try:
            return key, kind(value)
        except ValueError:
            continue
    return key, value
