"""`stratify`: from any torch module to one that runs at every width."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrize

from bitstrata.codes import check_widths
from bitstrata.errors import BadOption, CannotStratify, NothingToStratify
from bitstrata.training.binding import unregistered_modules
from bitstrata.training.bound import PerWidth
from bitstrata.training.calibration import ActivationInit
from bitstrata.training.layers import StratifiedConv2d, StratifiedLayer, StratifiedLinear
from bitstrata.training.modes import modes_kept
from bitstrata.training.net import StratifiedNet
from bitstrata.training.options import NormMode, Options
from bitstrata.training.quantiser_kinds import Quantizer, QuantizerName, WeightQuantiser, find_quantizer
from bitstrata.training.weight_steps import WeightInit

Choice = Callable[[str, nn.Module], bool] | Collection[str]
Ends = Literal["float", "own", "quantised"]

#: Modules that multiply by weights but have no stratified form. Left alone they would stay float without a word.
UNSUPPORTED: tuple[type[nn.Module], ...] = (
    nn.MultiheadAttention,
    nn.Conv1d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.Bilinear,
    nn.RNNBase,
    nn.RNNCellBase,
)


@dataclass(frozen=True)
class LayerReport:
    """What became of one module; `StratifiedNet.summary` prints these."""

    name: str
    kind: str
    treatment: str
    weights: int


def stratify(
    model: nn.Module,
    widths: Collection[int] = (2, 3, 4),
    *,
    quantise: Choice | None = None,
    keep_float: Collection[str] = (),
    ends: Ends = "float",
    norms: NormMode = "individual",
    quantizer: QuantizerName | Quantizer = "learned-step",
    per_channel: bool = False,
    compensated: bool = True,
    weight_init: WeightInit = "mean",
    activation_init: ActivationInit = "mse",
    normalise_step_gradients: bool | None = None,
    example: Any = None,
) -> StratifiedNet:
    """Turns `model` into a network that holds one source weight per layer and runs at each of `widths`.

    The model's own `forward` is kept as it is; its `Conv2d`, `Linear` and `BatchNorm` modules are replaced in place,
    so use the returned network from here on.

    quantise        which convolutions and linear layers to quantise: names (with `*` and `?`), or a function of name
                    and module. By default all but the first and last
    keep_float      names (with `*` and `?`) of modules to leave as they are, unsupported ones included
    ends            the first and last layer: "float" and shared by all widths, "own" for a float copy per width, or
                    "quantised" like the rest
    norms           "individual" statistics and affine per width, "statistics" only, or "shared"
    quantizer       "learned-step", the method's own, or one that the paper compares with (`bitstrata.baselines`), to
                    train and evaluate; only networks of the method's own can be packed
    per_channel     one weight step per output channel instead of one per layer
    compensated     add the midpoint compensation z to shifted-down codes; False is for ablations
    weight_init, activation_init
                    see `weight_steps.initial_step` and `calibration.choose_step`
    normalise_step_gradients
                    divide the weight step's gradient by 2^m at each width; by default only for sources over four bits
    example         an input (or a tuple of arguments); with it, first and last are found in order of call, without it
                    in order of registration
    """
    kind = find_quantizer(quantizer, check_widths(widths))
    options = Options(
        widths=check_widths(widths),
        quantizer=kind.name,
        nested=kind.nested,
        per_channel=per_channel,
        compensated=compensated,
        norms=norms,
        weight_init=weight_init,
        activation_init=activation_init,
        normalise_step_gradients=normalise_step_gradients,
    )
    if ends not in get_args(Ends):
        raise BadOption(f"ends={ends!r} is not one of {', '.join(get_args(Ends))}")
    if isinstance(model, StratifiedNet):
        raise CannotStratify("this network is already stratified")
    kept = _kept(model, keep_float)
    layers = _convertible(model, keep_float, kept)
    chosen, at_ends = _choose(model, layers, quantise, ends, example)
    if not chosen:
        raise NothingToStratify(
            f"{type(model).__name__} has {len(layers)} convolution and linear layers that could be quantised, and none "
            f"is left after the choice made (the first and last stay float). Use ends='quantised' or quantise=[names]"
        )
    converter = _Converter(options, kind, chosen, at_ends if ends == "own" else set(), kept)
    model = converter.convert_root(model)
    return StratifiedNet(model, options, tuple(converter.report))


def _matches(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _kept(model: nn.Module, keep_float: Collection[str]) -> set[nn.Module]:
    """The modules to leave as they are, with all that is in them, under whichever of their names they were named."""
    names = dict(model.named_modules(remove_duplicate=False))
    places = [*names, *(place for place, _ in unregistered_modules(model))]
    unmatched = [pattern for pattern in keep_float if not any(_matches(place, [pattern]) for place in places)]
    if unmatched:
        raise BadOption(f"keep_float={unmatched} names no module of the model; net.named_modules() lists them")
    named = [module for name, module in names.items() if _matches(name, keep_float)]
    return {inner for module in named for inner in module.modules()}


def _convertible(model: nn.Module, keep_float: Collection[str], kept: set[nn.Module]) -> dict[str, nn.Module]:
    """The layers that have a stratified form, by name, in order of registration; an error for what has none."""
    _refuse_unregistered(model, keep_float)
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if module in kept:
            continue
        kind = type(module).__name__
        if isinstance(module, nn.modules.lazy.LazyModuleMixin):
            raise CannotStratify(f"{name!r} ({kind}) has no weights yet: run the model once before stratifying it")
        if isinstance(module, UNSUPPORTED):
            raise CannotStratify(
                f"{name!r} ({kind}) has no stratified form. Rewrite it with Linear or Conv2d layers, or leave it float "
                f"with keep_float=[{name!r}]"
            )
        if not isinstance(module, (nn.Conv2d, nn.Linear)):
            continue
        if parametrize.is_parametrized(module) or "weight" not in module._parameters:
            raise CannotStratify(
                f"{name!r} ({kind}) computes its weight from other tensors (a parametrisation such as weight "
                f"normalisation). Remove it first, or leave the layer float with keep_float=[{name!r}]"
            )
        if type(module).forward not in (nn.Conv2d.forward, nn.Linear.forward) or (
            isinstance(module, nn.Conv2d) and type(module)._conv_forward is not nn.Conv2d._conv_forward
        ):
            raise CannotStratify(
                f"{name!r} ({kind}) changes how its base class computes, which a stratified layer would lose. Replace "
                f"it by a plain layer, or leave it float with keep_float=[{name!r}]"
            )
        found[name] = module
    return found


def _refuse_unregistered(model: nn.Module, keep_float: Collection[str]) -> None:
    """An error for layers that stand in plain lists or dictionaries only, where nobody would quantise or train them."""
    registered = set(model.modules())
    for place, module in unregistered_modules(model):
        for layer in module.modules():
            known = layer in registered or _matches(place, keep_float)
            if isinstance(layer, (nn.Conv2d, nn.Linear, *UNSUPPORTED)) and not known:
                raise CannotStratify(
                    f"{place!r} holds a {type(layer).__name__} that is not registered as a submodule, so that it would "
                    f"stay float without a word. Use nn.ModuleList or nn.ModuleDict, or keep_float=[{place!r}]"
                )


def _choose(
    model: nn.Module, layers: dict[str, nn.Module], quantise: Choice | None, ends: Ends, example: Any
) -> tuple[set[nn.Module], set[nn.Module]]:
    """The modules to quantise, and the first and last."""
    ordered = list(layers.values()) if example is None else _call_order(model, list(layers.values()), example)
    at_ends = {ordered[0], ordered[-1]} if ordered else set()
    if callable(quantise):
        return {module for name, module in layers.items() if quantise(name, module)}, at_ends
    if quantise is not None:
        unmatched = [pattern for pattern in quantise if not any(_matches(name, [pattern]) for name in layers)]
        if unmatched:
            raise NothingToStratify(f"quantise={unmatched} names no layer of the model; it has {', '.join(layers)}")
        return {module for name, module in layers.items() if _matches(name, quantise)}, at_ends
    if ends == "quantised":
        return set(layers.values()), set()
    return set(layers.values()) - at_ends, at_ends


def _call_order(model: nn.Module, layers: list[nn.Module], example: Any) -> list[nn.Module]:
    called: list[nn.Module] = []
    hooks = [layer.register_forward_pre_hook(lambda module, _: called.append(module)) for layer in layers]
    try:
        with torch.no_grad(), modes_kept(model):
            model.eval()
            model(*example) if isinstance(example, tuple) else model(example)
    finally:
        for hook in hooks:
            hook.remove()
    if not called:
        raise NothingToStratify("the example reached none of the model's convolution and linear layers")
    return called


class _Converter:
    """Replaces modules in place. What was one module, or one weight, stays one."""

    def __init__(
        self,
        options: Options,
        kind: Quantizer,
        chosen: set[nn.Module],
        own_ends: set[nn.Module],
        kept: set[nn.Module],
    ) -> None:
        self.options = options
        self.kind = kind
        self.chosen = chosen
        self.own_ends = own_ends
        self.kept = kept
        self.replaced: dict[nn.Module, nn.Module] = {}
        self.weight_quantisers: dict[nn.Parameter, WeightQuantiser] = {}
        self.report: list[LayerReport] = []

    def convert_root(self, model: nn.Module) -> nn.Module:
        replaced = self._replacement("", model)
        if replaced is not model:
            return replaced
        self._convert_children("", model, set())
        return model

    def _convert_children(self, prefix: str, module: nn.Module, seen: set[nn.Module]) -> None:
        for child_name, child in list(module._modules.items()):
            if child is None:
                continue
            name = f"{prefix}{child_name}"
            if child in self.kept:
                self._note(name, child, "float (kept)")
                continue
            replacement = self._replacement(name, child)
            if replacement is not child:
                module._modules[child_name] = replacement
            elif child not in seen:
                seen.add(child)
                self._convert_children(f"{name}.", child, seen)

    def _replacement(self, name: str, module: nn.Module) -> nn.Module:
        if module not in self.replaced:
            self.replaced[module] = self._make(name, module)
        return self.replaced[module]

    def _make(self, name: str, module: nn.Module) -> nn.Module:
        if isinstance(module, _BatchNorm):
            return self._norm(name, module)
        if not isinstance(module, (nn.Conv2d, nn.Linear)):
            return module
        if module in self.own_ends and module not in self.chosen:
            self._note(name, module, "float, own copy per width")
            return PerWidth(module, self.options, name)
        if module not in self.chosen:
            self._note(name, module, "float, shared")
            return module
        weight = cast(nn.Parameter, module.weight)
        quantiser = self.weight_quantisers.get(weight)
        if quantiser is None:
            quantiser = self.weight_quantisers[weight] = self.kind.weight(weight, self.options, name)
        input_quantiser = self.kind.activation(self.options, name, weight.device)
        self._note(name, module, f"{', '.join(map(str, self.options.widths))} bits")
        layer: StratifiedLayer
        if isinstance(module, nn.Conv2d):
            layer = StratifiedConv2d(module, quantiser, input_quantiser, name)
        else:
            layer = StratifiedLinear(module, quantiser, input_quantiser, name)
        layer.train(module.training)
        return layer

    def _norm(self, name: str, module: _BatchNorm) -> nn.Module:
        if self.options.norms == "shared":
            self._note(name, module, "norm, shared")
            return module
        shared = ("weight", "bias") if self.options.norms == "statistics" else ()
        self._note(name, module, "norm, own statistics" if shared else "norm, own statistics and affine")
        return PerWidth(module, self.options, name, share=shared)

    def _note(self, name: str, module: nn.Module, treatment: str) -> None:
        kind = type(module).__name__
        if isinstance(module, nn.Conv2d) and module.groups > 1:
            kind = "Conv2d, depthwise" if module.groups == module.in_channels else f"Conv2d, {module.groups} groups"
        weights = sum(parameter.numel() for parameter in module.parameters())
        self.report.append(LayerReport(name, kind, treatment, weights))
