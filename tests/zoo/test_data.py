"""Batches, augmentation, and the data sets that fit in memory."""

from __future__ import annotations

import builtins
import gzip
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bitstrata.errors import BadData, MissingExtra
from bitstrata.format import InputDescription
from bitstrata.zoo.data import ArraySplit, CropAndFlip, Data, known_data, load_data
from bitstrata.zoo.data.sampling import RandomNumbers, augmentation_numbers, permutation

DESCRIPTION = InputDescription((3, 6, 5), (0.5, 0.4, 0.3), (0.2, 0.25, 0.3), ("first", "second", "third"))
Batches = list[tuple[torch.Tensor, torch.Tensor]]


def make_split(samples: int = 23) -> ArraySplit:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (samples, *DESCRIPTION.shape), dtype=np.uint8)
    return ArraySplit(images, np.arange(samples) % 3, DESCRIPTION, CropAndFlip(padding=2))


def assert_same(left: Batches, right: Batches) -> None:
    assert len(left) == len(right)
    for (left_images, left_labels), (right_images, right_labels) in zip(left, right, strict=True):
        assert torch.equal(left_images, right_images)
        assert torch.equal(left_labels, right_labels)


# Order and shares


def test_permutation_is_a_pure_function_of_seed_and_epoch() -> None:
    first = permutation(100, seed=1, epoch=2)
    assert sorted(first.tolist()) == list(range(100))
    assert np.array_equal(first, permutation(100, seed=1, epoch=2))
    for seed, epoch in ((2, 1), (1, 3), (1, 2 + 2**32), (1 + 2**32, 2)):
        assert not np.array_equal(first, permutation(100, seed=seed, epoch=epoch))


def test_random_numbers_do_not_depend_on_the_version_of_numpy() -> None:
    assert permutation(8, seed=0, epoch=0).tolist() == [7, 3, 4, 5, 0, 1, 2, 6]
    assert augmentation_numbers(seed=7, epoch=3, batch=11).integers(8, 9).tolist() == [8, 0, 6, 0, 7, 4, 1, 7]


def test_random_numbers_lie_in_their_range() -> None:
    numbers = RandomNumbers(5)
    integers, uniform = numbers.integers(5000, 9), numbers.uniform(5000)
    assert set(integers.tolist()) == set(range(9))
    assert 0 <= uniform.min() < 0.01
    assert 0.99 < uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.02


def test_training_batches_repeat_exactly_and_differ_by_epoch() -> None:
    split = make_split()
    assert_same(list(split.batches(8, training=True, seed=3)), list(split.batches(8, training=True, seed=3)))
    first, second = (next(split.batches(8, training=True, seed=3, epoch=epoch))[0] for epoch in (0, 1))
    assert not torch.equal(first, second)


def test_skip_equals_dropping_batches() -> None:
    split = make_split()
    everything = list(split.batches(4, training=True, seed=3, epoch=2))
    assert len(everything) == split.batch_count(4, training=True) == 5
    for skip in range(7):
        assert_same(everything[skip:], list(split.batches(4, training=True, seed=3, epoch=2, skip=skip)))
    assert_same(list(split.batches(4))[2:], list(split.batches(4, skip=2)))


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_together_see_the_global_batch(world: int) -> None:
    split = make_split()
    whole = list(split.batches(8, training=True, seed=1, epoch=4))
    parts = [list(split.batches(8, training=True, seed=1, epoch=4, rank=rank, world=world)) for rank in range(world)]
    assert all(len(images) == 8 // world for rank in parts for images, _ in rank)
    joined = [
        (torch.cat([images for images, _ in batch]), torch.cat([labels for _, labels in batch]))
        for batch in zip(*parts, strict=True)
    ]
    assert_same(whole, joined)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("samples", [1, 8, 23])
def test_evaluation_covers_every_sample_once(samples: int, world: int) -> None:
    description = InputDescription((1, 1, 1), (0.0,), (1.0,), tuple(str(label) for label in range(samples)))
    split = ArraySplit(np.zeros((samples, 1, 1, 1), dtype=np.uint8), np.arange(samples), description)
    seen = [
        label
        for rank in range(world)
        for _, labels in split.batches(4, rank=rank, world=world)
        for label in labels.tolist()
    ]
    assert sorted(seen) == list(range(samples))
    assert [len(labels) for _, labels in split.batches(8)] == [8] * (samples // 8) + [samples % 8] * (samples % 8 > 0)


def test_incomplete_batch_is_dropped_unless_it_is_the_only_one() -> None:
    split = make_split(samples=11)
    assert [len(labels) for _, labels in split.batches(4, training=True)] == [4, 4]
    assert [len(labels) for _, labels in split.batches(12, training=True)] == [11]
    assert split.batch_count(4, training=True) == 2
    assert split.batch_count(4, training=False) == 3
    assert split.batch_count(12, training=True) == 1
    assert [len(labels) for _, labels in split.batches(12, training=True, rank=1, world=2)] == [6]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 9, "world": 2}, "9 cannot be divided equally among 2"),
        ({"batch_size": 0}, "at least 1"),
        ({"batch_size": 8, "rank": 2, "world": 2}, "rank must be 0 to 1"),
        ({"batch_size": 8, "skip": -1}, "skip"),
        ({"batch_size": 64, "world": 32}, "too few"),
    ],
)
def test_impossible_requests_are_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_split().batches(training=True, **arguments)


