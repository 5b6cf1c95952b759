"""The learned steps of a layer: one for its weight, one per width for its input."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bitstrata import codes
from bitstrata.errors import NotCalibrated
from bitstrata.limits import STEP_FLOOR_DIVISOR
from bitstrata.training.bound import Bound
from bitstrata.training.calibration import Histogram, choose_step
from bitstrata.training.options import Options
from bitstrata.training.quantisers import Grid, activation_grid, fake_quantise, half_steps, weight_grid
from bitstrata.training.weight_steps import initial_step


@dataclass
class CalibrationState:
    """What an activation quantiser knows besides its tensors; one object, shared by the source and its bound copies."""

    #: Zero points of the calibrated widths, as plain numbers so that reading one needs no device synchronisation.
    zero_points: dict[int, int] = field(default_factory=dict)
    #: While `calibrate` runs: what has been seen so far, per width.
    histograms: dict[int, Histogram] | None = None


class ActivationQuantiser(Bound):
    """Quantises the input of one layer, with a step and a zero point for each width."""

    def __init__(self, options: Options, name: str, device: torch.device) -> None:
        super().__init__()
        self.options = options
        self.name = name
        self.state = CalibrationState()
        for bits in options.widths:
            self.register_parameter(f"step_{bits}", nn.Parameter(torch.ones((), device=device)))
            self.register_buffer(f"floor_{bits}", torch.zeros((), device=device))
            self.register_buffer(f"zero_point_{bits}", torch.zeros((), dtype=torch.int64, device=device))
            self.register_buffer(f"calibrated_{bits}", torch.zeros((), dtype=torch.bool, device=device))

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
        bits = self.bound_bits()
        if self.state.histograms is not None:
            self._observe(x, bits)
        elif bits not in self.state.zero_points:
            self._recall(x, bits)
        return activation_grid(bits, self.state.zero_points[bits])

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _recall(self, x: Tensor, bits: int) -> None:
        if getattr(self, f"calibrated_{bits}"):
            self.state.zero_points[bits] = int(getattr(self, f"zero_point_{bits}"))
        elif self.training:
            self._set(bits, Histogram.of(x, self.name))
        else:
            raise NotCalibrated(
                f"layer {self.name!r} has no activation step at {bits} bits yet. Run one batch in training mode, or "
                f"net.calibrate(batches), before evaluating"
            )

    def _observe(self, x: Tensor, bits: int) -> None:
        assert self.state.histograms is not None
        seen = self.state.histograms.get(bits)
        batch = Histogram.of(x, self.name)
        self.state.histograms[bits] = batch if seen is None else seen.merged(batch)
        if seen is None:
            # The layers after this one need its output now; the final step comes when all batches were seen.
            self._set(bits, batch)

    def settle(self) -> None:
        """Ends the calibration that `state.histograms` began: sets every width from all that was seen."""
        for bits, histogram in (self.state.histograms or {}).items():
            self._set(bits, histogram)
        self.state.histograms = None

    @torch.no_grad()
    def _set(self, bits: int, histogram: Histogram) -> None:
        step, zero_point = choose_step(histogram, bits, self.options.activation_init, self.options.widths.index(bits))
        getattr(self, f"step_{bits}").fill_(step)
        getattr(self, f"floor_{bits}").fill_(step / STEP_FLOOR_DIVISOR)
        getattr(self, f"zero_point_{bits}").fill_(zero_point)
        getattr(self, f"calibrated_{bits}").fill_(True)
        self.state.zero_points[bits] = zero_point

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.state.zero_points.clear()


class WeightQuantiser(Bound):
    """The learned source step of one weight; layers that share the weight share this too."""

    def __init__(self, weight: nn.Parameter, options: Options, name: str) -> None:
        super().__init__()
        self.options = options
        self.name = name
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
