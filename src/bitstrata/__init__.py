"""Train a network once, store its weights as bit layers, run it at every width from one copy.

Importing this package is light: neither NumPy nor torch is loaded. Names that need torch are loaded when they are
first used, and say which extra to install when it is missing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bitstrata.capture.pack import pack
    from bitstrata.device import load
    from bitstrata.format import InputDescription
    from bitstrata.runtime import Model
    from bitstrata.training.fit import fit
    from bitstrata.training.net import StratifiedNet
    from bitstrata.training.objectives import JointLoss, MinimumNorm
    from bitstrata.training.parameter_groups import parameter_groups
    from bitstrata.training.recipe import Recipe
    from bitstrata.training.stratify import stratify

__version__ = "0.1.0"

__all__ = [
    "InputDescription",
    "JointLoss",
    "MinimumNorm",
    "Model",
    "Recipe",
    "StratifiedNet",
    "__version__",
    "fit",
    "load",
    "pack",
    "parameter_groups",
    "stratify",
]

# Where each lazy name lives, and the extra that brings what this module needs ("": the bare install).
_TRAINING = ("bitstrata.training", "train")
_RUNTIME = ("bitstrata.runtime", "")
_LAZY = {
    "InputDescription": ("bitstrata.format", ""),
    "JointLoss": _TRAINING,
    "MinimumNorm": _TRAINING,
    "Model": _RUNTIME,
    "Recipe": _TRAINING,
    "StratifiedNet": _TRAINING,
    "fit": _TRAINING,
    "load": ("bitstrata.device", ""),
    "pack": ("bitstrata.capture", "train"),
    "parameter_groups": _TRAINING,
    "stratify": _TRAINING,
}


def _load(name: str) -> object:
    module, extra = _LAZY[name]
    try:
        value: object = getattr(import_module(module), name)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] == __name__:
            raise  # a defect of ours, which no extra would mend
        from bitstrata.errors import MissingExtra

        package = f"bitstrata[{extra}]" if extra else "bitstrata"
        raise MissingExtra(
            f"bitstrata.{name} needs {missing.name}, which is not installed: pip install '{package}'"
        ) from missing
    globals()[name] = value  # the next use finds it at once
    return value


if not TYPE_CHECKING:  # type checkers see the imports above, and know a misspelt name when they meet one

    def __getattr__(name):
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return _load(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
