"""A split that fits in memory, as bytes; crops and flips are done for a whole batch at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from bitstrata.format import InputDescription
from bitstrata.zoo.data.description import Normalisation
from bitstrata.zoo.data.sampling import BatchPart, RandomNumbers, augmentation_numbers, batch_count, plan

Images = npt.NDArray[np.uint8]
Choices = npt.NDArray[np.int64]


class Augmentation(Protocol):
    """Random choices are drawn for the whole global batch; each rank applies the rows of its own samples."""

    def draw(self, numbers: RandomNumbers, count: int) -> Choices:
        """One row of choices for each of `count` images."""
        ...

    def apply(self, images: Images, choices: Choices) -> Images:
        """New images of the same shape, changed as the rows of `choices` say."""
        ...


@dataclass(frozen=True)
class CropAndFlip:
    """Pads every side by reflection, crops a random patch of the original size, and flips half of the images.

    The usual padding is black. That shifts the mean of a training batch by a quarter of its deviation, so that the
    norms learn statistics which test images do not have; reflected borders keep the statistics of the images.
    """

    padding: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"the padding must not be negative, and is {self.padding}")

    def draw(self, numbers: RandomNumbers, count: int) -> Choices:
        """Rows of (top, left, whether to flip)."""
        offsets = 2 * self.padding + 1
        top = numbers.integers(count, offsets)
        left = numbers.integers(count, offsets)
        flip = numbers.integers(count, 2) if self.flip else np.zeros(count, dtype=np.int64)
        return np.stack([top, left, flip], axis=1)

    def apply(self, images: Images, choices: Choices) -> Images:
        top, left, flip = choices.T
        count, _, height, width = images.shape
        padding = self.padding
        padded = np.pad(images, ((0, 0), (0, 0), (padding, padding), (padding, padding)), mode="reflect")
        # A view of all patches of all images costs nothing; only the chosen patch of each image is copied.
        patches = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
        cropped = patches[np.arange(count), :, top, left]
        flipped = np.flatnonzero(flip)
        cropped[flipped] = cropped[flipped, :, :, ::-1]
        return cropped


class ArraySplit:
    """Images [samples, channels, height, width] as bytes, with one label each."""

    def __init__(
        self,
        images: Images,
        labels: npt.ArrayLike,
        description: InputDescription,
        augmentation: Augmentation | None = None,
    ) -> None:
        self.images = np.ascontiguousarray(images)
        self.labels = np.asarray(labels, dtype=np.int64)
        self.input = description
        self.augmentation = augmentation
        self._normalise = Normalisation(description)
        if self.images.dtype != np.uint8:
            raise ValueError(f"the images must be bytes (uint8), not {self.images.dtype}")
        if self.images.shape[1:] != description.shape:
            raise ValueError(f"the images have shape {self.images.shape[1:]}, not {description.shape} as described")
        if self.labels.shape != (len(self.images),):
            raise ValueError(f"{len(self.images)} images need as many labels, not an array of {self.labels.shape}")
        classes = len(description.labels)
        if len(self.labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < classes:
            raise ValueError(f"labels must lie in 0 to {classes - 1}")

    def __len__(self) -> int:
        return len(self.images)

    def batch_count(self, batch_size: int, *, training: bool) -> int:
        """How many global batches one epoch has."""
        return batch_count(len(self), batch_size, training=training)

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
        """Normalised float32 NCHW images with their int64 labels; see `Split.batches`."""
        parts = plan(
            len(self), batch_size, training=training, epoch=epoch, seed=seed, rank=rank, world=world, skip=skip
        )
        return (self._batch(part, training, seed, epoch) for part in parts)

    def _batch(self, part: BatchPart, training: bool, seed: int, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        images = self.images[part.samples]
        if training and self.augmentation is not None:
            numbers = augmentation_numbers(seed=seed, epoch=epoch, batch=part.batch)
            choices = self.augmentation.draw(numbers, part.size)
            images = self.augmentation.apply(images, choices[part.within])
        return self._normalise(torch.from_numpy(images)), torch.from_numpy(self.labels[part.samples])
