"""Sizes that stay free: the batch, height and width that a network meets are not those of the example.

A model reads sizes and computes with them (`x.view(x.size(0), -1)`). Here a size is the list of its values for several
probes, inputs that differ in batch, height and width. A size that is the same for all probes is a constant of the
network; any other one depends on the input, and is never used as a plain number.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable

import torch

from bitstrata.graph.ops import Shape

#: What the probes add to batch, height and width of the example. The example is the first of them; the second has
#: another batch only, so that there is one which a network for a single image size accepts.
_PROBES = ((0, 0, 0), (1, 0, 0), (2, 32, 64), (3, 7, 13))


class SizeDepends(TypeError):
    """A size that depends on the input was used where only a number will do."""


class Size(torch.SymInt):
    """One dimension, for every probe; None where the network does not take the probe.

    Torch's functions check the types of their arguments before they look for a stand-in among them, and take a `SymInt`
    where they take a number. Nothing of that class is used otherwise; `GuardSizes` keeps it that way.
    """

    def __init__(self, values: Iterable[int | None]) -> None:
        self.values = tuple(values)

    @property
    def example(self) -> int:
        value = self.values[0]
        assert value is not None, "the example is always taken"
        return value

    @property
    def constant(self) -> int | None:
        """The one value that this size has, or None."""
        distinct = {value for value in self.values if value is not None}
        return distinct.pop() if len(distinct) == 1 else None

    def agrees(self, other: Size) -> bool:
        """Whether the two are equal for every probe that both are known for."""
        return all(a == b for a, b in zip(self.values, other.values, strict=True) if a is not None and b is not None)

    def where(self, taken: Iterable[bool]) -> Size:
        """The same, unknown for the probes that are not taken."""
        return Size(value if kept else None for value, kept in zip(self.values, taken, strict=True))

    def __repr__(self) -> str:
        return str(self.constant) if self.constant is not None else f"(here {self.example})"

    def __index__(self) -> int:
        constant = self.constant
        if constant is None:
            raise SizeDepends(f"a size of the input {self!r} is used as a plain number, which would freeze it")
        return constant

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __bool__(self) -> bool:
        return self != 0

    def __hash__(self) -> int:
        return hash(self.__index__())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, float):
            return float(self) == other
        if not isinstance(other, (int, Size)):
            return NotImplemented
        equal = {a == b for a, b in self._pairs(other)}
        if len(equal) > 1:
            raise SizeDepends(f"the model asks whether sizes are equal, {self!r} and {other!r}, and it depends")
        return equal.pop()

    def _pairs(self, other: int | Size) -> list[tuple[int, int]]:
        others = other.values if isinstance(other, Size) else (other,) * len(self.values)
        return [(a, b) for a, b in zip(self.values, others, strict=True) if a is not None and b is not None]

    def _ordered(self, other: int | float | Size, compare: Callable[[float, float], bool]) -> bool:
        # An order that holds for all probes may still not hold for every image, so only constants have one.
        return compare(self.__index__(), other if isinstance(other, float) else operator.index(other))

    def __lt__(self, other: int | float | Size) -> bool:
        return self._ordered(other, operator.lt)

    def __le__(self, other: int | float | Size) -> bool:
        return self._ordered(other, operator.le)

    def __gt__(self, other: int | float | Size) -> bool:
        return self._ordered(other, operator.gt)

    def __ge__(self, other: int | float | Size) -> bool:
        return self._ordered(other, operator.ge)

    def _combined(self, other: int | torch.SymInt, compute: Callable[[int, int], int]) -> Size:
        if not isinstance(other, (int, Size)):
            raise SizeDepends(f"a size of the input is combined with a {type(other).__name__}, which would freeze it")
        others = other.values if isinstance(other, Size) else (other,) * len(self.values)
        pairs = zip(self.values, others, strict=True)
        return Size(None if a is None or b is None else compute(a, b) for a, b in pairs)

    def __add__(self, other: int | torch.SymInt) -> Size:
        return self._combined(other, operator.add)

    def __sub__(self, other: int | torch.SymInt) -> Size:
        return self._combined(other, operator.sub)

    def __rsub__(self, other: int | torch.SymInt) -> Size:
        return self._combined(other, lambda a, b: b - a)

    def __mul__(self, other: int | torch.SymInt) -> Size:
        return self._combined(other, operator.mul)

    def __floordiv__(self, other: int | torch.SymInt) -> Size:
        return self._combined(other, operator.floordiv)

    def __rfloordiv__(self, other: int | torch.SymInt) -> Size:
        return self._combined(other, lambda a, b: b // a)

    def __mod__(self, other: int | torch.SymInt) -> Size:
        return self._combined(other, operator.mod)

    def __neg__(self) -> Size:
        return self * -1

    def __truediv__(self, other: object) -> float:
        return float(self) / float(other)  # type: ignore[arg-type]

    def __rtruediv__(self, other: object) -> float:
        return float(other) / float(self)  # type: ignore[arg-type]

    __radd__, __rmul__ = __add__, __mul__


Sizes = tuple[Size, ...]


def probes_of(shape: Shape) -> Sizes:
    """The sizes of an input of which the example has this shape; channels or features are the network's own."""
    growth = [(batch, 0, height, width)[: len(shape)] for batch, height, width in _PROBES]
    return tuple(Size(size + more[axis] for more in growth) for axis, size in enumerate(shape))


def as_size(value: int | Size, like: Size) -> Size:
    """A number or a size, as a size for the same probes."""
    return value if isinstance(value, Size) else Size((operator.index(value),) * len(like.values))


def product(sizes: Iterable[Size], like: Size) -> Size:
    result = as_size(1, like)
    for size in sizes:
        result = result * size
    return result


def agree(first: Sizes, second: Sizes) -> bool:
    """Whether two shapes are the same for every probe."""
    return len(first) == len(second) and all(a.agrees(b) for a, b in zip(first, second, strict=True))


def shapes_of(sizes: Sizes) -> list[Shape | None]:
    """The shape for each probe; None for those that are not taken."""
    shapes: list[Shape | None] = []
    for values in zip(*(size.values for size in sizes), strict=True):
        known = tuple(value for value in values if value is not None)
        shapes.append(known if len(known) == len(values) else None)
    return shapes


def sizes_of(shapes: list[Shape | None]) -> Sizes:
    """The inverse of `shapes_of`."""
    example = shapes[0]
    assert example is not None, "the example is always taken"
    return tuple(Size(None if shape is None else shape[axis] for shape in shapes) for axis in range(len(example)))
