"""Tensor files: a strict subset of safetensors, written and read here.

    8 bytes     length of the header, little endian
    header      {"name":{"dtype":"U8","shape":[64],"data_offsets":[0,64]},...}, spaces up to a multiple of 64 bytes
    data        the tensors one after another, in the order of the header, with nothing between or behind them

Every file that is accepted here is accepted by the safetensors library; the reverse is not so. There is one spelling
of every header, so nothing can hide in it and no two readers can see different tensors.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from bitstrata.errors import (
    BadHeader,
    BadName,
    BadOffsets,
    BadTensorSize,
    BadTensorType,
    DuplicateTensor,
    HeaderTooLarge,
    WrongTensors,
)
from bitstrata.graph.weights import NAME_PATTERN
from bitstrata.limits import (
    MAX_FILE_BYTES,
    MAX_HEADER_BYTES,
    MAX_TENSOR_DIMENSIONS,
    MAX_TENSORS,
    SEGMENT_ALIGNMENT,
)

Type = Literal["U8", "F16", "F32"]
DTYPES: dict[str, np.dtype[Any]] = {"U8": np.dtype("u1"), "F16": np.dtype("<f2"), "F32": np.dtype("<f4")}

#: In front of a weight that a view has for itself.
OWN = "own."

_LENGTH_BYTES = 8
_Size = Annotated[int, msgspec.Meta(ge=0, le=MAX_FILE_BYTES)]


class Tensor(msgspec.Struct, frozen=True):
    """What a header says of a tensor, but its place."""

    name: str
    type: Type
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * DTYPES[self.type].itemsize


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: Annotated[tuple[_Size, ...], msgspec.Meta(max_length=MAX_TENSOR_DIMENSIONS)]
    data_offsets: tuple[_Size, _Size]


_DECODER = msgspec.json.Decoder(Annotated[dict[str, _Entry], msgspec.Meta(max_length=MAX_TENSORS)])


class Layout(msgspec.Struct, frozen=True):
    """The header of a file, and where each tensor starts, counted from the start of the file."""

    header: bytes
    offsets: tuple[int, ...]
    size: int


def lay_out(tensors: Iterable[Tensor]) -> Layout:
    """The one file layout that these tensors have."""
    entries: dict[str, _Entry] = {}
    offsets, end = [], 0
    for tensor in tensors:
        check_tensor_name(tensor.name)
        offsets.append(end)
        end += tensor.size
        entries[tensor.name] = _Entry(tensor.type, tensor.shape, (offsets[-1], end))
    header = _encode_header(entries)
    return Layout(header, tuple(len(header) + offset for offset in offsets), len(header) + end)


def encode_tensors(tensors: Sequence[tuple[Tensor, bytes]]) -> bytes:
    """The bytes of a file with these tensors in this order."""
    layout = lay_out(tensor for tensor, _ in tensors)
    assert all(len(data) == tensor.size for tensor, data in tensors)
    return b"".join([layout.header, *(data for _, data in tensors)])


def decode_tensors(content: bytes | memoryview, file: str) -> dict[str, tuple[Tensor, memoryview]]:
    """The tensors of a file, by name; the data are windows on `content`. Raises on anything out of the ordinary."""
    entries, start = _decode_header(content, file)
    data = memoryview(content)[start:]
    found = {}
    end = 0
    for name, entry in entries.items():
        try:
            check_tensor_name(name)
        except BadName as error:
            raise BadName(f"{file}: {error}") from None
        if entry.dtype not in DTYPES:
            raise BadTensorType(f"{file}: tensor {name!r} is of type {_shown(entry.dtype)}; known are {[*DTYPES]}")
        tensor = Tensor(name, entry.dtype, entry.shape)  # type: ignore[arg-type]
        begin, stop = entry.data_offsets
        if begin != end:
            kind = "overlaps the one before it" if begin < end else "leaves a hole before it"
            raise BadOffsets(f"{file}: tensor {name!r} {kind}: it starts at {begin}, not at {end}")
        if stop - begin != tensor.size:
            raise BadTensorSize(f"{file}: tensor {name!r} of shape {entry.shape} has {stop - begin} bytes")
        if stop > len(data):
            raise BadOffsets(f"{file}: tensor {name!r} ends at {stop}, and there are {len(data)} bytes of data")
        found[name] = (tensor, data[begin:stop])
        end = stop
    if end != len(data):
        raise BadOffsets(f"{file}: {len(data) - end} bytes stand behind the last tensor")
    return found


def decode_expected(content: bytes | memoryview, file: str, expected: Sequence[Tensor]) -> dict[str, memoryview]:
    """As above, for a file that must hold exactly these tensors, in this order."""
    found = decode_tensors(content, file)
    if [tensor for tensor, _ in found.values()] != list(expected):
        missing = [tensor.name for tensor in expected if tensor.name not in found]
        unknown = found.keys() - {tensor.name for tensor in expected}
        raise WrongTensors(
            f"{file} holds other tensors than the graph calls for: missing {missing[:5]}, unknown "
            f"{sorted(unknown)[:5]}, others in another order, type or shape"
        )
    return {name: data for name, (_, data) in found.items()}


def as_array(data: memoryview, type_: Type) -> NDArray[Any]:
    """The flat, read-only array that stands in these bytes."""
    array = np.frombuffer(data, dtype=DTYPES[type_])
    if not (array.dtype.isnative and array.flags.aligned):
        array = array.astype(array.dtype.newbyteorder("="))
        array.flags.writeable = False
    return array


def check_tensor_name(name: str) -> None:
    """Names are those of weights; the name that safetensors keeps for itself is none."""
    if name == "__metadata__" or not re.search(NAME_PATTERN, name.removeprefix(OWN)):
        raise BadName(f"{_shown(name)} cannot be the name of a tensor")


def _encode_header(entries: dict[str, _Entry]) -> bytes:
    header = msgspec.json.encode(entries)
    header += b" " * (-(_LENGTH_BYTES + len(header)) % SEGMENT_ALIGNMENT)
    return len(header).to_bytes(_LENGTH_BYTES, "little") + header


def _decode_header(content: bytes | memoryview, file: str) -> tuple[dict[str, _Entry], int]:
    """What the header says, and where the data start."""
    if len(content) < _LENGTH_BYTES:
        raise BadHeader(f"{file} has {len(content)} bytes, too few for a header")
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length
    if length > MAX_HEADER_BYTES or start > len(content):
        raise HeaderTooLarge(f"{file}: a header of {length} bytes is over the limit or over the end of the file")
    header = bytes(content[_LENGTH_BYTES:start])
    if not header.startswith(b"{"):
        raise BadHeader(f"{file}: the header does not start with {{")
    try:
        entries = _DECODER.decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadHeader(f"{file}: the header is not one of tensors: {_shown(str(error))}") from None
    if _encode_header(entries) != content[:start]:
        _refuse_duplicates(header, file)
        raise BadHeader(f"{file}: the header is not in the one spelling there is")
    return entries, start


def _refuse_duplicates(header: bytes, file: str) -> None:
    """Only after the header was decoded, so that it cannot be nested deeply."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        seen = set()
        for name, _ in pairs:
            if name in seen:
                raise DuplicateTensor(f"{file}: {_shown(name)} is there twice")
            seen.add(name)

    json.loads(header, object_pairs_hook=check)


def _shown(text: str) -> str:
    """Text of a file, as it can be printed."""
    return ascii(text[:200])
