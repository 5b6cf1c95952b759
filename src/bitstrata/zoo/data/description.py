"""What every data set of the zoo looks like from outside: a description of its input and two splits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch


@dataclass(frozen=True)
class InputDescription:
    """What a device must know to prepare an input."""

    shape: tuple[int, int, int]
    """Channels, height, width."""
    mean: tuple[float, ...]
    """Per channel, on the 0..1 scale."""
    std: tuple[float, ...]
    """Per channel, on the 0..1 scale."""
    labels: tuple[str, ...]
    """The name of each class, by its index."""

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or min(self.shape) < 1:
            raise ValueError(f"shape must be (channels, height, width), all positive, not {self.shape}")
        if len(self.mean) != self.shape[0] or len(self.std) != self.shape[0]:
            raise ValueError(
                f"mean and std must have one value for each of {self.shape[0]} channels, "
                f"not {len(self.mean)} and {len(self.std)}"
            )
        if min(self.std) <= 0:
            raise ValueError(f"std must be positive, not {self.std}")
        if not self.labels:
            raise ValueError("labels must name at least one class")


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
    """Maps bytes to (byte / 255 - mean) / std in float32, as one multiplication and one addition.

    Both constants are folded in float64 and rounded once, so that a device that does the same gets the same bits.
    """

    def __init__(self, description: InputDescription) -> None:
        mean = np.asarray(description.mean, dtype=np.float64).reshape(1, -1, 1, 1)
        std = np.asarray(description.std, dtype=np.float64).reshape(1, -1, 1, 1)
        self._scale = torch.from_numpy((1.0 / (255.0 * std)).astype(np.float32))
        self._shift = torch.from_numpy((-mean / std).astype(np.float32))

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Bytes of shape [count, channels, height, width] -> a new contiguous float32 tensor."""
        normalised = images.to(torch.float32, memory_format=torch.contiguous_format)
        return normalised.mul_(self._scale).add_(self._shift)
