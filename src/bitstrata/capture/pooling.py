"""Lowerings of what looks at windows of an image: pooling, means, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bitstrata.capture.recorder import Lowering, Recorder
from bitstrata.capture.sizes import Size, agree, product
from bitstrata.capture.traced import Traced
from bitstrata.graph import ops


def pair(value: Any) -> tuple[Any, Any]:
    """Height and width from one number, or from one or two in a list."""
    if isinstance(value, (list, tuple)):
        return (value[0], value[0]) if len(value) == 1 else (value[0], value[1])
    return value, value


def whole(recorder: Recorder, values: Sequence[Any], what: str) -> tuple[int, ...]:
    """Plain numbers, or an error where one depends on the input."""
    for value in values:
        if isinstance(value, Size) and value.constant is None:
            raise recorder.failure(f"has a {what} that depends on the size of the input")
    return tuple(int(value) for value in values)


def _sides(padding: tuple[int, ...]) -> tuple[int, int, int, int]:
    height, width = padding
    return height, height, width, width


def max_pool2d(
    recorder: Recorder,
    input: Traced,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Traced:
    if return_indices:
        raise recorder.refusal("max_pool2d with indices")
    if _is_global(recorder, input, kernel_size, padding):
        return recorder.emit(ops.AdaptiveMaxPool, input, name="max_pool", size=(1, 1))
    kernel = whole(recorder, pair(kernel_size), "kernel size")
    return recorder.emit(
        ops.MaxPool,
        input,
        name="max_pool",
        kernel=kernel,
        stride=kernel if stride is None or stride == [] else whole(recorder, pair(stride), "stride"),
        padding=_sides(whole(recorder, pair(padding), "padding")),
        dilation=whole(recorder, pair(dilation), "dilation"),
        ceil=bool(ceil_mode),
    )


def avg_pool2d(
    recorder: Recorder,
    input: Traced,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Traced:
    if divisor_override is not None:
        raise recorder.failure("divides the sums of an average pooling by a number of its own (divisor_override)")
    if _is_global(recorder, input, kernel_size, padding):
        return recorder.emit(ops.AdaptiveAvgPool, input, name="avg_pool", size=(1, 1))
    kernel = whole(recorder, pair(kernel_size), "kernel size")
    return recorder.emit(
        ops.AvgPool,
        input,
        name="avg_pool",
        kernel=kernel,
        stride=kernel if stride is None or stride == [] else whole(recorder, pair(stride), "stride"),
        padding=_sides(whole(recorder, pair(padding), "padding")),
        ceil=bool(ceil_mode),
        count_padding=bool(count_include_pad),
    )


def _is_global(recorder: Recorder, x: Traced, kernel_size: Any, padding: Any) -> bool:
    """Whether the window was read from the image's own size, so that it covers all of it whatever that is.

    Models for square images read one side and use it for both.
    """
    kernel = pair(kernel_size)
    if not any(isinstance(one, Size) and one.constant is None for one in kernel):
        return False
    sides = recorder.current(x).sizes[2:]
    covers = all(
        isinstance(one, Size) and one.example == side.example and any(one.agrees(other) for other in sides)
        for one, side in zip(kernel, sides, strict=True)
    )
    return covers and pair(padding) == (0, 0)


def adaptive_avg_pool2d(recorder: Recorder, input: Traced, output_size: Any) -> Traced:
    height, width = pair(output_size)
    if height is None and width is None:
        return input
    if height is None or width is None:
        if (height, width) not in ((1, None), (None, 1)):
            raise recorder.failure(f"pools to {output_size}: with one side left as it is, the other can only become 1")
        return recorder.emit(ops.Mean, input, name="avg_pool", axes=(2 if width is None else 3,), keep=True)
    size = whole(recorder, (height, width), "pooled size")
    return recorder.emit(ops.AdaptiveAvgPool, input, name="avg_pool", size=size)


def adaptive_max_pool2d(recorder: Recorder, input: Traced, output_size: Any, return_indices: bool = False) -> Traced:
    if return_indices or None in pair(output_size):
        raise recorder.failure("pools to the largest value with indices, or with one side left as it is")
    size = whole(recorder, pair(output_size), "pooled size")
    return recorder.emit(ops.AdaptiveMaxPool, input, name="max_pool", size=size)


def mean(recorder: Recorder, input: Traced, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Traced:
    axes = _image_axes(recorder, input, dim, "mean")
    source = Traced(recorder, input.draft, input.draft.sizes)
    if axes == (2, 3) and not keepdim:
        return recorder.emit(ops.Mean, source, name="mean", axes=axes)
    reduced = recorder.emit(ops.Mean, source, name="mean", axes=axes, keep=True)
    return _without(recorder, input, reduced, dim, keepdim, "mean")


def amax(recorder: Recorder, input: Traced, dim: Any = (), keepdim: bool = False) -> Traced:
    if _image_axes(recorder, input, dim, "amax") != (2, 3):
        raise recorder.failure("takes the largest value over one side of an image; a device does so over both")
    source = Traced(recorder, input.draft, input.draft.sizes)
    reduced = recorder.emit(ops.AdaptiveMaxPool, source, name="amax", size=(1, 1))
    return _without(recorder, input, reduced, dim, keepdim, "amax")


def _axes(x: Traced, dim: Any) -> tuple[int, ...]:
    given = dim if isinstance(dim, (list, tuple)) else (dim,)
    return tuple(sorted(int(axis) % x.ndim for axis in given))


def _image_axes(recorder: Recorder, x: Traced, dim: Any, name: str) -> tuple[int, ...]:
    """Which sides of the image the model's axes are, where it may see the image with flattened or dropped sides."""
    drawn = recorder.current(x).draft.sizes
    axes = () if dim is None or dim in ((), []) else _axes(x, dim)
    if len(drawn) == 4 and axes:
        kept = x.ndim <= 4 and agree(x.sizes, drawn[: x.ndim])
        dropped_are_one = all(size.constant == 1 for size in drawn[x.ndim :])
        if kept and dropped_are_one and axes in ((2,), (3,), (2, 3)):
            return axes
        area = product(drawn[2:], drawn[0])
        if x.ndim == 3 and axes == (2,) and agree(x.sizes, (*drawn[:2], area)):
            return (2, 3)
    if axes and x.ndim == 4 and not agree(x.sizes, drawn):
        recorder.draft_of(x)
        return _image_axes(recorder, x, dim, name)
    raise recorder.failure(f"computes {name!r} over the axes {dim}; a device does so over height and width only")


