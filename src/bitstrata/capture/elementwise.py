"""Lowerings of arithmetic and activations. Each function has the signature of torch's function of the same name."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bitstrata.capture.drafts import Doubles, Terms
from bitstrata.capture.recorder import Lowering, Recorder, numbers
from bitstrata.capture.sizes import Size, agree, as_size
from bitstrata.capture.traced import Traced
from bitstrata.graph import ops


def _activation(kind: type[ops.Op], name: str) -> Lowering:
    def lowering(recorder: Recorder, input: Traced) -> Traced:
        return recorder.emit(kind, input, name=name)

    return lowering


relu = _activation(ops.Relu, "relu")
relu6 = _activation(ops.Relu6, "relu6")


def clamp(recorder: Recorder, input: Traced, min: Any = None, max: Any = None) -> Traced:
    if min == 0 and max is None:
        return recorder.emit(ops.Relu, input, name="relu")
    if min == 0 and max == 6:
        return recorder.emit(ops.Relu6, input, name="relu6")
    raise recorder.failure(
        f"limits values to {min} .. {max}; a device has 0 .. 6 (ReLU6) and 0 .. without end (ReLU) only"
    )


def hardtanh(recorder: Recorder, input: Traced, min_val: float = -1.0, max_val: float = 1.0) -> Traced:
    return clamp(recorder, input, min_val, max_val)


def clamp_min(recorder: Recorder, input: Traced, min: Any) -> Traced:
    return clamp(recorder, input, min)


def affine(recorder: Recorder, x: Traced, scale: Any, bias: Any, name: str) -> Traced:
    """x * scale + bias, both constants: numbers, or one number per channel."""
    channels = recorder.current(x).sizes[1].constant
    if channels is None:
        raise recorder.failure(
            f"computes {name!r} with a constant on a value whose channels depend on the size of the image"
        )
    ones = np.ones(channels)
    terms = Terms(_per_channel(recorder, x, scale) * ones, _per_channel(recorder, x, bias) * ones)
    return recorder.emit(ops.Affine, x, name=name, terms=terms)


def _per_channel(recorder: Recorder, x: Traced, value: Any) -> Doubles:
    if isinstance(value, (int, float, Size, np.number)):
        return np.asarray(float(value))
    if not isinstance(value, (Tensor, np.ndarray)):
        raise recorder.failure(f"computes with {recorder.described_constant(value)}, which is no number")
    array = value.detach().cpu().double().numpy() if isinstance(value, Tensor) else value.astype(np.float64)
    wide = array.reshape((1,) * (x.ndim - array.ndim) + array.shape)
    if wide.ndim == x.ndim and array.size == 1:
        return array.reshape(())
    if wide.ndim == x.ndim and wide.shape == (1, x.sizes[1].constant, *(1,) * (x.ndim - 2)):
        return array.reshape(-1)
    raise recorder.failure(
        f"computes with the constant {recorder.described_constant(value)} of shape {array.shape}; a device adds and "
        f"multiplies by constants per channel only: shape (1, channels, 1, 1)"
    )


def add(recorder: Recorder, input: Any, other: Any, *, alpha: float = 1) -> Traced:
    if not isinstance(input, Traced):
        return add(recorder, mul(recorder, other, alpha) if alpha != 1 else other, input)
    if not isinstance(other, Traced):
        return affine(recorder, input, 1.0, other if alpha == 1 else other * alpha, "add")
    return recorder.emit(ops.Add, input, mul(recorder, other, alpha) if alpha != 1 else other, name="add")


def sub(recorder: Recorder, input: Any, other: Any, *, alpha: float = 1) -> Traced:
    return add(recorder, input, other, alpha=-alpha)


def rsub(recorder: Recorder, input: Any, other: Any, *, alpha: float = 1) -> Traced:
    return sub(recorder, other, input, alpha=alpha)


def neg(recorder: Recorder, input: Traced) -> Traced:
    return affine(recorder, input, -1.0, 0.0, "neg")


def mul(recorder: Recorder, input: Any, other: Any) -> Traced:
    if not isinstance(input, Traced):
        return affine(recorder, other, input, 0.0, "mul")
    if not isinstance(other, Traced):
        return affine(recorder, input, other, 0.0, "mul")
    return recorder.emit(ops.Mul, _narrow(recorder, input), _narrow(recorder, other), name="mul")


def _narrow(recorder: Recorder, x: Traced) -> Traced:
    """A factor as it was before it was expanded: the product spreads it."""
    recorder.current(x)
    return Traced(recorder, x.draft, x.draft.sizes) if x.spread else x


def div(recorder: Recorder, input: Any, other: Any, *, rounding_mode: str | None = None) -> Traced:
    if rounding_mode is not None or isinstance(other, Traced):
        raise recorder.failure("divides by a value, or rounds a quotient; a device divides by constants only")
    inverse = 1.0 / other.double() if isinstance(other, Tensor) else 1.0 / other
    return affine(recorder, input, inverse, 0.0, "div")


def expand(recorder: Recorder, input: Traced, *sizes: Any) -> Traced:
    given = numbers(sizes)
    if len(given) != recorder.current(input).ndim:
        raise recorder.failure("expands a value to more dimensions than it has")
    pairs = zip(given, input.sizes, strict=True)
    wanted = tuple(old if isinstance(new, int) and new == -1 else as_size(new, old) for new, old in pairs)
    if agree(wanted, input.sizes):
        return input
    if len(wanted) != 4 or not agree(wanted[:2], input.sizes[:2]):
        raise recorder.failure("expands a value along its batch or channels; a device spreads height and width only")
    return Traced(recorder, recorder.draft_of(input), wanted, storage=input.storage, spread=True)


def expand_as(recorder: Recorder, input: Traced, other: Traced) -> Traced:
    return expand(recorder, input, *recorder.current(other).sizes)


def batch_norm(
    recorder: Recorder,
    input: Traced,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
) -> Traced:
    """A scale and a bias per channel; see `simplify` for the fold into the layer before it."""
    if training or running_mean is None or running_var is None:
        raise recorder.failure(
            "normalises by the batch that it sees. Give it running statistics (track_running_stats=True)"
        )
    scale = 1.0 / np.sqrt(_doubles(running_var) + eps)
    if weight is not None:
        scale = _doubles(weight) * scale
    offset = -_doubles(running_mean) * scale
    if bias is not None:
        offset = offset + _doubles(bias)
    return recorder.emit(ops.Affine, input, name="batch_norm", terms=Terms(scale, offset))


def _doubles(tensor: Tensor) -> Doubles:
    array: Doubles = tensor.detach().cpu().double().numpy()
    return array


def dropout(recorder: Recorder, input: Traced, p: float = 0.5, training: bool = True, train: bool = False) -> Traced:
    if training and p:
        raise recorder.failure("drops values at random in evaluation too; pass training=self.training")
    return input


def unchanged(recorder: Recorder, input: Traced, *args: Any, **kwargs: Any) -> Traced:
    """What changes where or how a tensor lies in memory, and none of its numbers."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.dtype) and value != torch.float32:
            raise recorder.failure(f"computes in {value}; a device computes in float32 and in whole numbers")
    return input


