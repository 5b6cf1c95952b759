"""Planes as bytes: the layout bit by bit, and equality with the arithmetic of `codes`."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitstrata import codes
from bitstrata.errors import NonZeroPadding
from bitstrata.format.planes import (
    check_plane_padding,
    pack_planes,
    padded,
    plane_bytes,
    split_segment,
    unpack_codes,
)


def test_the_first_weight_is_the_lowest_bit_and_the_sign_plane_comes_first() -> None:
    # 3 bits: -4 = 100, 3 = 011, -1 = 111, and six zeros that reach into a second byte.
    values = np.array([-4, 3, -1, 0, 0, 0, 0, 0, 1], dtype=np.int8)
    packed = pack_planes(values, 3, 0, 3)
    assert packed[:6] == bytes([0b101, 0, 0b110, 0, 0b110, 0b1])
    assert packed == packed[:6] + bytes(58)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(2, 8), st.integers(0, 200))
def test_planes_are_those_of_the_arithmetic(data: st.DataObject, source: int, count: int) -> None:
    low, high = codes.code_range(source)
    values = np.array(data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count)), dtype=np.int8)
    cut = data.draw(st.integers(1, source - 1))
    segments = [(pack_planes(values, source, 0, cut), cut), (pack_planes(values, source, cut, source), source - cut)]
    planes = [plane for segment, number in segments for plane in split_segment(segment, count, number)]
    expected = codes.split_planes(values, source)
    for plane, bits in zip(planes, expected, strict=True):
        assert bytes(plane) == np.packbits(bits, bitorder="little").tobytes()
    for segment, number in segments:
        assert len(segment) == padded(number * plane_bytes(count))
        check_plane_padding(segment, count, number, "here")
    for bits in range(2, source + 1):
        found = unpack_codes(planes[:bits], count)
        assert np.array_equal(found, codes.shift_down(values, source, bits))
        assert np.array_equal(found, codes.join_planes(expected[:bits]))


@pytest.mark.parametrize("count", [1, 7, 8, 9, 64, 513])
@pytest.mark.parametrize("planes", [1, 2, 5])
def test_every_bit_that_stands_for_no_weight_is_checked(count: int, planes: int) -> None:
    segment = pack_planes(np.full(count, -1, dtype=np.int8), planes, 0, planes)
    check_plane_padding(segment, count, planes, "here")
    meaningful = {plane * plane_bytes(count) * 8 + bit for plane in range(planes) for bit in range(count)}
    for bit in range(len(segment) * 8):
        damaged = bytearray(segment)
        damaged[bit // 8] ^= 1 << bit % 8
        if bit in meaningful:
            check_plane_padding(bytes(damaged), count, planes, "here")
        else:
            with pytest.raises(NonZeroPadding, match="here"):
                check_plane_padding(bytes(damaged), count, planes, "here")
