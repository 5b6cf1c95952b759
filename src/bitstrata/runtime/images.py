"""From an image to the input of a network: the part that is kept, its size, its normalisation.

Evaluation while training prepares images with these functions too, so that a device sees what was measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bitstrata.errors import BadData, MissingExtra
from bitstrata.format import InputDescription
from bitstrata.graph.network import Floats

if TYPE_CHECKING:
    from PIL import Image
else:
    try:
        from PIL import Image
    except ImportError:
        Image = None

Bytes = NDArray[np.uint8]
Box = tuple[float, float, float, float]
"""Left, top, right, bottom in pixels of the source."""

# Pillow cuts wider pixels than bytes off at 255 instead of scaling them: better no image than a white one.
_BYTE_MODES = frozenset({"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"})
_COLOURS = {1: "L", 3: "RGB"}


def require_pillow() -> None:
    """Says what to install, before any file is looked at."""
    if Image is None:
        raise MissingExtra("reading images needs Pillow: pip install 'bitstrata[images]'")


def centre_crop_box(width: int, height: int, shape: tuple[int, int], crop: float) -> Box:
    """The largest centred region with the proportions of `shape` (height, width), shrunk to the part `crop` of it."""
    scale = crop * min(width / shape[1], height / shape[0])
    across, down = shape[1] * scale, shape[0] * scale
    left, top = (width - across) / 2, (height - down) / 2
    return (left, top, left + across, top + down)


def read_image(path: str | Path, shape: tuple[int, int, int], crop: float = 1.0) -> Bytes:
    """The centre of an image file as bytes (channels, height, width), or the array in a `.npy` file of such bytes."""
    if Path(path).suffix == ".npy":
        return _read_array(path, shape)
    require_pillow()
    try:
        with Image.open(path) as image:
            return resize(image, shape, centre_crop_box(image.width, image.height, shape[1:], crop))
    except Exception as error:  # Pillow's decoders raise nearly every type there is for damaged files
        raise BadData(f"{path}: not an image that can be read: {error}") from error


def resize(image: Image.Image, shape: tuple[int, int, int], box: Box) -> Bytes:
    """The region `box` of an image at the given size, as bytes (channels, height, width)."""
    if image.mode not in _BYTE_MODES:
        raise ValueError(f"its pixels are not bytes (mode {image.mode})")
    channels, height, width = shape
    if channels not in _COLOURS:
        raise ValueError(f"the network takes {channels} channels, and an image has 1 or 3")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    if image.mode != _COLOURS[channels]:
        image = image.convert(_COLOURS[channels])
    resized = image.resize((width, height), Image.Resampling.BILINEAR, box=box)
    return np.asarray(resized, dtype=np.uint8).reshape(height, width, channels).transpose(2, 0, 1)


def normalise(images: Bytes, description: InputDescription) -> Floats:
    """(byte / 255 - mean) / std per channel, as one product and one sum."""
    scale, shift = normalisation(description)
    normalised: Floats = np.ascontiguousarray(images, dtype=np.float32) * scale + shift
    return normalised


def normalisation(description: InputDescription) -> tuple[Floats, Floats]:
    """Factor and summand of every channel, folded in float64 and rounded once: the same bits everywhere."""
    mean = np.asarray(description.mean, dtype=np.float64).reshape(-1, 1, 1)
    std = np.asarray(description.std, dtype=np.float64).reshape(-1, 1, 1)
    return (1.0 / (255.0 * std)).astype(np.float32), (-mean / std).astype(np.float32)


def _read_array(path: str | Path, shape: tuple[int, int, int]) -> Bytes:
    try:
        array: Bytes = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise BadData(f"{path}: not an array that can be read: {error}") from error
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.ndim != 3 or array.shape[0] != shape[0]:
        raise BadData(f"{path}: it must hold bytes of shape (channels, height, width) with {shape[0]} channels")
    return array
