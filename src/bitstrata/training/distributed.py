"""The few collective operations that training needs; each is the identity in a single process."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor


def active() -> bool:
    """Whether this process is one of several (torchrun, or any initialised process group)."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    return dist.get_rank() if active() else 0


def world() -> int:
    return dist.get_world_size() if active() else 1


def least(value: float) -> float:
    return _reduced(value, dist.ReduceOp.MIN)


def greatest(value: float) -> float:
    return _reduced(value, dist.ReduceOp.MAX)


def total(tensor: Tensor) -> Tensor:
    """The sum over processes."""
    if not active():
        return tensor
    sent = tensor.to(_carrier(), copy=True)
    dist.all_reduce(sent)
    return sent.to(tensor.device)


def average_(tensors: Iterable[Tensor]) -> None:
    """Replaces each tensor by its mean over processes, in one message per type."""
    if not active():
        return
    by_type: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        by_type.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for group in by_type.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in group])
        dist.all_reduce(flat)
        flat /= world()
        start = 0
        for tensor in group:
            tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
            start += tensor.numel()


def broadcast_(tensors: Iterable[Tensor]) -> None:
    """Gives every process the values of the first."""
    if active():
        for tensor in tensors:
            dist.broadcast(tensor, src=0)


def _reduced(value: float, operation: dist.ReduceOp.RedOpType) -> float:
    if not active():
        return value
    tensor = torch.tensor(value, dtype=torch.float64, device=_carrier())
    dist.all_reduce(tensor, op=operation)
    return float(tensor)


def _carrier() -> torch.device:
    """Where tensors must lie to be sent: NCCL takes only those of a GPU."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
