"""`train_once`: from a float model to a network trained at every width, and back again from its checkpoint.

The job has two phases, each a run of `fit` in a folder of its own: the float network in `folder/float`, where the
recipe asks for one, then all widths together in `folder`. Whatever stops it, the same call goes on where it was.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import torch
from torch import nn
from torch.nn import functional

from bitstrata.codes import check_widths
from bitstrata.errors import BadRecipe, BitstrataError, CheckpointDamaged, CheckpointMismatch
from bitstrata.training.checkpoint import check_layout, load_checkpoint
from bitstrata.training.fit import CHECKPOINT, fit
from bitstrata.training.net import StratifiedNet
from bitstrata.training.norms import synchronise_norms
from bitstrata.training.objectives import Criterion
from bitstrata.training.quantiser_kinds import QuantizerName, find_quantizer
from bitstrata.training.recipe import Recipe
from bitstrata.training.stratify import stratify

#: The folder of the float phase, within that of the run.
FLOAT_FOLDER = "float"

#: What every checkpoint of `fit` holds besides its format, version and digest, as far as it is read here.
_NEEDED = ("layout", "model", "description", "recipe", "epoch", "step_in_epoch", "history")


@dataclass(frozen=True)
class _Stored:
    """The part of a description from which a network is built again."""

    net: str
    classes: int
    channels: int
    widths: tuple[int, ...]
    stratify: dict[str, Any]
    net_options: dict[str, Any] = field(default_factory=dict)


def train_once(
    model: nn.Module,
    data: Any,
    recipe: Recipe,
    *,
    folder: str | Path,
    widths: Collection[int] = (2, 3, 4),
    options: Mapping[str, Any] | None = None,
    description: Mapping[str, Any] | None = None,
    weights: str | Path | None = None,
    criterion: Criterion = functional.cross_entropy,
    tensorboard: bool = False,
    progress: bool | None = None,
    checkpoint_minutes: float = 5.0,
    say: Callable[[str], None] = lambda text: None,
) -> StratifiedNet:
    """Trains `model` at every one of `widths` by `recipe` and returns the stratified network.

    model           a float network; it is changed in place. Where it is made with random weights, make it with the
                    same seed again when the call is repeated after a stop
    folder          where checkpoints and logs go; repeating the call continues what is there
    options         of `stratify`, as plain values: they are kept in the checkpoint
    description     plain values kept in the checkpoint. With `net`, `classes`, `channels` and `net_options`, the
                    arguments of `zoo.nets.build`, `load_net` can build the network again
    weights         a file of float weights to start from, in place of the float phase
    say             is told in a line each what is being done
    The other arguments are those of `fit`.
    """
    if recipe.epochs < 1:
        raise BadRecipe("epochs = 0 leaves nothing to train; for a look without training use stratify and calibrate")
    place = Path(folder)
    chosen = plain_options(options or {})
    find_quantizer(chosen["quantizer"], check_widths(widths))  # refused before a float phase, not after it
    # Through JSON, so that what is compared on the next start is what a file can hold.
    own: dict[str, Any] = json.loads(json.dumps(dict(description or {})))
    whole = {**own, "widths": list(check_widths(widths)), "stratify": chosen}
    how: dict[str, Any] = {
        "criterion": criterion,
        "tensorboard": tensorboard,
        "progress": progress,
        "checkpoint_minutes": checkpoint_minutes,
    }
    if recipe.synchronise_norms:
        synchronise_norms(model)
    names = ", ".join(map(str, whole["widths"]))
    if (place / CHECKPOINT).exists():
        # All that the float phase or the weights would bring is in this checkpoint.
        state = _read(place / CHECKPOINT)
        _check_same_job(place / CHECKPOINT, state["description"], whole)
        say(f"continuing {_progress(place / CHECKPOINT, state, recipe.epochs)}")
    else:
        if weights is not None:
            from bitstrata.zoo.nets import load_float_weights

            load_float_weights(model, weights)
            say(f"starting from the float weights in {weights}")
        elif recipe.float_epochs:
            _train_float(model, data, recipe, place / FLOAT_FOLDER, own, how, say)
        else:
            say("starting from the model as it is: no float weights were given and float_epochs is 0")
        say(f"training widths {names} together for {_epochs(recipe.epochs)}")
    net = stratify(model, whole["widths"], **chosen)
    fit(net, data, recipe, folder=place, description=whole, **how)
    return net


def load_net(path: str | Path) -> tuple[StratifiedNet, dict[str, Any]]:
    """The network in a checkpoint of `train_once`, ready to evaluate, and the whole content of the checkpoint.

    `path` is the checkpoint, or the folder of the run.
    """
    path = Path(path)
    if path.is_dir():
        path = path / CHECKPOINT
    content = _read(path)
    description = content["description"]
    if "widths" not in description:
        raise CheckpointMismatch(
            f"{path} does not say which widths and which network it is of: it holds a float network, or was written by "
            "`fit` alone. Give the checkpoint of `train_once`, or build the network and load content['model'] into it"
        )
    try:
        stored = msgspec.convert(description, _Stored)
    except msgspec.ValidationError as error:
        raise CheckpointMismatch(
            f"{path} does not describe a network of the zoo ({error}). Build the network as it was, with stratify, "
            "and load content['model'] into it"
        ) from error
    net = _rebuild(path, stored)
    check_layout(path, content["layout"], net)
    try:
        net.load_state_dict(content["model"])
    except (RuntimeError, TypeError) as error:
        raise CheckpointDamaged(f"{path}: its tensors are not those that its layout lists ({error})") from error
    return net.eval(), content


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `stratify` as plain values, checked, with the defaults of those that are not given."""
    types = get_type_hints(stratify)
    # Functions and classes cannot be kept in a checkpoint.
    types["quantise"] = list[str] | None
    types["quantizer"] = QuantizerName
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(stratify).parameters.items()
        if name not in ("model", "widths", "example")
    }
    unknown = sorted(set(options) - set(defaults))
    if unknown:
        raise BadRecipe(f"unknown stratify option {unknown[0]!r}; known are {', '.join(sorted(defaults))}")
    checked = {}
    for name, value in (defaults | dict(options)).items():
        try:
            checked[name] = msgspec.convert(value, types[name])
        except msgspec.ValidationError as error:
            raise BadRecipe(f"stratify option {name} = {value!r}: {error}") from error
    return checked


