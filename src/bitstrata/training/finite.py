"""Finding where a NaN or an infinity came from, and naming it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bitstrata.errors import NotFinite


def is_finite(value: Any) -> bool:
    """Whether a tensor, or every tensor in a tuple or dictionary, holds only finite numbers."""
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, dict):
        return all(is_finite(item) for item in value.values())
    if isinstance(value, (tuple, list)):
        return all(is_finite(item) for item in value)
    return True


def explain_loss(view: nn.Module, x: Any, width: str, where: str, seen: NotFinite | None = None) -> NotFinite:
    """The error for a loss that is not finite: runs the batch again to find the first module that went wrong.

    With `seen` a layer has already said that its input is not finite, before there was a loss.
    """
    if not is_finite(x):
        return NotFinite(f"{where}: the input batch holds NaN or infinite values. Clean the data, or drop such samples")
    for name, parameter in view.named_parameters():
        if not is_finite(parameter):
            return NotFinite(f"{where}, width {width}: parameter {name!r} is not finite. Use a lower learning rate")
    if seen is not None:
        return NotFinite(f"{where}, width {width}: {seen}. Use a lower learning rate or check data")
    culprits: list[str] = []
    hooks = [
        module.register_forward_hook(lambda m, a, out, name=name: None if is_finite(out) else culprits.append(name))
        for name, module in view.named_modules()
        if not list(module.children())
    ]
    try:
        with torch.no_grad():
            view(x)
    finally:
        for hook in hooks:
            hook.remove()
    at = f"first in the output of layer {culprits[0]!r}" if culprits else "in the loss itself"
    return NotFinite(f"{where}, width {width}: the loss is not finite, {at}. Use a lower learning rate or check data")


def check_gradients(net: nn.Module, where: str) -> None:
    """Raises before an optimiser step could spread a gradient that is not finite."""
    gradients = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    norms = torch.stack([norm.cpu() for norm in torch._foreach_norm(gradients)]) if gradients else torch.zeros(1)
    if bool(torch.isfinite(norms.sum())):
        return
    for name, parameter in net.named_parameters():
        if parameter.grad is not None and not is_finite(parameter.grad):
            raise NotFinite(f"{where}: the gradient of {name!r} is not finite. Use a lower learning rate")