# Pixels


def test_evaluation_normalises_and_changes_nothing_else() -> None:
    split = make_split()
    images, labels = next(split.batches(23))
    mean, std = (np.reshape(values, (3, 1, 1)) for values in (DESCRIPTION.mean, DESCRIPTION.std))
    expected = torch.from_numpy((split.images / 255 - mean) / std).float()
    assert images.dtype == torch.float32
    assert images.is_contiguous()
    assert labels.dtype == torch.int64
    assert torch.allclose(images, expected, atol=1e-6)
    assert labels.tolist() == split.labels.tolist()


def crop_and_flip_slowly(image: np.ndarray, padding: int, top: int, left: int, flip: int) -> np.ndarray:
    channels, height, width = image.shape
    result = np.zeros_like(image)
    for channel in range(channels):
        for row in range(height):
            for column in range(width):
                source_row = row + top - padding
                source_column = (width - 1 - column if flip else column) + left - padding
                result[channel, row, column] = image[channel, mirror(source_row, height), mirror(source_column, width)]
    return result


def mirror(index: int, size: int) -> int:
    """An index beyond an edge, reflected; the edge itself is not repeated."""
    return -index if index < 0 else 2 * (size - 1) - index if index >= size else index


@pytest.mark.parametrize("augmentation", [CropAndFlip(), CropAndFlip(1, flip=False), CropAndFlip(0)])
def test_crop_and_flip_equals_the_slow_reference(augmentation: CropAndFlip) -> None:
    images = make_split(samples=40).images
    before = images.copy()
    choices = augmentation.draw(RandomNumbers(4), len(images))
    changed = augmentation.apply(images, choices)
    for image, row, result in zip(images, choices.tolist(), changed, strict=True):
        assert np.array_equal(result, crop_and_flip_slowly(image, augmentation.padding, *row))
    assert np.array_equal(images, before)


def test_crop_and_flip_draws_every_choice() -> None:
    top, left, flip = CropAndFlip(padding=4).draw(RandomNumbers(4), 2000).T
    assert set(top.tolist()) == set(left.tolist()) == set(range(9))
    assert abs(flip.mean() - 0.5) < 0.05
    assert not CropAndFlip(flip=False).draw(RandomNumbers(4), 100)[:, 2].any()


def test_training_batch_is_the_augmented_permutation() -> None:
    split = make_split()
    order = permutation(len(split), seed=5, epoch=1)[8:16]
    assert split.augmentation is not None
    choices = split.augmentation.draw(augmentation_numbers(seed=5, epoch=1, batch=1), 8)
    plain = ArraySplit(split.augmentation.apply(split.images[order], choices), split.labels[order], DESCRIPTION)
    assert_same(list(plain.batches(8)), [next(split.batches(8, training=True, seed=5, epoch=1, skip=1))])


