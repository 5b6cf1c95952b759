"""Writing an artifact and reading it back."""

import dataclasses
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from format import samples
from format.samples import INPUT, network, residual_graph, small_graph

from bitstrata import atomic, codes
from bitstrata.errors import (
    BadArtifact,
    BadCodes,
    BadManifest,
    BadName,
    BadStep,
    BadTable,
    BadWidths,
    DuplicateName,
    MissingFile,
    NotAnArtifact,
    UnknownView,
    UnknownWidth,
    WrongHash,
)
from bitstrata.format import Artifact, InputDescription, describe, verify_artifact, write_artifact
from bitstrata.format.writer import encode_artifact
from bitstrata.graph import Network, View

GOLDEN = Path(__file__).parent / "golden" / "small.strata"
CIFAR = InputDescription(
    (3, 32, 32),
    (0.4914, 0.4822, 0.4465),
    (0.247, 0.2435, 0.2616),
    ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
)


def written(folder: Path, packed: Network | None = None) -> Path:
    path = folder / "net.strata"
    write_artifact(path, packed or network(mixed=True), name="net", input=INPUT)
    return path


def content_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def assert_same_view(found: View, expected: View) -> None:
    assert (found.name, dict(found.bits)) == (expected.name, dict(expected.bits))
    assert found.tables.keys() == expected.tables.keys()
    for node, table in expected.tables.items():
        assert np.array_equal(found.tables[node].scale, table.scale)
        assert np.array_equal(found.tables[node].bias, table.bias)
        assert found.tables[node].step == table.step
        assert found.tables[node].zero_point == (table.zero_point if table.step is not None else 0)
    assert found.own.keys() == expected.own.keys()
    for name, values in expected.own.items():
        assert np.array_equal(found.own[name], values)


@pytest.mark.parametrize("widths", [(2, 3, 4), (2, 4, 8), (3,), (2, 3, 4, 5, 6, 7, 8)])
@pytest.mark.parametrize(("own", "store"), [(False, "float32"), (True, "float32"), (True, "float16")])
def test_what_is_written_is_read(tmp_path: Path, widths: Sequence[int], own: bool, store: str) -> None:
    packed = network(small_graph(own, store), widths, mixed=True)
    artifact = Artifact.open(written(tmp_path, packed))
    assert (artifact.name, artifact.version, artifact.widths) == ("net", 1, tuple(widths))
    assert artifact.source_bits == widths[-1]
    assert artifact.graph == packed.graph
    assert artifact.input == INPUT
    assert artifact.views == (*map(str, widths), "mixed-a")
    assert artifact.shapes["head"] == (1, 2)
    floats = artifact.floats()
    assert floats.keys() == packed.floats.keys()
    for name, values in packed.floats.items():
        assert np.array_equal(floats[name], values)
        assert floats[name].dtype == np.float32
        assert not floats[name].flags.writeable
    for expected in packed.views:
        view = artifact.view(expected.name)
        assert_same_view(view, expected)
        found = artifact.codes(view)
        assert [*found] == ["block.depthwise", "block.pointwise"]
        for name, bits in expected.bits.items():
            assert np.array_equal(found[name], codes.shift_down(packed.codes[name], widths[-1], bits))
            assert found[name].dtype == np.int8
            assert not found[name].flags.writeable
        for array in (*(table.scale for table in view.tables.values()), *view.own.values()):
            assert not array.flags.writeable
    verify_artifact(tmp_path / "net.strata")


def test_the_safetensors_library_reads_every_file(tmp_path: Path) -> None:
    packed = network(small_graph(own=True, store="float16"))
    path = written(tmp_path, packed)
    base = safetensors.numpy.load_file(path / "base.safetensors")
    assert [*sorted(base)] == ["block.depthwise", "block.pointwise", "head"]
    assert base["block.depthwise"].dtype == np.uint8
    view = safetensors.numpy.load_file(path / "view-3.safetensors")
    assert np.array_equal(view["own.stem"], packed.views[1].own["stem"].astype(np.float16))
    assert view["scale"].dtype == np.float32


def test_any_view_over_the_same_planes(tmp_path: Path) -> None:
    artifact = Artifact.open(written(tmp_path))
    free = dataclasses.replace(artifact.view("2"), bits={"block.depthwise": 4, "block.pointwise": 2})
    found = artifact.codes(free)
    assert np.array_equal(found["block.depthwise"], artifact.codes("4")["block.depthwise"])
    assert np.array_equal(found["block.pointwise"], artifact.codes("2")["block.pointwise"])
    with pytest.raises(UnknownWidth, match="5 bits"):
        artifact.codes(dataclasses.replace(free, bits={"block.depthwise": 5, "block.pointwise": 2}))
    with pytest.raises(BadTable):
        artifact.codes(dataclasses.replace(free, bits={"block.depthwise": 4}))


