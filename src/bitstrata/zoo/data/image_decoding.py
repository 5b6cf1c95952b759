"""From an image file to bytes [3, size, size]: the random crop of training and the centre crop of evaluation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bitstrata.errors import BadData, MissingExtra

if TYPE_CHECKING:
    from PIL import Image
else:
    try:
        from PIL import Image
    except ImportError:
        Image = None

Box = tuple[float, float, float, float]
"""Left, top, right, bottom in pixels of the source."""

_SMALLEST_AREA, _LARGEST_AREA = 0.08, 1.0
_SMALLEST_RATIO, _LARGEST_RATIO = 3 / 4, 4 / 3
_ATTEMPTS = 10
_NUMBERS_PER_ATTEMPT = 4
NUMBERS_PER_IMAGE = _ATTEMPTS * _NUMBERS_PER_ATTEMPT + 1
"""Uniform random numbers that one training image takes, whether it needs them all or not."""

# Pillow cuts wider pixels than bytes off at 255 instead of scaling them: better no image than a white one.
_BYTE_MODES = frozenset({"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"})


def require_pillow() -> None:
    """Says what to install, before any file is looked at."""
    if Image is None:
        raise MissingExtra("image folders need Pillow: pip install 'bitstrata[train]'")


def random_crop_box(width: int, height: int, numbers: npt.NDArray[np.float64]) -> Box:
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


def centre_crop_box(width: int, height: int, size: int) -> Box:
    """The region that is left when the shorter side becomes size * 256 / 224 and the middle size x size is kept.

    The paper resizes to 256 x 256, which would distort all but square images; the usual practice, which its numbers
    are compared with, keeps the proportions. Resizing only the region that is kept spares the rest.
    """
    side = size * min(width, height) / round(size * 256 / 224)
    left, top = (width - side) / 2, (height - side) / 2
    return (left, top, left + side, top + side)


def decode_for_training(path: str | Path, size: int, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """A random crop, flipped or not; `numbers` are NUMBERS_PER_IMAGE uniform random numbers."""
    require_pillow()
    try:
        with Image.open(path) as image:
            width, height = image.size
            left, top, right, bottom = random_crop_box(width, height, numbers)
            # A JPEG can be decoded at a half, a quarter or an eighth, several times as fast, if that leaves enough.
            spare = min(right - left, bottom - top) / size
            if spare >= 2:
                image.draft(None, (math.ceil(width / spare), math.ceil(height / spare)))
            across, down = image.width / width, image.height / height
            pixels = _resize(image, size, (left * across, top * down, right * across, bottom * down))
    except Exception as error:
        raise _bad_image(path, error) from error
    return pixels[:, :, ::-1] if numbers[-1] < 0.5 else pixels


def decode_for_evaluation(path: str | Path, size: int) -> npt.NDArray[np.uint8]:
    """The centre crop; always the same pixels for the same file."""
    require_pillow()
    try:
        with Image.open(path) as image:
            return _resize(image, size, centre_crop_box(image.width, image.height, size))
    except Exception as error:
        raise _bad_image(path, error) from error


def _resize(image: Image.Image, size: int, box: Box) -> npt.NDArray[np.uint8]:
    if image.mode not in _BYTE_MODES:
        raise ValueError(f"its pixels are not bytes (mode {image.mode})")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    if image.mode != "RGB":
        image = image.convert("RGB")
    resized = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return np.asarray(resized, dtype=np.uint8).transpose(2, 0, 1)


def _bad_image(path: str | Path, error: Exception) -> BadData:
    # Pillow's decoders raise nearly every type there is for damaged files, so the callers catch all of them.
    return BadData(f"{path}: not an image that can be read: {error}")
