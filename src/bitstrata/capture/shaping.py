"""Lowerings of what changes shapes, and takes values apart or puts them together."""

from __future__ import annotations

import itertools
from typing import Any

from bitstrata.capture.pooling import whole
from bitstrata.capture.recorder import Lowering, Recorder, numbers
from bitstrata.capture.sizes import Size, agree, as_size, product
from bitstrata.capture.traced import Traced
from bitstrata.graph import ops


def reshape(recorder: Recorder, input: Traced, *sizes: Any, shape: Any = None) -> Traced:
    given = list(shape) if shape is not None else numbers(sizes)
    batch = recorder.current(input).sizes[0]
    if not all(isinstance(size, (int, Size)) for size in given):
        raise recorder.failure("looks at the bits of a tensor as another type")
    if not isinstance(given[0], Size) and given[0] != -1:
        raise recorder.failure(f"fixes the batch to {given[0]} in a shape; use x.size(0) or -1 there")
    total = product(input.sizes, batch)
    rest = [as_size(size, batch) for size in given if not _is_open(size)]
    known = product(rest, batch)
    opened = [index for index, size in enumerate(given) if _is_open(size)]
    pairs = list(zip(total.values, known.values, strict=True))
    taken = [a is not None and b is not None and b > 0 and (a % b == 0 if opened else a == b) for a, b in pairs]
    if not taken[0] or len(opened) > 1:
        raise recorder.failure(f"gives {tuple(input.sizes)} the shape {tuple(given)}, which it does not have")
    left = Size(a // b if kept and a and b else None for (a, b), kept in zip(pairs, taken, strict=True))
    wanted = [left if _is_open(size) else as_size(size, batch) for size in given]
    # With -1 for the batch, another image size may give another batch: samples mixed up, which nobody means.
    taken = [kept and new == old for kept, new, old in zip(taken, wanted[0].values, batch.values, strict=True)]
    if not taken[0] or (wanted[0].constant is not None and batch.constant is None):
        raise recorder.failure(
            f"gives {tuple(input.sizes)} the shape {tuple(given)}, whose first size is not the batch"
        )
    return recorder.view(input, tuple(size.where(taken) for size in wanted), "reshape")


def _is_open(size: int | Size) -> bool:
    return isinstance(size, int) and size == -1


def reshape_as(recorder: Recorder, input: Traced, other: Traced) -> Traced:
    return reshape(recorder, input, *other.sizes)


def flatten(recorder: Recorder, input: Traced, start_dim: int = 0, end_dim: int = -1) -> Traced:
    first, last = start_dim % input.ndim, end_dim % input.ndim
    if first == 0 and last > 0:
        raise recorder.failure("flattens the batch too; use flatten(1)")
    sizes = input.sizes
    joined = product(sizes[first : last + 1], sizes[0])
    return recorder.view(input, (*sizes[:first], joined, *sizes[last + 1 :]), "flatten")


def squeeze(recorder: Recorder, input: Traced, dim: Any = None) -> Traced:
    """Drops dimensions of size 1; never the batch, which is free."""
    given = range(input.ndim) if dim is None else dim if isinstance(dim, (list, tuple)) else (dim,)
    wanted = {axis % input.ndim for axis in given}
    if dim is not None and 0 in wanted:
        raise recorder.failure("drops the batch from the shape")
    kept = tuple(s for axis, s in enumerate(input.sizes) if axis == 0 or axis not in wanted or s.constant != 1)
    return recorder.view(input, kept, "squeeze")


def unsqueeze(recorder: Recorder, input: Traced, dim: int) -> Traced:
    place = dim % (input.ndim + 1)
    sizes = input.sizes
    return recorder.view(input, (*sizes[:place], as_size(1, sizes[0]), *sizes[place:]), "unsqueeze")


def getitem(recorder: Recorder, input: Traced, index: Any) -> Traced:
    """Slices, whole numbers, `None` and `...`, as in Python."""
    given = list(index) if isinstance(index, tuple) else [index]
    axes = sum(one is not None and one is not Ellipsis for one in given)
    if axes > recorder.current(input).ndim or not all(
        one is None or one is Ellipsis or isinstance(one, (slice, int, Size)) for one in given
    ):
        raise recorder.refusal("indexing by a tensor or list")
    fill = [slice(None)] * (input.ndim - axes)
    place = next((i for i, one in enumerate(given) if one is Ellipsis), len(given))
    given = [*given[:place], *fill, *given[place + 1 :]]
    result, sizes, axis = input, [], 0
    for one in given:
        if one is None:
            sizes.append(as_size(1, input.sizes[0]))
            continue
        if isinstance(one, slice):
            result = _sliced(recorder, result, axis, one.start, one.stop, one.step)
            sizes.append(result.sizes[axis])
        else:
            number = whole(recorder, [one], "index")[0]
            result = _sliced(recorder, result, axis, number, None if number == -1 else number + 1, None)
        axis += 1
    return result if agree(tuple(sizes), result.sizes) else recorder.view(result, tuple(sizes), "slice")


def _sliced(recorder: Recorder, x: Traced, axis: int, start: Any, stop: Any, step: Any) -> Traced:
    size = x.sizes[axis]
    if isinstance(stop, Size) and stop.agrees(size):
        stop = None
    first, stride = whole(recorder, (start or 0, 1 if step is None else step), "slice")
    last = None if stop is None else whole(recorder, [stop], "slice")[0]
    if size.constant is not None and last is not None and last >= size.constant:
        last = None
    if (first, last, stride) == (0, None, 1):
        return x
    if axis == 0:
        raise recorder.failure("takes a part of the batch")
    result = recorder.emit(ops.Slice, x, name="slice", axis=axis, start=first, stop=last, step=stride)
    return recorder.view(_in_memory_of(x, result), result.sizes, "slice")


def _in_memory_of(x: Traced, part: Traced) -> Traced:
    part.storage, part.version = x.storage, x.version
    return part


def narrow(recorder: Recorder, input: Traced, dim: int, start: Any, length: Any) -> Traced:
    return _sliced(recorder, input, dim % input.ndim, start, start + length, None)


def split(
    recorder: Recorder, tensor: Traced, split_size_or_sections: Any = None, dim: int = 0, *, split_size: Any = None
) -> tuple[Traced, ...]:
    sizes = split_size if split_size_or_sections is None else split_size_or_sections
    axis, total = _fixed_axis(recorder, tensor, dim, "split")
    if isinstance(sizes, (list, tuple)):
        lengths = list(whole(recorder, sizes, "size of a part"))
    else:
        (each,) = whole(recorder, [sizes], "size of a part")
        lengths = [min(each, total - start) for start in range(0, total, each)]
    ends = list(itertools.accumulate(lengths))
    starts = [0, *ends[:-1]]
    return tuple(_sliced(recorder, tensor, axis, start, end, None) for start, end in zip(starts, ends, strict=True))


def chunk(recorder: Recorder, input: Traced, chunks: int, dim: int = 0) -> tuple[Traced, ...]:
    _, total = _fixed_axis(recorder, input, dim, "chunk")
    return split(recorder, input, -(-total // chunks), dim)


def _fixed_axis(recorder: Recorder, x: Traced, dim: int, name: str) -> tuple[int, int]:
    axis = dim % recorder.current(x).ndim
    total = x.sizes[axis].constant
    if axis == 0 or total is None:
        raise recorder.failure(f"computes {name!r} along an axis whose size depends on the input")
    return axis, total


def cat(recorder: Recorder, tensors: Any, dim: int = 0, *, axis: int | None = None) -> Traced:
    values = [recorder.current(x) for x in tensors]
    along = (dim if axis is None else axis) % values[0].ndim
    if along != 1:
        raise recorder.failure(f"puts values together along axis {along}; a device does so along the channels, axis 1")
    return values[0] if len(values) == 1 else recorder.emit(ops.Concat, *values, name="cat")


LOWERINGS: dict[str, Lowering] = {
    "reshape": reshape,
    "view": reshape,
    "reshape_as": reshape_as,
    "view_as": reshape_as,
    "flatten": flatten,
    "squeeze": squeeze,
    "unsqueeze": unsqueeze,
    "getitem": getitem,
    "narrow": narrow,
    "split": split,
    "chunk": chunk,
    "cat": cat,
    "concat": cat,
    "concatenate": cat,
}
