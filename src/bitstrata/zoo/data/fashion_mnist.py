"""Fashion-MNIST: 28x28 grey images of clothes, in the IDX files of MNIST, compressed or not."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from bitstrata.errors import BadData
from bitstrata.format import InputDescription
from bitstrata.zoo.data.array_split import ArraySplit, CropAndFlip, Images
from bitstrata.zoo.data.description import Data

DEBIAN_DIRECTORY = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package `dataset-fashion-mnist` puts the files."""

LARGEST_SAMPLE_COUNT = 1_000_000
"""Ten times what any data set in this format has; a header that says more is wrong."""

INPUT = InputDescription(
    shape=(1, 28, 28),
    mean=(0.2860,),
    std=(0.3530,),
    labels=(
        "t-shirt/top",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
)
_IMAGES, _LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"


def load_fashion_mnist(directory: Path | None = None, *, limit: int | None = None) -> Data:
    """The four files from `directory`, by default where Debian's package puts them."""
    folder = DEBIAN_DIRECTORY if directory is None else directory
    train_images, train_labels = _read_samples(folder, "train")
    test_images, test_labels = _read_samples(folder, "t10k")
    # Half of CIFAR's padding: the objects nearly fill their 28 pixels.
    augmentation = CropAndFlip(padding=2)
    return Data(
        name="fashion-mnist",
        input=INPUT,
        train=ArraySplit(train_images[:limit], train_labels[:limit], INPUT, augmentation),
        test=ArraySplit(test_images, test_labels, INPUT),
    )


def _read_samples(folder: Path, prefix: str) -> tuple[Images, Images]:
    images_path = _find_file(folder, f"{prefix}-{_IMAGES}")
    labels_path = _find_file(folder, f"{prefix}-{_LABELS}")
    images = read_idx(images_path, item_shape=INPUT.shape[1:])
    labels = read_idx(labels_path, item_shape=())
    if len(images) != len(labels):
        raise BadData(f"{labels_path}: {len(labels)} labels, but {images_path} has {len(images)} images")
    if int(labels.max()) >= len(INPUT.labels):
        raise BadData(f"{labels_path}: has label {int(labels.max())}; there are only {len(INPUT.labels)} classes")
    return images[:, None], labels


def _find_file(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    files = ", ".join(f"{prefix}-{kind}" for prefix in ("train", "t10k") for kind in (_IMAGES, _LABELS))
    raise BadData(
        f"{folder}: {name} is missing. Expected are the files {files}, each with or without .gz. On Debian the package "
        f"dataset-fashion-mnist puts them in {DEBIAN_DIRECTORY}; elsewhere they come from "
        "https://github.com/zalandoresearch/fashion-mnist: name their folder as fashion-mnist:DIR"
    )


def read_idx(path: Path, *, item_shape: tuple[int, ...]) -> Images:
    """An IDX file of bytes whose items have the given shape.

    The header is two zero bytes, the element type (8 for bytes), the number of dimensions, then each dimension as a
    big-endian 32-bit count; the elements follow, and nothing after them.
    """
    dimensions = 1 + len(item_shape)
    header_size = 4 + 4 * dimensions
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(header_size)
            if len(header) < header_size:
                raise BadData(f"{path}: ends within its header")
            if header[:4] != bytes([0, 0, 8, dimensions]):
                raise BadData(f"{path}: not an IDX file of bytes in {dimensions} dimensions")
            count, *extents = struct.unpack(f">{dimensions}I", header[4:])
            if tuple(extents) != item_shape:
                raise BadData(f"{path}: its items have shape {tuple(extents)}, not {item_shape}")
            if not 0 < count <= LARGEST_SAMPLE_COUNT:
                raise BadData(f"{path}: its header says {count} items; 1 to {LARGEST_SAMPLE_COUNT} are possible")
            size = count * math.prod(item_shape)
            # One byte more than announced is enough to see that there are too many, however far a file expands.
            contents = file.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise BadData(f"{path}: cannot be read: {error}") from error
    if len(contents) != size:
        found = f"only {len(contents)}" if len(contents) < size else "more"
        raise BadData(f"{path}: its header announces {size} bytes of items, but it has {found}")
    return np.frombuffer(contents, dtype=np.uint8).reshape(count, *item_shape)