def _train_float(
    model: nn.Module,
    data: Any,
    recipe: Recipe,
    folder: Path,
    description: dict[str, Any],
    how: dict[str, Any],
    say: Callable[[str], None],
) -> None:
    float_recipe = recipe.float_phase()
    if (folder / CHECKPOINT).exists():
        state = _read(folder / CHECKPOINT)
        _check_same_job(folder / CHECKPOINT, state["description"], description)
        say(f"continuing the float phase, {_progress(folder / CHECKPOINT, state, float_recipe.epochs)}")
    else:
        say(f"training the float network for {_epochs(float_recipe.epochs)}")
    fit(model, data, float_recipe, folder=folder, description=description, **how)


def _read(path: Path) -> dict[str, Any]:
    content = load_checkpoint(path)
    for key in _NEEDED:
        if key not in content:
            raise CheckpointMismatch(f"{path} has no {key!r}: it was not written by `fit` or `train_once`")
    return content


def _check_same_job(path: Path, stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Two stratifications can have the same tensors and still compute differently, so the layout is not enough."""
    difference = _first_difference(stored, wanted)
    if difference is not None:
        name, old, new = difference
        raise CheckpointMismatch(
            f"{path} is of another job: {name} is {old!r} there and {new!r} here. Give it the same settings, or train "
            "into another folder"
        )


def _first_difference(stored: dict[str, Any], wanted: dict[str, Any]) -> tuple[str, Any, Any] | None:
    for key in {**stored, **wanted}:
        old, new = stored.get(key), wanted.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            within = _first_difference(old, new)
            if within is not None:
                return f"{key}.{within[0]}", within[1], within[2]
        elif old != new:
            return key, old, new
    return None


def _rebuild(path: Path, stored: _Stored) -> StratifiedNet:
    from bitstrata.zoo.nets import build

    try:
        with torch.random.fork_rng(devices=[]):  # the initial weights are replaced: they must not cost random numbers
            model = build(stored.net, stored.classes, stored.channels, **stored.net_options)
        return stratify(model, stored.widths, **plain_options(stored.stratify))
    except (BitstrataError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointMismatch(f"{path}: its network {stored.net!r} cannot be built here: {error}") from error


def _progress(path: Path, state: dict[str, Any], epochs: int) -> str:
    if state["epoch"] >= epochs:
        return f"{path}: it is finished"
    return f"{path} at epoch {state['epoch'] + 1} of {epochs}, step {state['step_in_epoch'] + 1}"


def _epochs(count: int) -> str:
    return f"{count} epoch{'' if count == 1 else 's'}"
