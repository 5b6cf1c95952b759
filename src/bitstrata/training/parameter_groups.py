"""Parameter groups for people's own optimisers: what gets weight decay and what does not."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from bitstrata.training.quantiser_kinds import ActivationQuantiser, WeightQuantiser

#: Modules of which no parameter is ever decayed.
UNDECAYED: tuple[type[nn.Module], ...] = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def parameter_groups(net: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups that cover every parameter once: weights with decay; steps, biases and norms without.

    A decayed step would shrink towards zero and take its layer with it. Works on float models too.
    """
    decayed: list[nn.Parameter] = []
    undecayed: list[nn.Parameter] = []
    seen: set[nn.Parameter] = set()
    for module in net.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter in seen or not parameter.requires_grad:
                continue
            seen.add(parameter)
            (decayed if _decays(module, name, parameter) else undecayed).append(parameter)
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": undecayed, "weight_decay": 0.0},
    ]


def _decays(module: nn.Module, name: str, parameter: nn.Parameter) -> bool:
    if isinstance(module, (ActivationQuantiser, WeightQuantiser)):
        return module.decays(name)
    return not (isinstance(module, UNDECAYED) or name == "bias" or parameter.ndim < 2)
