"""Lowerings of the layers that have weights: stratified ones, float ones, and float ones with a copy per width."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bitstrata.capture.drafts import Doubles, Terms, WeightSource
from bitstrata.capture.recorder import Recorder
from bitstrata.capture.traced import Traced
from bitstrata.graph import ops
from bitstrata.graph.network import Floats
from bitstrata.training.bound import PerWidth
from bitstrata.training.layers import StratifiedConv2d, StratifiedLayer
from bitstrata.training.steps import LearnedActivationStep, LearnedWeightStep


def is_layer(module: nn.Module) -> bool:
    """Whether a module is recorded as one node, with its weight."""
    if isinstance(module, PerWidth):
        return all(_is_plain(copy) for copy in module.copies.values())
    return isinstance(module, StratifiedLayer) or _is_plain(module)


def _is_plain(module: nn.Module) -> bool:
    """A float layer that computes as torch's own; a subclass may do anything, and is followed instead."""
    if isinstance(module, nn.Conv2d):
        return type(module).forward is nn.Conv2d.forward and type(module)._conv_forward is nn.Conv2d._conv_forward
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward


def record_layer(recorder: Recorder, module: nn.Module, input: Any) -> Traced:
    """The node of one call of a layer that belongs to a width."""
    x = recorder.current(input)
    if isinstance(module, StratifiedLayer):
        assert isinstance(module.weight_quantiser, LearnedWeightStep)  # `capture` has refused the others
        source = WeightSource(module.weight, module.weight_quantiser)
        return _node(recorder, module, x, source, _integer_terms(module), module.bias)
    layer: Any = module.copies[str(module.bound_bits())] if isinstance(module, PerWidth) else module
    source = WeightSource(layer.weight, own=isinstance(module, PerWidth))
    channels = len(layer.weight)
    return _node(recorder, layer, x, source, Terms(np.ones(channels), np.zeros(channels)), layer.bias)


def _integer_terms(layer: StratifiedLayer) -> Terms:
    """The scale of the accumulators, half a weight step times the activation step, as `accumulate` has it."""
    inputs = layer.input_quantiser
    assert isinstance(inputs, LearnedActivationStep)
    assert isinstance(layer.weight_quantiser, LearnedWeightStep)
    step = np.float32(inputs.step().item())
    half_scale = step_in_use(layer.weight_quantiser).astype(np.float64) * 0.5 * np.float64(step)
    channels = len(layer.weight)
    zero_point = int(getattr(inputs, f"zero_point_{inputs.bound_bits()}"))
    return Terms(half_scale * np.ones(channels), np.zeros(channels), step, zero_point)


def step_in_use(quantiser: LearnedWeightStep) -> Floats:
    """The source step of a weight, or one for each channel: never below its floor."""
    step: Floats = torch.maximum(quantiser.step, quantiser.floor).detach().cpu().float().numpy()
    return step


def _node(recorder: Recorder, layer: Any, x: Traced, weight: WeightSource, terms: Terms, bias: Tensor | None) -> Traced:
    if bias is not None:
        terms.bias = _doubles(bias)
    if not isinstance(layer, (nn.Conv2d, StratifiedConv2d)):
        return recorder.emit(ops.Linear, x, name="", terms=terms, weight=weight)
    # Last dimension first; holds the uneven padding of "same" too.
    reversed_padding = (
        layer.value_padding if isinstance(layer, StratifiedConv2d) else layer._reversed_padding_repeated_twice
    )
    left, right, top, bottom = reversed_padding
    padding = (top, bottom, left, right)
    if layer.padding_mode != "zeros" and any(padding):
        # Codes of padded floats are the padded codes, so the node may stand before the quantiser.
        place = f"{recorder.scope.path}.pad".lstrip(".")
        fields = {"padding": (0, 0, *padding), "mode": layer.padding_mode}
        x = recorder.emit_draft(ops.Pad, [recorder.draft_of(x)], place, None, None, fields)
        padding = (0, 0, 0, 0)
    return recorder.emit(
        ops.Conv,
        x,
        name="",
        terms=terms,
        weight=weight,
        stride=tuple(layer.stride),
        padding=padding,
        dilation=tuple(layer.dilation),
        groups=layer.groups,
    )


def _doubles(tensor: Tensor) -> Doubles:
    array: Doubles = tensor.detach().cpu().double().numpy()
    return array
