"""How a network is stratified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from bitstrata.errors import BadOption
from bitstrata.training.calibration import ActivationInit
from bitstrata.training.weight_steps import WeightInit

NormMode = Literal["individual", "statistics", "shared"]


@dataclass(frozen=True)
class Options:
    """How a network is stratified; `stratify` documents each."""

    widths: tuple[int, ...] = (2, 3, 4)
    quantizer: str = "learned-step"
    nested: bool = True
    per_channel: bool = False
    compensated: bool = True
    norms: NormMode = "individual"
    weight_init: WeightInit = "mean"
    activation_init: ActivationInit = "mse"
    normalise_step_gradients: bool | None = None

    def __post_init__(self) -> None:
        choices = {"norms": NormMode, "weight_init": WeightInit, "activation_init": ActivationInit}
        for name, choice in choices.items():
            if getattr(self, name) not in get_args(choice):
                raise BadOption(f"{name}={getattr(self, name)!r} is not one of {', '.join(get_args(choice))}")

    @property
    def source_bits(self) -> int:
        return self.widths[-1]

    @property
    def normalises_step_gradients(self) -> bool:
        """Whether the weight step's gradient is divided by 2^m; unless said otherwise, when K > 4."""
        if self.normalise_step_gradients is None:
            return self.source_bits > 4
        return self.normalise_step_gradients
