"""Image folders: layout, decoding, crops, and damaged files."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from bitstrata.errors import BadData, MissingExtra
from bitstrata.runtime.images import centre_crop_box
from bitstrata.zoo.data import ImageFolderSplit, load_data
from bitstrata.zoo.data.image_decoding import (
    NUMBERS_PER_IMAGE,
    decode_for_evaluation,
    decode_for_training,
    evaluation_crop,
    random_crop_box,
)
from bitstrata.zoo.data.image_folder import IMAGENET_MEAN, IMAGENET_STD
from bitstrata.zoo.data.sampling import RandomNumbers

Image = pytest.importorskip("PIL.Image")
CLASSES = ("cat", "dog", "owl")


def picture(seed: int, width: int = 40, height: int = 30) -> np.ndarray:
    """A smooth random picture, so that resizing and JPEG change it little."""
    corners = np.random.default_rng(seed).integers(0, 256, (2, 2, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(corners).resize((width, height), Image.Resampling.BICUBIC))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part, count in (("train", 5), ("val", 2)):
        for label, name in enumerate(CLASSES):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(count):
                extension = "png" if number % 2 else "JPEG"
                path = tmp_path / part / name / f"{number}.{extension}"
                Image.fromarray(picture(10 * label + number)).save(path)
            (tmp_path / part / name / "notes.txt").write_text("not an image")
            (tmp_path / part / name / ".hidden.png").write_text("not an image")
    return tmp_path


def uniform(seed: int) -> np.ndarray:
    return RandomNumbers(seed).uniform(NUMBERS_PER_IMAGE)


def test_round_trip(folder: Path) -> None:
    data = load_data(f"folder:{folder}?size=16")
    assert (len(data.train), len(data.test)) == (15, 6)
    assert data.input.labels == CLASSES
    assert data.input.shape == (3, 16, 16)
    assert (data.input.mean, data.input.std) == (IMAGENET_MEAN, IMAGENET_STD)
    batches = list(data.test.batches(4))
    assert [len(labels) for _, labels in batches] == [4, 2]
    images, labels = (torch.cat(values) for values in zip(*batches, strict=True))
    assert images.dtype == torch.float32
    assert images.is_contiguous()
    assert labels.tolist() == [0, 1, 2, 0, 1, 2]
    # Sample 4 is val/dog/1.png, stored without loss.
    assert isinstance(data.test, ImageFolderSplit)
    resized = Image.fromarray(picture(11)).resize((24, 18), Image.Resampling.BILINEAR)
    expected = np.asarray(resized.crop((4, 1, 20, 17)), dtype=np.float64) / 255
    restored = images[4].permute(1, 2, 0).double().numpy() * IMAGENET_STD + IMAGENET_MEAN
    assert np.abs(restored - expected).max() < 0.03


def test_first_training_samples_are_balanced(folder: Path) -> None:
    data = load_data(f"folder:{folder}?size=8", limit=6)
    assert len(data.train) == 6
    assert len(data.test) == 6
    assert next(data.train.batches(6))[1].tolist() == [0, 1, 2, 0, 1, 2]


def test_training_repeats_skips_and_shares_exactly(folder: Path) -> None:
    split = load_data(f"folder:{folder}?size=8").train
    whole = list(split.batches(4, training=True, seed=1, epoch=2))
    assert len(whole) == split.batch_count(4, training=True) == 3
    skipped = list(split.batches(4, training=True, seed=1, epoch=2, skip=1))
    halves = [list(split.batches(4, training=True, seed=1, epoch=2, rank=rank, world=2)) for rank in (0, 1)]
    for index, (images, labels) in enumerate(whole):
        assert torch.equal(images, torch.cat([half[index][0] for half in halves]))
        assert torch.equal(labels, torch.cat([half[index][1] for half in halves]))
        if index:
            assert torch.equal(images, skipped[index - 1][0])
    other = next(split.batches(4, training=True, seed=1, epoch=3))
    assert not torch.equal(whole[0][0], other[0])


def test_evaluation_is_shared_among_ranks(folder: Path) -> None:
    split = load_data(f"folder:{folder}?size=8").test
    whole = torch.cat([images for images, _ in split.batches(4)])
    parts = [[images for images, _ in split.batches(4, rank=rank, world=3)] for rank in range(3)]
    assert sum(len(images) for part in parts for images in part) == len(whole)
    assert torch.equal(whole[:4], torch.cat([part[0] for part in parts]))


def test_training_can_stop_early_without_leaving_threads(folder: Path) -> None:
    before = threading.active_count()
    batches = load_data(f"folder:{folder}?size=8").train.batches(1, training=True)
    next(batches)
    assert threading.active_count() > before
    del batches
    assert threading.active_count() == before


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("content", ["truncated", "garbage", "empty"])
def test_damaged_image_is_named(folder: Path, content: str, training: bool) -> None:
    path = folder / "train" / "dog" / "2.JPEG"
    data = path.read_bytes()
    path.write_bytes({"truncated": data[: len(data) - 200], "garbage": b"\xff\xd8" + b"x" * 500, "empty": b""}[content])
    with pytest.raises(BadData, match=r"dog.2\.JPEG"):
        list(load_data(f"folder:{folder}?size=8").train.batches(5, training=training))


def test_wide_pixels_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.png"
    Image.fromarray(np.full((9, 9), 40000, dtype=np.uint16)).save(path)
    with pytest.raises(BadData, match=r"deep\.png.*not bytes"):
        decode_for_evaluation(path, 8)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1"])
def test_other_modes_become_colour(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("image.jpg" if mode == "CMYK" else "image.png")
    image = Image.fromarray(picture(1)).convert(mode)
    image.save(path, **({"transparency": bytes([0, 255])} if mode == "P" else {}))
    assert decode_for_evaluation(path, 8).shape == (3, 8, 8)
    assert decode_for_training(path, 8, uniform(0)).shape == (3, 8, 8)


# Crops


@pytest.mark.parametrize(("width", "height"), [(500, 375), (30, 40), (1, 1), (1000, 3), (3, 1000)])
def test_random_crops_lie_inside_and_have_the_right_proportions(width: int, height: int) -> None:
    areas = []
    for seed in range(300):
        left, top, right, bottom = random_crop_box(width, height, uniform(seed))
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        if min(width, height) >= 30:
            areas.append((right - left) * (bottom - top) / (width * height))
            # Rounding to whole pixels moves the ratio a little.
            assert 0.65 < (right - left) / (bottom - top) < 1.55
    if areas:
        assert 0.05 < min(areas) < 0.15
        assert max(areas) > 0.85


def test_crop_that_never_fits_is_the_middle() -> None:
    assert random_crop_box(1000, 30, uniform(0) * 0 + 0.999) == (480, 0, 520, 30)
    assert random_crop_box(30, 1000, uniform(0) * 0 + 0.999) == (0, 480, 30, 520)


def test_centre_crop_keeps_the_proportions() -> None:
    shape, crop = (224, 224), evaluation_crop(224)
    assert centre_crop_box(256, 256, shape, crop) == (16, 16, 240, 240)
    assert centre_crop_box(512, 1024, shape, crop) == (32, 288, 480, 736)


def test_training_image_equals_crop_then_resize(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    source = picture(3, 60, 50)
    Image.fromarray(source).save(path)
    for seed in range(20):
        numbers = uniform(seed)
        box = random_crop_box(60, 50, numbers)
        expected = np.asarray(Image.fromarray(source).crop(box).resize((12, 12), Image.Resampling.BILINEAR))
        expected = expected[:, ::-1] if numbers[-1] < 0.5 else expected
        found = decode_for_training(path, 12, numbers).transpose(1, 2, 0)
        # Only at the border of the crop may the pixels outside play a part.
        assert np.abs(found.astype(int) - expected)[1:-1, 1:-1].max() <= 1


def test_jpeg_decoded_at_reduced_size_looks_the_same(tmp_path: Path) -> None:
    source = Image.fromarray(picture(4, 640, 480))
    source.save(tmp_path / "image.jpg", quality=95)
    source.save(tmp_path / "image.png")
    for seed in range(20):
        reduced = decode_for_training(tmp_path / "image.jpg", 16, uniform(seed)).astype(int)
        exact = decode_for_training(tmp_path / "image.png", 16, uniform(seed)).astype(int)
        assert np.abs(reduced - exact).max() <= 6


# Layout


def test_test_folder_serves_when_there_is_no_val(folder: Path) -> None:
    (folder / "val").rename(folder / "test")
    assert len(load_data(f"folder:{folder}?size=8").test) == 6


def test_images_may_lie_deeper(folder: Path) -> None:
    deeper = folder / "train" / "cat" / "images"
    deeper.mkdir()
    (folder / "train" / "cat" / "0.JPEG").rename(deeper / "0.jpg")
    assert len(load_data(f"folder:{folder}?size=8").train) == 15


def test_wrong_layouts_say_what_is_expected(folder: Path) -> None:
    spec = f"folder:{folder}?size=8"
    (folder / "val" / "yak").mkdir()
    with pytest.raises(BadData, match="class yak does not exist"):
        load_data(spec)
    (folder / "train" / "yak").mkdir()
    with pytest.raises(BadData, match="yak: no images"):
        load_data(spec)
    (folder / "val").rename(folder / "elsewhere")
    with pytest.raises(BadData, match=r"no folder val or test.*DIR/train/<class>"):
        load_data(spec)
    (folder / "test").mkdir()
    with pytest.raises(BadData, match="no class folders"):
        load_data(spec)
    (folder / "train").rename(folder / "training")
    with pytest.raises(BadData, match="no folder train"):
        load_data(spec)


@pytest.mark.parametrize("size", ["0", "7", "2049"])
def test_impossible_sizes_are_refused(folder: Path, size: str) -> None:
    with pytest.raises(BadData, match=f"not {size}"):
        load_data(f"folder:{folder}?size={size}")


def test_missing_pillow_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bitstrata.runtime.images.Image", None)
    with pytest.raises(MissingExtra, match=r"bitstrata\[images\]"):
        load_data(f"folder:{folder}")
