"""Setting activation steps and zero points from data.

A quantiser that is being calibrated sees its input as a histogram: small, the same for every width, and addable
over batches and over processes, so that all ranks of a distributed run choose the same step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bitstrata import codes
from bitstrata.errors import NotFinite
from bitstrata.training import distributed

ActivationInit = Literal["mse", "max", "lsq", "paper"]

BINS = 2048
#: Of more values than this, an evenly spaced part is counted; least and greatest are always those of all.
SAMPLES = 1 << 20
#: Candidate steps for each zero point, spread geometrically from the whole range down to a fiftieth of it.
CANDIDATES = 120
SMALLEST_FRACTION = 0.02
#: At most this many zero points are tried; all of them up to four bits.
ZERO_POINTS = 9


@dataclass
class Histogram:
    """How often the values of an input were seen, between its least and its greatest."""

    low: float
    high: float
    counts: NDArray[np.float64]

    @classmethod
    def of(cls, values: Tensor, where: str) -> Histogram:
        """The histogram of one batch over all processes."""
        values = values.detach().float()
        low, high = (float(bound) for bound in torch.aminmax(values))
        low, high = distributed.least(low), distributed.greatest(high)
        if not (math.isfinite(low) and math.isfinite(high)):
            raise NotFinite(f"the input of layer {where!r} is not finite (least {low}, greatest {high})")
        if low == high:
            low, high = (min(low, 0.0), max(high, 0.0)) if low else (0.0, 1.0)
        stride = 1 + 2 * (values.numel() // (2 * SAMPLES))  # odd, so that it passes through all channels
        sampled = values.reshape(-1)[::stride].cpu()
        counts = distributed.total(torch.histc(sampled, BINS, low, high).double())
        return cls(low, high, counts.numpy())

    @property
    def centres(self) -> NDArray[np.float64]:
        edge = (self.high - self.low) / BINS
        centres: NDArray[np.float64] = self.low + (np.arange(BINS, dtype=np.float64) + 0.5) * edge
        if self.low == 0.0:
            # After a ReLU about half of all values are exactly 0, which has a code of its own.
            centres[0] = 0.0
        return centres

    def merged(self, other: Histogram) -> Histogram:
        """Both histograms in one, over the wider range."""
        low, high = min(self.low, other.low), max(self.high, other.high)
        counts = np.zeros(BINS)
        for part in (self, other):
            places = np.clip(((part.centres - low) / (high - low) * BINS).astype(int), 0, BINS - 1)
            np.add.at(counts, places, part.counts)
        return Histogram(low, high, counts)


def choose_step(histogram: Histogram, bits: int, init: ActivationInit, width_index: int) -> tuple[float, int]:
    """The step and zero point for one width.

    mse     least squared error on the histogram, over steps and zero points (the default)
    max     no value is clipped
    lsq     2 mean|a| / sqrt(Q_P), the initialisation of LSQ
    paper   max|a| / (2^(i+1) - 1) as printed in section 6.1, i counting widths from 0; it leaves the 2-bit network
            only the codes 0 and 1
    """
    top = codes.activation_top(bits)
    signed = histogram.low < 0.0
    half = 1 << (bits - 1)
    centre_of_range = min(half, max(1, round(top * -histogram.low / (histogram.high - histogram.low))))
    zero_point = centre_of_range if signed else 0
    values, counts = histogram.centres, histogram.counts
    if init == "mse":
        return _least_error(histogram, top, _zero_points(half, centre_of_range) if signed else [0])
    if init == "max":
        return _unclipped(histogram, top, zero_point), zero_point
    if init == "lsq":
        mean = float((np.abs(values) * counts).sum() / counts.sum())
        # Signed values have half of the codes on each side, as LSQ has them.
        return (2.0 * mean / math.sqrt(half - 1 if signed else top)) or 1.0, half if signed else 0
    largest = max(abs(histogram.low), abs(histogram.high))
    return largest / (2 ** (width_index + 1) - 1), zero_point


def _zero_points(half: int, centre_of_range: int) -> list[int]:
    spread = np.linspace(0, half, min(half + 1, ZERO_POINTS)).round().astype(int)
    return sorted({*spread.tolist(), centre_of_range})


def _unclipped(histogram: Histogram, top: int, zero_point: int) -> float:
    above = histogram.high / (top - zero_point)
    below = -histogram.low / zero_point if zero_point else 0.0
    return max(above, below) or 1.0


def _least_error(histogram: Histogram, top: int, zero_points: list[int]) -> tuple[float, int]:
    values, counts = histogram.centres, histogram.counts
    fractions = np.geomspace(SMALLEST_FRACTION, 1.0, CANDIDATES)
    best = (math.inf, 1.0, 0)
    for zero_point in zero_points:
        steps = _unclipped(histogram, top, zero_point) * fractions
        rounded = np.clip(np.rint(values / steps[:, None]), -zero_point, top - zero_point)
        errors = (np.square(rounded * steps[:, None] - values) * counts).sum(axis=1)
        index = int(errors.argmin())
        best = min(best, (float(errors[index]), float(steps[index]), zero_point))
    return best[1], best[2]
