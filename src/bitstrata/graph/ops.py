"""The closed list of ops: what each means, its shape rule, its checks.

A value is a float32 tensor of shape (batch, channels, height, width) or (batch, features). A node reads values by
name and defines one value, under its own name. What a device cannot find in this list, it does not run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import msgspec

from bitstrata.errors import BadShape, TooLarge, WrongInputCount, ZeroSize
from bitstrata.graph.weights import Name, Weight, Whole
from bitstrata.limits import MAX_DIMENSION, MAX_ELEMENTS, MAX_NODE_INPUTS, MAX_WINDOW

Shape = tuple[int, ...]
Pair = tuple[Whole, Whole]
"""Along height and width."""


class Op(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="op",
    tag=lambda name: "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_"),
):
    """What all ops have in common; in a file, `op` is the name of the class in small letters."""

    name: Name
    inputs: Annotated[tuple[Name, ...], msgspec.Meta(max_length=MAX_NODE_INPUTS)]

    #: How many inputs it takes; None is one or more.
    input_count: ClassVar[int | None] = 1
    #: Whether a view holds a scale and a bias per channel for it.
    has_table: ClassVar[bool] = False

    def output_shape(self, inputs: Sequence[Shape], weight: Weight | None) -> Shape:
        """The shape of the result; raises `BadShape`, `ZeroSize` or `TooLarge` where there is none."""
        if self.input_count is None and not inputs:
            raise WrongInputCount(f"{self.described} has no inputs")
        if self.input_count is not None and len(inputs) != self.input_count:
            raise WrongInputCount(f"{self.described} takes {self.input_count} inputs, not {len(inputs)}")
        shape = self._shape(inputs, weight)
        elements = 1
        for size in shape:
            if size < 1:
                raise BadShape(f"{self.described} gives an empty result of shape {shape} from {_listed(inputs)}")
            if size > MAX_DIMENSION:
                raise TooLarge(f"{self.described} gives a result of shape {shape}: {size} is over {MAX_DIMENSION}")
            elements *= size
        if elements > MAX_ELEMENTS:
            raise TooLarge(f"{self.described} gives {elements} elements, more than {MAX_ELEMENTS}")
        return shape

    def _shape(self, inputs: Sequence[Shape], weight: Weight | None) -> Shape:
        """Elementwise, unless a subclass says otherwise."""
        return inputs[0]

    @property
    def described(self) -> str:
        return f"node {self.name!r} ({self.__struct_config__.tag})"

    def positive(self, **fields: int | Sequence[int]) -> None:
        for field, value in fields.items():
            for one in (value,) if isinstance(value, int) else value:
                if one < 1:
                    raise ZeroSize(f"{self.described}: {field} is {one}, and must be at least 1")
                if one > MAX_WINDOW and field != "groups":
                    raise TooLarge(f"{self.described}: {field} is {one}, more than {MAX_WINDOW}")

    def image(self, shape: Shape) -> tuple[int, int, int, int]:
        if len(shape) != 4:
            raise BadShape(f"{self.described} takes (batch, channels, height, width), not {shape}")
        batch, channels, height, width = shape
        return batch, channels, height, width


class Windowed(Op, frozen=True, kw_only=True):
    """What slides a window over an image. Padding is top, bottom, left, right."""

    stride: Pair = (1, 1)
    padding: tuple[Whole, Whole, Whole, Whole] = (0, 0, 0, 0)
    dilation: Pair = (1, 1)

    def __post_init__(self) -> None:
        """Defaults that are spelled out become the default itself, which is left out in a file: one spelling."""
        for field in ("stride", "padding", "dilation"):
            default = _WINDOW_DEFAULTS[field]
            if getattr(self, field) == default:
                msgspec.structs.force_setattr(self, field, default)

    def check_window(self, kernel: Pair) -> None:
        self.positive(kernel=kernel, stride=self.stride, dilation=self.dilation)
        if not all(0 <= one <= MAX_WINDOW for one in self.padding):
            raise BadShape(f"{self.described}: padding {self.padding} is outside 0 to {MAX_WINDOW}")

    def window_output(self, height: int, width: int, kernel: Pair, ceil: bool = False) -> Pair:
        """How many windows fit, as torch counts them."""
        top, bottom, left, right = self.padding
        sizes = []
        for size, before, after, k, s, d in zip(
            (height, width), (top, left), (bottom, right), kernel, self.stride, self.dilation, strict=True
        ):
            room = size + before + after - d * (k - 1) - 1
            count = (room + (s - 1 if ceil else 0)) // s + 1
            if ceil and (count - 1) * s >= size + before:
                count -= 1  # the last window may reach over the edge, but must start inside
            if count < 1:
                raise BadShape(f"{self.described}: a window of {kernel} does not fit an image of {height} x {width}")
            sizes.append(count)
        return sizes[0], sizes[1]


_WINDOW_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Windowed)}


class Conv(Windowed, frozen=True, kw_only=True):
    """A convolution on codes or, with a float weight, on floats; then y = accumulator * scale + bias per channel.

    Grouped and depthwise ones included. Padded places hold zero: on codes, the zero point.
    """

    groups: Whole = 1
    weight: Name | None = None
    """The weight's name, where it is not the node's."""

    has_table: ClassVar[bool] = True

    def _shape(self, inputs: Sequence[Shape], weight: Weight | None) -> Shape:
        assert weight is not None
        if len(weight.shape) != 4:
            raise BadShape(f"{self.described} needs a weight (out, in / groups, height, width), not {weight.shape}")
        self.positive(groups=self.groups)
        outputs, inputs_per_group, kernel_height, kernel_width = weight.shape
        self.check_window((kernel_height, kernel_width))
        batch, channels, height, width = self.image(inputs[0])
        if channels != inputs_per_group * self.groups or outputs % self.groups:
            raise BadShape(
                f"{self.described}: {channels} input channels in {self.groups} groups do not fit a weight of shape "
                f"{weight.shape}"
            )
        return (batch, outputs, *self.window_output(height, width, (kernel_height, kernel_width)))


class Linear(Op, frozen=True, kw_only=True):
    """A matrix product on codes or floats; then y = accumulator * scale + bias per feature."""

    weight: Name | None = None

    has_table: ClassVar[bool] = True

    def _shape(self, inputs: Sequence[Shape], weight: Weight | None) -> Shape:
        assert weight is not None
        if len(weight.shape) != 2:
            raise BadShape(f"{self.described} needs a weight (out, in), not {weight.shape}")
        if len(inputs[0]) != 2 or inputs[0][1] != weight.shape[1]:
            raise BadShape(f"{self.described} takes (batch, {weight.shape[1]}), not {inputs[0]}")
        return (inputs[0][0], weight.shape[0])


class Affine(Op, frozen=True):
    """y = x * scale + bias per channel: a normalisation that follows no convolution."""

    has_table: ClassVar[bool] = True


class Add(Op, frozen=True):
    """The sum of two values of the same shape."""

    input_count: ClassVar[int | None] = 2

    def _shape(self, inputs: Sequence[Shape], weight: Weight | None) -> Shape:
        if inputs[0] != inputs[1]:
            raise BadShape(f"{self.described} takes two equal shapes, not {_listed(inputs)}")
        return inputs[0]


class Mul(Op, frozen=True):
    """The product of two values; a height and width of 1 is spread over the other's."""

    input_count: ClassVar[int | None] = 2

    def _shape(self, inputs: Sequence[Shape], weight: Weight | None) -> Shape:
        first, second = inputs
        if len(first) != len(second) or first[:2] != second[:2]:
            raise BadShape(f"{self.described} takes equal batch and channels, not {_listed(inputs)}")
        if first != second and first[2:] != (1, 1) and second[2:] != (1, 1):
            raise BadShape(f"{self.described}: heights and widths of {_listed(inputs)} neither agree nor are 1")
        return max(first, second)


