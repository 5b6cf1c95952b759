"""`mixed_network`: a network in which each layer has a width of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from bitstrata.allocation.neighbours import widths_beside
from bitstrata.allocation.objectives import inputs_of
from bitstrata.errors import BadData, BadOption, NotCalibrated, UnknownWidth
from bitstrata.training.binding import bind
from bitstrata.training.bound import Bound, PerWidth
from bitstrata.training.layers import StratifiedLayer
from bitstrata.training.net import StratifiedNet
from bitstrata.training.norms import reestimate


def mixed_network(
    net: StratifiedNet, widths: Mapping[str, int], inputs: Iterable[Any], *, keep_statistics: bool = False
) -> nn.Module:
    """The network with a width for each quantised layer: a module of the model's own class, in evaluation mode.

    Weights and steps are the network's own tensors. A layer has the activation step of its width. Norms, and own first
    and last layers, take the copy of the width that `neighbours.widths_beside` finds; every norm then gets statistics
    of its own, the plain average over `inputs` (batches as in training, or pairs of batch and labels), so that the
    uniform widths stay as they are. With `keep_statistics` a norm keeps those of its width, and of `inputs` only the
    shape of the first is used.
    """
    _check(net, widths)
    batches = list(inputs_of(inputs))
    if not batches:
        raise BadData("a mixed network needs batches of inputs: its norms take their statistics from them")
    beside = widths_beside(net, widths, tuple(batches[0].shape))
    network = bind(net.model, _by_module(net.model, widths, beside), 1.0)
    for module in network.modules():
        if isinstance(module, PerWidth):
            chosen = str(module.bound_bits())
            module.copies = nn.ModuleDict({chosen: module.copies[chosen]})
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module._buffers = {name: _copy(buffer) for name, buffer in module._buffers.items()}
    if not keep_statistics:
        reestimate(network, batches)
    return network.eval()


def _copy(buffer: torch.Tensor | None) -> torch.Tensor | None:
    return None if buffer is None else buffer.detach().clone()


def _check(net: StratifiedNet, widths: Mapping[str, int]) -> None:
    layers = dict(net.stratified_layers())
    if layers.keys() != widths.keys():
        wrong = ", ".join(sorted(layers.keys() ^ widths.keys()))
        raise BadOption(f"a mixed network needs a width for each quantised layer, and for no other: see {wrong}")
    used: dict[nn.Parameter, str] = {}
    for name, layer in layers.items():
        if widths[name] not in net.widths:
            raise UnknownWidth(f"layer {name!r} is to have {widths[name]} bits; this network holds {net.widths}")
        other = used.setdefault(layer.weight, name)
        if widths[other] != widths[name]:
            raise BadOption(
                f"layers {other!r} and {name!r} share a weight, and so have one width: not {widths[other]} and "
                f"{widths[name]}"
            )
    if not net.is_calibrated:
        raise NotCalibrated("this network has no activation steps yet: train it, or run net.calibrate(batches)")


def _by_module(model: nn.Module, widths: Mapping[str, int], beside: Mapping[str, int]) -> dict[str, int]:
    """The width of every module that has one, by its name."""
    of_module: dict[nn.Module, int] = {}
    for name, module in model.named_modules():
        if isinstance(module, StratifiedLayer):
            of_module.update((part, widths[name]) for part in module.modules() if isinstance(part, Bound))
        elif isinstance(module, PerWidth):
            of_module[module] = beside[name]
    return {name: of_module[module] for name, module in model.named_modules() if isinstance(module, Bound)}
