"""What a method is given, and what it gives back: the same for ours, for those of the paper, and for yours.

A method is a function from a `Job` to a `Trained`. It makes networks from the job's float network with `job.stratify`
and trains them with `job.fit`, in as many stages as it needs. Everything is resumed from checkpoints: when a method is
called again after a stop, stages that are finished return at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from bitstrata.training.fit import Epoch, fit
from bitstrata.training.net import StratifiedNet
from bitstrata.training.recipe import Recipe
from bitstrata.training.stratify import stratify


@dataclass(frozen=True)
class Job:
    """A float network to start from, data, a recipe, and a folder to work in."""

    #: Makes a new copy of the trained float network.
    model: Callable[[], nn.Module]
    data: Any
    recipe: Recipe
    widths: tuple[int, ...]
    folder: Path
    #: Options of `stratify` that the study asks for; they win over those of the method.
    options: Mapping[str, Any] = field(default_factory=dict)
    progress: bool | None = None

    def stratify(self, widths: Collection[int] | None = None, **options: Any) -> StratifiedNet:
        """A new stratified network, from the float one."""
        return stratify(self.model(), widths or self.widths, **{**options, **self.options})

    def fit(self, net: StratifiedNet, stage: str, *, bits: int | None = None) -> list[Epoch]:
        """Trains all widths of `net` together, or one of them, by the job's recipe; `stage` names the checkpoint."""
        return fit(net, self.data, self.recipe, bits=bits, folder=self.folder / stage, progress=self.progress)


@dataclass(frozen=True)
class Trained:
    """The networks of a method, ready to evaluate."""

    #: The network that serves each width; the same one for all of them, or one each.
    networks: Mapping[int, StratifiedNet]
    #: Bits that a server keeps of every quantised weight, to give all widths.
    stored_bits: int


Method = Callable[[Job], Trained]


def freeze_shared(net: StratifiedNet) -> None:
    """From here on, only what belongs to single widths is trained: norms and activation steps."""
    for parameter in net.shared_parameters():
        parameter.requires_grad_(False)
