"""Which samples form which batch, on which rank, with which random numbers.

Everything random is a pure function of (seed, epoch, batch index): nothing is carried from one batch to the next, so
that training resumes at any batch without replaying the ones before, and several ranks see together what one would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_WORD = 2**32
_PERMUTATION, _AUGMENTATION = 1, 2


class RandomNumbers:
    """Random numbers from the raw words of PCG64.

    NumPy promises that these words stay the same from version to version; it does not for the methods of `Generator`.
    """

    def __init__(self, *key: int) -> None:
        # Two words for each number: no two keys of the same length can run together.
        words = [word for number in key for word in (number % _WORD, number // _WORD % _WORD)]
        self._bits = np.random.PCG64(np.random.SeedSequence(words))

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """Uniform over all 64-bit words."""
        return np.asarray(self._bits.random_raw(count), dtype=np.uint64)

    def integers(self, count: int, bound: int) -> npt.NDArray[np.int64]:
        """Uniform over 0 .. bound - 1 (the bias of the remainder is below bound / 2^64)."""
        return (self.words(count) % np.uint64(bound)).astype(np.int64)

    def uniform(self, count: int) -> npt.NDArray[np.float64]:
        """Uniform over [0, 1), with 53 random bits each."""
        return (self.words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def permutation(self, count: int) -> npt.NDArray[np.int64]:
        """A random order of 0 .. count - 1."""
        return np.argsort(self.words(count), kind="stable").astype(np.int64)


def permutation(count: int, *, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The order of the training samples in one epoch: a pure function of seed and epoch."""
    return RandomNumbers(_PERMUTATION, seed, epoch, 0).permutation(count)


def augmentation_numbers(*, seed: int, epoch: int, batch: int) -> RandomNumbers:
    """The random numbers with which one whole global batch is augmented."""
    return RandomNumbers(_AUGMENTATION, seed, epoch, batch)


def batch_count(samples: int, batch_size: int, *, training: bool) -> int:
    """How many global batches one epoch has: in training only complete ones, unless there is none."""
    if batch_size < 1:
        raise ValueError(f"the batch size must be at least 1, not {batch_size}")
    if training and samples >= batch_size:
        return samples // batch_size
    return -(-samples // batch_size)


@dataclass(frozen=True)
class BatchPart:
    """The part of one global batch that a rank works on."""

    batch: int
    """The index of the global batch in its epoch."""
    size: int
    """How many samples the global batch has, over all ranks."""
    within: slice
    """Where this rank's samples lie in the global batch."""
    samples: npt.NDArray[np.int64]
    """This rank's samples, as indices into the split."""


def plan(
    samples: int, batch_size: int, *, training: bool, epoch: int, seed: int, rank: int, world: int, skip: int
) -> Iterator[BatchPart]:
    """The parts of one rank in one epoch. The arguments are checked now, not when the first part is taken."""
    count = batch_count(samples, batch_size, training=training)
    if not 0 <= rank < world:
        raise ValueError(f"the rank must be 0 to {world - 1}, not {rank}")
    if skip < 0:
        raise ValueError(f"skip must not be negative, and is {skip}")
    if training and batch_size % world:
        raise ValueError(f"a batch of {batch_size} cannot be divided equally among {world} ranks")
    if training and 0 < samples < world:
        raise ValueError(f"{samples} training samples are too few for {world} ranks")

    def parts() -> Iterator[BatchPart]:
        order = permutation(samples, seed=seed, epoch=epoch) if training else np.arange(samples)
        for batch in range(skip, count):
            chosen = order[batch * batch_size : (batch + 1) * batch_size]
            size = len(chosen)
            within = slice(size * rank // world, size * (rank + 1) // world)
            if within.start < within.stop:
                yield BatchPart(batch, size, within, chosen[within])

    return parts()