def test_array_split_refuses_what_does_not_fit() -> None:
    images = np.zeros((4, 3, 6, 5), dtype=np.uint8)
    cases: list[tuple[Any, list[int], str]] = [
        (images.astype(np.float32), [0] * 4, "bytes"),
        (images[:, :2], [0] * 4, "shape"),
        (images, [0] * 3, "as many labels"),
        (images, [0, 1, 2, 3], "0 to 2"),
        (images, [0, 1, 2, -1], "0 to 2"),
    ]
    for wrong_images, labels, message in cases:
        with pytest.raises(ValueError, match=message):
            ArraySplit(wrong_images, labels, DESCRIPTION)


@pytest.mark.parametrize("wrong", [{"shape": (3, 0, 5)}, {"mean": (0.5,)}, {"std": (1.0, 0.0, 1.0)}])
def test_input_description_refuses_what_does_not_fit(wrong: dict[str, Any]) -> None:
    fields = {"shape": (3, 6, 5), "mean": (0.5,) * 3, "std": (0.2,) * 3, "labels": ("one",)}
    with pytest.raises(ValueError, match=next(iter(wrong))):
        InputDescription(**(fields | wrong))


# Specifications


def test_unknown_specification_lists_the_known_ones() -> None:
    with pytest.raises(BadData, match="cifar10:data/cifar-10-batches-py") as caught:
        load_data("imagenet:/nowhere")
    assert all(pattern in str(caught.value) for pattern in known_data())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cifar10", "cifar10:DIR"),
        ("digits:somewhere", "without a folder"),
        ("digits?size=9", "no option size"),
        ("folder:somewhere?width=9", "no option width"),
        ("folder:somewhere?size", "key=value"),
        ("folder:somewhere?size=-1", "whole number"),
        ("folder:somewhere?size=" + "9" * 5000, "whole number"),
        ("folder:somewhere?size=64", "DIR/train/<class>"),
        ("cifar10:somewhere", "cifar-10-batches-py"),
        ("cifar100:somewhere", "cifar-100-python"),
        ("fashion-mnist:somewhere", "train-images-idx3-ubyte"),
    ],
)
def test_wrong_specifications_say_what_is_expected(spec: str, message: str) -> None:
    with pytest.raises(BadData, match=message):
        load_data(spec)


def test_limit_must_be_positive() -> None:
    with pytest.raises(ValueError, match="limit"):
        load_data("digits", limit=0)


# Digits


def test_digits() -> None:
    pytest.importorskip("sklearn")
    data = load_data("digits")
    assert (len(data.train), len(data.test)) == (1437, 360)
    assert data.input.shape == (1, 8, 8)
    images, labels = next(data.train.batches(1437))
    assert abs(images.mean().item()) < 1e-3
    assert abs(images.std().item() - 1) < 1e-3
    test_labels = next(data.test.batches(360))[1]
    assert torch.bincount(test_labels).min() >= 35
    limited = load_data("digits", limit=50)
    assert (len(limited.train), len(limited.test)) == (50, 360)
    assert torch.equal(next(limited.train.batches(50))[0], images[:50])
    assert labels.max() == 9


def test_digits_without_scikit_learn_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", refuse)
    with pytest.raises(MissingExtra, match=r"bitstrata\[train\]"):
        load_data("digits")


# CIFAR