def clone(recorder: Recorder, input: Traced, *, memory_format: Any = None) -> Traced:
    """The same value in a memory of its own."""
    copied = Traced(recorder, recorder.current(input).draft, input.sizes, spread=input.spread)
    copied.place = input.place
    return copied


LOWERINGS: dict[str, Lowering] = {
    "relu": relu,
    "relu6": relu6,
    "hardsigmoid": _activation(ops.HardSigmoid, "hardsigmoid"),
    "hardswish": _activation(ops.HardSwish, "hardswish"),
    "sigmoid": _activation(ops.Sigmoid, "sigmoid"),
    "silu": _activation(ops.Silu, "silu"),
    "hardtanh": hardtanh,
    "clamp": clamp,
    "clip": clamp,
    "clamp_min": clamp_min,
    "add": add,
    "sub": sub,
    "subtract": sub,
    "rsub": rsub,
    "neg": neg,
    "negative": neg,
    "mul": mul,
    "multiply": mul,
    "div": div,
    "divide": div,
    "true_divide": div,
    "expand": expand,
    "expand_as": expand_as,
    "batch_norm": batch_norm,
    "clone": clone,
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"), dropout),
    **dict.fromkeys(("contiguous", "to", "type", "type_as", "float", "detach", "cpu", "cuda"), unchanged),
}
