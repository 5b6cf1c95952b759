"""What a study keeps of its runs: one line of JSON for each, in a file that only grows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from bitstrata.errors import BadStudy


class Accuracy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Percentages on the test images."""

    top1: float
    top5: float


class TracePoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a minimum-norm run: means over the steps since the point before."""

    epoch: float
    """Where in the run: 1.5 is the middle of the second epoch."""
    weights: dict[str, float]
    """The weight of every width in the combination."""
    norms: dict[str, float]
    """The norm of every width's gradient."""


class InputError(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much quantisation changes the input of a layer at the lowest width."""

    layer: str
    norm: float
    """The mean over samples of |a - a_hat|, the Euclidean norm: what the paper draws."""
    relative: float
    """The mean over samples of |a - a_hat| / |a|."""


class MixedPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One mixed-precision network over the planes of a joint network."""

    objective: str
    bits_per_weight: float
    """Of the quantised weights, as chosen: at most the budget."""
    widths: dict[str, int]
    """The width of every quantised layer."""
    top1: float
    top5: float


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One finished run: a method, trained with one seed at all its widths."""

    version: Literal[1] = 1
    method: str
    """Its name in the study."""
    seed: int
    net: str
    data: str
    classes: int = 0
    """Of the data; 0 where it was not noted."""
    settings: dict[str, Any]
    """Everything that the result depends on; a run is done when a record has its method, seed and settings."""
    status: Literal["trained", "diverged"]
    reason: str = ""
    """Of a run that diverged: what became not finite, and where."""
    accuracy: dict[str, Accuracy]
    """By width; `float` for a float network. A width that diverged is not there."""
    parameters: int = 0
    """Of the float network."""
    quantised_weights: int = 0
    weight_bits: int = 0
    """What a server stores to give every width: quantised weights at their stored width, the others at 32 bits."""
    norm_parameters: int = 0
    """Affine parameters and statistics of all norms, at all widths."""
    added_parameters: int = 0
    """First and last layers beyond one shared copy."""
    histograms: dict[str, dict[str, int]] = {}
    """By width: how many weights have which code, over all quantised layers."""
    trace: list[TracePoint] = []
    input_errors: list[InputError] = []
    """Of the last five quantised layers, in the order of the network."""
    mixed: list[MixedPoint] = []
    seconds: float = 0.0
    """Wall time of training and measuring."""
    cpu_seconds: float = 0.0
    finished: str = ""
    """The day, as 2026-01-31."""


_DECODER = msgspec.json.Decoder(RunRecord)


def read_records(path: Path) -> list[RunRecord]:
    """All records of a file; a last line that was cut off by a crash is left out."""
    if not path.exists():
        return []
    content = path.read_bytes()
    lines = content.split(b"\n")
    records = []
    for number, line in enumerate(lines, start=1):
        whole = number < len(lines)
        if not line.strip() or not whole:
            continue
        try:
            records.append(_DECODER.decode(line))
        except msgspec.MsgspecError as error:
            raise BadStudy(f"{path}, line {number}: not a record of a run ({error}). Remove the line") from error
    return records


def append_record(path: Path, record: RunRecord) -> None:
    """Adds one line, after what a crash may have left of another."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        end = file.seek(0, 2)
        if end:
            file.seek(end - 1)
            if file.read(1) != b"\n":
                _drop_cut_line(path, file)
        file.write(msgspec.json.encode(record) + b"\n")
        file.flush()


def _drop_cut_line(path: Path, file: Any) -> None:
    content = path.read_bytes()
    file.truncate(content.rfind(b"\n") + 1)
