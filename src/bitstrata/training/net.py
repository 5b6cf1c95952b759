"""`StratifiedNet`: one source model and its bound copies, one per width."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from bitstrata.errors import CannotStratify, LayerBypassed, NothingToStratify, UnknownWidth
from bitstrata.training.bound import Bound, PerWidth
from bitstrata.training.layers import StratifiedLayer
from bitstrata.training.modes import modes_kept
from bitstrata.training.norms import recalculate_norms
from bitstrata.training.options import Options
from bitstrata.training.steps import ActivationQuantiser, WeightQuantiser

if TYPE_CHECKING:
    from bitstrata.training.stratify import LayerReport


class StratifiedNet(nn.Module):
    """A network that runs at every one of its widths. Made by `stratify`.

    net(x)            {width: output} for all widths, highest first: the joint pass of training
    net(x, bits=2)    the output at one width
    net.at(2)         that width as a module of the model's own class

    All of them compute with the same tensors. Train and evaluate through `net.train()` and `net.eval()`.
    """

    def __init__(self, model: nn.Module, options: Options, report: tuple[LayerReport, ...]) -> None:
        super().__init__()
        self.model = model
        self.training = model.training
        self.options = options
        self.report = report
        # Bound copies share all tensors with the model, so they are kept out of the registry of submodules.
        self._bound: dict[tuple[int, bool], nn.Module] = {}
        for bits in options.widths:
            for joint in (False, True):
                self._bound[bits, joint] = _bind(model, bits, float(len(options.widths)) if joint else 1.0)

    @property
    def widths(self) -> tuple[int, ...]:
        return self.options.widths

    def at(self, bits: int, *, joint: bool = False) -> nn.Module:
        """The model at one width: a module of the model's own class, on the same tensors.

        With `joint`, gradients of width-specific parameters are multiplied by the number of widths, for losses that
        are averaged over the widths.
        """
        if bits not in self.options.widths:
            raise UnknownWidth(f"this network holds the widths {self.widths}, not {bits}")
        return self._bound[bits, joint]

    def forward(self, *args: Any, bits: int | None = None, **kwargs: Any) -> Any:
        if bits is not None:
            return self._call(bits, False, args, kwargs)
        return {width: self._call(width, True, args, kwargs) for width in reversed(self.widths)}

    def _call(self, bits: int, joint: bool, args: Any, kwargs: Any) -> Any:
        view = self.at(bits, joint=joint)
        if not torch.compiler.is_compiling():
            self._follow_modes(view)
        return view(*args, **kwargs)

    def _follow_modes(self, view: nn.Module) -> None:
        """Gives the bound copy the training flags of the source, where single submodules may have been frozen."""
        for source, bound in zip(self.model.modules(), view.modules(), strict=True):
            if bound.training != source.training:
                bound.training = source.training

    def train(self, mode: bool = True) -> StratifiedNet:
        super().train(mode)
        for view in self._bound.values():
            view.train(mode)
        return self

    def stratified_layers(self) -> Iterator[tuple[str, StratifiedLayer]]:
        """The quantised layers of the source model, by name."""
        for name, module in self.model.named_modules():
            if isinstance(module, StratifiedLayer):
                yield name, module

    def own_parameters(self, bits: int) -> list[nn.Parameter]:
        """The parameters that only width `bits` uses: norm affine, activation steps, own first and last layers."""
        return [
            parameter
            for module in self.model.modules()
            if isinstance(module, Bound)
            for parameter in module.own_parameters(bits)
        ]

    def shared_parameters(self) -> list[nn.Parameter]:
        """The parameters that all widths use."""
        own = {parameter for bits in self.widths for parameter in self.own_parameters(bits)}
        return [parameter for parameter in self.parameters() if parameter not in own]

    @property
    def is_calibrated(self) -> bool:
        return all(
            bool(getattr(module, f"calibrated_{bits}"))
            for module in self.model.modules()
            if isinstance(module, ActivationQuantiser)
            for bits in self.widths
        )

    @torch.no_grad()
    def calibrate(self, batches: Iterable[Any], *, limit: int = 8) -> StratifiedNet:
        """Sets all activation steps and zero points from data, then the statistics of all norms, at every width.

        `batches` gives inputs, or tuples whose first entry is the input, as data loaders do; at most `limit` are
        used. Nothing else is trained: this is the honest quick look at a float model at low widths.
        """
        inputs = []
        for batch in batches:
            inputs.append(batch[0] if isinstance(batch, (tuple, list)) else batch)
            if len(inputs) == limit:
                break
        if not inputs:
            raise NothingToStratify("calibrate was given no batches")
        quantisers = [module for module in self.model.modules() if isinstance(module, ActivationQuantiser)]
        with modes_kept(self, *self._bound.values()):
            self.train()
            try:
                for quantiser in quantisers:
                    quantiser.state.histograms = {}
                with _FrozenStatistics(self.model):
                    for bits in self.widths:
                        for x in inputs:
                            self(x, bits=bits)
            finally:
                for quantiser in quantisers:
                    quantiser.settle()
        recalculate_norms(self, inputs)
        return self

    def summary(self) -> str:
        """One line for each layer: what became of it."""
        name_column = max([len(line.name) for line in self.report] + [5])
        kind_column = max([len(line.kind) for line in self.report] + [4])
        lines = [f"{'layer':<{name_column}}  {'kind':<{kind_column}}  {'parameters':>12}  treatment"]
        for line in self.report:
            place = f"{line.name:<{name_column}}  {line.kind:<{kind_column}}"
            lines.append(f"{place}  {line.weights:>12,}  {line.treatment}")
        quantised = sum(weight.numel() for weight in {layer.weight for _, layer in self.stratified_layers()})
        steps = {
            p
            for m in self.model.modules()
            if isinstance(m, (ActivationQuantiser, WeightQuantiser))
            for p in m.parameters()
        }
        one_width = {*self.shared_parameters(), *self.own_parameters(self.widths[0])} - steps
        total = sum(parameter.numel() for parameter in one_width)
        lines.append(f"{quantised:,} of {total:,} parameters are stored as bit layers, widths {self.widths}")
        return "\n".join(lines)


def _bind(model: nn.Module, bits: int, own_gain: float) -> nn.Module:
    """A structural copy of `model` on the very same tensors, in which every width-dependent module knows its width.

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
    for module in view.modules():
        if isinstance(module, Bound):
            module.bits = bits
            module.own_gain = own_gain
    view.register_forward_hook(_FirstCall(bits))
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

    def __init__(self, bits: int) -> None:
        self.bits = bits
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


class _FrozenStatistics:
    """Within it, norms normalise by their batch and leave their running statistics alone."""

    def __init__(self, model: nn.Module) -> None:
        self.norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]

    def __enter__(self) -> None:
        self.saved = [{name: buffer.clone() for name, buffer in norm.named_buffers()} for norm in self.norms]

    def __exit__(self, *failure: object) -> None:
        for norm, saved in zip(self.norms, self.saved, strict=True):
            for name, buffer in norm.named_buffers():
                buffer.copy_(saved[name])
