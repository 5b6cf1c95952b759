"""Images become inputs as they did in training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bitstrata.errors import BadData
from bitstrata.format import InputDescription
from bitstrata.runtime.images import centre_crop_box, normalise, read_image

Image = pytest.importorskip("PIL.Image")


def write(path: Path, pixels: np.ndarray) -> Path:
    Image.fromarray(pixels).save(path)
    return path


def test_an_image_of_the_right_size_is_taken_as_it_is(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 6, 3)).astype(np.uint8)
    result = read_image(write(tmp_path / "image.png", pixels), (3, 8, 6))
    np.testing.assert_array_equal(result, pixels.transpose(2, 0, 1))


def test_the_centre_is_kept_in_the_proportions_of_the_input() -> None:
    assert centre_crop_box(100, 50, (10, 10), 1.0) == (25, 0, 75, 50)
    assert centre_crop_box(100, 50, (10, 20), 0.5) == (25, 12.5, 75, 37.5)


def test_colours_follow_the_network(tmp_path: Path) -> None:
    grey = write(tmp_path / "grey.png", np.full((8, 6), 77, dtype=np.uint8))
    colour = write(tmp_path / "colour.png", np.full((8, 6, 3), 77, dtype=np.uint8))
    for path in (grey, colour):
        assert (read_image(path, (1, 8, 6)) == 77).all()
        assert (read_image(path, (3, 8, 6)) == 77).all()
    with pytest.raises(BadData, match="5 channels"):
        read_image(grey, (5, 8, 6))


def test_arrays_of_bytes_are_read_too(tmp_path: Path) -> None:
    pixels = np.arange(3 * 8 * 6, dtype=np.uint8).reshape(3, 8, 6)
    np.save(tmp_path / "image.npy", pixels)
    np.testing.assert_array_equal(read_image(tmp_path / "image.npy", (3, 8, 6)), pixels)
    np.save(tmp_path / "wrong.npy", pixels.astype(np.float32))
    np.save(tmp_path / "objects.npy", np.array([{}, {}]), allow_pickle=True)
    (tmp_path / "empty.npy").write_bytes(b"")
    for name in ("wrong", "objects", "empty", "missing"):
        with pytest.raises(BadData, match=name):
            read_image(tmp_path / f"{name}.npy", (3, 8, 6))


def test_damaged_images_are_refused(tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(b"\x89PNG and nothing more")
    with pytest.raises(BadData, match=r"image\.png"):
        read_image(tmp_path / "image.png", (3, 8, 6))


def test_normalisation() -> None:
    description = InputDescription((2, 1, 2), (0.5, 0.25), (0.5, 0.125))
    images = np.array([[[[0, 255]], [[51, 102]]]], dtype=np.uint8)
    np.testing.assert_allclose(normalise(images, description), [[[[-1, 1]], [[-0.4, 1.2]]]], rtol=1e-6)
