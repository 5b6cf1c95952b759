"""Tensor files: what we write others read, what we read others accept, and every defect has its class."""

import json
import random
from collections.abc import Callable

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from format.samples import edit_header
from hypothesis import given, settings
from hypothesis import strategies as st

from bitstrata.errors import (
    BadArtifact,
    BadHeader,
    BadName,
    BadOffsets,
    BadTensorSize,
    BadTensorType,
    BitstrataError,
    DuplicateTensor,
    HeaderTooLarge,
    WrongTensors,
)
from bitstrata.format.tensors import DTYPES, Tensor, as_array, decode_expected, decode_tensors, encode_tensors, lay_out

TENSORS = [
    (Tensor("a.b", "F32", (2, 3)), np.arange(6, dtype="<f4").tobytes()),
    (Tensor("c", "U8", (5,)), bytes(range(5))),
    (Tensor("own.d", "F16", (1,)), np.float16(0.5).tobytes()),
    (Tensor("empty", "U8", (0,)), b""),
]
CONTENT = encode_tensors(TENSORS)
HEADER = int.from_bytes(CONTENT[:8], "little")
HEADED, DATA = CONTENT[8 : 8 + HEADER], CONTENT[8 + HEADER :]


def test_the_bytes() -> None:
    content = encode_tensors([(Tensor("w", "U8", (3,)), b"abc")])
    header = b'{"w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}'
    assert content == (56).to_bytes(8, "little") + header + b" " * (56 - len(header)) + b"abc"


def test_round_trip() -> None:
    found = decode_tensors(CONTENT, "file")
    assert [(tensor, bytes(data)) for tensor, data in found.values()] == TENSORS
    assert all(offset < len(CONTENT) + 1 for offset in lay_out(tensor for tensor, _ in TENSORS).offsets)
    array = as_array(found["a.b"][1], "F32")
    assert array.tolist() == [0, 1, 2, 3, 4, 5]
    assert not array.flags.writeable
    # Behind five bytes nothing is aligned, and it is read all the same.
    assert as_array(found["own.d"][1], "F16").tolist() == [0.5]


def test_the_safetensors_library_reads_what_we_write() -> None:
    found = safetensors.numpy.load(CONTENT)
    assert {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in found.items()} == {
        tensor.name: (DTYPES[tensor.type].str, tensor.shape, data) for tensor, data in TENSORS
    }


tensor_names = st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9_@-]{0,9}\Z").filter(lambda name: name != "__metadata__")


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        tensor_names, st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 5), max_size=4)), max_size=6
    ),
    st.randoms(use_true_random=False),
)
def test_any_tensors_come_back_here_and_there(wanted: dict[str, tuple[str, list[int]]], numbers: random.Random) -> None:
    tensors = []
    for name, (type_, shape) in wanted.items():
        tensor = Tensor(name, type_, tuple(shape))  # type: ignore[arg-type]
        tensors.append((tensor, numbers.randbytes(tensor.size)))
    content = encode_tensors(tensors)
    assert [(tensor, bytes(data)) for tensor, data in decode_tensors(content, "file").values()] == tensors
    assert {name: entry["data"] for name, entry in safetensors.deserialize(content)} == {
        tensor.name: data for tensor, data in tensors
    }


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    assert old in CONTENT
    return lambda content: edit_header(content, lambda header: header.replace(old, new))


def length(claimed: int) -> Callable[[bytes], bytes]:
    return lambda content: claimed.to_bytes(8, "little") + content[8:]


