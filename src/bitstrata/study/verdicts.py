"""The one rule by which differences between methods become verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

Verdict = Literal["holds", "does not hold", "cannot be told"]

#: With two seeds, both differences must be larger than this and further than this from the threshold, in points.
TWO_SEEDS_NEED = 2.0

#: The 95 % quantile of Student's t for 1, 2, 3, ... degrees of freedom: a two-sided interval of 90 %.
_QUANTILES = (
    *(6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812),
    *(1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725),
    *(1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697),
)

RULE = (
    "Methods are compared seed by seed: a difference is taken between two runs with the same seed, in points (per "
    "cent of the test images, top-1). Of the differences of all seeds we take the mean and its 90 % interval "
    "(Student's t). A statement that a difference lies above or below a threshold holds when the whole interval lies"
    " there, does not hold when the whole interval lies on the other side, and cannot be told otherwise. One seed "
    "gives no verdict; two seeds give one only where both differences are larger than two points in the same "
    "direction, and both lie more than two points beyond the threshold. A claim with several parts holds when all "
    "parts hold, does not hold when one part does not, and cannot be told otherwise. A run that diverged counts with"
    " the accuracy of guessing (with none where the number of classes is not known); a pair of which both diverged "
    "is left out."
)


@dataclass(frozen=True)
class Interval:
    """Differences of paired runs: their mean and the ends of its 90 % interval (none from a single seed)."""

    values: tuple[float, ...]
    mean: float
    low: float
    high: float

    @property
    def seeds(self) -> int:
        return len(self.values)

    def __str__(self) -> str:
        if self.seeds == 1:
            return f"{points(self.mean)} (1 seed)"
        if self.seeds == 2:
            return f"{points(self.mean)} (2 seeds: {points(self.values[0])} and {points(self.values[1])})"
        return f"{points(self.mean)} [{points(self.low)}, {points(self.high)}]"


def points(value: float) -> str:
    """A difference with its sign; nothing has no sign."""
    text = f"{value:+.2f}"
    return "0.00" if float(text) == 0 else text


def student_quantile(freedom: int) -> float:
    """Of a two-sided 90 % interval; beyond the table its last entry, which is a little too wide."""
    return _QUANTILES[min(freedom, len(_QUANTILES)) - 1]


def interval(differences: Sequence[float]) -> Interval | None:
    """None without any difference."""
    values = tuple(differences)
    if not values:
        return None
    mean = fmean(values)
    if len(values) == 1:
        return Interval(values, mean, -math.inf, math.inf)
    half = student_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Interval(values, mean, mean - half, mean + half)


def above(found: Interval, threshold: float) -> Verdict:
    """Whether the difference lies above the threshold."""
    if found.seeds == 1:
        return "cannot be told"
    low, high = found.low, found.high
    if found.seeds == 2:
        least, greatest = min(found.values), max(found.values)
        if not (least > TWO_SEEDS_NEED or greatest < -TWO_SEEDS_NEED):
            return "cannot be told"
        low, high = least - TWO_SEEDS_NEED, greatest + TWO_SEEDS_NEED
    if low > threshold:
        return "holds"
    return "does not hold" if high < threshold else "cannot be told"


def below(found: Interval, threshold: float) -> Verdict:
    """Whether the difference lies below the threshold."""
    opposite: dict[Verdict, Verdict] = {"holds": "does not hold", "does not hold": "holds"}
    verdict = above(found, threshold)
    return opposite.get(verdict, verdict)


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Of a claim with several parts."""
    if "does not hold" in verdicts:
        return "does not hold"
    return "holds" if verdicts and all(one == "holds" for one in verdicts) else "cannot be told"
