"""A multiplication and an addition give every accumulator the code that the epilogue defines, or are not used."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

_native = pytest.importorskip("bitstrata._native")

MOST = 20_000
MANY = 1 << 20
BOUNDS = {"none": (-np.inf, np.inf), "relu": (0.0, np.inf), "relu6": (0.0, 6.0)}


def lines_of(scale, bias, inverse, zero_point=0, top=15, activation="relu", most=MOST):
    table = np.stack([np.atleast_1d(scale), np.atleast_1d(bias)]).astype(np.float32)
    buffer = _native.Buffer(0, (1, 1, 1, table.shape[1]), (0, 0, 0, 0), True)
    return _native.code_lines(table, most, _native.Output(buffer, inverse, zero_point, top), activation)


def numbers(most):
    return np.arange(-most, most + 1, dtype=np.int32).astype(np.float32)


def defined(scale, bias, inverse, zero_point, top, activation, most=MOST):
    """Operation for operation what the reference does, in single precision."""
    low, high = BOUNDS[activation]
    y = numbers(most) * np.float32(scale) + np.float32(bias)
    y = np.clip(y, np.float32(low), np.float32(high)) * np.float32(inverse)
    return np.clip(np.rint(y).astype(np.int64) + zero_point, 0, top)


def by_line(slope, offset, zero_point, top, inverse, activation, most=MOST):
    """A fused multiply-add: the long product is exact, and its sum has bits to spare."""
    y = numbers(most).astype(np.longdouble) * np.longdouble(slope) + np.longdouble(offset)
    low, high = BOUNDS[activation]
    last = min(top, zero_point + int(np.rint(np.float32(high) * np.float32(inverse)))) if high < np.inf else top
    return np.clip(np.rint(y.astype(np.float32)).astype(np.int64), zero_point if low == 0.0 else 0, last)


@given(
    scale=st.floats(-1.0, 1.0, width=32),
    bias=st.floats(-50.0, 50.0, width=32),
    inverse=st.floats(0.0625, 64.0, width=32),
    top=st.sampled_from([3, 7, 15, 255]),
    centred=st.booleans(),
    activation=st.sampled_from(sorted(BOUNDS)),
)
def test_a_line_gives_every_accumulator_its_code(scale, bias, inverse, top, centred, activation):
    zero_point = top // 2 + 1 if centred else 0
    lines = lines_of(scale, bias, inverse, zero_point, top, activation)
    if lines is None:
        return
    np.testing.assert_array_equal(
        by_line(*lines[0], zero_point, top, inverse, activation),
        defined(scale, bias, inverse, zero_point, top, activation),
    )


def test_channels_whose_plain_line_is_wrong_somewhere_get_another():
    random = np.random.default_rng(0)
    scale, bias = random.uniform(1e-5, 1e-4, 400).astype(np.float32), random.normal(size=400).astype(np.float32)
    inverse = np.float32(3.7)
    lines = lines_of(scale, bias, float(inverse), most=MANY)
    assert lines is not None
    plain = (bias.astype(np.float64) * np.float64(inverse)).astype(np.float32)
    moved = np.flatnonzero(np.array([offset for _, offset in lines], dtype=np.float32) != plain)
    assert 0 < moved.size < 200
    for channel in moved[:8]:
        expected = defined(scale[channel], bias[channel], inverse, 0, 15, "relu", MANY)
        slope, offset = lines[channel]
        np.testing.assert_array_equal(by_line(slope, offset, 0, 15, inverse, "relu", MANY), expected)
        assert (by_line(slope, plain[channel], 0, 15, inverse, "relu", MANY) != expected).any()


@pytest.mark.parametrize("scale", [0.5, -0.5, 0.25, 0.0])
@pytest.mark.parametrize("bias", [0.0, 0.5, -1.5])
def test_halves_are_rounded_to_even(scale, bias):
    lines = lines_of(scale, bias, 1.0)
    assert lines is not None
    np.testing.assert_array_equal(by_line(*lines[0], 0, 15, 1.0, "relu"), defined(scale, bias, 1.0, 0, 15, "relu"))


@pytest.mark.parametrize(
    "case",
    [
        {"scale": np.nan},
        {"scale": np.inf},
        {"bias": np.nan},
        {"scale": 1e30},
        {"most": 1 << 24},
        {"activation": "silu"},
        {"inverse": 0.0},
        {"inverse": -4.0},
        {"scale": [0.01, np.nan]},
    ],
)
def test_no_line_where_none_is_proven(case):
    channels = np.size(case.get("scale", 0.0))
    usual = {"scale": np.full(channels, 0.01), "bias": np.zeros(channels), "inverse": 4.0}
    if "bias" in case:
        case = {**case, "bias": np.full(channels, case["bias"])}
    assert lines_of(**usual) is not None
    assert lines_of(**{**usual, **case}) is None
