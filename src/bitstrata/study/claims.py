"""The paper's claims, each judged from the records of a study by the rule of `verdicts`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from bitstrata.study.document import Block, Bullets, Column, Grid, Heading, Paragraph
from bitstrata.study.groups import Group, widths_of
from bitstrata.study.records import MixedPoint, RunRecord
from bitstrata.study.verdicts import RULE, Verdict, above, below, interval, together

#: Joint training is as good as one network for each width when it loses less than this.
CLOSE = 0.6
#: Gains and losses of less than this are not worth anything.
LITTLE = 0.5
#: A method fails where it loses more than this; the paper's example loses 12.3.
FAILURE = 5.0
#: A network no better than this many times guessing has learned nothing.
GUESSING = 1.5
#: The mixed networks that are compared with the uniform one have at most this many bits per weight, and not many fewer.
MIXED_BITS, MIXED_BITS_AT_LEAST = 3.0, 2.75

OBJECTIVES = ("weights", "energy")


@dataclass(frozen=True)
class Part:
    """One comparison that a claim rests on."""

    text: str
    verdict: Verdict
    missing: tuple[str, ...] = ()
    """Methods that were not run."""
    seeds: int = 0
    counts: bool = True
    """Whether it decides, or is only told."""


@dataclass(frozen=True)
class Claim:
    number: int
    statement: str
    paper: str
    """What the paper found."""
    parts: tuple[Part, ...]

    @property
    def verdict(self) -> Verdict:
        return together([part.verdict for part in self.parts if part.counts])

    @property
    def ruling(self) -> str:
        """The verdict, with the reason where there is none."""
        deciding = [part for part in self.parts if part.counts]
        missing = sorted({name for part in deciding for name in part.missing})
        if self.verdict != "cannot be told":
            return self.verdict
        if missing:
            return f"cannot be told: not run ({', '.join(missing)})"
        return "cannot be told: one seed" if max(part.seeds for part in deciding) == 1 else "cannot be told"


def judge(group: Group) -> list[Claim]:
    """All claims, for one network on one data set."""
    return [make(group) for make in _CLAIMS]


def claim_blocks(groups: Sequence[Group]) -> list[Block]:
    """The verdicts, the numbers behind them, and the rule."""
    blocks: list[Block] = [Heading("The paper's claims")]
    columns = (
        Column("claim", text=True),
        Column("verdict", text=True),
        Column("our numbers", text=True),
        Column("the paper", text=True, paper=True),
    )
    for group in groups:
        lines = []
        for claim in judge(group):
            numbers = "\n".join(f"{part.text}: {part.verdict}" if part.counts else part.text for part in claim.parts)
            lines.append((f"{claim.number}. {claim.statement}", claim.ruling, numbers, claim.paper))
        blocks += [Heading(group.name, level=3), Grid(columns, tuple(lines))]
    blocks.append(Paragraph("How verdicts are reached. " + RULE))
    blocks.append(
        Bullets(
            (
                "Numbers are mean differences in points of top-1, with the 90 % interval in brackets.",
                (
                    f"Thresholds: {CLOSE} points for joint training against LSQ (claim 1); {LITTLE} points for what "
                    f"counts as no worse (claim 7) or not worth it (claim 9); {FAILURE:g} points for failing (claim "
                    f"4); {GUESSING} times guessing for having learned nothing (claim 3); none elsewhere."
                ),
            )
        )
    )
    return blocks


def _within(group: Group) -> Claim:
    parts = [_each_width(group, "joint", "lsq", width, above, -CLOSE) for width in _widths(group, "joint", "lsq")]
    overall = _average(group, "joint", "lsq", above, -CLOSE)
    parts.append(_told(overall, f"{overall.text} ({overall.verdict})"))
    if group.of("joint-cosine"):
        widths = _widths(group, "joint-cosine", "lsq")
        cosine = [_each_width(group, "joint-cosine", "lsq", width, above, -CLOSE) for width in widths]
        parts += [_told(part, f"{part.text} ({part.verdict})") for part in cosine]
    return Claim(
        1,
        f"Joint training is within {CLOSE} points of LSQ at each width",
        (
            "between -0.8 (ResNet-50, 2 bits) and +0.8 without self-distillation, -0.6 (VGG-16 BN, 4 bits) and +3.9 "
            "with it"
        ),
        tuple(parts),
    )


def _ascending(group: Group) -> Claim:
    return Claim(
        2,
        "Ascending layer training loses to LSQ at 3 and 4 bits",
        "-1.5 at 3 bits, -2.1 at 4",
        tuple(_each_width(group, "ascending", "lsq", width, below, 0.0) for width in ("3", "4")),
    )


def _co_training(group: Group) -> Claim:
    records = group.of("co-training")
    statement, paper = "Multi-layer co-training diverges", "not a number"
    if not records:
        return Claim(3, statement, paper, (Part("not run", "cannot be told", ("co-training",)),))
    failed = [_learned_nothing(record, group.chance) for record in records]
    best = [max((one.top1 for one in record.accuracy.values()), default=math.nan) for record in records]
    shown = ", ".join("none" if math.isnan(value) else f"{value:.1f}" for value in best)
    verdict: Verdict = "cannot be told"
    if len(records) > 1 and None not in failed:
        verdict = "holds" if all(failed) else "cannot be told" if any(failed) else "does not hold"
    text = f"{sum(map(bool, failed))} of {len(records)} runs diverged or learned nothing (best top-1 of each: {shown})"
    return Claim(3, statement, paper, (Part(text, verdict, seeds=len(records)),))


def _fine_tuning(group: Group) -> Claim:
    return Claim(
        4,
        "QAT + fine-tuning fails at 2 bits",
        "against joint training -12.3 at 2 bits, -2.5 at 3, 0.0 at 4",
        (
            _each_width(group, "qat-finetune", "joint", "2", below, -FAILURE),
            _told(_each_width(group, "qat-finetune", "joint", "3", below, -FAILURE)),
            _told(_each_width(group, "qat-finetune", "joint", "4", below, -FAILURE)),
        ),
    )


def _compensation(group: Group) -> Claim:
    parts = [_each_width(group, "joint", "no-compensation", "2", above, 0.0)]
    for other in ("3", "4"):
        at_two = _differences(group, "joint", "no-compensation", ("2",))
        at_other = _differences(group, "joint", "no-compensation", (other,))
        more = [at_two[seed] - at_other[seed] for seed in sorted(at_two.keys() & at_other.keys())]
        parts.append(
            _part(group, ("joint", "no-compensation"), f"that minus the same at {other} bits", more, above, 0.0)
        )
    return Claim(
        5,
        "Compensation helps most at 2 bits",
        "+5.4 at 2 bits, +2.5 at 3, +0.1 at 4 (ResNet-18)",
        tuple(parts),
    )


def _norms(group: Group) -> Claim:
    pairs = (("joint", "norms-statistics"), ("norms-statistics", "norms-shared"))
    return Claim(
        6,
        "Individual norms are best, shared norms are worst",
        "individual over individual statistics +0.9, those over shared +18.1 (ResNet-18)",
        tuple(_average(group, first, second, above, 0.0) for first, second in pairs),
    )


def _objective(group: Group) -> Claim:
    widths = _widths(group, "joint", "minimum-norm")
    return Claim(
        7,
        "The simple mean of the losses is no worse than the minimum-norm combination",
        "-0.1 at 2 bits, +0.6 at 3, +0.8 at 4 (ResNet-18)",
        (
            _average(group, "joint", "minimum-norm", above, -LITTLE),
            *(_told(_each_width(group, "joint", "minimum-norm", width, above, -LITTLE)) for width in widths),
        ),
    )


def _distillation(group: Group) -> Claim:
    return Claim(
        8,
        "Self-distillation by cosine beats KL, and none",
        "over KL +0.3, over none +0.2 (ResNet-18)",
        tuple(_average(group, "joint-cosine", other, above, 0.0) for other in ("joint-kl", "joint")),
    )


def _own_ends(group: Group) -> Claim:
    widths = _widths(group, "own-ends", "joint")
    return Claim(
        9,
        "Own first and last layers for each width are not worth it",
        "+0.2 at 2 bits, +0.1 at 3, -0.1 at 4 (ResNet-18); -1.4, -1.1, -1.0 (ResNet-50)",
        tuple(_each_width(group, "own-ends", "joint", width, below, LITTLE) for width in widths),
    )


def _budget(group: Group) -> Claim:
    parts = []
    for objective in OBJECTIVES:
        rises = [rise(points) for record in group.of("mixed") if (points := points_of(record, objective))]
        usable = [value for value in rises if value is not None]
        name = f"objective {objective}, rise from the least to the largest budget"
        parts.append(_part(group, ("mixed",), name, usable, above, 0.0))
    return Claim(
        10, "Accuracy rises with the bit budget", "rises “in general” (its Fig. 8, without numbers)", tuple(parts)
    )


def _mixed(group: Group) -> Claim:
    parts = []
    for objective in OBJECTIVES:
        gains, sizes = [], []
        for record in group.of("mixed"):
            point = at_three_bits(record, objective)
            if point is not None and "3" in record.accuracy:
                gains.append(point.top1 - record.accuracy["3"].top1)
                sizes.append(point.bits_per_weight)
        name = f"objective {objective}" + (f", {fmean(sizes):.2f} bits" if sizes else "")
        parts.append(_part(group, ("mixed",), name, gains, above, 0.0))
    return Claim(
        11,
        "Mixed precision beats uniform 3 bits at equal or smaller size",
        "uniform 3 bits is worse than a mixed network with fewer bits (its Fig. 8, without numbers)",
        tuple(parts),
    )


_CLAIMS = (
    *(_within, _ascending, _co_training, _fine_tuning, _compensation, _norms),
    *(_objective, _distillation, _own_ends, _budget, _mixed),
)


def points_of(record: RunRecord, objective: str) -> list[MixedPoint]:
    """The mixed networks of one objective, from the smallest to the largest."""
    return sorted(
        (point for point in record.mixed if point.objective == objective), key=lambda one: one.bits_per_weight
    )


def at_three_bits(record: RunRecord, objective: str) -> MixedPoint | None:
    """The largest network that is no larger than the uniform one of 3 bits, and is not that one."""
    fitting = [
        point
        for point in points_of(record, objective)
        if MIXED_BITS_AT_LEAST <= point.bits_per_weight <= MIXED_BITS + 1e-9 and len(set(point.widths.values())) > 1
    ]
    return fitting[-1] if fitting else None


def rise(points: Sequence[MixedPoint]) -> float | None:
    """How far the line of least squares through top-1 against bits climbs from the least bits to the most."""
    middle = fmean(point.bits_per_weight for point in points)
    level = fmean(point.top1 for point in points)
    squares = sum((point.bits_per_weight - middle) ** 2 for point in points)
    if squares < 1e-12:
        return None
    products = sum((point.bits_per_weight - middle) * (point.top1 - level) for point in points)
    return products / squares * (points[-1].bits_per_weight - points[0].bits_per_weight)


Test = Callable[..., Verdict]


def _widths(group: Group, first: str, second: str) -> tuple[str, ...]:
    """The widths that both have; those of the paper where one was not run."""
    runs = [group.of(first), group.of(second)]
    common = set(widths_of(runs[0])) & set(widths_of(runs[1]))
    return tuple(width for width in widths_of([*runs[0], *runs[1]]) if width in common)


def _differences(group: Group, first: str, second: str, widths: Sequence[str]) -> dict[int, float]:
    """By seed: top-1 of `first` less that of `second`, the mean over the widths."""
    found = {}
    ones, others = group.runs.get(first, {}), group.runs.get(second, {})
    for seed in sorted(ones.keys() & others.keys()):
        pairs = [(_top1(ones[seed], width), _top1(others[seed], width)) for width in widths]
        if any(None in pair for pair in pairs):
            continue
        alive = [pair for pair in pairs if pair != (math.inf, math.inf)]
        guessing = group.chance or 0.0
        gaps = [
            (guessing if one == math.inf else one) - (guessing if other == math.inf else other)
            for one, other in alive
            if one is not None and other is not None
        ]
        if gaps:
            found[seed] = fmean(gaps)
    return found


def _top1(record: RunRecord, width: str) -> float | None:
    """Infinite where the run diverged; None where it has no such width."""
    accuracy = record.accuracy.get(width)
    if accuracy is not None and math.isfinite(accuracy.top1):
        return accuracy.top1
    return math.inf if record.status == "diverged" or accuracy is not None else None


def _learned_nothing(record: RunRecord, chance: float | None) -> bool | None:
    """None where one would have to know the number of classes."""
    if record.status == "diverged" or not record.accuracy:
        return True
    if chance is None:
        return None
    return all(not one.top1 > GUESSING * chance for one in record.accuracy.values())


def _each_width(group: Group, first: str, second: str, width: str, test: Test, threshold: float) -> Part:
    differences = _differences(group, first, second, (width,))
    return _part(
        group, (first, second), f"{first} minus {second}, {width} bits", list(differences.values()), test, threshold
    )


def _average(group: Group, first: str, second: str, test: Test, threshold: float) -> Part:
    differences = _differences(group, first, second, _widths(group, first, second))
    name = f"{first} minus {second}, mean of the widths"
    return _part(group, (first, second), name, list(differences.values()), test, threshold)


def _part(
    group: Group, methods: Sequence[str], name: str, differences: Sequence[float], test: Test, threshold: float
) -> Part:
    missing = tuple(method for method in methods if not group.of(method))
    if missing:
        return Part(f"{name}: not run", "cannot be told", missing)
    found = interval(differences)
    if found is None:
        return Part(f"{name}: no run has it, or no seed is common", "cannot be told")
    return Part(f"{name}: {found}", test(found, threshold), seeds=found.seeds)


def _told(part: Part, text: str = "") -> Part:
    """A part that decides nothing."""
    return Part(f"not counted: {text or part.text}", part.verdict, part.missing, part.seeds, counts=False)
