"""Float checkpoints into float networks: the start of every training run.

Everything is checked before anything is copied, so that a refused file leaves the network as it was.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from bitstrata.errors import CheckpointDamaged, CheckpointMismatch

SAFETENSORS_SUFFIXES = (".safetensors",)
PICKLE_SUFFIXES = (".pt", ".pth", ".pth.tar")

# Where training scripts put the state dict when they store more than it.
_NESTING_KEYS = ("state_dict", "model", "model_state_dict")
# Left by DataParallel and by torch.compile.
_WRAPPER_PREFIXES = ("module.", "_orig_mod.")
# Absent from old checkpoints, and of no effect on what a network computes.
_OPTIONAL_SUFFIX = "num_batches_tracked"
_NAMES_SHOWN = 3


def load_float_weights(model: nn.Module, path: str | Path, *, allow_new_classifier: bool = False) -> tuple[str, ...]:
    """Copy a float checkpoint into `model`; returns the names of the tensors that were left as they were.

    `path` is a `.safetensors` file, or a `.pt`, `.pth` or `.pth.tar` file of tensors only. With
    `allow_new_classifier` the last layer may have another shape (another number of classes) and keeps its fresh values.
    """
    path = Path(path)
    stored = _without_wrapper_prefix(_read(path))
    expected = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}

    missing = [name for name in expected if name not in stored and not name.endswith(_OPTIONAL_SUFFIX)]
    unexpected = [name for name in stored if name not in expected]
    shared = [name for name in expected if name in stored]
    unlike_shape = [name for name in shared if stored[name].shape != expected[name].shape]
    unlike_kind = [name for name in shared if stored[name].is_floating_point() != expected[name].is_floating_point()]

    classifier = _classifier_tensors(model)
    only_classifier = bool(unlike_shape) and classifier.issuperset(unlike_shape)
    skipped = classifier if allow_new_classifier and only_classifier else frozenset()
    problems = [
        _list("missing", missing),
        _list("unexpected", unexpected),
        _list(
            "mis-shaped",
            [
                f"{name} (file {_shape(stored[name])}, network {_shape(expected[name])})"
                for name in unlike_shape
                if name not in skipped
            ],
        ),
        _list(
            "of another kind",
            [f"{name} (file {stored[name].dtype}, network {expected[name].dtype})" for name in unlike_kind],
        ),
    ]
    problems = [problem for problem in problems if problem]
    if problems:
        alone = only_classifier and not (missing or unexpected or unlike_kind)
        raise CheckpointMismatch(
            f"{path.name} does not fit {type(model).__name__}: {'; '.join(problems)}. {_advice(alone)}"
        )

    model.load_state_dict({name: stored[name] for name in shared if name not in skipped}, strict=False)
    return tuple(name for name in expected if name not in stored or name in skipped)


def _read(path: Path) -> dict[str, Tensor]:
    name = path.name.lower()
    if name.endswith(SAFETENSORS_SUFFIXES):
        try:
            return load_file(path)
        except SafetensorError as error:
            raise CheckpointDamaged(f"{path.name} cannot be read: {error}. Fetch it again.") from error
    if name.endswith(PICKLE_SUFFIXES):
        return _state_dict(_unpickle(path), path)
    known = ", ".join(SAFETENSORS_SUFFIXES + PICKLE_SUFFIXES)
    raise CheckpointDamaged(f"{path.name} is no known kind of checkpoint: its name should end in one of {known}")


def _unpickle(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        # Bytes that are no pickle can raise nearly anything, so that no shorter list of exceptions would do.
        if "weights only load failed" in str(error).lower():
            reason = "it is damaged, or holds other Python objects than tensors, which are not loaded"
        else:
            reason = f"it is damaged ({type(error).__name__})"
        raise CheckpointDamaged(
            f"{path.name} cannot be read: {reason}. Fetch it again, or save model.state_dict() with safetensors."
        ) from error


def _state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    """The state dict itself, out of what a training script stored around it."""
    if isinstance(content, Mapping):
        for key in _NESTING_KEYS:
            if isinstance(content.get(key), Mapping):
                content = content[key]
                break
    if not isinstance(content, Mapping):
        raise CheckpointMismatch(
            f"{path.name} holds a {type(content).__name__}, not a state dict. Save model.state_dict()."
        )
    strangers = [str(name) for name, value in content.items() if not isinstance(value, Tensor)]
    if strangers or not content:
        found = f"entries that are no tensors: {_some(strangers)}" if strangers else "nothing"
        raise CheckpointMismatch(
            f"{path.name} holds no plain state dict, but {found}. Save model.state_dict(), alone or under the key "
            f"{' or '.join(_NESTING_KEYS)}."
        )
    return {str(name): value for name, value in content.items()}


def _without_wrapper_prefix(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    for prefix in _WRAPPER_PREFIXES * 2:
        # Only if every name has it: a network may have one submodule that is really called `module`.
        if stored and all(name.startswith(prefix) for name in stored):
            stored = {name.removeprefix(prefix): value for name, value in stored.items()}
    return stored


def _classifier_tensors(model: nn.Module) -> frozenset[str]:
    """The tensors of the last registered linear layer (or convolution, where there is none)."""
    for kind in (nn.Linear, nn.Conv2d):
        layers = [(name, module) for name, module in model.named_modules() if isinstance(module, kind)]
        if layers:
            name, module = layers[-1]
            return frozenset(f"{name}.{tensor}" if name else tensor for tensor in module.state_dict())
    return frozenset()


def _shape(tensor: Tensor) -> str:
    return "x".join(str(size) for size in tensor.shape) or "scalar"


def _some(items: list[str]) -> str:
    more = len(items) - _NAMES_SHOWN
    return ", ".join(items[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _list(title: str, items: list[str]) -> str:
    return f"{title} {_some(items)}" if items else ""


def _advice(only_classifier: bool) -> str:
    if only_classifier:
        return (
            "Only the classifier differs: build the network with the file's number of classes, or pass "
            "allow_new_classifier=True to train a new one."
        )
    return "Build the network that the file was saved from: the same name, classes, channels and options."