class Concat(Op, frozen=True):
    """Values one after another along the channels."""

    input_count: ClassVar[int | None] = None

    def _shape(self, inputs: Sequence[Shape], weight: Weight | None) -> Shape:
        first = inputs[0]
        for other in inputs[1:]:
            if len(other) != len(first) or other[0] != first[0] or other[2:] != first[2:]:
                raise BadShape(f"{self.described} takes values that differ in channels only, not {_listed(inputs)}")
        return (first[0], sum(shape[1] for shape in inputs), *first[2:])


class Relu(Op, frozen=True):
    """max(x, 0)."""


class Relu6(Op, frozen=True):
    """min(max(x, 0), 6)."""


class HardSigmoid(Op, frozen=True):
    """min(max(x + 3, 0), 6) / 6."""


class HardSwish(Op, frozen=True):
    """x * min(max(x + 3, 0), 6) / 6."""


class Sigmoid(Op, frozen=True):
    """1 / (1 + exp(-x))."""


class Silu(Op, frozen=True):
    """x / (1 + exp(-x))."""


class MaxPool(Windowed, frozen=True, kw_only=True):
    """The largest value of every window; padded places never win."""

    kernel: Pair
    ceil: bool = False

    def _shape(self, inputs: Sequence[Shape], weight: Weight | None) -> Shape:
        return _pooled(self, inputs[0], self.kernel, self.ceil)


