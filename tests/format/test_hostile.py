"""Files that somebody made to do harm, or that came to harm: always a typed error, never a crash, never much cost."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from format.samples import INPUT, edit_header, edit_manifest, network, small_graph, tamper

from bitstrata.errors import (
    BadArtifact,
    BadHeader,
    BadInputDescription,
    BadManifest,
    BadName,
    BadShape,
    BadStep,
    BadStrata,
    BadTable,
    BadViewEntry,
    BadWidths,
    BitstrataError,
    DuplicateName,
    DuplicateTensor,
    GraphCycle,
    ManifestTooLarge,
    MissingFile,
    NonZeroPadding,
    NotAnArtifact,
    NotARegularFile,
    NotCanonical,
    TooLarge,
    UndefinedValue,
    UnknownFormat,
    UnknownOp,
    WrongHash,
    WrongInputCount,
    WrongSize,
    WrongTensors,
    ZeroSize,
)
from bitstrata.format import (
    Artifact,
    InputDescription,
    check_manifest,
    decode_manifest,
    verify_artifact,
    write_artifact,
)
from bitstrata.format.artifact import decode_stratum, decode_view
from bitstrata.format.files import read_verified
from bitstrata.format.tensors import Tensor, decode_tensors, encode_tensors
from bitstrata.graph import Graph, Network, Table, View, Weight
from bitstrata.graph.ops import Conv
from bitstrata.limits import MAX_MANIFEST_BYTES

Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "net.strata"
    write_artifact(folder, network(small_graph(own=True), widths=(2, 3)), name="net", input=INPUT)
    return folder


@pytest.fixture
def path(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "net.strata"))


FILES = ("base.safetensors", "enhance-3.safetensors", "view-2.safetensors")


def refused(path: Path, *errors: type[Exception]) -> str:
    """That verifying raises exactly one of these classes, with a message that can be printed."""
    with pytest.raises(BitstrataError) as caught:
        verify_artifact(path)
    assert type(caught.value) in errors, repr(caught.value)
    message = str(caught.value)
    assert message.isprintable()
    assert 0 < len(message) < 1000
    return message


# Truncation and bit flips


def decoder(artifact: Artifact, file: str) -> Callable[[bytes], object]:
    """What parses that file, behind the check of size and hash."""
    manifest = artifact.manifest
    if file.startswith("view"):
        return lambda content: decode_view(manifest, artifact.shapes, "2", content)
    index = [stratum.file for stratum in manifest.strata].index(file)
    return lambda content: decode_stratum(manifest, index, content)


@pytest.mark.parametrize("file", FILES)
def test_truncated_at_every_byte(path: Path, file: str) -> None:
    content = (path / file).read_bytes()
    decode = decoder(Artifact.open(path), file)
    decode(content)
    digest = hashlib.sha256(content).hexdigest()
    for end in range(len(content)):
        os.truncate(path / file, len(content) - 1 - end)
        with pytest.raises(WrongSize, match=file):
            read_verified(path, file, len(content), digest)
        with pytest.raises(BadArtifact):
            decode(content[:end])
    refused(path, WrongSize)


def test_manifest_truncated_at_every_byte(path: Path) -> None:
    content = (path / "manifest.json").read_bytes()
    for end in range(len(content)):
        with pytest.raises(BadManifest):
            decode_manifest(content[:end])
    for end in (0, 1, 100, len(content) - 1):
        (path / "manifest.json").write_bytes(content[:end])
        refused(path, BadManifest)


@pytest.mark.parametrize("file", FILES)
def test_every_bit_of_a_file_flipped(path: Path, file: str) -> None:
    content = (path / file).read_bytes()
    decode = decoder(Artifact.open(path), file)
    digest = hashlib.sha256(content).hexdigest()
    header_bits = 8 * (8 + int.from_bytes(content[:8], "little"))
    for bit in range(len(content) * 8):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        if bit % 97 == 0:  # writing is slow, and a hash knows no special bits
            (path / file).write_bytes(damaged)
            with pytest.raises(WrongHash, match=file):
                read_verified(path, file, len(content), digest)
        # And behind the hash: no bit of a header is free.
        if bit < header_bits:
            with pytest.raises((BadArtifact, BadName)):
                decode(bytes(damaged))
    refused(path, WrongHash)


def test_every_bit_of_a_manifest_flipped(path: Path) -> None:
    """What is still a manifest says something else, and a hash that was hit fits no file."""
    content = (path / "manifest.json").read_bytes()
    sound = decode_manifest(content)
    hits = 0
    for bit in range(len(content) * 8):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            manifest = decode_manifest(bytes(damaged))
            check_manifest(manifest)
        except BitstrataError:
            continue
        assert manifest != sound
        if manifest.strata != sound.strata or [view.sha256 for view in manifest.views] != [
            view.sha256 for view in sound.views
        ]:
            hits += 1
            if hits % 10 == 0:
                (path / "manifest.json").write_bytes(damaged)
                refused(path, WrongHash)
    assert hits > 100


# The manifest


def test_a_manifest_of_100_megabytes(path: Path) -> None:
    with (path / "manifest.json").open("r+b") as file:
        file.truncate(100 * 2**20)
    refused(path, ManifestTooLarge)
    with pytest.raises(ManifestTooLarge):
        decode_manifest(b" " * (MAX_MANIFEST_BYTES + 1))


def replaced(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text, old
        return text.replace(old, new, 1)

    return change


SPELLINGS: dict[str, tuple[Callable[[str], str], type[Exception]]] = {
    "a space": (replaced(":", ": "), NotCanonical),
    "a newline behind": (lambda text: text + "\n", NotCanonical),
    "a space in front": (lambda text: " " + text, NotCanonical),
    "byte order mark": (lambda text: "\ufeff" + text, BadManifest),
    "another order": (
        lambda text: text.replace('"format":"bitstrata",', "")[:-1] + ',"format":"bitstrata"}',
        NotCanonical,
    ),
    "a key twice": (lambda text: text[:-1] + ',"widths":[2,3]}', NotCanonical),
    "a key twice in a node": (replaced('"op":"relu"', '"op":"relu","op":"relu"'), NotCanonical),
    "a key twice in the input": (replaced('"crop":0.875', '"crop":0.875,"crop":0.875'), NotCanonical),
    "a default spelled out": (
        replaced('"name":"stem","op":"conv"', '"dilation":[1,1],"name":"stem","op":"conv"'),
        NotCanonical,
    ),
    "another default spelled out": (
        replaced('"name":"stem","op":"conv"', '"groups":1,"name":"stem","op":"conv"'),
        NotCanonical,
    ),
    "a number in another form": (replaced("0.875", "8.75e-1"), NotCanonical),
    "a whole number for a float": (replaced('"crop":0.875', '"crop":1'), NotCanonical),
    "an escaped letter": (replaced('"name":"net"', '"name":"\\u006eet"'), NotCanonical),
    "an unknown field": (lambda text: text[:-1] + ',"zz":1}', BadManifest),
    "an unknown field of a weight": (replaced('"name":"stem","own"', '"magic":1,"name":"stem","own"'), BadManifest),
    "an unknown field of the input": (replaced('"crop":0.875', '"crop":0.875,"execute":"x"'), NotCanonical),
    "a missing field": (replaced('"crop":0.875,', ""), NotCanonical),
    "missing labels": (lambda text: re.sub('"labels":[^]]*],', "", text), NotCanonical),
    "another missing field": (replaced('"format_version":1,', ""), BadManifest),
    "an empty file": (lambda text: "", BadManifest),
    "a list": (lambda text: "[]", BadManifest),
    "null": (lambda text: "null", BadManifest),
    "nested ten thousand deep": (lambda text: "[" * 10_000, BadManifest),
    "objects ten thousand deep": (lambda text: '{"a":' * 10_000, BadManifest),
    "an unknown field ten thousand deep": (lambda text: text[:-1] + ',"zz":' + "[" * 10_000, BadManifest),
    "a node ten thousand deep": (replaced('"op":"relu"', '"op":' + "[" * 10_000), BadManifest),
    "a known field ten thousand deep": (replaced('"graph":', '"graph":' + '{"nodes":' * 10_000), BadManifest),
    "NaN": (replaced("0.875", "NaN"), BadManifest),
    "an infinite number": (replaced("0.875", "1e999"), BadManifest),
    "another format": (replaced('"format":"bitstrata"', '"format":"gguf"'), UnknownFormat),
    "a format to terminals": (replaced('"format":"bitstrata"', '"format":"\\u001b[31m"'), UnknownFormat),
    "a newer version": (replaced('"format_version":1', '"format_version":2'), UnknownFormat),
    "a version of many digits": (replaced('"format_version":1', '"format_version":' + "1" * 4000), BadManifest),
    "version 0": (lambda text: text.replace('"version":1', '"version":0'), BadManifest),
    "hash too short": (replaced('"sha256":"', '"sha256":"x'), BadManifest),
    "segment hash of 31 bytes": (lambda text: text.replace("=", "", 1), BadManifest),
    "a size of 2^63": (replaced('"size":', '"size":9223372036854775808'), BadManifest),
    "a negative size": (replaced('"size":', '"size":-'), BadManifest),
    "a size of many digits": (replaced('"size":', '"size":' + "9" * 4000), BadManifest),
}


@pytest.mark.parametrize("case", SPELLINGS)
def test_other_spellings(path: Path, case: str) -> None:
    change, error = SPELLINGS[case]
    file = path / "manifest.json"
    file.write_bytes(change(file.read_bytes().decode()).encode())
    refused(path, error)


def node(manifest: Manifest, name: str) -> Manifest:
    found: Manifest = next(one for one in manifest["graph"]["nodes"] if one["name"] == name)
    return found


def weight(manifest: Manifest, name: str) -> Manifest:
    found: Manifest = next(one for one in manifest["graph"]["weights"] if one["name"] == name)
    return found


def rename(name: str) -> Callable[[Manifest], None]:
    """Gives the last view another name, and the file name that follows from it."""

    def change(manifest: Manifest) -> None:
        manifest["views"][-1] |= {"name": name, "file": f"view-{name}.safetensors"}

    return change


def nodes(*more: Manifest) -> Callable[[Manifest], None]:
    return lambda manifest: manifest["graph"]["nodes"].extend(more)


CLAIMS: dict[str, tuple[Callable[[Manifest], Any], type[Exception]]] = {
    "width 1": (lambda m: m.update(widths=[1, 3]), BadWidths),
    "width 9": (lambda m: m.update(widths=[2, 9]), BadManifest),
    "width 255": (lambda m: m.update(widths=[2, 255]), BadManifest),
    "width 0": (lambda m: m.update(widths=[0, 3]), BadManifest),
    "widths decreasing": (lambda m: m.update(widths=[3, 2]), BadWidths),
    "no widths": (lambda m: m.update(widths=[]), BadManifest),
    "no strata": (lambda m: m.update(strata=[]), BadStrata),
    "no base": (lambda m: m["strata"].pop(0), BadStrata),
    "enhance 4 without 3": (lambda m: m.update(widths=[2, 3, 4]) or m["strata"][1].update(bits=4), BadStrata),
    "strata swapped": (lambda m: m["strata"].reverse(), BadStrata),
    "stratum elsewhere": (lambda m: m["strata"][0].update(file="../base.safetensors"), BadStrata),
    "stratum with an absolute name": (lambda m: m["strata"][0].update(file="/etc/passwd"), BadStrata),
    "stratum under another's name": (lambda m: m["strata"][1].update(file="base.safetensors"), BadStrata),
    "stratum name with control characters": (lambda m: m["strata"][0].update(file="\x1b[31m\0"), BadStrata),
    "stratum one byte longer": (lambda m: m["strata"][0].update(size=m["strata"][0]["size"] + 1), BadStrata),
    "stratum of 64 GB": (lambda m: m["strata"][0].update(size=2**36), BadStrata),
    "stratum over the limit": (lambda m: m["strata"][0].update(size=2**36 + 1), BadManifest),
    "segment missing": (lambda m: m["strata"][0]["segments"].pop(), BadStrata),
    "segment too many": (lambda m: m["strata"][0]["segments"].append(m["strata"][0]["segments"][0]), BadStrata),
    "segments swapped": (lambda m: m["strata"][1]["segments"].reverse(), WrongHash),
    "no views": (lambda m: m.update(views=[]), BadManifest),
    "65 views": (lambda m: m.update(views=m["views"] * 33), TooLarge),
    "view elsewhere": (lambda m: m["views"][0].update(file="view-../2.safetensors"), BadViewEntry),
    "view of another size": (lambda m: m["views"][0].update(size=0), BadViewEntry),
    "view with a width there is not": (lambda m: m["views"][0].update(bits=[2, 4]), BadViewEntry),
    "view with a width too few": (lambda m: m["views"][0].update(bits=[2]), BadViewEntry),
    "view of 1 bit": (lambda m: m["views"][0].update(bits=[1, 1]), BadViewEntry),
    "two views of a name": (rename("2"), DuplicateName),
    "view names that differ in case": (
        lambda m: (m["views"][0].update(name="A", file="view-A.safetensors"), rename("a")(m)),
        DuplicateName,
    ),
    "view named ..": (rename(".."), BadName),
    "view named a..b": (rename("a..b"), BadName),
    "view with NUL": (rename("a\0"), BadName),
    "view with escape sequence": (rename("\x1b[31m"), BadName),
    "view with newline": (rename("a\n"), BadName),
    "view with slash": (rename("a/b"), BadName),
    "view with backslash": (rename("a\\b"), BadName),
    "view with drive": (rename("C:a"), BadName),
    "view that turns the direction": (rename("a\u202eb"), BadName),
    "view with look-alikes": (rename("\u0430"), BadName),
    "view of 300 characters": (rename("a" * 300), BadName),
    "view without name": (rename(""), BadName),
    "view that is not there": (rename("other"), MissingFile),
    "name ..": (lambda m: m.update(name="../net"), BadName),
    "node name with NUL": (lambda m: node(m, "relu").update(name="a\0"), BadName),
    "weight name with slash": (lambda m: weight(m, "head").update(name="/head"), BadName),
    "weight named like metadata": (
        lambda m: (weight(m, "head").update(name="__metadata__"), node(m, "head").update(weight="__metadata__")),
        BadName,
    ),
    "an output with a bad name": (lambda m: m["graph"].update(outputs=["../x"]), BadName),
    "unknown op": (lambda m: node(m, "relu").update(op="exec"), UnknownOp),
    "op of no string": (lambda m: node(m, "relu").update(op=7), BadManifest),
    "op with escape sequence": (lambda m: node(m, "relu").update(op="\x1b]0;x\x07" * 1000), UnknownOp),
    "unknown field of an op": (lambda m: node(m, "relu").update(code="import os"), BadManifest),
    "a node that uses itself": (lambda m: node(m, "relu").update(inputs=["relu"]), GraphCycle),
    "a cycle of two": (lambda m: node(m, "stem").update(inputs=["relu"]), GraphCycle),
    "a value from nowhere": (lambda m: node(m, "relu").update(inputs=["nothing"]), UndefinedValue),
    "an output from nowhere": (lambda m: m["graph"].update(outputs=["nothing"]), UndefinedValue),
    "a weight from nowhere": (lambda m: node(m, "head").update(weight="nothing"), UndefinedValue),
    "a weight of no use": (lambda m: m["graph"]["weights"].append({"name": "more", "shape": [1, 1]}), UndefinedValue),
    "two nodes of a name": (nodes({"op": "relu", "name": "relu", "inputs": ["stem"]}), DuplicateName),
    "a node named input": (nodes({"op": "relu", "name": "input", "inputs": ["stem"]}), DuplicateName),
    "two weights of a name": (lambda m: weight(m, "head").update(name="stem"), DuplicateName),
    "no inputs": (lambda m: node(m, "relu").update(inputs=[]), WrongInputCount),
    "two inputs": (lambda m: node(m, "relu").update(inputs=["stem", "stem"]), WrongInputCount),
    "one summand": (lambda m: node(m, "sum").update(inputs=["relu"]), WrongInputCount),
    "an empty concat": (nodes({"op": "concat", "name": "more", "inputs": []}), WrongInputCount),
    "zero channels": (lambda m: weight(m, "stem").update(shape=[0, 3, 3, 3]), ZeroSize),
    "negative channels": (lambda m: weight(m, "stem").update(shape=[-5, 3, 3, 3]), ZeroSize),
    "zero kernel": (lambda m: weight(m, "stem").update(shape=[5, 3, 0, 3]), ZeroSize),
    "zero groups": (lambda m: node(m, "depthwise").update(groups=0), ZeroSize),
    "negative groups": (lambda m: node(m, "depthwise").update(groups=-5), ZeroSize),
    "zero stride": (lambda m: node(m, "stem").update(stride=[0, 1]), ZeroSize),
    "zero dilation": (lambda m: node(m, "stem").update(dilation=[1, 0]), ZeroSize),
    "zero pool": (lambda m: node(m, "pool").update(size=[0, 1]), ZeroSize),
    "zero step": (nodes({"op": "slice", "name": "more", "inputs": ["stem"], "axis": 1, "step": 0}), ZeroSize),
    "negative padding": (lambda m: node(m, "stem").update(padding=[-1, 1, 1, 1]), BadShape),
    "huge stride": (lambda m: node(m, "stem").update(stride=[2**40, 1]), TooLarge),
    "huge pool": (lambda m: node(m, "pool").update(size=[2**31, 1]), TooLarge),
    "huge padding": (lambda m: node(m, "stem").update(padding=[2**62, 1, 1, 1]), BadShape),
    "a number over 64 bits": (lambda m: node(m, "stem").update(stride=[2**64 - 1, 1]), BadManifest),
    "a weight of 2^31 channels": (lambda m: weight(m, "stem").update(shape=[2**31, 3, 3, 3]), TooLarge),
    "a weight of 2^62 channels": (lambda m: weight(m, "stem").update(shape=[2**62, 3, 3, 3]), TooLarge),
    "a weight whose size wraps": (lambda m: weight(m, "stem").update(shape=[2**24, 2**24, 2**8, 2**8]), TooLarge),
    "an accumulator that overflows": (
        lambda m: weight(m, "block.pointwise").update(shape=[1, 2**24, 5, 1]),
        TooLarge,
    ),
    "a weight of three dimensions": (lambda m: weight(m, "stem").update(shape=[5, 3, 9]), BadShape),
    "a weight of one dimension": (lambda m: weight(m, "stem").update(shape=[5]), BadManifest),
    "a weight of other channels": (lambda m: weight(m, "stem").update(shape=[5, 4, 3, 3]), BadShape),
    "a weight of one more channel": (lambda m: weight(m, "head").update(shape=[3, 5]), (BadStrata, BadViewEntry)),
    "a weight stored otherwise": (lambda m: weight(m, "head").update(store="float32"), WrongTensors),
    "a weight stored as nothing known": (lambda m: weight(m, "head").update(store="pickle"), BadManifest),
    "own planes": (lambda m: weight(m, "block.pointwise").update(own=True), BadShape),
    "an own weight made shared": (lambda m: weight(m, "stem").pop("own"), BadStrata),
    "groups that do not fit": (lambda m: node(m, "depthwise").update(groups=3), BadShape),
    "a window over the image": (
        lambda m: m["input"].update(shape=[3, 1, 1]) or node(m, "stem").pop("padding"),
        BadShape,
    ),
    "an image of no size": (lambda m: m["input"].update(shape=[3, 0, 7]), BadInputDescription),
    "an image of 2^40 rows": (lambda m: m["input"].update(shape=[3, 2**40, 7]), BadInputDescription),
    "an image of 2^36 places": (lambda m: m["input"].update(shape=[3, 2**18, 2**18]), BadInputDescription),
    "a negative std": (lambda m: m["input"].update(std=[0.1, -0.1, 0.1]), BadInputDescription),
    "a std too few": (lambda m: m["input"].update(std=[0.1, 0.1]), BadInputDescription),
    "a crop of nothing": (lambda m: m["input"].update(crop=0.0), BadInputDescription),
    "a label with escape sequence": (lambda m: m["input"].update(labels=["\x1b[2J"]), BadInputDescription),
    "a label that turns the direction": (lambda m: m["input"].update(labels=["\u202egpj"]), BadInputDescription),
    "a label with NUL": (lambda m: m["input"].update(labels=["a\0"]), BadInputDescription),
    "a label of 300": (lambda m: m["input"].update(labels=["a" * 300]), BadInputDescription),
    "65,537 labels": (lambda m: m["input"].update(labels=["a"] * 65_537), BadInputDescription),
    "a value that doubles 60 times": (
        nodes(*({"op": "concat", "name": f"c{i}", "inputs": [f"c{i - 1}" if i else "stem"] * 2} for i in range(60))),
        TooLarge,
    ),
    "9,000 nodes": (
        nodes(*({"op": "relu", "name": f"r{i}", "inputs": ["stem"]} for i in range(9000))),
        TooLarge,
    ),
    "a node of 2,000 inputs": (nodes({"op": "concat", "name": "more", "inputs": ["stem"] * 2000}), TooLarge),
}


@pytest.mark.parametrize("case", CLAIMS)
def test_what_a_manifest_claims(path: Path, case: str) -> None:
    change, errors = CLAIMS[case]
    edit_manifest(path, change)
    refused(path, *(errors if isinstance(errors, tuple) else (errors,)))


# The files


def test_nothing_but_regular_files(path: Path, tmp_path: Path) -> None:
    for file in ("manifest.json", *FILES):
        kept = tmp_path / "kept"
        os.rename(path / file, kept)
        (path / file).symlink_to(kept)
        assert file in refused(path, NotARegularFile)
        (path / file).unlink()
        (path / file).mkdir()
        assert file in refused(path, NotARegularFile)
        (path / file).rmdir()
        os.mkfifo(path / file)
        assert file in refused(path, NotARegularFile)
        (path / file).unlink()
        os.rename(kept, path / file)
    verify_artifact(path)


def test_what_is_no_artifact(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for place in (tmp_path, tmp_path / "nothing", tmp_path / "file"):
        with pytest.raises(NotAnArtifact, match="no manifest"):
            Artifact.open(place)


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_missing(path: Path, file: str) -> None:
    (path / file).unlink()
    assert file in refused(path, MissingFile)


@pytest.mark.parametrize("file", FILES)
def test_a_byte_more_or_a_file_of_a_terabyte(path: Path, file: str) -> None:
    size = (path / file).stat().st_size
    os.truncate(path / file, size + 1)
    assert file in refused(path, WrongSize)
    os.truncate(path / file, 2**40)  # sparse: it costs nothing here, and must cost a reader nothing
    assert file in refused(path, WrongSize)


def test_files_of_each_other(path: Path) -> None:
    os.replace(path / "view-3.safetensors", path / "view-2.safetensors")
    refused(path, WrongHash)


def swap_names(header: bytes) -> bytes:
    return header.replace(b"depthwise", b"\0").replace(b"pointwise", b"depthwise").replace(b"\0", b"pointwise")


HEADERS: dict[str, tuple[str, Callable[[bytes], bytes], type[Exception]]] = {
    "names swapped": ("enhance-3.safetensors", swap_names, WrongTensors),
    "a tensor renamed": ("base.safetensors", lambda h: h.replace(b'"head"', b'"tail"'), WrongTensors),
    "a tensor twice": ("enhance-3.safetensors", lambda h: h.replace(b"pointwise", b"depthwise"), DuplicateTensor),
    "spaces": ("base.safetensors", lambda h: h.replace(b",", b", ", 1), BadHeader),
}


@pytest.mark.parametrize("case", HEADERS)
def test_headers_behind_the_hash(path: Path, case: str) -> None:
    file, change, error = HEADERS[case]
    content = (path / file).read_bytes()
    damaged = edit_header(content, change)
    if len(damaged) == len(content):
        tamper(path, file, lambda _: damaged)
        assert file in refused(path, error)
    else:  # the manifest's own arithmetic would find it first
        with pytest.raises(error, match=file):
            decode_tensors(damaged, file)


def test_a_tensor_of_another_type_and_the_same_bytes(path: Path) -> None:
    content = (path / "view-2.safetensors").read_bytes()
    tensors = [(tensor, bytes(data)) for tensor, data in decode_tensors(content, "view").values()]
    assert [tensor.name for tensor, _ in tensors] == ["scale", "bias", "step", "own.stem", "zero_point"]
    swapped = [tensors[1], tensors[0], *tensors[2:]]
    tamper(path, "view-2.safetensors", lambda _: encode_tensors(swapped))
    refused(path, WrongTensors)
    reshaped = [
        (Tensor("own.stem", "F32", (5, 27)), data) if t.name == "own.stem" else (t, data) for t, data in tensors
    ]
    artifact_bytes = encode_tensors(reshaped)
    manifest = Artifact.open(path).manifest
    with pytest.raises(WrongTensors):
        decode_view(manifest, check_manifest(manifest), "2", artifact_bytes)


def overwrite(file: str, tensor: str, index: int, value: bytes) -> Callable[[bytes], bytes]:
    """Puts bytes into a tensor's data."""

    def change(content: bytes) -> bytes:
        start = 8 + int.from_bytes(content[:8], "little")
        begin = start + json.loads(content[8:start])[tensor]["data_offsets"][0] + index
        return content[:begin] + value + content[begin + len(value) :]

    return change