DEFECTS: dict[str, tuple[Callable[[bytes], bytes], type[BitstrataError]]] = {
    "empty": (lambda content: b"", BadHeader),
    "seven bytes": (lambda content: content[:7], BadHeader),
    "length 0": (length(0), BadHeader),
    "length 1": (length(1), BadHeader),
    "length 2^31": (length(2**31), HeaderTooLarge),
    "length 2^32 - 1": (length(2**32 - 1), HeaderTooLarge),
    "length 2^63": (length(2**63), HeaderTooLarge),
    "length 2^64 - 1": (length(2**64 - 1), HeaderTooLarge),
    "longer than the file": (length(len(CONTENT)), HeaderTooLarge),
    "data start unaligned": (lambda content: (HEADER + 1).to_bytes(8, "little") + HEADED + b" " + DATA, BadHeader),
    "space in front": (lambda content: edit_header(content, lambda header: b" " + header), BadHeader),
    "byte order mark": (lambda content: edit_header(content, lambda header: b"\xef\xbb\xbf" + header), BadHeader),
    "space inside": (replaced(b'"c":', b'"c": '), BadHeader),
    "not UTF-8": (replaced(b'"c"', b'"\xff"'), BadHeader),
    "a list": (lambda content: edit_header(content, lambda header: b"[]"), BadHeader),
    "no JSON": (lambda content: edit_header(content, lambda header: header[:-1]), BadHeader),
    "deeply nested": (lambda content: edit_header(content, lambda header: b'{"c":' * 10_000), BadHeader),
    "deeply nested in an unknown field": (replaced(b'"dtype":"U8"', b'"z":' + b"[" * 10_000), BadHeader),
    "unknown field": (replaced(b'"dtype":"U8"', b'"dtype":"U8","more":1'), BadHeader),
    "keys in another order": (
        replaced(b'{"dtype":"U8","shape":[5],', b'{"shape":[5],"dtype":"U8",'),
        BadHeader,
    ),
    "metadata": (replaced(b'{"a.b"', b'{"__metadata__":{"a":"b"},"a.b"'), BadHeader),
    "a tensor named like metadata": (replaced(b'"a.b"', b'"__metadata__"'), BadName),
    "unknown type": (replaced(b'"F16"', b'"I16"'), BadTensorType),
    "type with escape sequence": (replaced(b'"F16"', b'"\\u001b[31m"'), BadTensorType),
    "duplicate": (replaced(b'"c"', b'"a.b"'), DuplicateTensor),
    "escaped duplicate": (replaced(b'"c"', b'"\\u0061.b"'), DuplicateTensor),
    "overlap": (replaced(b"[24,29]", b"[23,28]"), BadOffsets),
    "hole": (replaced(b"[24,29]", b"[25,30]"), BadOffsets),
    "swapped offsets": (replaced(b"[24,29]", b"[29,24]"), BadOffsets),
    "all at the start": (replaced(b"[24,29]", b"[0,5]"), BadOffsets),
    "one byte more": (lambda content: content + b"x", BadOffsets),
    "one byte less": (lambda content: content[:-1], BadOffsets),
    "shape one more": (replaced(b"[5]", b"[6]"), BadTensorSize),
    "shape one less": (replaced(b"[5]", b"[4]"), BadTensorSize),
    "another shape of the wrong size": (replaced(b"[2,3]", b"[2,3,2]"), BadTensorSize),
    "shape of zero": (replaced(b"[5]", b"[0]"), BadTensorSize),
    "negative shape": (replaced(b"[5]", b"[-5]"), BadHeader),
    "two negative sizes": (replaced(b"[2,3]", b"[-2,-3]"), BadHeader),
    "shape of 2^62": (replaced(b"[5]", b"[4611686018427387904]"), BadHeader),
    "shape of many digits": (replaced(b"[5]", b"[" + b"9" * 4000 + b"]"), BadHeader),
    "shape of too many digits": (replaced(b"[5]", b"[" + b"9" * 40_000 + b"]"), BadHeader),
    "a product that wraps to the right size": (
        replaced(b'[5],"data_offsets":[24,29]', b'[5,68719476736,68719476736,16],"data_offsets":[24,29]'),
        BadTensorSize,
    ),
    "five dimensions": (replaced(b"[2,3]", b"[1,1,1,2,3]"), BadHeader),
    "offset of 2^64": (replaced(b"[24,29]", b"[24,18446744073709551616]"), BadHeader),
    "offset as a float": (replaced(b"[24,29]", b"[24,29.0]"), BadHeader),
    "name with dots": (replaced(b'"c"', b'"../c"'), BadName),
    "name with NUL": (replaced(b'"c"', b'"c\\u0000"'), BadName),
    "name with newline": (replaced(b'"c"', b'"c\\n"'), BadName),
    "name with slash": (replaced(b'"c"', b'"/c"'), BadName),
    "name with drive": (replaced(b'"c"', b'"C:\\\\c"'), BadName),
    "name that turns the direction": (replaced(b'"c"', '"a\u202eb"'.encode()), BadName),
    "empty name": (replaced(b'"c"', b'""'), BadName),
    "name of 300": (replaced(b'"c"', b'"' + b"c" * 300 + b'"'), BadName),
}


