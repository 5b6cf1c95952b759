"""The records of a study, sorted: by network and data, then by method, one record for each seed."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from statistics import fmean, stdev

from bitstrata.study.paper import LABELS, WIDTHS
from bitstrata.study.records import RunRecord

DASH = "\N{EN DASH}"

_CLASSES = {"digits": 10, "fashion-mnist": 10, "cifar10": 10, "cifar100": 100}


@dataclass(frozen=True)
class Group:
    """All runs of one network on one data set."""

    net: str
    data: str
    runs: dict[str, dict[int, RunRecord]]
    """By method and seed."""
    replaced: int
    """Records that a later one of the same method and seed stands for."""

    @property
    def name(self) -> str:
        return f"{self.net} on {data_name(self.data)}"

    def of(self, method: str) -> list[RunRecord]:
        """The records of a method, by seed."""
        return [record for _, record in sorted(self.runs.get(method, {}).items())]

    @property
    def others(self) -> list[str]:
        """Methods that the paper does not have."""
        return sorted(set(self.runs) - set(LABELS))

    @property
    def chance(self) -> float | None:
        """The top-1 of guessing, in per cent, where the number of classes is known."""
        for runs in self.runs.values():
            for record in runs.values():
                if record.classes > 0:
                    return 100 / record.classes
        kind = re.match(r"[a-z0-9-]*", self.data)  # of "cifar10, 7,500 training images"
        known = _CLASSES.get(kind[0]) if kind is not None else None
        return None if known is None else 100 / known


def group_records(records: Sequence[RunRecord]) -> list[Group]:
    """Groups in the order in which they first appear; of two records of the same run, the later counts."""
    found: dict[tuple[str, str], dict[str, dict[int, RunRecord]]] = {}
    replaced: dict[tuple[str, str], int] = {}
    for record in records:
        key = (record.net, record.data)
        seeds = found.setdefault(key, {}).setdefault(record.method, {})
        replaced[key] = replaced.get(key, 0) + (record.seed in seeds)
        seeds[record.seed] = record
    return [Group(net, data, runs, replaced[net, data]) for (net, data), runs in found.items()]


def data_name(spec: str) -> str:
    """A data set without the place where it lies on some machine."""
    kind, _, rest = spec.partition(":")
    place = PurePosixPath(rest.partition("?")[0]).name
    return f"{kind} {place}" if kind == "folder" and place else kind.partition("?")[0]


def widths_of(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Every width that some record has; those of the paper where none has any."""
    found = {width for record in records for width in record.accuracy if width.isascii() and width.isdigit()}
    return tuple(sorted(found, key=int)) or WIDTHS


def mean_and_spread(values: Sequence[float], digits: int = 1) -> str:
    """Mean and sample standard deviation; no spread from one value."""
    if not values:
        return DASH
    mean = f"{fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {stdev(values):.{digits}f}"


def accuracy_cell(records: Sequence[RunRecord], width: str, *, top5: bool = False) -> str:
    """A method at a width: mean and spread over the seeds that have it, and how many diverged there."""
    present = [record.accuracy[width] for record in records if width in record.accuracy]
    values = [one.top5 if top5 else one.top1 for one in present]
    finite = [value for value in values if math.isfinite(value)]
    diverged = sum(record.status == "diverged" and width not in record.accuracy for record in records)
    diverged += len(values) - len(finite)
    if not diverged:
        return mean_and_spread(finite)
    failure = f"diverged ({diverged} of {len(records)})"
    return f"{mean_and_spread(finite)},\n{failure}" if finite else failure
