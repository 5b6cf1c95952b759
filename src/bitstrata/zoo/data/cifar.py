"""CIFAR-10 and CIFAR-100 in the "python version" that their author publishes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bitstrata.errors import BadData
from bitstrata.format import InputDescription
from bitstrata.zoo.data.array_split import ArraySplit, CropAndFlip, Images
from bitstrata.zoo.data.description import Data
from bitstrata.zoo.data.restricted_pickle import as_text, read_pickled_dictionary

_SHAPE = (3, 32, 32)
_HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"


@dataclass(frozen=True)
class _Variant:
    """What differs between the two."""

    name: str
    folder: str
    train_files: tuple[str, ...]
    test_file: str
    meta_file: str
    labels_key: str
    names_key: str
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


_CIFAR10 = _Variant(
    name="cifar10",
    folder="cifar-10-batches-py",
    train_files=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test_file="test_batch",
    meta_file="batches.meta",
    labels_key="labels",
    names_key="label_names",
    classes=10,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)
_CIFAR100 = _Variant(
    name="cifar100",
    folder="cifar-100-python",
    train_files=("train",),
    test_file="test",
    meta_file="meta",
    labels_key="fine_labels",
    names_key="fine_label_names",
    classes=100,
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)


def load_cifar10(directory: Path, *, limit: int | None = None) -> Data:
    """`directory` is `cifar-10-batches-py` or the folder that holds it."""
    return _load(_CIFAR10, directory, limit)


def load_cifar100(directory: Path, *, limit: int | None = None) -> Data:
    """`directory` is `cifar-100-python` or the folder that holds it; the labels are the fine ones."""
    return _load(_CIFAR100, directory, limit)


def _load(variant: _Variant, directory: Path, limit: int | None) -> Data:
    folder = _find_folder(variant, directory)
    description = InputDescription(_SHAPE, variant.mean, variant.std, _read_label_names(variant, folder))
    parts = [_read_samples(variant, folder / name) for name in variant.train_files]
    images = np.concatenate([part[0] for part in parts])[:limit]
    labels = np.concatenate([part[1] for part in parts])[:limit]
    test_images, test_labels = _read_samples(variant, folder / variant.test_file)
    return Data(
        name=variant.name,
        input=description,
        train=ArraySplit(images, labels, description, CropAndFlip()),
        test=ArraySplit(test_images, test_labels, description),
    )


def _find_folder(variant: _Variant, directory: Path) -> Path:
    needed = (*variant.train_files, variant.test_file, variant.meta_file)
    candidates = (directory, directory / variant.folder)
    for folder in candidates:
        if (folder / variant.meta_file).is_file():
            missing = [name for name in needed if not (folder / name).is_file()]
            if missing:
                raise BadData(f"{folder}: {', '.join(missing)} missing; {variant.name} needs {', '.join(needed)}")
            return folder
    raise BadData(
        f"{directory}: no {variant.name} here. Expected is the folder {variant.folder} (or the folder that holds it) "
        f"with the files {', '.join(needed)}: the python version from {_HOME}, unpacked"
    )


def _read_label_names(variant: _Variant, folder: Path) -> tuple[str, ...]:
    path = folder / variant.meta_file
    names = _value(read_pickled_dictionary(path), variant.names_key, path)
    if not isinstance(names, list) or len(names) != variant.classes:
        raise BadData(f"{path}: {variant.names_key} must be a list of {variant.classes} names")
    if not all(isinstance(name, (str, bytes)) for name in names):
        raise BadData(f"{path}: {variant.names_key} holds something else than text")
    return tuple(as_text(name) for name in names)


def _read_samples(variant: _Variant, path: Path) -> tuple[Images, npt.NDArray[np.int64]]:
    content = read_pickled_dictionary(path)
    images = _value(content, "data", path)
    labels = _value(content, variant.labels_key, path)
    pixels = int(np.prod(_SHAPE))
    if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != pixels or not len(images):
        raise BadData(f"{path}: data must be an array of rows of {pixels} bytes")
    if not isinstance(labels, list) or len(labels) != len(images):
        raise BadData(f"{path}: {variant.labels_key} must be a list of {len(images)} labels, one for each image")
    if not all(type(label) is int and 0 <= label < variant.classes for label in labels):
        raise BadData(f"{path}: {variant.labels_key} must hold whole numbers from 0 to {variant.classes - 1}")
    return images.reshape(-1, *_SHAPE), np.asarray(labels, dtype=np.int64)


def _value(content: dict[str, Any], key: str, path: Path) -> Any:
    if key not in content:
        raise BadData(f"{path}: {key} is missing")
    return content[key]
