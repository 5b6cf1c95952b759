"""`Traced`: what the model's own code computes with while it is being captured, in place of a tensor.

It holds no numbers. Whatever is done to it, by operators, methods or functions of torch, goes to its recorder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from bitstrata.capture.drafts import Draft
from bitstrata.capture.sizes import Size, SizeDepends, Sizes, product

if TYPE_CHECKING:
    from bitstrata.capture.recorder import Recorder


class Storage:
    """The memory behind a tensor and its views; a change in place makes every other view of it out of date."""

    def __init__(self) -> None:
        self.version = 0


class Traced:
    """A value: a draft, or another shape of it, in a memory that other values may share."""

    # NumPy scalars on the left then leave operators to this class.
    __array_ufunc__ = None
    __hash__ = object.__hash__

    dtype = torch.float32
    device = torch.device("cpu")
    layout = torch.strided
    requires_grad = is_cuda = is_sparse = is_quantized = is_mps = False
    grad = grad_fn = None

    def __init__(
        self, recorder: Recorder, draft: Draft, sizes: Sizes, *, storage: Storage | None = None, spread: bool = False
    ) -> None:
        self.recorder = recorder
        self.draft = draft
        #: The shape that the model sees. Where it is not the draft's own, a node that changes it is still to be added.
        self.sizes = sizes
        #: Where in the model it got that shape.
        self.place = ""
        self.storage = storage or Storage()
        self.version = self.storage.version
        #: Expanded over height and width, which only a product can undo.
        self.spread = spread

    def become(self, other: Traced) -> None:
        """A change in place: this and whatever else is this very object now has the other's value."""
        self.draft, self.sizes, self.place, self.spread = other.draft, other.sizes, other.place, other.spread
        self.storage.version += 1
        self.version = self.storage.version

    @property
    def shape(self) -> tuple[int | Size, ...]:
        """Plain numbers where the network fixes them."""
        return tuple(size if size.constant is None else size.constant for size in self.sizes)

    @property
    def ndim(self) -> int:
        return len(self.sizes)

    @property
    def data(self) -> Traced:
        return self

    def dim(self) -> int:
        return len(self.sizes)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> Size:
        return product(self.sizes, self.sizes[0])

    def is_floating_point(self) -> bool:
        return True

    def is_contiguous(self, memory_format: Any = None) -> bool:
        return True

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        first = next(traced_in((args, kwargs or {})))
        return first.recorder.call(function.__name__, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(Tensor, name):
            raise AttributeError(f"a tensor has no attribute {name!r}")
        if callable(getattr(Tensor, name)):
            return partial(self._call, name)
        raise self.recorder.refusal(name)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self.recorder.call(name, (self, *args), kwargs)

    def _undecided(self, *_: object) -> Any:
        raise self.recorder.failure(
            "decides by the values of a tensor what to compute next, or takes a number out of it. A device runs the "
            "same ops for every input: compute both and choose after, or leave the choice outside the network"
        )

    __bool__ = __int__ = __float__ = __index__ = _undecided

    def __iter__(self) -> Iterator[Any]:
        raise self.recorder.failure("takes the samples of a batch apart, and the batch has no fixed size")

    def __len__(self) -> int:
        return self.sizes[0].__index__()

    def __getitem__(self, index: Any) -> Any:
        return self._call("getitem", index)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise self.recorder.refusal("assignment to a part of a tensor")


Kind = TypeVar("Kind")


def _held(value: Any, kind: type[Kind]) -> Iterator[Kind]:
    """All objects of a kind in lists, tuples and dictionaries."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _held(item, kind)
    elif isinstance(value, dict):
        yield from _held(list(value.values()), kind)


def traced_in(value: Any) -> Iterator[Traced]:
    return _held(value, Traced)


class GuardSizes(TorchFunctionMode):
    """Within it, no function of torch computes real tensors from a size that depends on the input."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = [args, kwargs or {}]
        if next(_held(given, Size), None) is not None and next(traced_in(given), None) is None:
            raise SizeDepends(f"{function.__name__!r} makes a tensor from a size of the input, which would freeze it")
        return function(*args, **(kwargs or {}))


#: Python's operators, as the functions of torch that they are.
_OPERATORS = {
    "add": "add", "radd": "add", "iadd": "add_", "sub": "sub", "rsub": "rsub", "isub": "sub_",
    "mul": "mul", "rmul": "mul", "imul": "mul_", "truediv": "div", "itruediv": "div_", "rtruediv": "reciprocal",
    "neg": "neg", "pow": "pow", "rpow": "pow", "matmul": "matmul", "rmatmul": "matmul", "mod": "remainder",
    "floordiv": "floor_divide", "abs": "abs", "invert": "bitwise_not", "and": "bitwise_and", "or": "bitwise_or",
    "eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge",
}  # fmt: skip


def _operator(name: str) -> Callable[..., Any]:
    return lambda self, *args: self._call(name, *args)


for _python, _torch in _OPERATORS.items():
    setattr(Traced, f"__{_python}__", _operator(_torch))