class AvgPool(Windowed, frozen=True, kw_only=True):
    """The mean of every window, over all its places or, without `count_padding`, over those inside the image."""

    kernel: Pair
    ceil: bool = False
    count_padding: bool = True

    def _shape(self, inputs: Sequence[Shape], weight: Weight | None) -> Shape:
        if self.dilation != (1, 1):
            raise BadShape(f"{self.described} has no dilation")
        return _pooled(self, inputs[0], self.kernel, self.ceil)


class AdaptiveAvgPool(Op, frozen=True, kw_only=True):
    """The means of a grid of windows that covers any image: window i of n spans floor(i s / n) to ceil((i+1) s / n).

    A size of (1, 1) is global average pooling.
    """

    size: Pair

    def _shape(self, inputs: Sequence[Shape], weight: Weight | None) -> Shape:
        self.positive(size=self.size)
        return (*self.image(inputs[0])[:2], *self.size)


class AdaptiveMaxPool(AdaptiveAvgPool, frozen=True, kw_only=True):
    """The largest values of the same windows; a size of (1, 1) is global max pooling."""


class Mean(Op, frozen=True, kw_only=True):
    """The mean over height and width, or over one of them; kept as dimensions of size 1, or dropped if it is both."""

    axes: tuple[Whole, ...]
    keep: bool = False

    def _shape(self, inputs: Sequence[Shape], weight: Weight | None) -> Shape:
        shape = self.image(inputs[0])
        if self.axes not in ((2,), (3,), (2, 3)):
            raise BadShape(f"{self.described}: the axes are (2,), (3,) or (2, 3), not {self.axes}")
        if self.keep:
            return tuple(1 if axis in self.axes else size for axis, size in enumerate(shape))
        if self.axes != (2, 3):
            raise BadShape(f"{self.described}: a mean over {self.axes} alone must keep its dimension")
        return shape[:2]


class Pad(Op, frozen=True, kw_only=True):
    """Places around an image: channels before and after, top, bottom, left, right."""

    padding: tuple[Whole, Whole, Whole, Whole, Whole, Whole]
    mode: Literal["constant", "reflect", "replicate", "circular"] = "constant"
    value: float = 0.0

    def _shape(self, inputs: Sequence[Shape], weight: Weight | None) -> Shape:
        batch, channels, height, width = self.image(inputs[0])
        before, after, top, bottom, left, right = self.padding
        if not all(0 <= one <= MAX_WINDOW for one in self.padding):
            raise BadShape(f"{self.described}: padding {self.padding} is outside 0 to {MAX_WINDOW}")
        if not abs(self.value) <= 3e38:
            raise BadShape(f"{self.described}: {self.value} is not a float32")
        if self.mode != "constant":
            if before or after:
                raise BadShape(f"{self.described}: channels are padded with a constant only")
            reach = 0 if self.mode == "circular" else -1
            largest = (max(top, bottom), max(left, right))
            if self.mode != "replicate" and (largest[0] > height + reach or largest[1] > width + reach):
                raise BadShape(f"{self.described}: {self.mode} padding of {self.padding} is too much for {inputs[0]}")
        return (batch, channels + before + after, height + top + bottom, width + left + right)


