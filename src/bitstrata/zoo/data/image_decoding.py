"""From an image file to bytes [3, size, size]: the random crop of training and the centre crop of evaluation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bitstrata.errors import BadData
from bitstrata.runtime import images

if TYPE_CHECKING:
    from PIL import Image
else:
    Image = images.Image  # None where Pillow is missing; nobody comes here then

_SMALLEST_AREA, _LARGEST_AREA = 0.08, 1.0
_SMALLEST_RATIO, _LARGEST_RATIO = 3 / 4, 4 / 3
_ATTEMPTS = 10
_NUMBERS_PER_ATTEMPT = 4
NUMBERS_PER_IMAGE = _ATTEMPTS * _NUMBERS_PER_ATTEMPT + 1
"""Uniform random numbers that one training image takes, whether it needs them all or not."""


def evaluation_crop(size: int) -> float:
    """The part of the shorter side that is kept when it becomes size * 256 / 224 and the middle is cut out.

    The paper resizes to 256 x 256, which would distort all but square images; the usual practice, which its numbers
    are compared with, keeps the proportions. Resizing only the region that is kept spares the rest.
    """
    return size / round(size * 256 / 224)


def random_crop_box(width: int, height: int, numbers: npt.NDArray[np.float64]) -> images.Box:
    """A random region of 8 to 100 % of the area, with sides of 3:4 to 4:3; after ten that do not fit, the middle."""
    for attempt in range(_ATTEMPTS):
        start = attempt * _NUMBERS_PER_ATTEMPT
        area_number, ratio_number, left_number, top_number = numbers[start : start + _NUMBERS_PER_ATTEMPT].tolist()
        area = width * height * (_SMALLEST_AREA + (_LARGEST_AREA - _SMALLEST_AREA) * area_number)
        # Uniform in the logarithm, so that tall and wide are equally likely.
        low, high = math.log(_SMALLEST_RATIO), math.log(_LARGEST_RATIO)
        ratio = math.exp(low + (high - low) * ratio_number)
        crop_width, crop_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            left = math.floor(left_number * (width - crop_width + 1))
            top = math.floor(top_number * (height - crop_height + 1))
            return (left, top, left + crop_width, top + crop_height)
    crop_width = min(width, max(1, round(height * _LARGEST_RATIO)))
    crop_height = min(height, max(1, round(width / _SMALLEST_RATIO)))
    left, top = (width - crop_width) // 2, (height - crop_height) // 2
    return (left, top, left + crop_width, top + crop_height)


def decode_for_training(path: str | Path, size: int, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """A random crop, flipped or not; `numbers` are NUMBERS_PER_IMAGE uniform random numbers."""
    try:
        with Image.open(path) as image:
            width, height = image.size
            left, top, right, bottom = random_crop_box(width, height, numbers)
            # A JPEG can be decoded at a half, a quarter or an eighth, several times as fast, if that leaves enough.
            spare = min(right - left, bottom - top) / size
            if spare >= 2:
                image.draft(None, (math.ceil(width / spare), math.ceil(height / spare)))
            across, down = image.width / width, image.height / height
            box = (left * across, top * down, right * across, bottom * down)
            pixels = images.resize(image, (3, size, size), box)
    except Exception as error:  # Pillow's decoders raise nearly every type there is for damaged files
        raise BadData(f"{path}: not an image that can be read: {error}") from error
    return pixels[:, :, ::-1] if numbers[-1] < 0.5 else pixels


def decode_for_evaluation(path: str | Path, size: int) -> npt.NDArray[np.uint8]:
    """The centre crop; always the same pixels for the same file."""
    return images.read_image(path, (3, size, size), evaluation_crop(size))
