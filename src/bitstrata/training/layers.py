"""Stratified layers: one float source weight and one step, run at any width.

A layer in the source model belongs to no width and cannot be called. `stratify` makes a *bound* copy of the model
for each width, which shares every tensor with the source and in which `bits` is set: the width is part of the module
that is called and never a flag left behind, so checkpointing, compilation and threads all see the right one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from bitstrata import codes
from bitstrata.errors import LayerBypassed, NotCalibrated
from bitstrata.limits import FLOAT32_EXACT, STEP_FLOOR_DIVISOR
from bitstrata.training.calibration import ActivationInit, Histogram, choose_step
from bitstrata.training.quantisers import Grid, activation_grid, fake_quantise, half_steps, weight_grid
from bitstrata.training.weight_steps import WeightInit, initial_step

NormMode = Literal["individual", "statistics", "shared"]


@dataclass(frozen=True)
class Options:
    """How a network is stratified; `stratify` documents each."""

    widths: tuple[int, ...] = (2, 3, 4)
    per_channel: bool = False
    compensated: bool = True
    norms: NormMode = "individual"
    own_ends: bool = False
    weight_init: WeightInit = "mean"
    activation_init: ActivationInit = "mse"
    normalise_step_gradients: bool | None = None

    @property
    def source_bits(self) -> int:
        return self.widths[-1]

    @property
    def normalises_step_gradients(self) -> bool:
        """Whether the weight step's gradient is divided by 2^m; unless said otherwise, when K > 4."""
        if self.normalise_step_gradients is None:
            return self.source_bits > 4
        return self.normalise_step_gradients


class Bound(nn.Module):
    """A module whose computation depends on the width; `bits` is set in the bound copies only.

    `own_gain` multiplies the gradients of the parameters that belong to one width. In a joint pass over n widths
    it is n: the losses are averaged there, and such parameters must see the full gradient of their own loss.
    """

    bits: int | None = None
    own_gain: float = 1.0
    name: str = ""
    called_in_training = False
    called_in_evaluation = False

    def bound_bits(self) -> int:
        if self.bits is None:
            raise LayerBypassed(
                f"layer {self.name!r} was called outside any width. Call the stratified network, or net.at(bits), not "
                f"net.model; if the model keeps this layer in a closure, register it as an ordinary submodule instead"
            )
        return self.bits

    def note_call(self) -> None:
        """Remembers that the model really calls this module; evaluation may take another path than training."""
        if self.training and not self.called_in_training:
            self.called_in_training = True
        elif not self.training and not self.called_in_evaluation:
            self.called_in_evaluation = True

    @property
    def was_called(self) -> bool:
        """Whether the model has called this module in the mode that it is in."""
        return self.called_in_training if self.training else self.called_in_evaluation

    def own_parameters(self, bits: int) -> Iterator[nn.Parameter]:
        """The parameters that only width `bits` uses."""
        yield from ()


