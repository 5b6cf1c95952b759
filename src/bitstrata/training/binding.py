"""Making the bound copies of a model: other modules, the same tensors."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

from bitstrata.errors import CannotStratify, LayerBypassed
from bitstrata.training.bound import Bound, PerWidth
from bitstrata.training.layers import StratifiedLayer
from bitstrata.training.quantiser_kinds import ActivationQuantiser


def bind(model: nn.Module, bits: int | Mapping[str, int] | None, own_gain: float) -> nn.Module:
    """A structural copy of `model` on the very same tensors, in which every width-dependent module knows its width.

    `bits` is one width for all, or a width for each such module by its name; None where they know theirs already.
    Modules, containers and references between them are copied, so that the model's own code works unchanged; the
    dictionaries that hold parameters and buffers are the source's own, so that moving, loading or replacing a tensor
    there is seen here.
    """
    kept: dict[int, Any] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            kept[id(held)] = held
        kept.update((id(tensor), tensor) for tensor in _held_in(list(vars(module).values()), Tensor))
        if isinstance(module, ActivationQuantiser):
            kept[id(module.state)] = module.state
    registered = set(model.modules())
    for _, module in unregistered_modules(model):
        if registered.isdisjoint(module.modules()):
            kept[id(module)] = module
    try:
        view = copy.deepcopy(model, dict(kept))
    except (TypeError, RuntimeError) as error:
        raise CannotStratify(_uncopied(model, kept, error)) from error
    for name, module in view.named_modules():
        if isinstance(module, Bound):
            if bits is not None:
                module.bits = bits if isinstance(bits, int) else bits[name]
            module.own_gain = own_gain
    view.register_forward_hook(_FirstCall())
    return view


def unregistered_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules that the model keeps in plain attributes, lists or dictionaries only, with the attribute's name."""
    registered = set(model.modules())
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute != "_modules":
                place = f"{name}.{attribute}" if name else attribute
                yield from ((place, held) for held in _held_in(value, nn.Module) if held not in registered)


Held = TypeVar("Held")


def _held_in(value: Any, kind: type[Held], depth: int = 4) -> Iterator[Held]:
    """The objects of a kind that `value` is, or holds in lists and dictionaries."""
    if isinstance(value, kind):
        yield value
    elif depth and isinstance(value, (list, tuple, set, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _held_in(item, kind, depth - 1)


def _uncopied(model: nn.Module, kept: dict[int, Any], error: Exception) -> str:
    """Says which attribute of the model cannot be copied."""
    place = type(model).__name__
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            try:
                if attribute != "_modules":
                    copy.deepcopy(value, dict(kept))
            except (TypeError, RuntimeError):
                place = f"{name}.{attribute}" if name else attribute
    return (
        f"{place!r} cannot be copied ({error}), and each width runs a copy of the model that shares its tensors. "
        f"Create it when it is first used, or give its class a __deepcopy__"
    )


class _FirstCall:
    """After the first forward pass of a bound copy, in either mode: was every module that was converted called?"""

    def __init__(self) -> None:
        self.checked: dict[bool, bool] = {True: False, False: False}

    def __call__(self, view: nn.Module, args: Any, output: Any) -> None:
        if self.checked[view.training]:
            return
        missed = [m.name for m in view.modules() if isinstance(m, (StratifiedLayer, PerWidth)) and not m.was_called]
        if missed:
            raise LayerBypassed(
                f"the model's forward pass did not call {', '.join(map(repr, missed))}: it never uses the layer, or "
                f"reads its weight directly, and would have run in float. Leave it float with keep_float={missed}"
            )
        self.checked[view.training] = True
