"""Top-1 and top-5 accuracy of a network, at every width."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bitstrata.errors import BadData
from bitstrata.training import distributed
from bitstrata.training.modes import modes_kept
from bitstrata.training.net import StratifiedNet

FLOAT = "float"


@dataclass(frozen=True)
class Accuracy:
    """Percentages over `samples` samples."""

    top1: float
    top5: float
    samples: int


def passes(net: nn.Module, *, joint: bool, bits: int | None = None) -> dict[str, nn.Module]:
    """The networks inside a network, by the name they have in logs: its widths, highest first, or `float`.

    With `bits`, that width only.
    """
    if isinstance(net, StratifiedNet):
        wanted = reversed(net.widths) if bits is None else (bits,)
        return {str(width): net.at(width, joint=joint) for width in wanted}
    return {FLOAT: net}


def evaluate(
    net: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    bits: int | None = None,
    prepare: Callable[[Any], Any] = lambda x: x,
    on_batch: Callable[[], None] = lambda: None,
) -> dict[str, Accuracy]:
    """The accuracy of every width (or of one, or of the float network) over all batches and processes."""
    with modes_kept(net, *(net._bound.values() if isinstance(net, StratifiedNet) else ())):
        net.eval()
        return accuracies(passes(net, joint=False, bits=bits), batches, prepare=prepare, on_batch=on_batch)


@torch.inference_mode()
def accuracies(
    networks: Mapping[str, Callable[[Any], Tensor]],
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    prepare: Callable[[Any], Any] = lambda x: x,
    on_batch: Callable[[], None] = lambda: None,
) -> dict[str, Accuracy]:
    """The accuracy of each of several networks, which all see the same batches, over all processes."""
    hits = torch.zeros(len(networks), 3, dtype=torch.float64)
    for x, y in batches:
        x = prepare(x)
        for row, network in enumerate(networks.values()):
            output = network(x)
            best = output.topk(min(5, output.shape[-1]), dim=-1).indices.cpu() == y.cpu().unsqueeze(-1)
            hits[row] += torch.tensor([best[:, 0].sum(), best.any(-1).sum(), len(y)], dtype=torch.float64)
        on_batch()
    hits = distributed.total(hits)
    if not hits[:, 2].all():
        raise BadData("there is not one sample to evaluate on")
    return {
        name: Accuracy(100 * float(one / count), 100 * float(five / count), int(count))
        for name, (one, five, count) in zip(networks, hits, strict=True)
    }