def write_cifar10(folder: Path, *, protocol: int = 2, per_file: int = 4) -> np.ndarray:
    """Tiny files in the layout of CIFAR-10; the training images in order."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(1)
    images = generator.integers(0, 256, (5 * per_file, 3, 32, 32), dtype=np.uint8)
    for number in range(6):
        name = f"data_batch_{number + 1}" if number < 5 else "test_batch"
        rows = images[number * per_file : (number + 1) * per_file] if number < 5 else images[:per_file]
        content = {
            b"data": rows.reshape(per_file, -1),
            b"labels": [number] * per_file,
            b"batch_label": b"a batch",
            b"filenames": [b"name.png"] * per_file,
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=protocol))
    names = [f"class {number}".encode() for number in range(10)]
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}, protocol=protocol))
    return images


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("inside", [True, False])
def test_cifar10(tmp_path: Path, protocol: int, inside: bool) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    images = write_cifar10(folder, protocol=protocol)
    data = load_data(f"cifar10:{folder if inside else tmp_path}")
    assert isinstance(data.train, ArraySplit)
    assert np.array_equal(data.train.images, images)
    assert data.train.labels.tolist() == [label for label in range(5) for _ in range(4)]
    assert data.input.labels[3] == "class 3"
    assert data.train.augmentation == CropAndFlip(padding=4, flip=True)
    assert len(data.test) == 4
    assert len(load_data(f"cifar10:{folder}", limit=7).train) == 7
    assert next(data.train.batches(8, training=True))[0].shape == (8, 3, 32, 32)


def python_2_string(text: bytes) -> bytes:
    return b"T" + struct.pack("<I", len(text)) + text


def python_2_samples(rows: np.ndarray, labels: list[int]) -> bytes:
    """What Python 2 and an old NumPy wrote: text and contents as byte strings, NumPy by its old module name."""
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + python_2_string(b"b") + b"tR"
    element_type = b"cnumpy\ndtype\n(" + python_2_string(b"u1") + b"K\x00K\x01tR"
    element_type += b"(K\x03" + python_2_string(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = b"(" + b"".join(b"J" + struct.pack("<i", extent) for extent in rows.shape) + b"t"
    array += b"(K\x01" + shape + element_type + b"I00\n" + python_2_string(rows.tobytes()) + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    fine, coarse = python_2_string(b"fine_labels"), python_2_string(b"coarse_labels")
    return b"\x80\x02}(" + python_2_string(b"data") + array + fine + numbers + coarse + numbers + b"u."


def test_cifar100_as_python_2_wrote_it(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    rows = np.random.default_rng(2).integers(0, 256, (3, 3072), dtype=np.uint8)
    (folder / "train").write_bytes(python_2_samples(rows, [0, 99, 50]))
    (folder / "test").write_bytes(python_2_samples(rows[:1], [7]))
    names = b"](" + b"".join(python_2_string(b"n%d" % number) for number in range(100)) + b"e"
    (folder / "meta").write_bytes(b"\x80\x02}" + python_2_string(b"fine_label_names") + names + b"s.")
    data = load_data(f"cifar100:{tmp_path}")
    assert isinstance(data.train, ArraySplit)
    assert np.array_equal(data.train.images.reshape(3, -1), rows)
    assert data.train.labels.tolist() == [0, 99, 50]
    assert data.input.labels == tuple(f"n{number}" for number in range(100))


class Hostile:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], tuple(self.call[1:])


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Hostile(eval, "1 / 0")),
        pickle.dumps({b"data": Hostile(builtins.open, "hostile-was-here", "w"), b"labels": []}),
        pickle.dumps({b"data": np.zeros((1, 3072), dtype=object), b"labels": [0]}, protocol=2),
        pickle.dumps({b"data": np.zeros((1, 3072), dtype=np.int16), b"labels": [0]}, protocol=2),
        pickle.dumps({b"data": np.zeros((1, 3071), dtype=np.uint8), b"labels": [0]}, protocol=2),
        pickle.dumps({b"data": np.zeros((1, 3072), dtype=np.uint8), b"labels": [10]}, protocol=2),
        pickle.dumps({b"data": np.zeros((1, 3072), dtype=np.uint8), b"labels": [0, 1]}, protocol=2),
        pickle.dumps({b"data": np.zeros((1, 3072), dtype=np.uint8), b"labels": ["0"]}, protocol=2),
        pickle.dumps({b"labels": [0]}),
        pickle.dumps([1, 2]),
        pickle.dumps({3: 4}),
        python_2_samples(np.zeros((1, 3072), np.uint8), [0]).replace(struct.pack("<i", 3072), struct.pack("<i", 3071)),
        # Tries to change the stand-in for the array itself instead of an array.
        b"\x80\x02cnumpy._core.multiarray\n_reconstruct\n}b.",
        b"\x80\x02c_codecs\nencode\n}X\x01\x00\x00\x00aK\x01sb.",
        b"\x80\x02c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00rot13tR.",
        b"\x80\x02cbuiltins\ngetattr\n.",
        b"Pname\n.",
        b"not a pickle",
        b"",
    ],
)
def test_hostile_and_damaged_pickles_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    folder = tmp_path / "cifar"
    write_cifar10(folder)
    monkeypatch.chdir(tmp_path)
    (folder / "data_batch_3").write_bytes(content)
    with pytest.raises(BadData, match="data_batch_3"):
        load_data(f"cifar10:{folder}")
    assert not (tmp_path / "hostile-was-here").exists()


def test_truncated_pickle_is_refused(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar")
    path = tmp_path / "cifar" / "test_batch"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BadData, match="test_batch"):
        load_data(f"cifar10:{tmp_path / 'cifar'}")


def test_cifar_names_missing_files_and_bad_names(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar")
    (tmp_path / "cifar" / "data_batch_4").unlink()
    with pytest.raises(BadData, match="data_batch_4 missing"):
        load_data(f"cifar10:{tmp_path / 'cifar'}")
    for names in ([b"one"], [1] * 10):
        (tmp_path / "cifar" / "data_batch_4").touch()
        (tmp_path / "cifar" / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}))
        with pytest.raises(BadData, match=r"batches\.meta"):
            load_data(f"cifar10:{tmp_path / 'cifar'}")


# Fashion-MNIST


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_fashion_mnist(folder: Path, *, compressed: bool = False) -> np.ndarray:
    images = np.random.default_rng(3).integers(0, 256, (12, 28, 28), dtype=np.uint8)
    labels = np.arange(12, dtype=np.uint8) % 10
    for prefix, count in (("train", 12), ("t10k", 5)):
        for kind, array in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
            content = idx(array[:count])
            path = folder / f"{prefix}-{kind}{'.gz' if compressed else ''}"
            path.write_bytes(gzip.compress(content) if compressed else content)
    return images


def load_fashion(folder: Path, limit: int | None = None) -> Data:
    return load_data(f"fashion-mnist:{folder}", limit=limit)


@pytest.mark.parametrize("compressed", [False, True])
def test_fashion_mnist(tmp_path: Path, compressed: bool) -> None:
    images = write_fashion_mnist(tmp_path, compressed=compressed)
    data = load_fashion(tmp_path)
    assert isinstance(data.train, ArraySplit)
    assert np.array_equal(data.train.images[:, 0], images)
    assert data.train.labels.tolist() == [*range(10), 0, 1]
    assert len(data.test) == 5
    assert len(load_fashion(tmp_path, limit=3).train) == 3
    assert len(data.input.labels) == 10


GOOD_LABELS = idx(np.arange(12, dtype=np.uint8) % 10)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD_LABELS[:-1], "announces 12 bytes of items, but it has only 11"),
        (GOOD_LABELS + b"\0", "has more"),
        (GOOD_LABELS[:6], "within its header"),
        (b"", "within its header"),
        (b"\0\0\x0d" + GOOD_LABELS[3:], "not an IDX file"),
        (GOOD_LABELS[:4] + b"\xff\xff\xff\xff" + GOOD_LABELS[8:], "items"),
        (idx(np.zeros(0, dtype=np.uint8)), "0 items"),
        (idx(np.zeros(11, dtype=np.uint8)), "11 labels"),
        (idx(np.full(12, 10, dtype=np.uint8)), "label 10"),
    ],
)
def test_damaged_idx_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    write_fashion_mnist(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(content)
    with pytest.raises(BadData, match=f"train-labels-idx1-ubyte.*{message}"):
        load_fashion(tmp_path)


def test_idx_images_of_another_size_are_refused(tmp_path: Path) -> None:
    write_fashion_mnist(tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(np.zeros((5, 28, 27), dtype=np.uint8)))
    with pytest.raises(BadData, match=r"t10k-images.*\(28, 27\)"):
        load_fashion(tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: b"no" + data, lambda data: data[:40] + b"\xff" * 99]
)
def test_damaged_compressed_idx_is_refused(tmp_path: Path, damage: Any) -> None:
    write_fashion_mnist(tmp_path, compressed=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadData, match="train-images"):
        load_fashion(tmp_path)
