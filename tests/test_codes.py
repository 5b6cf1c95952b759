"""The arithmetic: planes, shifts, compensation and steps, for every set of widths and any shape."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bitstrata import codes
from bitstrata.errors import BadCodes, BadWidths, BitstrataError

ALL_WIDTHS = range(2, 9)
WIDTH_SETS = [chosen for count in range(1, 8) for chosen in combinations(ALL_WIDTHS, count)]
PAIRS = [(source, bits) for source in ALL_WIDTHS for bits in ALL_WIDTHS if bits <= source]

# Up to three dimensions, any of which may be empty; () is a single number.
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
SEEDS = st.integers(0, 2**32 - 1)
# Other work on the machine must not fail a property.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def random_codes(bits: int, shape: tuple[int, ...], seed: int) -> NDArray[np.int8]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)
    return np.asarray(np.random.default_rng(seed).integers(low, high, size=shape), dtype=np.int8)


def every_code(bits: int) -> NDArray[np.int8]:
    return np.arange(-(2 ** (bits - 1)), 2 ** (bits - 1)).astype(np.int8)


# Widths


def test_every_increasing_set_of_widths_is_accepted() -> None:
    assert len(WIDTH_SETS) == 127
    for widths in WIDTH_SETS:
        assert codes.check_widths(widths) == widths


def test_widths_come_back_as_a_tuple_of_plain_numbers() -> None:
    checked = codes.check_widths(np.array([2, 5, 8]))
    assert checked == (2, 5, 8)
    assert [type(width) for width in checked] == [int, int, int]
    assert codes.check_widths(width for width in (3, 4)) == (3, 4)


@pytest.mark.parametrize(
    ("widths", "says"),
    [
        ((), "no widths"),
        ((1,), "width 1 is refused"),
        ((1, 2, 4), "width 1 is refused"),
        ((0, 2), "width 0 is outside 2 to 8"),
        ((2, 9), "width 9 is outside 2 to 8"),
        ((-4, 4), "width -4 is outside"),
        ((4, 3), "strictly increasing"),
        ((2, 3, 3), "strictly increasing"),
        ((True, 2), "True is not a whole number"),
        ((2.0, 4.0), "2.0 is not a whole number"),
        (("2", "4"), "'2' is not a whole number"),
        ((2, None), "None is not a whole number"),
    ],
)
def test_impossible_widths_are_refused_with_the_reason(widths: Any, says: str) -> None:
    with pytest.raises(BadWidths, match=says) as caught:
        codes.check_widths(widths)
    assert isinstance(caught.value, BitstrataError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("source", "bits"), [(4, 5), (4, 1), (9, 4), (9, 9), (1, 1)])
def test_a_width_that_the_source_does_not_hold_is_refused(source: int, bits: int) -> None:
    message = f"width {bits} cannot be had from a source of {source} bits"
    with pytest.raises(BadWidths, match=message):
        codes.dropped_bits(source, bits)
    with pytest.raises(BadWidths, match=message):
        codes.compensation(source, bits)
    with pytest.raises(BadWidths, match=message):
        codes.step_factor(source, bits)
    with pytest.raises(BadWidths, match=message):
        codes.shift_down([0], source, bits)
    with pytest.raises(BadWidths, match=message):
        codes.odd_integers([0], source, bits)


@pytest.mark.parametrize("bits", ALL_WIDTHS)
def test_ranges(bits: int) -> None:
    assert codes.code_range(bits) == (-(2**bits) // 2, 2**bits // 2 - 1)
    assert codes.activation_top(bits) == 2**bits - 1


# Planes


@unhurried
@given(widths=st.sampled_from(WIDTH_SETS), shape=SHAPES, seed=SEEDS)
@example(widths=(2, 8), shape=(), seed=0)
@example(widths=(2, 3, 4), shape=(0,), seed=0)
@example(widths=(8,), shape=(2, 0, 3), seed=0)
def test_the_first_planes_alone_give_the_shifted_down_code(
    widths: tuple[int, ...], shape: tuple[int, ...], seed: int
) -> None:
    source_bits = widths[-1]
    source = random_codes(source_bits, shape, seed)
    planes = codes.split_planes(source, source_bits)
    assert planes.shape == (source_bits, *shape)
    assert planes.dtype == np.uint8
    for bits in widths:
        shifted = codes.shift_down(source, source_bits, bits)
        joined = codes.join_planes(planes[:bits])
        assert shifted.dtype == joined.dtype == np.int8
        assert shifted.shape == joined.shape == shape
        np.testing.assert_array_equal(shifted, np.floor(source / 2.0 ** (source_bits - bits)))
        np.testing.assert_array_equal(joined, shifted)
        # And the planes of the shifted code are the first planes of the source: nothing is stored twice.
        np.testing.assert_array_equal(codes.split_planes(shifted, bits), planes[:bits])


@pytest.mark.parametrize(("source", "bits"), PAIRS)
def test_every_single_code_shifts_down_to_its_first_planes(source: int, bits: int) -> None:
    every = every_code(source)
    shifted = codes.shift_down(every, source, bits)
    np.testing.assert_array_equal(shifted, every.astype(int) // 2 ** (source - bits))
    np.testing.assert_array_equal(codes.join_planes(codes.split_planes(every, source)[:bits]), shifted)
    assert (shifted.min(), shifted.max()) == codes.code_range(bits)


@unhurried
@given(bits=st.sampled_from(ALL_WIDTHS), shape=SHAPES, seed=SEEDS)
def test_splitting_and_joining_is_the_identity(bits: int, shape: tuple[int, ...], seed: int) -> None:
    source = random_codes(bits, shape, seed)
    np.testing.assert_array_equal(codes.join_planes(codes.split_planes(source, bits)), source, strict=True)
    planes = np.random.default_rng(seed).integers(0, 2, size=(bits, *shape)).astype(np.uint8)
    np.testing.assert_array_equal(codes.split_planes(codes.join_planes(planes), bits), planes, strict=True)


@unhurried
@given(widths=st.sampled_from(WIDTH_SETS), shape=SHAPES, seed=SEEDS)
def test_an_enhance_plane_is_what_doubling_the_lower_code_leaves_over(
    widths: tuple[int, ...], shape: tuple[int, ...], seed: int
) -> None:
    source_bits = widths[-1]
    source = random_codes(source_bits, shape, seed)
    planes = codes.split_planes(source, source_bits)
    for bits in range(widths[0] + 1, source_bits + 1):
        lower = codes.shift_down(source, source_bits, bits - 1).astype(int)
        here = codes.shift_down(source, source_bits, bits).astype(int)
        np.testing.assert_array_equal(planes[bits - 1], here - 2 * lower)


def test_planes_of_known_codes() -> None:
    planes = codes.split_planes([-8, -1, 0, 5], 4)
    np.testing.assert_array_equal(planes, [[1, 1, 0, 0], [0, 1, 0, 1], [0, 1, 0, 0], [0, 1, 0, 1]])
    np.testing.assert_array_equal(codes.join_planes([[1, 1, 0, 0], [0, 1, 0, 1]]), [-2, -1, 0, 1])


def test_one_plane_is_the_sign() -> None:
    np.testing.assert_array_equal(codes.join_planes([[0, 1]]), [0, -1])


def test_the_inputs_are_left_alone() -> None:
    source = every_code(4)
    planes = codes.split_planes(source, 4)
    codes.shift_down(source, 4, 2)[...] = 0
    codes.join_planes(planes)[...] = 0
    np.testing.assert_array_equal(source, every_code(4))
    np.testing.assert_array_equal(planes, codes.split_planes(every_code(4), 4))


# Compensation and steps


@pytest.mark.parametrize(("source", "bits"), PAIRS)
def test_compensation_is_the_midpoint_of_the_merged_bucket(source: int, bits: int) -> None:
    every = every_code(source)
    shifted = codes.shift_down(every, source, bits)
    offset, factor = codes.compensation(source, bits), codes.step_factor(source, bits)
    for code in every_code(bits):
        merged = every[shifted == code].astype(float)
        assert len(merged) == factor
        # In units of the width's step. Both sides are exact in binary.
        assert merged.mean() / factor == code + offset


def test_compensations_of_the_paper() -> None:
    assert [codes.compensation(4, bits) for bits in (2, 3, 4)] == [0.375, 0.25, 0.0]
    assert [codes.step_factor(4, bits) for bits in (2, 3, 4)] == [4, 2, 1]


@pytest.mark.parametrize(("source", "bits"), PAIRS)
def test_odd_integers_are_the_weight_in_half_source_steps(source: int, bits: int) -> None:
    every = every_code(bits)
    integers = codes.odd_integers(every, source, bits)
    assert integers.dtype == np.int16
    dropped = source - bits
    np.testing.assert_array_equal(integers, 2 ** (dropped + 1) * every.astype(int) + 2**dropped - 1)
    in_half_steps = (every + codes.compensation(source, bits)) * codes.step_factor(source, bits) * 2
    np.testing.assert_array_equal(integers, in_half_steps)
    assert bool((integers % 2 == (1 if dropped else 0)).all())


@unhurried
@given(
    widths=st.sampled_from(WIDTH_SETS),
    shape=SHAPES,
    seed=SEEDS,
    step=st.floats(2.0**-20, 2.0**20, allow_subnormal=False),
)
def test_dequantise_is_code_plus_compensation_times_step(
    widths: tuple[int, ...], shape: tuple[int, ...], seed: int, step: float
) -> None:
    source = random_codes(widths[-1], shape, seed)
    for bits in widths:
        shifted = codes.shift_down(source, widths[-1], bits)
        step_of_width = step * 2.0 ** (widths[-1] - bits)
        weights = codes.dequantise(shifted, step, widths[-1], bits)
        # The bracket is exact and the powers of two move no digit, so both sides round the same product once.
        np.testing.assert_array_equal(weights, (shifted + codes.compensation(widths[-1], bits)) * step_of_width)


def test_dequantise_takes_a_step_for_each_channel() -> None:
    weights = codes.dequantise([[1, -2], [1, -2]], np.array([[0.5], [3.0]]), 4, 2)
    np.testing.assert_array_equal(weights, [[2.75, -3.25], [16.5, -19.5]])


@unhurried
@given(bits=st.sampled_from(ALL_WIDTHS), shape=SHAPES, seed=SEEDS)
def test_a_quantised_weight_lies_within_half_a_step_or_is_clipped(bits: int, shape: tuple[int, ...], seed: int) -> None:
    generator = np.random.default_rng(seed)
    step = np.float32(generator.uniform(0.01, 10.0))
    weights = (generator.normal(size=shape) * step * 2**bits / 3).astype(np.float32)
    source = codes.quantise(weights, step, bits)
    assert source.dtype == np.int8
    assert source.shape == shape
    low, high = codes.code_range(bits)
    scaled = weights.astype(np.float64) / float(step)
    assert bool((np.abs(np.clip(scaled, low, high) - source) <= 0.5 + 1e-4).all())


def test_half_rounds_to_even_and_the_range_clips() -> None:
    weights = np.array([-9.0, -8.5, -7.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 6.5, 7.5, 100.0]) * 0.25
    np.testing.assert_array_equal(codes.quantise(weights, 0.25, 4), [-8, -8, -8, -2, -2, 0, 0, 2, 2, 6, 7, 7])


def test_quantise_takes_a_step_for_each_channel() -> None:
    weights = np.full((2, 3), 3.0)
    np.testing.assert_array_equal(codes.quantise(weights, [[1.0], [2.0]], 4), [[3, 3, 3], [2, 2, 2]])


@pytest.mark.parametrize(
    ("weights", "step"),
    [([np.nan, 1.0], 1.0), ([np.inf], 1.0), ([1.0], 0.0), ([0.0], 0.0), ([1.0], np.nan), ([1e30], 1e-30)],
)
def test_weights_without_codes_are_refused(weights: list[float], step: float) -> None:
    with pytest.raises(BadCodes, match="not finite"):
        codes.quantise(weights, step, 4)


# Activations


@pytest.mark.parametrize("bits", ALL_WIDTHS)
def test_activation_codes_cover_their_range_and_come_back(bits: int) -> None:
    top = 2**bits - 1
    for zero_point in {0, 1, 2 ** (bits - 1)}:
        every = np.arange(top + 1)
        values = codes.dequantise_activations(every, 0.5, zero_point)
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, (every - zero_point) * 0.5)
        again = codes.quantise_activations(values, 0.5, zero_point, bits)
        assert again.dtype == np.uint8
        np.testing.assert_array_equal(again, every)
        beyond = codes.quantise_activations([-1e30, 1e30], 0.5, zero_point, bits)
        np.testing.assert_array_equal(beyond, [0, top])


def test_activations_round_half_to_even_before_the_zero_point_is_added() -> None:
    np.testing.assert_array_equal(codes.quantise_activations([0.5, 1.5, 2.5, -0.5, -1.5], 1.0, 3, 4), [3, 5, 5, 3, 1])


@unhurried
@given(shape=SHAPES, seed=SEEDS, bits=st.sampled_from(ALL_WIDTHS))
def test_activation_error_is_half_a_step_inside_the_range(shape: tuple[int, ...], seed: int, bits: int) -> None:
    generator = np.random.default_rng(seed)
    step, zero_point = float(np.float32(generator.uniform(0.01, 2.0))), int(generator.integers(0, 2 ** (bits - 1) + 1))
    values = generator.uniform(-zero_point * step, (2**bits - 1 - zero_point) * step, size=shape)
    found = codes.dequantise_activations(codes.quantise_activations(values, step, zero_point, bits), step, zero_point)
    assert found.shape == shape
    assert bool((np.abs(found - values) <= step * 0.5 * (1 + 1e-4)).all())


# Errors


@pytest.mark.parametrize("bits", ALL_WIDTHS)
def test_codes_outside_their_width_are_refused(bits: int) -> None:
    low, high = codes.code_range(bits)
    for beyond in (low - 1, high + 1, 1000):
        with pytest.raises(BadCodes, match=f"do not fit {bits} bits"):
            codes.split_planes([0, beyond], bits)
        with pytest.raises(BadCodes, match=f"do not fit {bits} bits"):
            codes.shift_down(beyond, bits, 2)
        with pytest.raises(BadCodes, match=f"do not fit {bits} bits"):
            codes.odd_integers([beyond], 8, bits)


@pytest.mark.parametrize("array", [[1.0, 0.0], [True, False], ["1"], [np.nan]])
def test_codes_that_are_no_integers_are_refused(array: list[Any]) -> None:
    with pytest.raises(BadCodes, match="codes are integers"):
        codes.split_planes(array, 4)


@pytest.mark.parametrize("planes", [[[0, 2]], [[0, -1], [1, 1]], [[0, 255]], [[0.5, 1.0]], [[np.nan, 0.0]]])
def test_planes_of_anything_but_0_and_1_are_refused(planes: list[Any]) -> None:
    with pytest.raises(BadCodes, match="only 0 and 1"):
        codes.join_planes(planes)


@pytest.mark.parametrize("count", [0, 9])
def test_no_planes_and_too_many_are_refused(count: int) -> None:
    with pytest.raises(BadCodes, match=f"{count} planes do not make a code"):
        codes.join_planes(np.zeros((count, 3), dtype=np.uint8))


def test_a_single_number_is_no_stack_of_planes() -> None:
    with pytest.raises(BadCodes, match="0 planes do not make a code"):
        codes.join_planes(1)
