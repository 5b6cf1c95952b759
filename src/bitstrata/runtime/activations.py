"""The activation functions, defined to the last bit: float32 products and sums in a fixed order.

No library's exp is used: they differ in the last bit, and a code could flip. The native code does the same operations.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bitstrata.graph import ops
from bitstrata.graph.network import Floats

_F = np.float32
#: Beyond these, the exponent of a float32 ends.
_LOWEST, _HIGHEST = _F(-87.0), _F(88.0)
_LOG2_E = _F(1.44269504088896341)
#: ln 2 in two parts: products of the first with whole numbers up to 2^15 are exact.
_LN2_HIGH, _LN2_LOW = _F(0.693359375), _F(-2.12194440e-4)
#: exp(r) - 1 - r over r^2, for |r| <= ln(2) / 2, highest power first (minimax, relative error below 2e-8).
_POLYNOMIAL = tuple(
    map(_F, (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1))
)


def exponential(x: Floats) -> Floats:
    """exp(x), with x clamped to where the result is a normal float32."""
    x = np.minimum(np.maximum(x, _LOWEST), _HIGHEST)
    whole = np.rint(x * _LOG2_E)
    r = x - whole * _LN2_HIGH
    r = r - whole * _LN2_LOW
    polynomial = np.full_like(r, _POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        polynomial = polynomial * r + coefficient
    mantissa = polynomial * (r * r)
    mantissa = mantissa + r
    mantissa = mantissa + _F(1.0)
    power: Floats = ((whole.astype(np.int32) + 127) << 23).view(np.float32)
    result: Floats = mantissa * power
    return result


def relu(x: Floats) -> Floats:
    result: Floats = np.maximum(x, _F(0.0))
    return result


def relu6(x: Floats) -> Floats:
    result: Floats = np.minimum(np.maximum(x, _F(0.0)), _F(6.0))
    return result


def hard_sigmoid(x: Floats) -> Floats:
    return relu6(x + _F(3.0)) / _F(6.0)


def hard_swish(x: Floats) -> Floats:
    return (x * relu6(x + _F(3.0))) / _F(6.0)


def sigmoid(x: Floats) -> Floats:
    return _F(1.0) / (_F(1.0) + exponential(-x))


def silu(x: Floats) -> Floats:
    return x / (_F(1.0) + exponential(-x))


ACTIVATION: dict[type[ops.Op], Callable[[Floats], Floats]] = {
    ops.Relu: relu,
    ops.Relu6: relu6,
    ops.HardSigmoid: hard_sigmoid,
    ops.HardSwish: hard_swish,
    ops.Sigmoid: sigmoid,
    ops.Silu: silu,
}
