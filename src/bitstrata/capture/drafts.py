"""Nodes while they are being written down: what they compute is known, their names are not yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bitstrata.capture.sizes import Sizes
from bitstrata.graph import Weight, ops
from bitstrata.training.steps import LearnedWeightStep

Doubles = NDArray[np.float64]


@dataclass
class Terms:
    """A table before it is rounded: y = accumulator * scale + bias per channel."""

    scale: Doubles
    bias: Doubles
    step: np.float32 | None = None
    zero_point: int = 0

    def then(self, other: Terms) -> Terms:
        """This one followed by the other: (a x + b) c + d."""
        return Terms(self.scale * other.scale, self.bias * other.scale + other.bias, self.step, self.zero_point)

    def is_uniform(self, scale: float, bias: float) -> bool:
        """Whether all channels have this scale (to a float32's precision) and this bias."""
        return bool(np.allclose(self.scale, scale, rtol=1e-7, atol=0.0) and np.all(self.bias == bias))


@dataclass(frozen=True, eq=False)
class WeightSource:
    """Where the numbers of a weight come from; layers that share the tensor share the weight."""

    tensor: Tensor
    quantiser: LearnedWeightStep | None = None
    own: bool = False

    @property
    def key(self) -> tuple[int, bool]:
        return id(self.tensor), self.quantiser is None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)


@dataclass(eq=False)
class Draft:
    """One op; the input of the network is a draft without one."""

    kind: type[ops.Op] | None
    place: str
    """Where in the model it stands; its name comes from that."""
    inputs: list[Draft]
    sizes: Sizes = ()
    fields: dict[str, Any] = field(default_factory=dict)
    terms: Terms | None = None
    weight: WeightSource | None = None

    @property
    def kind_name(self) -> str:
        return "input" if self.kind is None else str(self.kind.__struct_config__.tag)

    def op(self, name: str, inputs: tuple[str, ...], weight: str | None = None) -> ops.Op:
        """The op itself, under the given names."""
        assert self.kind is not None
        named = {} if self.weight is None or weight == name else {"weight": weight}
        return self.kind(name=name, inputs=inputs, **self.fields, **named)

    def shape_for(self, inputs: list[ops.Shape]) -> ops.Shape:
        """The shape of the result; raises a `BadGraph` where there is none."""
        weight = None if self.weight is None else Weight(name="weight", shape=self.weight.shape)
        return self.op(self.place, ("input",) * len(inputs)).output_shape(inputs, weight)
