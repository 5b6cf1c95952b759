"""The arithmetic of vertical layering, on NumPy integers.

This file is the one home of it: ranges, compensation and steps are imported from here everywhere, and the torch
and C++ tensor code is tested equal to the functions below. With source width K, width b and m = K - b dropped bits:

    source code     q_K = clip(round(w / s), -2^(K-1), 2^(K-1) - 1)             eq. 1 of the paper
    shift down      q_b = floor(q_K / 2^m)                                      section 4.1, D applied m times
    step            s_b = 2^m s                                                 eq. 3
    compensation    z_b = (1 - 2^-m) / 2, the midpoint of a merged bucket       eq. 5, section 6.1
    weight          (q_b + z_b) s_b = (2^(m+1) q_b + 2^m - 1) s / 2

Planes go from the most to the least significant bit. The first plane is the sign bit of the two's complement.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bitstrata.errors import BadCodes, BadWidths
from bitstrata.limits import MAX_WIDTH, MIN_WIDTH

Codes = NDArray[np.int8]
Planes = NDArray[np.uint8]


def check_widths(widths: Iterable[int]) -> tuple[int, ...]:
    """The widths as a tuple, or `BadWidths`: whole numbers from 2 to 8, strictly increasing, at least one."""
    checked = tuple(widths)
    if not checked:
        raise BadWidths("no widths given; use for example widths=(2, 3, 4)")
    for width in checked:
        if isinstance(width, bool) or not isinstance(width, (int, np.integer)):
            raise BadWidths(f"width {width!r} is not a whole number of bits; use for example widths=(2, 3, 4)")
        if width == 1:
            raise BadWidths(
                "width 1 is refused: a one-bit network needs an architecture of its own, so its plane would be of no "
                "use to the widths above it. The lowest base width is 2"
            )
        if not MIN_WIDTH <= width <= MAX_WIDTH:
            raise BadWidths(f"width {width} is outside {MIN_WIDTH} to {MAX_WIDTH} bits")
    if any(low >= high for low, high in itertools.pairwise(checked)):
        raise BadWidths(f"widths {checked} must be strictly increasing, for example (2, 3, 4)")
    return tuple(int(width) for width in checked)


def code_range(bits: int) -> tuple[int, int]:
    """The lowest and highest signed code of a width, both inclusive: (-Q_N, Q_P) of eq. 1."""
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def activation_top(bits: int) -> int:
    """The highest activation code; the lowest is always 0."""
    return (1 << bits) - 1


def dropped_bits(source_bits: int, bits: int) -> int:
    """m, how many planes of the source are not there at width `bits`."""
    if not MIN_WIDTH <= bits <= source_bits <= MAX_WIDTH:
        raise BadWidths(f"width {bits} cannot be had from a source of {source_bits} bits")
    return source_bits - bits


def compensation(source_bits: int, bits: int) -> float:
    """z_b, the exact midpoint of the source codes that share one code at width `bits` (section 6.1)."""
    return (1.0 - 2.0 ** -dropped_bits(source_bits, bits)) / 2.0


def step_factor(source_bits: int, bits: int) -> int:
    """2^m, by which the source step is multiplied to give the step at width `bits` (eq. 3)."""
    return 1 << dropped_bits(source_bits, bits)


def quantise(weights: ArrayLike, step: ArrayLike, source_bits: int) -> Codes:
    """Source codes q_K (eq. 1); `step` is a scalar or broadcasts against the weights. Half rounds to even.

    Computed in float32 as a product with the rounded inverse step, as every other implementation here does.
    """
    low, high = code_range(source_bits)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # what they warn of is refused below
        inverse_step = np.float32(1.0) / np.asarray(step, dtype=np.float32)
        scaled = np.asarray(weights, dtype=np.float32) * inverse_step
    if not np.isfinite(scaled).all():
        raise BadCodes("weights or steps are not finite, so they have no codes")
    return np.clip(np.rint(scaled), low, high).astype(np.int8)


def shift_down(source_codes: ArrayLike, source_bits: int, bits: int) -> Codes:
    """The codes of width `bits`: an arithmetic right shift, which is the floor of section 4.1."""
    return _checked(source_codes, source_bits) >> dropped_bits(source_bits, bits)


def split_planes(codes: ArrayLike, bits: int) -> Planes:
    """One array of 0 and 1 per bit, stacked in front, most significant (the sign) first."""
    raw = _checked(codes, bits).view(np.uint8)
    places = np.arange(bits - 1, -1, -1, dtype=np.uint8).reshape((bits,) + (1,) * raw.ndim)
    return (raw >> places) & np.uint8(1)


def join_planes(planes: ArrayLike | Sequence[ArrayLike]) -> Codes:
    """The codes that the given leading planes stand for: eq. 4, with as many bits as there are planes."""
    stack = np.asarray(planes)
    bits = stack.shape[0] if stack.ndim else 0
    if not 1 <= bits <= MAX_WIDTH:
        raise BadCodes(f"{bits} planes do not make a code; 1 to {MAX_WIDTH} do")
    if not np.logical_or(stack == 0, stack == 1).all():
        raise BadCodes("a plane holds only 0 and 1")
    bytes_of_planes = stack.astype(np.uint8)
    joined = np.zeros(stack.shape[1:], dtype=np.uint8)
    for plane in bytes_of_planes:
        joined = (joined << np.uint8(1)) | plane
    # Move the sign to the top of the byte and back, so that it fills the bits above the code.
    unused = MAX_WIDTH - bits
    return (joined << np.uint8(unused)).view(np.int8) >> np.int8(unused)


def odd_integers(codes: ArrayLike, source_bits: int, bits: int) -> NDArray[np.int16]:
    """2^(m+1) q_b + 2^m - 1: the de-quantised weight in units of half a source step, exactly."""
    dropped = dropped_bits(source_bits, bits)
    wide = _checked(codes, bits).astype(np.int16)
    return (wide << np.int16(dropped + 1)) + np.int16((1 << dropped) - 1)


def dequantise(codes: ArrayLike, step: ArrayLike, source_bits: int, bits: int) -> NDArray[np.float64]:
    """(q_b + z_b) s_b (eq. 5), from the *source* step; exact in float64 up to the one product."""
    return odd_integers(codes, source_bits, bits) * (np.asarray(step, dtype=np.float64) / 2.0)


def quantise_activations(values: ArrayLike, step: float, zero_point: int, bits: int) -> Planes:
    """Unsigned codes u = clamp(rint(a / s_a) + o, 0, 2^b - 1)."""
    inverse_step = np.float32(1.0) / np.float32(step)
    scaled = np.rint(np.asarray(values, dtype=np.float32) * inverse_step)
    unsigned: Planes = np.clip(scaled + np.float32(zero_point), 0, activation_top(bits)).astype(np.uint8)
    return unsigned


def dequantise_activations(codes: ArrayLike, step: float, zero_point: int) -> NDArray[np.float32]:
    """(u - o) s_a."""
    return (np.asarray(codes, dtype=np.float32) - np.float32(zero_point)) * np.float32(step)


def _checked(codes: ArrayLike, bits: int) -> Codes:
    """The codes as int8, after making sure that they are integers in the range of their width."""
    array = np.asarray(codes)
    if not np.issubdtype(array.dtype, np.integer):
        raise BadCodes(f"codes are integers, not {array.dtype}")
    low, high = code_range(bits)
    if array.size and (array.min() < low or array.max() > high):
        raise BadCodes(f"codes from {array.min()} to {array.max()} do not fit {bits} bits ({low} to {high})")
    return array.astype(np.int8)