class ScaleGradient(torch.autograd.Function):
    """The identity, with the gradient multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    return ScaleGradient.apply(x, factor)  # type: ignore[no-any-return, no-untyped-call]


class ExactValue(torch.autograd.Function):
    """The exact value, with the gradient of the simulation. A sum with their difference could round."""

    @staticmethod
    def forward(ctx: Any, simulated: Tensor, exact: Tensor) -> Tensor:
        return exact.view_as(exact)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def exact_value(simulated: Tensor, exact: Tensor) -> Tensor:
    return ExactValue.apply(simulated, exact)  # type: ignore[no-any-return, no-untyped-call]


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


class StratifiedLayer(Bound):
    """What convolution and linear layers have in common."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, layer: nn.Conv2d | nn.Linear, quantiser: WeightQuantiser, options: Options, name: str) -> None:
        super().__init__()
        self.name = name
        # The parameters themselves, not copies: other modules and optimisers may hold them too.
        self.register_parameter("weight", cast(nn.Parameter, layer.weight))
        self.register_parameter("bias", cast("nn.Parameter | None", layer.bias))
        self.weight_quantiser = quantiser
        self.input_quantiser = ActivationQuantiser(options, name, layer.weight.device)

    def forward(self, x: Tensor) -> Tensor:
        self.bound_bits()
        self.note_call()
        if self.training:
            return self._simulated(x)
        exact = self._exact(x)
        if torch.is_grad_enabled() and (x.requires_grad or self.weight.requires_grad):
            return exact_value(self._simulated(x), exact)
        return exact

    def _simulated(self, x: Tensor) -> Tensor:
        return self.compute(self.input_quantiser(x), self.weight_quantiser(self.weight), self.bias)

    def _exact(self, x: Tensor) -> Tensor:
        """The layer on whole numbers: the very accumulators of the integer kernels, then one product and one sum."""
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            accumulated, half_scale = self.accumulate(x)
            if half_scale.ndim:
                half_scale = half_scale.reshape(self.channel_shape)
            result = accumulated * half_scale
            if self.bias is not None:
                result = result + self.bias.reshape(self.channel_shape)
            # In a network that was converted as a whole, the next layer expects that type.
            return result.to(self.weight.dtype)

    def accumulate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Whole-number accumulators (as float32) and their scale, half a weight step times the activation step."""
        activations, activation_step = self.input_quantiser.integers(x)
        weights, weight_step = self.weight_quantiser.integers(self.weight)
        grid = self.input_quantiser.grid(x)
        largest = max(-grid.low, grid.high) << self.weight_quantiser.options.source_bits
        if largest * weights[0].numel() >= FLOAT32_EXACT:
            activations, weights = activations.double(), weights.double()
        accumulated = self.compute(activations, weights, None)
        return accumulated.float(), weight_step * 0.5 * activation_step

    channel_shape: tuple[int, ...]

    def compute(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        raise NotImplementedError


class StratifiedConv2d(StratifiedLayer):
    """`nn.Conv2d` of any stride, padding, dilation and grouping, at every width."""

    channel_shape = (-1, 1, 1)

    def __init__(self, layer: nn.Conv2d, quantiser: WeightQuantiser, options: Options, name: str) -> None:
        super().__init__(layer, quantiser, options, name)
        self.in_channels, self.out_channels, self.kernel_size = layer.in_channels, layer.out_channels, layer.kernel_size
        self.stride, self.dilation, self.groups = layer.stride, layer.dilation, layer.groups
        self.padding, self.padding_mode = layer.padding, layer.padding_mode
        # Order of functional.pad: last dimension first. Only the modes that pad with values need it.
        self.value_padding: list[int] = list(layer._reversed_padding_repeated_twice)

    def compute(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            x, padding = functional.pad(x, self.value_padding, mode=self.padding_mode), 0
        return functional.conv2d(x, weight, bias, self.stride, padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"


class StratifiedLinear(StratifiedLayer):
    """`nn.Linear` at every width."""

    channel_shape = (-1,)

    def __init__(self, layer: nn.Linear, quantiser: WeightQuantiser, options: Options, name: str) -> None:
        super().__init__(layer, quantiser, options, name)
        self.in_features, self.out_features = layer.in_features, layer.out_features

    def compute(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(x, weight, bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}"


class PerWidth(Bound):
    """A module of which every width has a copy of its own: a normalisation, or an own first or last layer."""

    def __init__(self, module: nn.Module, options: Options, name: str, *, share: tuple[str, ...] = ()) -> None:
        """`share` names the parameters that all copies have in common."""
        super().__init__()
        self.name = name
        self.shared_names = share
        self.copies = nn.ModuleDict({str(bits): _copy_sharing(module, share) for bits in options.widths})
        self.training = module.training

    def own_parameters(self, bits: int) -> Iterator[nn.Parameter]:
        for name, parameter in self.copies[str(bits)].named_parameters():
            if name not in self.shared_names:
                yield parameter

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.copies[str(self.bound_bits())]
        self.note_call()
        if self.own_gain == 1.0 or not torch.is_grad_enabled():
            return chosen(x)  # type: ignore[no-any-return]
        scaled = {
            name: scale_gradient(parameter, self.own_gain)
            for name, parameter in chosen.named_parameters()
            if name not in self.shared_names
        }
        if torch.compiler.is_compiling():
            return torch.func.functional_call(chosen, scaled, (x,))  # type: ignore[no-any-return]
        # The same without putting anything into the module, which other threads may be running.
        stand_in = copy.copy(chosen)
        stand_in.__dict__["_parameters"] = {**chosen._parameters, **scaled}
        return stand_in(x)  # type: ignore[no-any-return]


def _copy_sharing(module: nn.Module, share: tuple[str, ...]) -> nn.Module:
    parameters = dict(module.named_parameters())
    return copy.deepcopy(module, {id(parameters[name]): parameters[name] for name in share if name in parameters})