def test_a_view_reads_only_what_it_needs(tmp_path: Path) -> None:
    path = written(tmp_path)
    for file in ("enhance-3", "enhance-4", "view-3", "view-4", "view-mixed-a"):
        (path / f"{file}.safetensors").unlink()
    artifact = Artifact.open(path)
    expected = network()
    assert np.array_equal(
        artifact.codes(artifact.view("2"))["block.depthwise"], codes.shift_down(expected.codes["block.depthwise"], 4, 2)
    )
    with pytest.raises(MissingFile, match="view-3"):
        artifact.view("3")
    # What comes later is found without opening anew.
    other = written(tmp_path / "again")
    for file in ("view-mixed-a", "enhance-3"):
        os.rename(other / f"{file}.safetensors", path / f"{file}.safetensors")
    assert dict(artifact.view("mixed-a").bits) == {"block.depthwise": 2, "block.pointwise": 3}
    artifact.codes("mixed-a")
    os.rename(other / "view-4.safetensors", path / "view-4.safetensors")
    with pytest.raises(MissingFile, match="enhance-4"):
        artifact.codes("4")


def test_opening_reads_the_manifest_only(tmp_path: Path) -> None:
    path = written(tmp_path)
    for file in path.glob("*.safetensors"):
        file.unlink()
    artifact = Artifact.open(path)
    with pytest.raises(MissingFile, match="base"):
        artifact.floats()


def test_a_switch_reads_nothing_twice(tmp_path: Path) -> None:
    path = written(tmp_path)
    artifact = Artifact.open(path)
    first = {name: artifact.codes(name) for name in artifact.views}
    artifact.floats()
    for file in path.iterdir():
        file.unlink()
    for name in artifact.views:
        assert artifact.view(name) is artifact.view(name)
        for weight, values in artifact.codes(name).items():
            assert np.array_equal(values, first[name][weight])
    artifact.floats()


def test_threads_share_an_artifact(tmp_path: Path) -> None:
    artifact = Artifact.open(written(tmp_path))
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(artifact.codes("3")["block.pointwise"])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(np.array_equal(one, found[0]) for one in found)


def test_unknown_views_name_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownView, match="2, 3, 4, mixed-a"):
        Artifact.open(written(tmp_path)).view("5")


# The same bytes


def test_same_network_same_bytes(tmp_path: Path) -> None:
    first = content_of(written(tmp_path / "a"))
    packed = network(mixed=True)
    shuffled = dataclasses.replace(
        packed,
        codes=dict(reversed(packed.codes.items())),
        floats=dict(reversed(packed.floats.items())),
        views=tuple(
            dataclasses.replace(
                view, bits=dict(reversed(view.bits.items())), tables=dict(reversed(view.tables.items()))
            )
            for view in packed.views
        ),
    )
    assert content_of(written(tmp_path / "b", shuffled)) == first
    transposed = dataclasses.replace(
        packed, codes={name: np.asfortranarray(values).astype(np.int64) for name, values in packed.codes.items()}
    )
    assert content_of(written(tmp_path / "c", transposed)) == first


def test_same_bytes_under_another_hash_seed() -> None:
    program = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from format.samples import INPUT, network
