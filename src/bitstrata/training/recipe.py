"""A recipe: every number that a training run depends on, besides the network and the data."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from bitstrata.errors import BadRecipe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Recipe:
    """SGD with momentum and cosine decay to zero, for the float phase and for the widths together."""

    version: int = 1
    epochs: int = 30
    batch_size: int = 128
    learning_rate: float = 0.01
    weight_decay: float = 1e-4
    momentum: float = 0.9
    #: Epochs over which the learning rate rises from zero; may be a fraction.
    warmup_epochs: float = 0.0
    #: Self-distillation: "cosine", "kl" or "none".
    distill: Literal["cosine", "kl", "none"] = "cosine"
    #: "mean" of the losses, or "minimum-norm".
    objective: Literal["mean", "minimum-norm"] = "mean"
    #: Batches from which the norm statistics are re-estimated after each epoch; 0 keeps the moving averages.
    norm_batches: int = 0
    #: Epochs from one evaluation to the next; the last is always evaluated. 0 for no evaluation at all.
    evaluate_every: int = 1
    #: The float network is trained first for this many epochs, unless it starts from given weights.
    float_epochs: int = 0
    float_learning_rate: float = 0.1
    float_weight_decay: float = 1e-4
    seed: int = 0
    #: Faster convolutions on CPUs and newer GPUs; the results differ in the last bits only.
    channels_last: bool = True
    synchronise_norms: bool = False

    def __post_init__(self) -> None:
        for name, lowest in (
            ("epochs", 0), ("float_epochs", 0), ("batch_size", 1), ("norm_batches", 0), ("evaluate_every", 0),
            ("warmup_epochs", 0), ("momentum", 0), ("weight_decay", 0), ("float_weight_decay", 0),
        ):  # fmt: skip
            if getattr(self, name) < lowest:
                raise BadRecipe(f"{name} = {getattr(self, name)} must be at least {lowest}")
        for name in ("learning_rate", "float_learning_rate"):
            if not getattr(self, name) > 0:
                raise BadRecipe(f"{name} = {getattr(self, name)} must be positive")
        if self.version != 1:
            raise BadRecipe(f"recipe version {self.version} is not known; this bitstrata reads version 1")

    def float_phase(self) -> Recipe:
        """The recipe of the float network alone. What that has no use for is at its default: changing it must not make
        a float phase unusable."""
        return replace(
            self,
            epochs=self.float_epochs,
            learning_rate=self.float_learning_rate,
            weight_decay=self.float_weight_decay,
            float_epochs=0,
            distill="none",
            objective="mean",
            norm_batches=0,
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any], base: Recipe | None = None) -> Recipe:
        """A recipe from plain values, on top of `base`; an unknown field or a wrong type is an error."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise BadRecipe(f"unknown recipe field {unknown[0]!r}; known are {', '.join(sorted(known))}")
        merged = {**(asdict(base) if base else {}), **values}
        try:
            return msgspec.convert(merged, cls)
        except msgspec.ValidationError as error:
            raise BadRecipe(f"recipe: {error}") from error


def read_toml(path: str | Path) -> dict[str, Any]:
    """A TOML file as plain values."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadRecipe(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadRecipe(f"{path}: not valid TOML ({error})") from error
