"""The recorder: turns what is done to traced values into drafts of nodes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bitstrata.capture.drafts import Draft, Terms, WeightSource
from bitstrata.capture.sizes import Sizes, agree, shapes_of, sizes_of
from bitstrata.capture.traced import Traced
from bitstrata.errors import BadGraph, CannotCapture
from bitstrata.graph import INPUT, ops

Lowering = Callable[..., Any]

_HINTS = {
    "layer_norm": "BatchNorm2d folds into the layer before it",
    "group_norm": "BatchNorm2d folds into the layer before it",
    "instance_norm": "BatchNorm2d folds into the layer before it",
    "gelu": "SiLU and hard-swish are close to it",
    "softmax": "Where it ends the network, leave it out and apply it to the outputs",
    "log_softmax": "Where it ends the network, leave it out and apply it to the outputs",
    "conv2d": "Its weight belongs to no layer: use a registered nn.Conv2d",
    "linear": "Its weight belongs to no layer: use a registered nn.Linear",
    "leaky_relu": "ReLU and SiLU are close to it",
}


@dataclass(frozen=True)
class Scope:
    """A module whose forward is running."""

    path: str
    kind: str
    is_one_op: bool
    """One of torch's own layers: the op that it records has its name."""

    @property
    def described(self) -> str:
        return f"{self.path!r} ({self.kind})" if self.path else f"the model ({self.kind})"


class Recorder:
    """Collects the drafts of one width."""

    def __init__(self, sizes: Sizes, lowerings: Mapping[str, Lowering], names: Mapping[int, str]) -> None:
        """`names` gives the model's parameters and buffers by id, for messages."""
        self.lowerings = lowerings
        self.names = names
        self.scopes: list[Scope] = []
        self.drafts = [Draft(None, INPUT, [], sizes)]
        self.input = Traced(self, self.drafts[0], sizes)

    @property
    def scope(self) -> Scope:
        return self.scopes[-1]

    def failure(self, reason: str) -> CannotCapture:
        """What to raise; the module whose code is running is named."""
        return CannotCapture(f"{self.scope.described} {reason}")

    def refusal(self, name: str) -> CannotCapture:
        """What to raise for an op that is not in the list."""
        hint = _HINTS.get(name, "Rewrite it with those, or leave it outside the network")
        return self.failure(
            f"computes {name!r}, which is none of the ops that a device runs (bitstrata.graph.ops). {hint}"
        )

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function or method of torch was called on traced values."""
        plain = name[:-1] if name.endswith("_") and not name.endswith("__") else name
        lowering = self.lowerings.get(plain)
        if lowering is None:
            raise self.refusal(plain)
        in_place = bool(kwargs.get("inplace")) or plain != name
        kwargs = {key: value for key, value in kwargs.items() if key != "inplace"}
        try:
            bound = inspect.signature(lowering).bind(self, *args, **kwargs)
        except TypeError as error:
            raise self.failure(f"calls {name!r} in a form that a device does not run: {error}") from error
        result = lowering(*bound.args, **bound.kwargs)
        if not in_place:
            return result
        changed = args[0]
        if not isinstance(changed, Traced):
            raise self.failure(f"changes a constant by {name!r}")
        if result is not changed:
            changed.become(result)
        return changed

    def emit(
        self,
        kind: type[ops.Op],
        *inputs: Traced,
        name: str,
        terms: Terms | None = None,
        weight: WeightSource | None = None,
        **fields: Any,
    ) -> Traced:
        """Adds a node; `name` is that of the op, as the model's author would call it."""
        return self.emit_draft(kind, [self.draft_of(x) for x in inputs], self.place(name), terms, weight, fields)

    def emit_draft(
        self,
        kind: type[ops.Op],
        inputs: list[Draft],
        place: str,
        terms: Terms | None,
        weight: WeightSource | None,
        fields: dict[str, Any],
    ) -> Traced:
        draft = Draft(kind, place, inputs, (), fields, terms, weight)
        draft.sizes = self._infer(draft)
        self.drafts.append(draft)
        return Traced(self, draft, draft.sizes)

    def place(self, name: str) -> str:
        """Where the running code stands: the path of a layer, or that of its module and what it does."""
        if self.scope.is_one_op or not name:
            return self.scope.path
        return f"{self.scope.path}.{name}" if self.scope.path else name

    def _infer(self, draft: Draft) -> Sizes:
        shapes: list[ops.Shape | None] = []
        for index, inputs in enumerate(zip(*(shapes_of(one.sizes) for one in draft.inputs), strict=True)):
            known = [shape for shape in inputs if shape is not None]
            try:
                shapes.append(draft.shape_for(known) if len(known) == len(inputs) else None)
            except BadGraph as error:
                if index == 0:
                    raise self.failure(f"does what a device does not: {error}") from error
                shapes.append(None)
        return sizes_of(shapes)

    def view(self, x: Traced, sizes: Sizes, name: str) -> Traced:
        """The same numbers in the same order, in another shape; no node until somebody needs that shape."""
        if self.current(x).spread:
            raise self.failure("changes the shape of an expanded value; a device expands in products only")
        result = Traced(self, x.draft, sizes, storage=x.storage)
        result.place = self.place(name)
        return result

    def current(self, x: Any) -> Traced:
        """The value itself, after making sure that it is one, and not out of date."""
        if not isinstance(x, Traced):
            raise self.failure(f"computes on {_described(x)} where the network's own values are expected")
        if x.version != x.storage.version:
            raise self.failure(
                "uses a value that was changed in place through another view of its memory. Use the op that is not "
                "in place (inplace=False)"
            )
        return x

    def draft_of(self, value: Any) -> Draft:
        """The draft that has the value's own shape, which may have to be added."""
        x = self.current(value)
        if agree(x.sizes, x.draft.sizes):
            return x.draft
        if x.spread:
            raise self.failure("expands a value over height and width; a device does so in products only")
        if not x.sizes[0].agrees(x.draft.sizes[0]):
            raise self.failure(
                f"computes on a value of shape ({', '.join(map(str, x.sizes))}), whose first size is not the batch"
            )
        if x.ndim == 2:
            made = self.emit_draft(ops.Flatten, [x.draft], x.place, None, None, {})
        elif x.ndim == 4:
            made = self.emit_draft(ops.Reshape, [x.draft], x.place, None, None, {"shape": self._open_shape(x.sizes)})
        else:
            shape = ", ".join(map(str, x.sizes))
            raise self.failure(
                f"computes on a value of {x.ndim} dimensions, ({shape}). A device knows (batch, channels, height, "
                f"width) and (batch, features)"
            )
        assert agree(made.sizes, x.sizes), f"{x.place}: {made.sizes} was to be {x.sizes}"
        x.draft = made.draft
        return x.draft

    def _open_shape(self, sizes: Sizes) -> tuple[int, ...]:
        """The sizes of a sample; the one that depends on the input is -1."""
        shape = tuple(-1 if size.constant is None else size.constant for size in sizes[1:])
        if shape.count(-1) > 1:
            raise self.failure(f"reshapes to ({', '.join(map(str, sizes))}), where two sizes depend on the input's")
        return shape

    def described_constant(self, value: Any) -> str:
        """A constant by the name that the model has for it."""
        return self.names.get(id(value), _described(value))


def _described(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"a constant tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def numbers(values: Sequence[Any]) -> list[Any]:
    """The arguments of `f(*sizes)` or `f(sizes)`, as a list."""
    if len(values) == 1 and isinstance(values[0], (list, tuple)):
        return list(values[0])
    return list(values)
