"""What the tables and figures need to know of trained networks, besides their accuracy."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bitstrata.study.records import InputError, TracePoint
from bitstrata.training.bound import PerWidth
from bitstrata.training.evaluate import Accuracy, evaluate
from bitstrata.training.fit import CHECKPOINT
from bitstrata.training.layers import StratifiedLayer
from bitstrata.training.modes import modes_kept
from bitstrata.training.net import StratifiedNet
from bitstrata.training.steps import LearnedWeightStep

FLOAT_BITS = 32
#: Figure 7 (c) shows the last five layers.
LAST_LAYERS = 5


def accuracy_by_width(
    networks: Mapping[int, StratifiedNet], batches: Sequence[tuple[Tensor, Tensor]]
) -> dict[str, Accuracy]:
    """Of every width, each from the network that serves it."""
    return {str(bits): evaluate(net, batches, bits=bits)[str(bits)] for bits, net in networks.items()}


def quantised_weights(net: StratifiedNet) -> int:
    return sum(weight.numel() for weight in {layer.weight for _, layer in net.stratified_layers()})


def float_weights(net: StratifiedNet) -> int:
    """Weights and biases of the layers that stay float, at all widths."""
    layers = [module for module in net.model.modules() if isinstance(module, (nn.Conv2d, nn.Linear))]
    return sum(parameter.numel() for parameter in {p for layer in layers for p in layer.parameters()})


def weight_bits(networks: Mapping[int, StratifiedNet], stored_bits: int) -> int:
    """What a server keeps to serve all widths: quantised weights at their stored width, the others at 32 bits."""
    distinct = set(networks.values())
    quantised = quantised_weights(next(iter(distinct)))
    return quantised * stored_bits + sum(map(float_weights, distinct)) * FLOAT_BITS


def added_parameters(networks: Mapping[int, StratifiedNet]) -> int:
    """Parameters of the first and last layers beyond one shared copy."""
    return sum(
        sum(p.numel() for p in module.own_parameters(bits))
        for net in set(networks.values())
        for module in net.model.modules()
        if isinstance(module, PerWidth) and isinstance(module.copies[str(net.widths[0])], (nn.Conv2d, nn.Linear))
        for bits in net.widths[1:]
    )


def norm_parameters(networks: Mapping[int, StratifiedNet]) -> int:
    """Affine parameters and running statistics of all norms, each tensor counted once."""
    tensors: set[Tensor] = set()
    for net in set(networks.values()):
        for module in net.model.modules():
            if isinstance(module, _BatchNorm):
                held = (module.weight, module.bias, module.running_mean, module.running_var)
                tensors.update(tensor for tensor in held if tensor is not None)
    return sum(tensor.numel() for tensor in tensors)


@torch.no_grad()
def code_histograms(networks: Mapping[int, StratifiedNet]) -> dict[str, dict[str, int]]:
    """How many weights have which code, at every width; empty for quantisers that have no codes of ours."""
    found = {}
    for bits, net in networks.items():
        counts: Counter[int] = Counter()
        for layer in net.at(bits).modules():
            if not isinstance(layer, StratifiedLayer):
                continue
            quantiser = layer.weight_quantiser
            if not isinstance(quantiser, LearnedWeightStep):
                return {}
            half_steps, _ = quantiser.integers(layer.weight)
            codes = torch.floor(half_steps * 0.5 ** (quantiser.grid().dropped + 1)).to(torch.int64)
            values, numbers = torch.unique(codes, return_counts=True)
            counts.update(dict(zip(values.tolist(), numbers.tolist(), strict=True)))
        found[str(bits)] = {str(code): counts[code] for code in sorted(counts)}
    return found


@torch.no_grad()
def input_errors(networks: Mapping[int, StratifiedNet], x: Tensor) -> list[InputError]:
    """How much the lowest width changes the inputs of its last layers, on one batch."""
    bits = min(networks)
    net = networks[bits]
    view = net.at(bits)
    found: dict[str, InputError] = {}

    def compare(layer: Any, arguments: tuple[Tensor, ...]) -> None:
        exact = arguments[0].flatten(1).double()
        norms = (layer.input_quantiser(arguments[0]).flatten(1).double() - exact).norm(dim=1)
        relative = norms / exact.norm(dim=1).clamp_min(1e-12)
        found.pop(layer.name, None)  # a layer that is called twice stands where it was called last
        found[layer.name] = InputError(layer.name, float(norms.mean()), float(relative.mean()))

    with modes_kept(net, view):
        net.eval()
        layers = [module for module in view.modules() if isinstance(module, StratifiedLayer)]
        hooks = [layer.register_forward_pre_hook(compare) for layer in layers]
        try:
            view(x)
        finally:
            for hook in hooks:
                hook.remove()
    return list(found.values())[-LAST_LAYERS:]


def trace_of(folder: Path) -> list[TracePoint]:
    """The trace in the log of a minimum-norm run; empty for others."""
    log = folder / "log.jsonl"
    if not log.exists() or not (folder / CHECKPOINT).exists():
        return []
    entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return [TracePoint(e["at"], e["weights"], e["norms"]) for e in entries if e["event"] == "trace"]