def float32(value: float) -> bytes:
    return np.array(value, dtype="<f4").tobytes()


def float16(value: float) -> bytes:
    return np.array(value, dtype="<f2").tobytes()


NUMBERS: dict[str, tuple[str, str, int, bytes, type[Exception]]] = {
    **{
        f"a step of {value}": ("view-2.safetensors", "step", 4, float32(value), BadStep)
        for value in (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, -1.0, 1e-45)
    },
    **{
        f"a {table} of {value}": ("view-2.safetensors", table, 8, float32(value), BadTable)
        for value in (float("nan"), float("inf"), float("-inf"))
        for table in ("scale", "bias", "own.stem")
    },
    "a zero point that is no code": ("view-2.safetensors", "zero_point", 1, bytes([4]), BadTable),
    "a zero point of 255": ("view-2.safetensors", "zero_point", 0, bytes([255]), BadTable),
    "a float weight that is not finite": ("base.safetensors", "head", 0, float16(float("nan")), BadTable),
    "bytes behind a float weight": ("base.safetensors", "head", 20, b"\1", NonZeroPadding),
    "the last byte behind a float weight": ("base.safetensors", "head", 63, b"\x80", NonZeroPadding),
    # 45 weights: five bits of the sixth byte of each plane.
    "bits behind the first plane": ("base.safetensors", "block.depthwise", 5, b"\x20", NonZeroPadding),
    "bits behind the second plane": ("base.safetensors", "block.depthwise", 11, b"\x80", NonZeroPadding),
    "bytes behind the planes": ("base.safetensors", "block.depthwise", 12, b"\1", NonZeroPadding),
    "bits behind an enhance plane": ("enhance-3.safetensors", "block.pointwise", 3, b"\2", NonZeroPadding),
    "bytes behind an enhance plane": ("enhance-3.safetensors", "block.pointwise", 63, b"\1", NonZeroPadding),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_behind_the_hash(path: Path, case: str) -> None:
    file, tensor, index, value, error = NUMBERS[case]
    tamper(path, file, overwrite(file, tensor, index, value))
    refused(path, error)


# What it costs


COST = """
import sys, time
from bitstrata.errors import BitstrataError
from bitstrata.format import Artifact, verify_artifact

def peak():  # not getrusage: its peak is that of the process that started this one
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))

verify_artifact(sys.argv[1])  # what Python itself loads on first use is not the file's cost
before = peak()
began = time.process_time()
try:
    artifact = Artifact.open(sys.argv[2])
    artifact.floats()
    for view in artifact.views:
        artifact.codes(view)
    verdict = "accepted"
except BitstrataError as error:
    verdict = type(error).__name__
print(verdict, peak() - before, time.process_time() - began)
"""

MEGABYTE = 2**20


def many(template: str) -> str:
    return ",".join(template % index for index in range(MEGABYTE // (len(template) + 3)))


def wide(folder: Path) -> None:
    """A sound artifact whose base is about a megabyte: four million weights of two bits."""
    graph = Graph(
        weights=(Weight(name="w", shape=(2048, 2048, 1, 1)),),
        nodes=(Conv(name="w", inputs=("input",)),),
        outputs=("w",),
    )
    codes = np.tile(np.arange(-2, 2, dtype=np.int8), 2**20).reshape(2048, 2048, 1, 1)
    table = Table(np.ones(2048, np.float32), np.ones(2048, np.float32), np.float32(1), 0)
    packed = Network(graph, (2,), {"w": codes}, {}, (View("2", {"w": 2}, {"w": table}),))
    write_artifact(folder, packed, name="wide", input=InputDescription((2048, 1, 1), (0.5,) * 2048, (0.5,) * 2048))


def deep(folder: Path) -> None:
    """A sound artifact of so many layers that its manifest is about a megabyte."""
    count = 6000
    graph = Graph(
        weights=tuple(Weight(name=f"n{i}", shape=(3, 3, 1, 1)) for i in range(count)),
        nodes=tuple(Conv(name=f"n{i}", inputs=(f"n{i - 1}" if i else "input",)) for i in range(count)),
        outputs=(f"n{count - 1}",),
    )
    write_artifact(folder, network(graph, widths=(2,)), name="deep", input=INPUT)


def big_manifest(text: Callable[[str], str]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        write_artifact(folder, network(), name="net", input=INPUT)
        file = folder / "manifest.json"
        file.write_bytes(text(file.read_bytes().decode()).encode())

    return make


EXPENSIVE: dict[str, tuple[Callable[[Path], None], str]] = {
    "nested lists": (big_manifest(lambda text: "[" * MEGABYTE), "BadManifest"),
    "empty lists for nodes": (
        big_manifest(replaced('"nodes":[', '"nodes":[' + "[]," * (MEGABYTE // 3))),
        "BadManifest",
    ),
    "empty lists for outputs": (
        big_manifest(replaced('"outputs":[', '"outputs":[' + '"a",' * (MEGABYTE // 4))),
        "TooLarge",
    ),
    "numbers for widths": (big_manifest(replaced('"widths":[', '"widths":[' + "2," * (MEGABYTE // 2))), "TooLarge"),
    "a name of a megabyte": (big_manifest(replaced('"name":"net"', f'"name":"{"a" * MEGABYTE}"')), "BadName"),
    "an op of a megabyte": (big_manifest(replaced('"op":"relu"', f'"op":"{"a" * MEGABYTE}"')), "UnknownOp"),
    "labels": (big_manifest(replaced('"labels":[', '"labels":[' + many('"a%d"') + ",")), "BadInputDescription"),
    "nodes": (
        big_manifest(replaced('"nodes":[', '"nodes":[' + many('{"inputs":["input"],"name":"x%d","op":"relu"}') + ",")),
        "TooLarge",
    ),
    "a sound megabyte of codes": (wide, "accepted"),
    "a sound megabyte of layers": (deep, "accepted"),
}


@pytest.mark.parametrize("case", EXPENSIVE)
def test_a_megabyte_costs_little(tmp_path: Path, case: str) -> None:
    make, expected = EXPENSIVE[case]
    make(tmp_path / "big")
    write_artifact(tmp_path / "small", network(), name="net", input=INPUT)
    run = subprocess.run(
        [sys.executable, "-c", COST, str(tmp_path / "small"), str(tmp_path / "big")],
        capture_output=True,
        text=True,
        check=True,
    )
    verdict, megabytes, seconds = run.stdout.split()
    print(case, verdict, megabytes, seconds)
    assert verdict == expected
    assert float(megabytes) <= 64
    assert float(seconds) <= 1.0


def test_a_header_of_a_megabyte_costs_little() -> None:
    entries = many('"t%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}')
    for header in ("{" + entries + "}", "{" * MEGABYTE, '{"a":' * (MEGABYTE // 5), '{"' + "a" * MEGABYTE):
        content = edit_header(encode_tensors([]), lambda _, header=header: header.encode())
        started = time.process_time()
        with pytest.raises(BadArtifact):
            decode_tensors(content, "file")
        assert time.process_time() - started < 0.5
        tracemalloc.start()
        with pytest.raises(BadArtifact):
            decode_tensors(content, "file")
        assert tracemalloc.get_traced_memory()[1] < 64 * MEGABYTE
        tracemalloc.stop()
