"""What a width costs a layer in precision: the numbers whose sum an allocation makes small."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from bitstrata.errors import BadData, BadOption, NotCalibrated, NotFinite
from bitstrata.training.layers import StratifiedConv2d, StratifiedLayer
from bitstrata.training.modes import modes_kept
from bitstrata.training.net import StratifiedNet

Objective = Literal["weights", "energy"]


@dataclass(frozen=True)
class Item:
    """One quantised weight, and the layers that use it; they all have one width."""

    layers: tuple[str, ...]
    count: int
    """How many weights."""
    errors: tuple[float, ...]
    """At each of the network's widths, the lowest first."""


def items(net: StratifiedNet, objective: Objective = "weights", batches: Iterable[Any] | None = None) -> list[Item]:
    """Every quantised weight with its error at every width.

    weights   the sum over the weights of (w_b - w_K)^2, the squared difference between the de-quantised weights of
              width b and of the source width: eq. 12 of the paper
    energy    the same with every square multiplied by E[a^2], the mean square of the input channel that the weight
              multiplies: by how much it changes the layer's output, if inputs are unrelated. It is measured on
              `batches`, at the source width, behind the layer's own quantiser
    """
    if objective not in get_args(Objective):
        raise BadOption(f"objective={objective!r} is not one of {', '.join(get_args(Objective))}")
    energies: dict[str, Tensor] | None = None
    if objective == "energy":
        if batches is None:
            raise BadData('objective="energy" is measured on data: give batches')
        energies = input_energies(net, batches)
    layers_of: dict[nn.Parameter, list[str]] = {}
    for name, layer in net.stratified_layers():
        layers_of.setdefault(layer.weight, []).append(name)
    found = []
    for weight, names in layers_of.items():
        errors = tuple(_error(net, bits, names, energies) for bits in net.widths)
        found.append(Item(tuple(names), weight.numel(), errors))
    return found


@torch.no_grad()
def _error(net: StratifiedNet, bits: int, names: list[str], energies: dict[str, Tensor] | None) -> float:
    def dequantised(width: int) -> Tensor:
        layer = _layer(net.at(width), names[0])
        weight: Tensor = layer.weight_quantiser(layer.weight)
        return weight.double()

    squares = (dequantised(bits) - dequantised(net.widths[-1])).square()
    if energies is not None:
        for_weights = [_of_weights(_layer(net.model, name), energies[name]) for name in names]
        squares = squares * torch.stack(for_weights).sum(0).to(squares.device)
    error = float(squares.sum())
    if not torch.isfinite(torch.tensor(error)):
        raise NotFinite(
            f"layer {names[0]!r} has no finite error at {bits} bits: its weights or inputs are not finite. Train again "
            f"from an earlier checkpoint"
        )
    return error


@torch.no_grad()
def input_energies(net: StratifiedNet, batches: Iterable[Any]) -> dict[str, Tensor]:
    """E[a^2] of every input channel of every quantised layer; a layer that is called twice has the sum of both."""
    if not net.is_calibrated:
        raise NotCalibrated("this network has no activation steps yet: train it, or run net.calibrate(batches)")
    view = net.at(net.widths[-1])
    sums: dict[str, Tensor] = {}

    def add(name: str, layer: StratifiedLayer, x: Tensor) -> None:
        quantised = layer.input_quantiser(x).double()
        channels_last = quantised.movedim(1, -1) if isinstance(layer, StratifiedConv2d) else quantised
        energy = channels_last.square().flatten(0, -2).mean(0).cpu() * len(x)
        sums[name] = sums[name] + energy if name in sums else energy

    def hook(name: str) -> Any:
        return lambda layer, args: add(name, layer, args[0])

    layers = [(name, module) for name, module in view.named_modules() if isinstance(module, StratifiedLayer)]
    hooks = [layer.register_forward_pre_hook(hook(name)) for name, layer in layers]
    samples = 0
    try:
        with modes_kept(view):
            view.eval()
            for x in inputs_of(batches):
                view(x)
                samples += len(x)
    finally:
        for one in hooks:
            one.remove()
    if not samples:
        raise BadData('objective="energy" was given no batches to measure on')
    return {name: total / samples for name, total in sums.items()}


def inputs_of(batches: Iterable[Any]) -> Iterable[Tensor]:
    """The inputs of batches that are inputs, or tuples whose first entry is the input, as data loaders give them."""
    for batch in batches:
        yield batch[0] if isinstance(batch, (tuple, list)) else batch


def _of_weights(layer: StratifiedLayer, energy: Tensor) -> Tensor:
    """The energy of the channel that each weight multiplies, in a shape that fits the weight."""
    if not isinstance(layer, StratifiedConv2d):
        return energy
    # The outputs of a group see the inputs of that group only.
    by_group = energy.reshape(layer.groups, -1).repeat_interleave(layer.out_channels // layer.groups, dim=0)
    return by_group[:, :, None, None]


def _layer(model: nn.Module, name: str) -> StratifiedLayer:
    layer = model.get_submodule(name)
    assert isinstance(layer, StratifiedLayer)
    return layer