class Slice(Op, frozen=True, kw_only=True):
    """Every `step`-th index from `start` up to, not including, `stop` (None: the end) along an axis but the batch.

    Negative indices count from the end, as in Python.
    """

    axis: Annotated[int, msgspec.Meta(ge=1, le=3)]
    start: Whole = 0
    stop: Whole | None = None
    step: Whole = 1

    def _shape(self, inputs: Sequence[Shape], weight: Weight | None) -> Shape:
        self.positive(step=self.step)
        if self.axis >= len(inputs[0]):
            raise BadShape(f"{self.described}: {inputs[0]} has no axis {self.axis}")
        shape = list(inputs[0])
        shape[self.axis] = len(range(*slice(self.start, self.stop, self.step).indices(shape[self.axis])))
        return tuple(shape)


class Flatten(Op, frozen=True):
    """(batch, channels, height, width) to (batch, features), channels slowest."""

    def _shape(self, inputs: Sequence[Shape], weight: Weight | None) -> Shape:
        features = 1
        for size in inputs[0][1:]:
            features *= size
        return (inputs[0][0], features)


class Reshape(Op, frozen=True, kw_only=True):
    """Another shape for every sample, (channels, height, width) or (features,); one size may be -1: what is left."""

    shape: Annotated[tuple[Whole, ...], msgspec.Meta(min_length=1, max_length=3)]

    def _shape(self, inputs: Sequence[Shape], weight: Weight | None) -> Shape:
        if len(self.shape) not in (1, 3):
            raise BadShape(f"{self.described}: the new shape has 1 or 3 sizes besides the batch, not {self.shape}")
        wanted, open_places = 1, 0
        for size in self.shape:
            if size == -1:
                open_places += 1
            elif size < 1:
                raise ZeroSize(f"{self.described}: size {size} in {self.shape}")
            else:
                wanted *= size
        there = 1
        for size in inputs[0][1:]:
            there *= size
        if open_places > 1 or (open_places and there % wanted) or (not open_places and there != wanted):
            raise BadShape(f"{self.described}: {inputs[0]} has no shape (batch, {', '.join(map(str, self.shape))})")
        return (inputs[0][0], *(there // wanted if size == -1 else size for size in self.shape))


ACTIVATIONS = (Relu, Relu6, HardSigmoid, HardSwish, Sigmoid, Silu)

Node = (
    Conv | Linear | Affine | Add | Mul | Concat
    | Relu | Relu6 | HardSigmoid | HardSwish | Sigmoid | Silu
    | MaxPool | AvgPool | AdaptiveAvgPool | AdaptiveMaxPool | Mean
    | Pad | Slice | Flatten | Reshape
)  # fmt: skip


def _pooled(op: Windowed, shape: Shape, kernel: Pair, ceil: bool) -> Shape:
    op.check_window(kernel)
    batch, channels, height, width = op.image(shape)
    extents = [d * (k - 1) + 1 for k, d in zip(kernel, op.dilation, strict=True)]
    if max(op.padding[:2]) * 2 > extents[0] or max(op.padding[2:]) * 2 > extents[1]:
        raise BadShape(f"{op.described}: padding {op.padding} is more than half of a window of {kernel}")
    return (batch, channels, *op.window_output(height, width, kernel, ceil))


def _listed(shapes: Sequence[Shape]) -> str:
    return " and ".join(map(str, shapes))
