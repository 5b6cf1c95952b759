"""Stratified layers: one float source weight and one step, run at any width."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from bitstrata.limits import FLOAT32_EXACT
from bitstrata.training.bound import Bound
from bitstrata.training.quantiser_kinds import ActivationQuantiser, WeightQuantiser
from bitstrata.training.steps import LearnedActivationStep


class StratifiedLayer(Bound):
    """What convolution and linear layers have in common."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        layer: nn.Conv2d | nn.Linear,
        weight_quantiser: WeightQuantiser,
        input_quantiser: ActivationQuantiser,
        name: str,
    ) -> None:
        super().__init__()
        self.name = name
        # The parameters themselves, not copies: other modules and optimisers may hold them too.
        self.register_parameter("weight", cast(nn.Parameter, layer.weight))
        self.register_parameter("bias", cast("nn.Parameter | None", layer.bias))
        self.weight_quantiser = weight_quantiser
        self.input_quantiser = input_quantiser

    def forward(self, x: Tensor) -> Tensor:
        self.bound_bits()
        self.note_call()
        if self.training or not self.is_exact:
            return self._simulated(x)
        exact = self._exact(x)
        if torch.is_grad_enabled() and (x.requires_grad or self.weight.requires_grad):
            return exact_value(self._simulated(x), exact)
        return exact

    @property
    def is_exact(self) -> bool:
        """Whether this layer has a form in whole numbers, as devices run it."""
        return self.weight_quantiser.exact and self.input_quantiser.exact

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
        assert isinstance(self.input_quantiser, LearnedActivationStep)
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

    def __init__(
        self, layer: nn.Conv2d, weight_quantiser: WeightQuantiser, input_quantiser: ActivationQuantiser, name: str
    ) -> None:
        super().__init__(layer, weight_quantiser, input_quantiser, name)
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

    def __init__(
        self, layer: nn.Linear, weight_quantiser: WeightQuantiser, input_quantiser: ActivationQuantiser, name: str
    ) -> None:
        super().__init__(layer, weight_quantiser, input_quantiser, name)
        self.in_features, self.out_features = layer.in_features, layer.out_features

    def compute(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(x, weight, bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}"


class ExactValue(torch.autograd.Function):
    """The exact value, with the gradient of the simulation. A sum with their difference could round."""

    @staticmethod
    def forward(ctx: Any, simulated: Tensor, exact: Tensor) -> Tensor:
        # A copy, not a view: the next operation of the model may work in place.
        return exact.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def exact_value(simulated: Tensor, exact: Tensor) -> Tensor:
    return ExactValue.apply(simulated, exact)  # type: ignore[no-any-return, no-untyped-call]
