"""`StratifiedNet`: one source model and its bound copies, one per width."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from bitstrata.errors import NothingToStratify, UnknownWidth
from bitstrata.training.binding import bind
from bitstrata.training.bound import Bound
from bitstrata.training.layers import StratifiedLayer
from bitstrata.training.modes import modes_kept
from bitstrata.training.norms import recalculate_norms
from bitstrata.training.options import Options
from bitstrata.training.quantiser_kinds import ActivationQuantiser, WeightQuantiser

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
                self._bound[bits, joint] = bind(model, bits, float(len(options.widths)) if joint else 1.0)

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

    def follow_modes(self) -> None:
        """Gives all bound copies the training flags of the source, where single submodules may have been frozen."""
        for view in self._bound.values():
            self._follow_modes(view)

    def _follow_modes(self, view: nn.Module) -> None:
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
        used, and they should be shuffled. Nothing else is trained: this is the honest quick look at a float model at
        low widths.
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
