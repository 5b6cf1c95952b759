"""The rule that turns differences into verdicts."""

import math

import pytest
from scipy import stats

from bitstrata.study.verdicts import above, below, interval, student_quantile, together


@pytest.mark.parametrize("freedom", range(1, 31))
def test_quantiles(freedom: int) -> None:
    assert student_quantile(freedom) == pytest.approx(stats.t.ppf(0.95, freedom), abs=6e-4)


def test_beyond_the_table_intervals_are_wider_not_narrower() -> None:
    assert student_quantile(1000) > stats.t.ppf(0.95, 1000)


def test_interval_is_the_textbook_one() -> None:
    values = [0.3, -0.2, 0.9, 0.4]
    found = interval(values)
    assert found is not None
    low, high = stats.t.interval(0.9, 3, loc=sum(values) / 4, scale=stats.sem(values))
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-3), pytest.approx(high, abs=1e-3))
    assert interval([]) is None


@pytest.mark.parametrize(
    ("differences", "threshold", "verdict"),
    [
        ([1.0, 1.1, 0.9], 0.0, "holds"),
        ([-1.0, -1.1, -0.9], 0.0, "does not hold"),
        ([1.0, -1.1, 0.9], 0.0, "cannot be told"),
        ([-0.3, -0.35, -0.25], -0.6, "holds"),
        ([-0.9, -0.95, -0.85], -0.6, "does not hold"),
        ([-0.9, -0.2, -0.6], -0.6, "cannot be told"),
        # One seed never gives a verdict, however large the difference.
        ([50.0], 0.0, "cannot be told"),
        ([-50.0], 0.0, "cannot be told"),
        # Two seeds: both beyond two points, in the same direction, and two beyond the threshold.
        ([2.1, 9.0], 0.0, "holds"),
        ([-2.1, -9.0], 0.0, "does not hold"),
        ([1.9, 9.0], 0.0, "cannot be told"),
        ([3.0, -3.0], 0.0, "cannot be told"),
        ([-2.1, -2.2], -0.6, "cannot be told"),
        ([-2.7, -2.8], -0.6, "does not hold"),
        ([1.6, 1.6], -0.6, "cannot be told"),
        ([-2.5, -2.6], -5.0, "holds"),
        ([-4.5, -4.6], -5.0, "cannot be told"),
        ([-7.5, -7.6], -5.0, "does not hold"),
    ],
)
def test_verdicts(differences: list[float], threshold: float, verdict: str) -> None:
    found = interval(differences)
    assert found is not None
    assert above(found, threshold) == verdict
    mirrored = interval([-value for value in differences])
    assert mirrored is not None
    assert below(mirrored, -threshold) == verdict


def test_claims_of_several_parts() -> None:
    assert together(["holds", "holds"]) == "holds"
    assert together(["holds", "cannot be told"]) == "cannot be told"
    assert together(["cannot be told", "does not hold"]) == "does not hold"
    assert together(["holds", "does not hold"]) == "does not hold"
    assert together([]) == "cannot be told"


def test_text_of_intervals() -> None:
    texts = [str(interval(values)) for values in ([1.0], [1.0, 2.0], [0.001, -0.001, 0.0])]
    assert texts == ["+1.00 (1 seed)", "+1.50 (2 seeds: +1.00 and +2.00)", "0.00 [0.00, 0.00]"]
    assert math.isinf(interval([1.0]).high)  # type: ignore[union-attr]
