"""The learned steps of a layer: one for its weight, one per width for its input."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from bitstrata import codes
from bitstrata.limits import STEP_FLOOR_DIVISOR
from bitstrata.training.calibration import Histogram, choose_step
from bitstrata.training.options import Options
from bitstrata.training.quantiser_kinds import ActivationQuantiser, Quantizer, WeightQuantiser
from bitstrata.training.quantisers import Grid, activation_grid, fake_quantise, half_steps, weight_grid
from bitstrata.training.weight_steps import initial_step


class LearnedActivationStep(ActivationQuantiser):
    """Quantises the input of one layer, with a step and a zero point for each width."""

    exact = True

    def __init__(self, options: Options, name: str, device: torch.device) -> None:
        super().__init__(options, name, device)
        for bits in options.widths:
            self.register_parameter(f"step_{bits}", nn.Parameter(torch.ones((), device=device)))
            self.register_buffer(f"floor_{bits}", torch.zeros((), device=device))

    def own_parameters(self, bits: int) -> Iterator[nn.Parameter]:
        yield getattr(self, f"step_{bits}")

    def forward(self, x: Tensor) -> Tensor:
        bits = self.bound_bits()
        grid = self.grid(x)
        per_sample = x.numel() / max(x.shape[0], 1)
        scale = self.own_gain / math.sqrt(max(per_sample, 1.0) * codes.activation_top(bits))
        return fake_quantise(x, getattr(self, f"step_{bits}"), getattr(self, f"floor_{bits}"), grid, scale)

    def integers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """u - o as whole numbers in float32, and the step."""
        grid, step = self.grid(x), self.step()
        return torch.clamp(torch.round(x.float() * step.reciprocal()), grid.low, grid.high), step

    def step(self) -> Tensor:
        """The step in use: positive, whatever the optimiser did."""
        step, floor = getattr(self, f"step_{self.bits}"), getattr(self, f"floor_{self.bits}")
        return torch.maximum(step, floor).detach().float()

    def grid(self, x: Tensor) -> Grid:
        """The codes of this width; calibrates on `x` first where that has not happened yet."""
        return activation_grid(self.bound_bits(), self.zero_point(x))

    def initialise(self, bits: int, histogram: Histogram) -> int:
        step, zero_point = choose_step(histogram, bits, self.options.activation_init, self.options.widths.index(bits))
        getattr(self, f"step_{bits}").fill_(step)
        getattr(self, f"floor_{bits}").fill_(step / STEP_FLOOR_DIVISOR)
        return zero_point


class LearnedWeightStep(WeightQuantiser):
    """The learned source step of one weight, from which every width is shifted down."""

    exact = True

    def __init__(self, weight: nn.Parameter, options: Options, name: str) -> None:
        super().__init__(weight, options, name)
        step = initial_step(weight, options.widths, options.weight_init, options.per_channel, options.compensated)
        self.step = nn.Parameter(step)
        self.floor: Tensor
        self.register_buffer("floor", step / STEP_FLOOR_DIVISOR)

    def grid(self) -> Grid:
        return weight_grid(self.options.source_bits, self.bound_bits(), compensated=self.options.compensated)

    def forward(self, weight: Tensor) -> Tensor:
        _, top = codes.code_range(self.options.source_bits)
        grid = self.grid()
        scale = 1.0 / math.sqrt(weight.numel() / self.step.numel() * top)
        if self.options.normalises_step_gradients:
            scale *= 2.0**-grid.dropped
        return fake_quantise(weight, self.step, self.floor, grid, scale)

    def integers(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The weight in units of half a source step, as whole numbers in float32, and the step."""
        step = torch.maximum(self.step, self.floor).detach().float()
        shaped = step if step.ndim == 0 else step.reshape((-1,) + (1,) * (weight.ndim - 1))
        return half_steps(weight.float(), shaped, self.grid()), step


QUANTIZER = Quantizer("learned-step", LearnedWeightStep, LearnedActivationStep, several_widths=True)
