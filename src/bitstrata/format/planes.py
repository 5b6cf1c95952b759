"""Planes as bytes: one bit of every weight, packed eight to a byte, the first weight in the lowest bit.

A weight's planes stand one after another, the most significant first, each in whole bytes; zeros follow up to the
alignment of segments. What they mean is said in `bitstrata.codes`, and the tests hold the two equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from bitstrata.codes import Codes
from bitstrata.errors import NonZeroPadding
from bitstrata.limits import MAX_WIDTH, SEGMENT_ALIGNMENT

Buffer = bytes | memoryview


@dataclass(frozen=True)
class PackedCodes:
    """The codes of one weight as they are stored: leading planes, as many as its width has bits."""

    shape: tuple[int, ...]
    planes: tuple[memoryview, ...]

    def unpack(self) -> Codes:
        """The codes, read-only."""
        codes = unpack_codes(self.planes, math.prod(self.shape)).reshape(self.shape)
        codes.flags.writeable = False
        return codes


def plane_bytes(count: int) -> int:
    """The bytes of one plane of so many weights."""
    return -(-count // 8)


def padded(size: int) -> int:
    """The bytes that a segment of `size` bytes takes."""
    return -(-size // SEGMENT_ALIGNMENT) * SEGMENT_ALIGNMENT


def pack_planes(codes: Codes, bits: int, first: int, last: int) -> bytes:
    """The segment with the planes from `first` up to, not including, `last` of codes with `bits` planes."""
    raw = np.ascontiguousarray(codes, dtype=np.int8).reshape(-1).view(np.uint8)
    packed = b"".join(
        np.packbits(raw & np.uint8(1 << (bits - 1 - plane)), bitorder="little").tobytes()
        for plane in range(first, last)
    )
    return pad(packed)


def pad(data: bytes) -> bytes:
    return data + bytes(padded(len(data)) - len(data))


def split_segment(segment: Buffer, count: int, planes: int) -> list[memoryview]:
    """The single planes of a segment."""
    size = plane_bytes(count)
    window = memoryview(segment)
    return [window[plane * size : (plane + 1) * size] for plane in range(planes)]


def unpack_codes(planes: Iterable[Buffer], count: int) -> Codes:
    """The codes that the given leading planes stand for, flat: `codes.join_planes` in little memory."""
    joined = np.zeros(count, dtype=np.uint8)
    bits = 0
    for plane in planes:
        joined <<= np.uint8(1)
        joined |= np.unpackbits(np.frombuffer(plane, dtype=np.uint8), count=count, bitorder="little")
        bits += 1
    # Move the sign to the top of the byte and back, so that it fills the bits above the code.
    unused = MAX_WIDTH - bits
    joined <<= np.uint8(unused)
    codes = joined.view(np.int8)
    codes >>= np.int8(unused)
    return codes


def check_plane_padding(segment: Buffer, count: int, planes: int, place: str) -> None:
    """Raises where a bit that stands for no weight is set."""
    used = count % 8
    for index, plane in enumerate(split_segment(segment, count, planes)):
        if used and plane[-1] >> used:
            raise NonZeroPadding(f"{place}: plane {index} has bits behind its {count} weights")
    check_padding(segment, planes * plane_bytes(count), place)


def check_padding(segment: Buffer, used: int, place: str) -> None:
    """Raises where a byte behind the first `used` ones is not zero."""
    if any(memoryview(segment)[used:]):
        raise NonZeroPadding(f"{place}: a byte of the padding is not zero")
