"""Modules that know their width.

A module in the source model belongs to no width and cannot be called. `stratify` makes a *bound* copy of the model for
each width, which shares every tensor with the source and in which `bits` is set: the width is part of the module that
is called and never a flag left behind, so checkpointing, compilation and threads all see the right one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from bitstrata.errors import LayerBypassed
from bitstrata.training.options import Options


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
        if torch.compiler.is_compiling() or any("." in name for name in scaled):
            return torch.func.functional_call(chosen, scaled, (x,))  # type: ignore[no-any-return]
        # The same without putting anything into the module, which other threads may be running.
        stand_in = copy.copy(chosen)
        stand_in.__dict__["_parameters"] = {**chosen._parameters, **scaled}
        return stand_in(x)  # type: ignore[no-any-return]


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


def _copy_sharing(module: nn.Module, share: tuple[str, ...]) -> nn.Module:
    parameters = dict(module.named_parameters())
    return copy.deepcopy(module, {id(parameters[name]): parameters[name] for name in share if name in parameters})