from bitstrata.format.writer import encode_artifact
_, files = encode_artifact(network(mixed=True), name="net", input=INPUT)
print([(file, hashlib.sha256(content).hexdigest()) for file, content in files.items()])
assert "torch" not in sys.modules
"""
    tests = str(Path(__file__).parents[1])
    printed = {
        subprocess.run(
            [sys.executable, "-W", "error", "-c", program, tests],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4294967295")
    }
    _, files = encode_artifact(network(mixed=True), name="net", input=INPUT)
    assert printed == {str([(file, hashlib.sha256(content).hexdigest()) for file, content in files.items()]) + "\n"}


def test_golden_files() -> None:
    """Version 1 is these bytes. If this fails, old artifacts can no longer be read: make a new version."""
    packed = network(small_graph(own=True, store="float16"), mixed=True, seed=1)
    _, files = encode_artifact(packed, name="golden", version=7, input=INPUT)
    stored = content_of(GOLDEN)
    assert stored.keys() == files.keys()
    for file, content in files.items():
        assert stored[file] == content, file
    assert hashlib.sha256(b"".join(stored[file] for file in sorted(stored))).hexdigest() == GOLDEN_HASH
    verify_artifact(GOLDEN)
    artifact = Artifact.open(GOLDEN)
    for view in packed.views:
        assert_same_view(artifact.view(view.name), view)
        for name, bits in view.bits.items():
            assert np.array_equal(artifact.codes(view.name)[name], codes.shift_down(packed.codes[name], 4, bits))


GOLDEN_HASH = "9ca0479e19148add3a70df60c5888799f4d7d4e4ac495cbc0f154aeb40094853"


# Sizes


def test_what_a_device_fetches_for_a_small_network(tmp_path: Path) -> None:
    write_artifact(tmp_path / "r", network(residual_graph(20), input=CIFAR), name="resnet20-cifar10", input=CIFAR)
    found = describe(Artifact.open(tmp_path / "r"))
    assert found["views"]["2"]["fetched_bytes"] < 90_000


def test_segments_are_aligned_and_verifiable_by_themselves(tmp_path: Path) -> None:
    path = written(tmp_path)
    manifest = Artifact.open(path).manifest
    for index, stratum in enumerate(manifest.strata):
        content = (path / stratum.file).read_bytes()
        segments = manifest.segments_of(index)
        for position, segment in enumerate(segments):
            assert segment.offset % 64 == segment.size % 64 == 0
            # As the specification has it, without the header.
            assert segment.offset == stratum.size - sum(later.size for later in segments[position:])
            data = content[segment.offset : segment.offset + segment.size]
            assert hashlib.sha256(data).digest() == segment.sha256
        assert segments[-1].offset + segments[-1].size == len(content)


# Replacing


def test_an_old_artifact_is_replaced_without_leftovers(tmp_path: Path) -> None:
    path = written(tmp_path, network(widths=(2, 3, 4, 8), mixed=True))
    (path / ".base.safetensors.0123456789abcdef.partial").write_bytes(b"what a killed writer left")
    written(tmp_path, network(widths=(2, 3)))
    assert sorted(content_of(path)) == [
        "base.safetensors",
        "enhance-3.safetensors",
        "manifest.json",
        "view-2.safetensors",
        "view-3.safetensors",
    ]
    assert content_of(path) == content_of(written(tmp_path / "fresh", network(widths=(2, 3))))


def test_what_is_no_artifact_is_not_overwritten(tmp_path: Path) -> None:
    cases = {
        "other": {"notes.txt": b"mine"},
        "mixed": {"base.safetensors": b"?", "model.safetensors": b"mine"},
        "web": {"manifest.json": b'{"name":"an app","display":"standalone"}'},
        "format": {"manifest.json": b'{"format":"another"}'},
        "deep": {"manifest.json": b"[" * 100_000},
    }
    for name, files in cases.items():
        folder = tmp_path / name
        folder.mkdir()
        for file, content in files.items():
            (folder / file).write_bytes(content)
        with pytest.raises(NotAnArtifact, match="not overwritten"):
            write_artifact(folder, network(), name="net", input=INPUT)
        assert content_of(folder) == files
    file = tmp_path / "file"
    file.write_bytes(b"mine")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    holding_folder = tmp_path / "holding"
    (holding_folder / "base.safetensors").mkdir(parents=True)
    for place in (file, link, holding_folder):
        with pytest.raises(NotAnArtifact, match="not overwritten"):
            write_artifact(place, network(), name="net", input=INPUT)


def test_a_writer_that_dies_leaves_the_old_the_new_or_no_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The N-th operation on the disk fails, for every N until none is left."""
    old, new = network(widths=(2, 3, 4)), network(widths=(2, 3), seed=5)
    outcomes = []
    for failing in range(100):
        folder = tmp_path / str(failing)
        path = written(folder, old)
        before = content_of(path)
        left = [failing]

        def count(real: Any, left: list[int] = left) -> Any:
            def counted(*arguments: Any, **named: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    raise OSError("no more")
                return real(*arguments, **named)

            return counted

        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", count(Path.unlink))
            patched.setattr(os, "replace", count(os.replace))
            patched.setattr(os, "fsync", count(os.fsync))
            try:
                written(folder, new)
                died = False
            except OSError:
                died = True
        if content_of(path) == before:
            outcomes.append("old")
        else:
            try:
                assert Artifact.open(path).widths == (2, 3)
                verify_artifact(path)
                outcomes.append("new")
            except NotAnArtifact:
                outcomes.append("none")
        # The next writer takes over.
        written(folder, new)
        verify_artifact(path)
        if not died:
            break
    assert not died
    # Once gone, the old one does not come back; the new one is there at the end.
    assert outcomes == sorted(outcomes, key=["old", "none", "new"].index)
    assert set(outcomes) == {"old", "none", "new"}


def test_files_are_written_through_the_one_atomic_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    real = atomic.write_atomically

    def recorded(path: Path, content: bytes) -> None:
        order.append(path.name)
        real(path, content)

    monkeypatch.setattr("bitstrata.format.writer.write_atomically", recorded)
    written(tmp_path, network(widths=(2, 3)))
    assert order == [
        "base.safetensors",
        "enhance-3.safetensors",
        "view-2.safetensors",
        "view-3.safetensors",
        "manifest.json",
    ]


# What cannot be written


def altered(**changes: Any) -> Network:
    return dataclasses.replace(network(), **changes)


def altered_view(**changes: Any) -> Network:
    packed = network()
    return dataclasses.replace(packed, views=(dataclasses.replace(packed.views[0], **changes), *packed.views[1:]))


def altered_table(**changes: Any) -> Network:
    tables = dict(network().views[0].tables)
    tables["depthwise"] = dataclasses.replace(tables["depthwise"], **changes)
    return altered_view(tables=tables)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda: altered(widths=(1, 2, 4)), BadWidths, "1"),
        (lambda: altered(widths=(4, 2)), BadWidths, "increasing"),
        (lambda: altered(widths=(2, 3)), BadCodes, "block.depthwise"),
        (lambda: altered(codes={}), BadTable, "block.depthwise"),
        (lambda: altered(floats={}), BadTable, "head"),
        (lambda: altered(codes={**network().codes, "block.pointwise": np.zeros(25, np.int8)}), BadCodes, "pointwise"),
        (
            lambda: altered(codes={**network().codes, "block.pointwise": np.zeros((5, 5, 1, 1), np.float32)}),
            BadCodes,
            "pointwise",
        ),
        (lambda: altered(floats={**network().floats, "head": np.full((2, 5), np.nan, np.float32)}), BadTable, "head"),
        (lambda: altered(floats={**network().floats, "head": np.full((2, 5), 1e6, np.float32)}), BadTable, "float32"),
        (lambda: altered_view(bits={"block.depthwise": 2}), BadTable, "'2'"),
        (lambda: altered_view(bits={"block.depthwise": 2, "block.pointwise": 7}), BadTable, "7 bits"),
        (lambda: altered_view(name="../2"), BadName, "name"),
        (lambda: altered_view(name="3"), DuplicateName, "3"),
        (lambda: altered_view(tables={}), BadTable, "'2'"),
        (lambda: altered_table(step=np.float32(0)), BadStep, "depthwise"),
        (lambda: altered_table(step=np.float32(-1)), BadStep, "depthwise"),
        (lambda: altered_table(step=np.float32("nan")), BadStep, "depthwise"),
        (lambda: altered_table(step=None), BadStep, "depthwise"),
        (lambda: altered_table(zero_point=4), BadTable, "zero point"),
        (lambda: altered_table(scale=np.zeros(4, np.float32)), BadTable, "depthwise"),
        (lambda: altered_table(scale=np.full(5, np.inf, np.float32)), BadTable, "finite"),
        (lambda: altered_table(bias=np.full(5, 1e300)), BadTable, "finite"),
        (lambda: altered(views=()), BadManifest, "views"),
    ],
)
def test_what_readers_would_refuse_is_not_written(tmp_path: Path, wrong: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        write_artifact(tmp_path / "net.strata", wrong(), name="net", input=INPUT)
    assert not (tmp_path / "net.strata").exists()


@pytest.mark.parametrize(("field", "value"), [("name", ""), ("name", "a/b"), ("version", 0), ("version", 2**53)])
def test_names_and_versions_that_cannot_be(tmp_path: Path, field: str, value: Any) -> None:
    with pytest.raises((BadName, BadManifest), match=field):
        write_artifact(tmp_path / "a", network(), input=INPUT, **{"name": "net", field: value})


def test_a_stratum_of_another_model(tmp_path: Path) -> None:
    path, other = written(tmp_path), written(tmp_path / "other", network(seed=9))
    os.replace(other / "enhance-3.safetensors", path / "enhance-3.safetensors")
    artifact = Artifact.open(path)
    artifact.codes("2")
    with pytest.raises(WrongHash, match="another artifact"):
        artifact.codes("3")
    with pytest.raises(BadArtifact):
        verify_artifact(path)


def test_the_helpers_of_these_tests_make_sound_files(tmp_path: Path) -> None:
    path = written(tmp_path)
    samples.tamper(path, "base.safetensors", lambda content: content)
    samples.edit_manifest(path, lambda manifest: None)
    assert content_of(path) == content_of(written(tmp_path / "again"))
