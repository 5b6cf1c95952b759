"""The paper's gradients in float64 and from scratch, for tests to compare with."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bitstrata import codes


class Formula(NamedTuple):
    x_gradient: NDArray[np.float64]
    step_terms: NDArray[np.float64]


def paper_gradients(x: Tensor, step: float, gradient: Tensor, source: int, bits: int, compensated: bool) -> Formula:
    """Eqs. 6 and 7, case by case, with the compensation in; the terms of dL/ds_b already times ds_b/ds = 2^m.

    The cases are those of the source range: there is one mask for all widths.
    """
    w, g = x.double().numpy(), gradient.double().numpy()
    low, high = codes.code_range(source)
    low_b, high_b = codes.code_range(bits)
    offset = codes.compensation(source, bits) if compensated else 0.0
    step_b = step * 2 ** (source - bits)
    code_b = np.floor(np.rint(w / step) / 2 ** (source - bits))
    inside = (w / step >= low) & (w / step <= high)
    terms = np.where(
        inside,
        g * (-w / step_b + code_b + offset),
        np.where(w / step < low, g * (low_b + offset), g * (high_b + offset)),
    )
    return Formula(np.where(inside, g, 0.0), terms * 2 ** (source - bits))
