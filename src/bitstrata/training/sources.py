"""Where `fit` takes its batches from: a data set of the zoo, or the user's own loaders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from bitstrata.errors import BadData, BadRecipe
from bitstrata.training import distributed
from bitstrata.training.recipe import Recipe


class Source(Protocol):
    """Training and test batches, the former from any step of any epoch."""

    def steps(self) -> int:
        """Training batches in an epoch."""

    def training(self, epoch: int, skip: int) -> Iterator[tuple[Any, Any]]:
        """The training batches of an epoch but the first `skip`; the same ones whenever they are asked for."""

    def test(self) -> Iterable[tuple[Any, Any]]:
        """The test batches."""


class DataSource:
    """A data set of `bitstrata.zoo.data`, whose batches are a function of seed, epoch and number."""

    def __init__(self, data: Any, recipe: Recipe) -> None:
        self.data, self.recipe = data, recipe
        self.part = {"rank": distributed.rank(), "world": distributed.world()}
        if recipe.batch_size % self.part["world"]:
            raise BadRecipe(f"batch_size = {recipe.batch_size} cannot be split over {self.part['world']} processes")

    def steps(self) -> int:
        return int(self.data.train.batch_count(self.recipe.batch_size, training=True))

    def training(self, epoch: int, skip: int) -> Iterator[tuple[Any, Any]]:
        batches: Iterator[tuple[Any, Any]] = self.data.train.batches(
            self.recipe.batch_size, training=True, epoch=epoch, seed=self.recipe.seed, skip=skip, **self.part
        )
        return batches

    def test(self) -> Iterable[tuple[Any, Any]]:
        # Evaluation keeps nothing for a backward pass, so larger batches cost no memory.
        batches: Iterable[tuple[Any, Any]] = self.data.test.batches(max(self.recipe.batch_size, 250), **self.part)
        return batches


class LoaderSource:
    """A pair of loaders, such as `torch.utils.data.DataLoader`. What they shuffle must follow torch's seed."""

    def __init__(self, train: Any, test: Any) -> None:
        self.train, self.test_loader = train, test

    def steps(self) -> int:
        return len(self.train)

    def training(self, epoch: int, skip: int) -> Iterator[tuple[Any, Any]]:
        sampler = getattr(self.train, "sampler", None)
        if sampler is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        batches: Iterator[tuple[Any, Any]] = iter(self.train)
        # At once, not when the first batch is taken: the caller sets the state of the random numbers in between.
        for _ in range(skip):
            next(batches, None)
        return batches

    def test(self) -> Iterable[tuple[Any, Any]]:
        return self.test_loader  # type: ignore[no-any-return]


def as_source(data: Any, recipe: Recipe) -> Source:
    """The source that `data` is."""
    if hasattr(data, "train") and hasattr(data, "test"):
        return DataSource(data, recipe)
    if isinstance(data, (tuple, list)) and len(data) == 2 and all(hasattr(part, "__iter__") for part in data):
        if not hasattr(data[0], "__len__"):
            raise BadData("the training loader has no length; the learning-rate schedule needs one")
        return LoaderSource(*data)
    raise BadData("data must be a data set of bitstrata.zoo, or a pair of loaders (training, test)")
