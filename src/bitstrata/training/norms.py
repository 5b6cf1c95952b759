"""Normalisation statistics: re-estimating them from data, and synchronising them over processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bitstrata.errors import CannotStratify
from bitstrata.training import distributed
from bitstrata.training.bound import Bound, PerWidth
from bitstrata.training.modes import modes_kept

if TYPE_CHECKING:
    from bitstrata.training.net import StratifiedNet


@torch.no_grad()
def recalculate_norms(net: StratifiedNet, inputs: Iterable[Tensor], *, bits: int | None = None) -> None:
    """Replaces the running statistics of every width, or of one, by the plain average over the given batches.

    The moving average of training lags behind the weights; at two bits, where codes flip, that lag costs accuracy.
    Every batch must be a mixture of all classes, as in training: the variance within sorted batches is too small.
    """
    batches = list(inputs)
    widths = net.widths if bits is None else (bits,)
    norms = [norm for norm in _norms_of(net, widths) if norm.track_running_stats]
    # Bound copies share the tensors of these norms but not their momentum, so that is set on every copy.
    copies = [m for view in net._bound.values() for m in view.modules() if isinstance(m, _BatchNorm)]
    momenta = [(module, module.momentum) for module in copies]
    with modes_kept(net, *net._bound.values()):
        net.train()
        try:
            for norm in norms:
                norm.reset_running_stats()
            for module in copies:
                module.momentum = None  # the cumulative average
            for width in widths:
                for x in batches:
                    net(x, bits=width)
            _average(norms)
        finally:
            for module, momentum in momenta:
                module.momentum = momentum


def _norms_of(net: StratifiedNet, widths: tuple[int, ...]) -> list[_BatchNorm]:
    """The norms that these widths use, each once."""
    others = {
        copy
        for module in net.model.modules()
        if isinstance(module, PerWidth)
        for width, copy in module.copies.items()
        if int(width) not in widths
    }
    return [module for module in net.model.modules() if isinstance(module, _BatchNorm) and module not in others]


@torch.no_grad()
def reestimate(network: nn.Module, inputs: Iterable[Tensor]) -> None:
    """The same for one network by itself, whose norms nobody else uses."""
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    momenta = [(norm, norm.momentum) for norm in norms]
    with modes_kept(network):
        network.train()
        try:
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None
            for x in inputs:
                network(x)
            _average(norms)
        finally:
            for norm, momentum in momenta:
                norm.momentum = momentum


def _average(norms: list[_BatchNorm]) -> None:
    """The mean of their statistics over all processes."""
    distributed.average_(
        buffer for norm in norms for name, buffer in norm.named_buffers() if name != "num_batches_tracked"
    )


class SynchronisedBatchNorm(_BatchNorm):
    """BatchNorm whose batch statistics span all processes, on any device (torch's own refuses CPU tensors)."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions, got {input.dim()}")

    def forward(self, input: Tensor) -> Tensor:
        if not (self.training and distributed.active()):
            return super().forward(input)
        axes = [axis for axis in range(input.dim()) if axis != 1]
        shape = [-1 if axis == 1 else 1 for axis in range(input.dim())]
        wide = input if input.dtype == torch.float64 else input.float()
        # Sums in float64, and of deviations from the common mean: the difference between the mean square and the square
        # of the mean has no digits left where the variance is small beside them.
        count = wide.new_tensor([wide.numel() / wide.shape[1]], dtype=torch.float64)
        sums = _total(torch.cat([wide.sum(axes, dtype=torch.float64), count]))
        total = sums[-1].detach()
        mean = sums[:-1] / total
        centred = wide - mean.to(wide.dtype).view(shape)
        variance = _total(centred.square().sum(axes, dtype=torch.float64)) / total
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            self._follow(mean.detach(), variance.detach() * total / (total - 1), self.running_mean, self.running_var)
        normalised = centred * torch.rsqrt(variance + self.eps).to(wide.dtype).view(shape)
        if self.affine:
            normalised = normalised * self.weight.view(shape) + self.bias.view(shape)
        return normalised.to(input.dtype)

    def _follow(self, mean: Tensor, variance: Tensor, running_mean: Tensor, running_var: Tensor) -> None:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        running_var.lerp_(variance.to(running_var.dtype), momentum)


class _TotalOverProcesses(torch.autograd.Function):
    """The sum over processes; its gradient is the sum over processes too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


def _total(x: Tensor) -> Tensor:
    return _TotalOverProcesses.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def synchronise_norms(model: nn.Module) -> nn.Module:
    """Makes every BatchNorm of a float model, in place, one that spans all processes; before `stratify`."""
    if any(isinstance(module, Bound) for module in model.modules()):
        raise CannotStratify(
            "this network is already stratified, and its widths hold norms of their own: call synchronise_norms on the "
            "float model, before stratify"
        )
    for module in model.modules():
        if type(module) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            # The module stays the one that others may refer to, with its tensors, flags and hooks.
            module.__class__ = SynchronisedBatchNorm
    return model