@pytest.mark.parametrize("case", DEFECTS)
def test_every_defect_has_its_class(case: str) -> None:
    damage, expected = DEFECTS[case]
    with pytest.raises(expected) as caught:
        decode_tensors(damage(CONTENT), "file.safetensors")
    assert type(caught.value) is expected
    assert "file.safetensors" in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


def test_too_many_tensors() -> None:
    entries = {f"t{index}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for index in range(9000)}
    header = json.dumps(entries, separators=(",", ":")).encode()
    with pytest.raises(BadHeader, match="length"):
        decode_tensors(edit_header(encode_tensors([]), lambda _: header), "file")


def test_truncated_at_every_byte() -> None:
    for end in range(len(CONTENT)):
        with pytest.raises(BadArtifact):
            decode_tensors(CONTENT[:end], "file")


def accepted(content: bytes) -> dict[str, tuple[Tensor, bytes]] | None:
    try:
        return {name: (tensor, bytes(data)) for name, (tensor, data) in decode_tensors(content, "file").items()}
    except BitstrataError:
        return None


def accepted_upstream(content: bytes) -> dict[str, bytes] | None:
    try:
        return {name: entry["data"] for name, entry in safetensors.deserialize(content)}
    except safetensors.SafetensorError:
        return None


def test_every_bit_of_the_header_flipped() -> None:
    """We may refuse more than the safetensors library, and never accept what it refuses or reads otherwise."""
    ours = 0
    for bit in range((8 + HEADER) * 8):
        damaged = bytearray(CONTENT)
        damaged[bit // 8] ^= 1 << bit % 8
        found = accepted(bytes(damaged))
        if found is not None:
            ours += 1
            assert {name: data for name, (_, data) in found.items()} == accepted_upstream(bytes(damaged))
            with pytest.raises(WrongTensors):
                decode_expected(bytes(damaged), "file", [tensor for tensor, _ in TENSORS])
    # Other letters in names are all that is left.
    assert ours <= 8 * sum(len(tensor.name) for tensor, _ in TENSORS)


def test_header_claims_are_judged_no_laxer_than_upstream() -> None:
    for damage, _ in DEFECTS.values():
        assert accepted(damage(CONTENT)) is None
    # And on what upstream refuses among random edits, so do we.
    numbers = random.Random(0)
    for _ in range(3000):
        damaged = bytearray(CONTENT)
        for _ in range(numbers.randint(1, 3)):
            place = numbers.randrange(len(damaged))
            match numbers.randrange(4):
                case 0:
                    damaged[place] = numbers.randrange(256)
                case 1:
                    del damaged[place : place + numbers.randint(1, 9)]
                case 2:
                    damaged[place:place] = damaged[place - 9 : place]
                case 3:
                    damaged[place] = ord(numbers.choice('0123456789{}[]",: -'))
        found = accepted(bytes(damaged))
        if found is not None:
            assert {name: data for name, (_, data) in found.items()} == accepted_upstream(bytes(damaged))


@pytest.mark.parametrize(
    "wanted",
    [
        [tensor for tensor, _ in TENSORS[:-1]],
        [tensor for tensor, _ in reversed(TENSORS)],
        [Tensor("a.b", "F32", (3, 2)), *(tensor for tensor, _ in TENSORS[1:])],
        [*(tensor for tensor, _ in TENSORS), Tensor("more", "U8", (1,))],
    ],
)
def test_other_tensors_than_expected(wanted: list[Tensor]) -> None:
    with pytest.raises(WrongTensors, match="file"):
        decode_expected(CONTENT, "file", wanted)


def test_a_weight_cannot_be_named_like_metadata() -> None:
    with pytest.raises(BadName):
        lay_out([Tensor("__metadata__", "U8", (1,))])
