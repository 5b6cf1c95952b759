"""The handwritten digits that come with scikit-learn: 8x8, grey, no download; for demonstrations and tests."""

from __future__ import annotations

import importlib

import numpy as np

from bitstrata.errors import MissingExtra
from bitstrata.format import InputDescription
from bitstrata.zoo.data.array_split import ArraySplit, CropAndFlip
from bitstrata.zoo.data.description import Data

INPUT = InputDescription(
    shape=(1, 8, 8),
    # Of the training samples.
    mean=(0.3058,),
    std=(0.3761,),
    labels=tuple(str(digit) for digit in range(10)),
)
_TEST_EVERY = 5
_LARGEST_GREY = 16


def load_digits(*, limit: int | None = None) -> Data:
    """1437 training and 360 test samples, always the same ones.

    Every fifth sample of each class is a test sample. The same writers appear in both splits, so that this is an easy
    data set: it shows that a network learns, not how well it does among strangers.
    """
    try:
        datasets = importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise MissingExtra("the digits data set needs scikit-learn: pip install 'bitstrata[train]'") from error
    source = datasets.load_digits()
    images = np.rint(np.asarray(source.images) * (255 / _LARGEST_GREY)).astype(np.uint8)[:, None]
    labels = np.asarray(source.target, dtype=np.int64)
    is_test = np.zeros(len(labels), dtype=bool)
    is_test[np.argsort(labels, kind="stable")[::_TEST_EVERY]] = True
    # A shift by one pixel; flips would make other digits or none.
    augmentation = CropAndFlip(padding=1, flip=False)
    return Data(
        name="digits",
        input=INPUT,
        train=ArraySplit(images[~is_test][:limit], labels[~is_test][:limit], INPUT, augmentation),
        test=ArraySplit(images[is_test], labels[is_test], INPUT),
    )
