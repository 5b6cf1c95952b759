"""A data set of image files, one folder per class, too large for memory: decoded ahead of use by a pool of threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from bitstrata.errors import BadData
from bitstrata.format import InputDescription
from bitstrata.runtime.images import require_pillow
from bitstrata.zoo.data.description import Data, Normalisation
from bitstrata.zoo.data.image_decoding import (
    NUMBERS_PER_IMAGE,
    decode_for_evaluation,
    decode_for_training,
    evaluation_crop,
)
from bitstrata.zoo.data.sampling import BatchPart, augmentation_numbers, batch_count, plan

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
DEFAULT_SIZE = 224
SMALLEST_SIZE, LARGEST_SIZE = 8, 2048
EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".gif", ".tif", ".tiff"})
_MOST_WORKERS = 16
_BATCHES_AHEAD = 2
_LAYOUT = "expected is DIR/train/<class>/*.jpg, and DIR/val/<class>/*.jpg or DIR/test/<class>/*.jpg"


@dataclass(frozen=True)
class _Pending:
    """A batch whose images are being decoded."""

    part: BatchPart
    images: npt.NDArray[np.uint8]
    jobs: list[Future[None]]


class ImageFolderSplit:
    """Image files with one label each; a file is opened only when its batch is near."""

    def __init__(
        self,
        paths: Sequence[str],
        labels: npt.ArrayLike,
        description: InputDescription,
        *,
        workers: int | None = None,
    ) -> None:
        self.paths = list(paths)
        self.labels = np.asarray(labels, dtype=np.int64)
        self.input = description
        self.workers = _usable_processors() if workers is None else workers
        self._normalise = Normalisation(description)
        if description.shape[0] != 3 or description.shape[1] != description.shape[2]:
            raise ValueError(f"images of a folder become square and have 3 channels, not {description.shape}")
        if self.labels.shape != (len(self.paths),):
            raise ValueError(f"{len(self.paths)} images need as many labels, not an array of {self.labels.shape}")

    def __len__(self) -> int:
        return len(self.paths)

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
        # Small batches need more of them under way before every worker has something to do.
        ahead = max(_BATCHES_AHEAD, -(-2 * self.workers * world // batch_size))
        return self._decode_ahead(parts, ahead, training, seed, epoch)

    def _decode_ahead(
        self, parts: Iterator[BatchPart], ahead: int, training: bool, seed: int, epoch: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="decode")
        pending: deque[_Pending] = deque()
        try:
            for part in parts:
                pending.append(self._start(pool, part, training, seed, epoch))
                if len(pending) > ahead:
                    yield self._finish(pending.popleft())
            while pending:
                yield self._finish(pending.popleft())
        finally:
            # Also reached when the caller stops early or an image is damaged.
            pool.shutdown(wait=True, cancel_futures=True)

    def _start(self, pool: ThreadPoolExecutor, part: BatchPart, training: bool, seed: int, epoch: int) -> _Pending:
        size = self.input.shape[1]
        images = np.empty((len(part.samples), *self.input.shape), dtype=np.uint8)
        numbers = np.empty((len(part.samples), 0))
        if training:
            stream = augmentation_numbers(seed=seed, epoch=epoch, batch=part.batch)
            numbers = stream.uniform(part.size * NUMBERS_PER_IMAGE).reshape(part.size, -1)[part.within]

        def decode(index: int) -> None:
            path = self.paths[part.samples[index]]
            if training:
                images[index] = decode_for_training(path, size, numbers[index])
            else:
                images[index] = decode_for_evaluation(path, size)

        return _Pending(part, images, [pool.submit(decode, index) for index in range(len(images))])

    def _finish(self, pending: _Pending) -> tuple[torch.Tensor, torch.Tensor]:
        for job in pending.jobs:
            job.result()
        labels = torch.from_numpy(self.labels[pending.part.samples])
        return self._normalise(torch.from_numpy(pending.images)), labels


def load_image_folder(directory: Path, *, size: int = DEFAULT_SIZE, limit: int | None = None) -> Data:
    """`directory` holds train and val (or test), each with one folder per class; the class names are the labels."""
    require_pillow()
    if not SMALLEST_SIZE <= size <= LARGEST_SIZE:
        raise BadData(f"{directory}: images can have size {SMALLEST_SIZE} to {LARGEST_SIZE}, not {size}")
    if not directory.is_dir():
        raise BadData(f"{directory}: there is no such folder; {_LAYOUT}")
    train_folder = directory / "train"
    test_folder = next((path for path in (directory / "val", directory / "test") if path.is_dir()), None)
    if not train_folder.is_dir() or test_folder is None:
        missing = "val or test" if train_folder.is_dir() else "train"
        raise BadData(f"{directory}: there is no folder {missing} in it; {_LAYOUT}")
    classes = _class_names(train_folder)
    unknown = sorted(set(_class_names(test_folder)) - set(classes))
    if unknown:
        raise BadData(f"{test_folder}: class {unknown[0]} does not exist in {train_folder}")
    description = InputDescription((3, size, size), IMAGENET_MEAN, IMAGENET_STD, classes, evaluation_crop(size))
    train_paths, train_labels = _list_samples(train_folder, classes)
    return Data(
        name=directory.resolve().name,
        input=description,
        train=ImageFolderSplit(train_paths[:limit], train_labels[:limit], description),
        test=ImageFolderSplit(*_list_samples(test_folder, classes), description),
    )


def _class_names(folder: Path) -> tuple[str, ...]:
    names = tuple(sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != "."))
    if not names:
        raise BadData(f"{folder}: no class folders in it; {_LAYOUT}")
    return names


def _list_samples(folder: Path, classes: tuple[str, ...]) -> tuple[list[str], list[int]]:
    """All files, one of each class in turn, so that the first samples of the list are balanced too."""
    by_class = []
    for label, name in enumerate(classes):
        if not (folder / name).is_dir():
            continue
        found = [(path, label) for path in _image_files(folder / name)]
        if not found:
            raise BadData(f"{folder / name}: no images in it; names must end in {', '.join(sorted(EXTENSIONS))}")
        by_class.append(found)
    samples = [sample for turn in zip_longest(*by_class) for sample in turn if sample is not None]
    return [path for path, _ in samples], [label for _, label in samples]


def _image_files(folder: Path) -> list[str]:
    """Sorted, at any depth: some data sets put a folder `images` into each class."""
    return sorted(
        os.path.join(parent, name)
        for parent, _, names in os.walk(folder)
        for name in names
        if name[0] != "." and os.path.splitext(name)[1].lower() in EXTENSIONS
    )


def _usable_processors() -> int:
    """Those this process may run on, where the system can tell: a container often has fewer than the machine."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return min(count, _MOST_WORKERS)
