"""Learned clipping levels of inputs, one per width: what PACT and AdaBits have in common."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from bitstrata import codes
from bitstrata.errors import CannotStratify
from bitstrata.limits import STEP_FLOOR_DIVISOR
from bitstrata.training.calibration import Histogram, choose_step
from bitstrata.training.options import Options
from bitstrata.training.quantiser_kinds import ActivationQuantiser


class LearnedClip(ActivationQuantiser):
    """An input quantiser with one parameter per width, `clip_<bits>`, the greatest value that it gives."""

    def __init__(self, options: Options, name: str, device: torch.device) -> None:
        super().__init__(options, name, device)
        for bits in options.widths:
            self.register_parameter(f"clip_{bits}", nn.Parameter(torch.ones((), device=device)))
            self.register_buffer(f"floor_{bits}", torch.zeros((), device=device))

    def own_parameters(self, bits: int) -> Iterator[nn.Parameter]:
        yield getattr(self, f"clip_{bits}")

    def initialise(self, bits: int, histogram: Histogram) -> int:
        refuse_negative(histogram, self.options, self.name)
        step, _ = choose_step(histogram, bits, self.options.activation_init, self.options.widths.index(bits))
        self.set_clip(bits, step * codes.activation_top(bits))
        return 0

    def set_clip(self, bits: int, clip: float) -> None:
        getattr(self, f"clip_{bits}").fill_(clip)
        getattr(self, f"floor_{bits}").fill_(clip / STEP_FLOOR_DIVISOR)


def refuse_negative(histogram: Histogram, options: Options, name: str) -> None:
    """An error where a quantiser that was published for inputs after a ReLU meets others."""
    if histogram.low < 0.0:
        raise CannotStratify(
            f"the input of layer {name!r} goes down to {histogram.low:.3g}, and the quantizer {options.quantizer} is "
            f"for inputs that are never negative, as after a ReLU. Leave the layer float with keep_float=[{name!r}], "
            f"or take another quantizer"
        )