def _without(recorder: Recorder, x: Traced, reduced: Traced, dim: Any, keepdim: bool, name: str) -> Traced:
    """The reduced value in the shape that the model expects."""
    axes = _axes(x, dim)
    one = reduced.sizes[0] // reduced.sizes[0]
    if keepdim:
        sizes = tuple(one if axis in axes else size for axis, size in enumerate(x.sizes))
    else:
        sizes = tuple(size for axis, size in enumerate(x.sizes) if axis not in axes)
    return recorder.view(reduced, sizes, name)


def pad(recorder: Recorder, input: Traced, pad: Any, mode: str = "constant", value: float | None = None) -> Traced:
    sides = list(whole(recorder, pad, "padding"))
    # Last dimension first: left, right, top, bottom, channels before and after, and the batch, which stays as it is.
    sides += [0] * (8 - len(sides))
    left, right, top, bottom, before, after, *batch = sides
    if any(batch) or (recorder.current(input).ndim == 2 and any(sides)):
        raise recorder.failure(f"pads by {tuple(pad)}; a device pads height, width and channels of an image")
    return recorder.emit(
        ops.Pad,
        input,
        name="pad",
        padding=(before, after, top, bottom, left, right),
        mode=mode,
        value=float(value or 0.0),
    )


LOWERINGS: dict[str, Lowering] = {
    "max_pool2d": max_pool2d,
    "avg_pool2d": avg_pool2d,
    "adaptive_avg_pool2d": adaptive_avg_pool2d,
    "adaptive_max_pool2d": adaptive_max_pool2d,
    "mean": mean,
    "amax": amax,
    "pad": pad,
}
