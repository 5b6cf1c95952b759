"""What every data set of the zoo looks like from outside: a description of its input and two splits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from bitstrata.format import InputDescription
from bitstrata.runtime.images import normalisation


class Split(Protocol):
    """The training or the test samples of a data set."""

    def __len__(self) -> int: ...

    def batch_count(self, batch_size: int, *, training: bool) -> int:
        """How many global batches one epoch has."""
        ...

    def batches(
        self,
        batch_size: int,
        *,
        training: bool = False,
        epoch: int = 0,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        skip: int = 0,
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Normalised float32 NCHW images with their int64 labels.

        `batch_size` counts the samples of all ranks together. In training the order depends on seed and epoch only,
        the images are augmented, and an incomplete last batch is dropped unless it is the only one; each rank gets its
        contiguous part of every batch, and `skip` starts at that batch at once. Otherwise every sample comes once, in
        order and unchanged; a rank gets no batch where its part of an incomplete one is empty.
        """
        ...


@dataclass(frozen=True)
class Data:
    """A data set: its name, what its inputs look like, and its two splits."""

    name: str
    input: InputDescription
    train: Split
    test: Split


class Normalisation:
    """Maps bytes to (byte / 255 - mean) / std in float32, as one multiplication and one addition, as devices do."""

    def __init__(self, description: InputDescription) -> None:
        self._scale, self._shift = (torch.from_numpy(part) for part in normalisation(description))

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Bytes of shape [count, channels, height, width] -> a new contiguous float32 tensor."""
        normalised = images.to(torch.float32, memory_format=torch.contiguous_format)
        return normalised.mul_(self._scale).add_(self._shift)
