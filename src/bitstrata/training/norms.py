"""Normalisation statistics: re-estimating them from data, and synchronising them over processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bitstrata.training import distributed
from bitstrata.training.modes import modes_kept

if TYPE_CHECKING:
    from bitstrata.training.net import StratifiedNet


@torch.no_grad()
def recalculate_norms(net: StratifiedNet, inputs: Iterable[Tensor]) -> None:
    """Replaces the running statistics of every width by the plain average over the given batches.

    The moving average of training lags behind the weights; at two bits, where codes flip, that lag costs accuracy.
    """
    batches = list(inputs)
    norms = [module for module in net.model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
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
            for bits in net.widths:
                for x in batches:
                    net(x, bits=bits)
            distributed.average_(
                buffer for norm in norms for name, buffer in norm.named_buffers() if name != "num_batches_tracked"
            )
        finally:
            for module, momentum in momenta:
                module.momentum = momentum


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
        wide = input.float()
        count = wide.numel() / wide.shape[1]
        local = torch.cat([wide.sum(axes), wide.square().sum(axes), wide.new_tensor([count])])
        everywhere: Tensor = _TotalOverProcesses.apply(local)  # type: ignore[no-untyped-call]
        channels = wide.shape[1]
        total = everywhere[-1].detach()
        mean = everywhere[:channels] / total
        variance = everywhere[channels : 2 * channels] / total - mean.square()
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            self._follow(mean.detach(), variance.detach() * total / (total - 1), self.running_mean, self.running_var)
        normalised = (wide - mean.view(shape)) * torch.rsqrt(variance.view(shape) + self.eps)
        if self.affine:
            normalised = normalised * self.weight.view(shape) + self.bias.view(shape)
        return normalised.to(input.dtype)

    def _follow(self, mean: Tensor, variance: Tensor, running_mean: Tensor, running_var: Tensor) -> None:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(variance, momentum)


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


def synchronise_norms(model: nn.Module) -> nn.Module:
    """Replaces every BatchNorm of a float model, in place, by one that spans all processes; before `stratify`."""
    for name, child in model.named_children():
        if type(child) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            assert isinstance(child, _BatchNorm)
            synchronised = SynchronisedBatchNorm(
                child.num_features, child.eps, child.momentum, child.affine, child.track_running_stats
            )
            synchronised.to(next(child.parameters(), torch.empty(0)).device)
            synchronised.load_state_dict(child.state_dict())
            synchronised.train(child.training)
            setattr(model, name, synchronised)
        else:
            synchronise_norms(child)
    return model
