"""The kinds of quantiser: what stands before the weight and before the input of every quantised layer.

`learned-step` is the method's own (`steps.py`); the others are those that the paper compares with, each in a file of
`bitstrata.baselines`. A kind is a `Quantizer`: two classes and what can be said of them. Whoever wants to try an idea
of their own passes such an object to `stratify`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from bitstrata.errors import BadOption, CannotStratify, NotCalibrated
from bitstrata.training.bound import Bound
from bitstrata.training.calibration import Histogram
from bitstrata.training.options import Options

QuantizerName = Literal["learned-step", "pact", "lq-nets", "dsq", "qil", "lqw", "diffq", "adabits", "binary-planes"]


class WeightQuantiser(Bound):
    """Turns the float weight of a layer into what the layer computes with; layers that share a weight share it too."""

    #: Whether `integers` gives the weight as whole numbers, so that evaluation is exact and devices can run it.
    exact = False

    def __init__(self, weight: nn.Parameter, options: Options, name: str) -> None:
        super().__init__()
        self.options = options
        self.name = name

    def forward(self, weight: Tensor) -> Tensor:
        raise NotImplementedError

    def integers(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The weight in units of half a source step, as whole numbers in float32, and the step."""
        raise NotImplementedError

    def decays(self, name: str) -> bool:
        """Whether the parameter of that name takes weight decay."""
        return False


@dataclass
class CalibrationState:
    """What an activation quantiser knows besides its tensors; one object, shared by the source and its bound copies."""

    #: Zero points of the calibrated widths, as plain numbers so that reading one needs no device synchronisation.
    zero_points: dict[int, int] = field(default_factory=dict)
    #: While `calibrate` runs: what has been seen so far, per width.
    histograms: dict[int, Histogram] | None = None


class ActivationQuantiser(Bound):
    """Quantises the input of one layer; sets itself from the first data that it sees, at each width."""

    exact = False

    def __init__(self, options: Options, name: str, device: torch.device) -> None:
        super().__init__()
        self.options = options
        self.name = name
        self.state = CalibrationState()
        for bits in options.widths:
            self.register_buffer(f"zero_point_{bits}", torch.zeros((), dtype=torch.int64, device=device))
            self.register_buffer(f"calibrated_{bits}", torch.zeros((), dtype=torch.bool, device=device))

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def initialise(self, bits: int, histogram: Histogram) -> int:
        """Sets the parameters of a width from what was seen, and returns its zero point."""
        raise NotImplementedError

    def decays(self, name: str) -> bool:
        """Whether the parameter of that name takes weight decay."""
        return False

    def zero_point(self, x: Tensor) -> int:
        """That of this width; calibrates on `x` first where that has not happened yet."""
        bits = self.bound_bits()
        if self.state.histograms is not None:
            self._observe(x, bits)
        elif bits not in self.state.zero_points:
            self._recall(x, bits)
        return self.state.zero_points[bits]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _recall(self, x: Tensor, bits: int) -> None:
        if getattr(self, f"calibrated_{bits}"):
            self.state.zero_points[bits] = int(getattr(self, f"zero_point_{bits}"))
        elif self.training:
            self._set(bits, Histogram.of(x, self.name))
        else:
            raise NotCalibrated(
                f"layer {self.name!r} has no activation step at {bits} bits yet. Run one batch in training mode, or "
                f"net.calibrate(batches), before evaluating"
            )

    def _observe(self, x: Tensor, bits: int) -> None:
        assert self.state.histograms is not None
        seen = self.state.histograms.get(bits)
        batch = Histogram.of(x, self.name)
        self.state.histograms[bits] = batch if seen is None else seen.merged(batch)
        if seen is None:
            # The layers after this one need its output now; the final step comes when all batches were seen.
            self._set(bits, batch)

    def settle(self) -> None:
        """Ends the calibration that `state.histograms` began: sets every width from all that was seen."""
        for bits, histogram in (self.state.histograms or {}).items():
            self._set(bits, histogram)
        self.state.histograms = None

    @torch.no_grad()
    def _set(self, bits: int, histogram: Histogram) -> None:
        zero_point = self.initialise(bits, histogram)
        getattr(self, f"zero_point_{bits}").fill_(zero_point)
        getattr(self, f"calibrated_{bits}").fill_(True)
        self.state.zero_points[bits] = zero_point

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.state.zero_points.clear()


class Quantizer(NamedTuple):
    """One kind of quantiser."""

    name: str
    weight: Callable[[nn.Parameter, Options, str], WeightQuantiser]
    activation: Callable[[Options, str, torch.device], ActivationQuantiser]
    #: Whether one source weight serves several widths at once. Most of the published ones are made for one.
    several_widths: bool = False
    #: Whether lower widths are made from the stored codes of the highest; if not, the float weight must be stored.
    nested: bool = True


#: Where each kind stands: an attribute QUANTIZER of that module. Imported when it is asked for.
_HOMES: dict[QuantizerName, str] = {
    "learned-step": "bitstrata.training.steps",
    "pact": "bitstrata.baselines.pact",
    "lq-nets": "bitstrata.baselines.lq_nets",
    "dsq": "bitstrata.baselines.dsq",
    "qil": "bitstrata.baselines.qil",
    "lqw": "bitstrata.baselines.lqw",
    "diffq": "bitstrata.baselines.diffq",
    "adabits": "bitstrata.baselines.adabits",
    "binary-planes": "bitstrata.baselines.binary_planes",
}


def find_quantizer(choice: QuantizerName | Quantizer, widths: tuple[int, ...]) -> Quantizer:
    """The kind that a name stands for, if it can serve these widths."""
    if isinstance(choice, Quantizer):
        found = choice
    elif choice in get_args(QuantizerName):
        found = import_module(_HOMES[choice]).QUANTIZER
    else:
        raise BadOption(f"quantizer={choice!r} is not one of {', '.join(get_args(QuantizerName))}")
    if len(widths) > 1 and not found.several_widths:
        raise CannotStratify(
            f"the quantizer {found.name} makes a network of one width, not of {widths}: give a single one, as in "
            f"widths=(2,), and train a network for each"
        )
    return found
