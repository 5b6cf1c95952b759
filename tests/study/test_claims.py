"""Each claim on records made for it: where it holds, where it does not, and where nothing can be told."""

import pytest
from study.constructed import full_study, mixed, record, runs

from bitstrata.study.claims import Claim, at_three_bits, judge, rise
from bitstrata.study.groups import group_records
from bitstrata.study.records import MixedPoint, RunRecord

JOINT = runs("joint", (60.0, 68.0, 70.0), (61.0, 69.0, 71.0), (60.5, 68.5, 70.5))


def shifted(method: str, *by_width: float, noise: float = 0.1, seeds: int = 3) -> list[RunRecord]:
    """Runs that differ from the joint ones by about these points."""
    tilt = (-noise, noise, 0.0)
    return [
        record(
            method,
            seed,
            tuple(
                JOINT[seed].accuracy[width].top1 + gap + tilt[seed] for width, gap in zip("234", by_width, strict=True)
            ),
        )
        for seed in range(seeds)
    ]


def claim(number: int, records: list[RunRecord]) -> Claim:
    (group,) = group_records(records)
    found = judge(group)
    assert [one.number for one in found] == list(range(1, 12))
    return found[number - 1]


def verdict(number: int, *records: list[RunRecord]) -> str:
    return claim(number, [one for part in records for one in part]).verdict


def test_all_hold_where_the_paper_is_repeated() -> None:
    (group,) = group_records(full_study())
    assert {one.number: one.ruling for one in judge(group)} == dict.fromkeys(range(1, 12), "holds")


def test_nothing_can_be_told_from_one_seed() -> None:
    (group,) = group_records(full_study(1))
    assert {one.ruling for one in judge(group)} == {"cannot be told: one seed"}


def test_two_seeds_tell_only_large_differences() -> None:
    (group,) = group_records(full_study(2))
    told = {one.number for one in judge(group) if one.verdict != "cannot be told"}
    # Losses of four points and more, divergence, nine points from 2 to 4 bits; not what lies within a point.
    assert told == {2, 3, 4, 5, 10}


def test_nothing_was_run() -> None:
    for one in judge(group_records([record("float", 0, {"float": 70.0})])[0]):
        assert one.ruling.startswith("cannot be told: not run (")
    assert "lsq" in claim(1, JOINT).ruling
    assert "joint" not in claim(1, JOINT).ruling


def test_within_lsq() -> None:
    assert verdict(1, JOINT, shifted("lsq", 0.2, 0.1, 0.0)) == "holds"
    assert verdict(1, JOINT, shifted("lsq", 1.5, 0.1, 0.0)) == "does not hold"
    assert verdict(1, JOINT, shifted("lsq", 0.2, 0.6, 0.0)) == "cannot be told"
    with_cosine = claim(1, [*JOINT, *shifted("lsq", 2.0, 2.0, 2.0), *shifted("joint-cosine", 2.0, 2.0, 2.0, noise=0.0)])
    assert with_cosine.verdict == "does not hold"
    assert sum("joint-cosine minus lsq" in part.text and "(holds)" in part.text for part in with_cosine.parts) == 3


def test_pairs_are_by_seed() -> None:
    # The seeds differ by points, the methods do not: paired, the difference is exact.
    lsq = [record("lsq", one.seed, {width: two.top1 for width, two in one.accuracy.items()}) for one in JOINT]
    assert verdict(1, JOINT, lsq) == "holds"
    other_seeds = [record("lsq", one.seed + 10, (60.0, 68.0, 70.0)) for one in JOINT]
    assert verdict(1, JOINT, other_seeds) == "cannot be told"


def test_ascending() -> None:
    lsq = shifted("lsq", 0.0, 0.0, 0.0, noise=0.0)
    assert verdict(2, lsq, shifted("ascending", 0.0, -2.0, -2.0)) == "holds"
    assert verdict(2, lsq, shifted("ascending", 0.0, 2.0, -2.0)) == "does not hold"
    assert verdict(2, lsq, shifted("ascending", 0.0, -2.0, 0.05)) == "cannot be told"


def test_a_method_that_diverged_loses() -> None:
    lsq = shifted("lsq", 0.0, 0.0, 0.0, noise=0.0)
    diverged = [record("ascending", seed, (60.0,), status="diverged") for seed in range(3)]
    found = claim(2, [*lsq, *diverged])
    assert found.verdict == "holds"
    # Guessing on ten classes is right in one of ten.
    assert "-58.50" in found.parts[0].text


def test_pairs_of_which_both_diverged_are_left_out() -> None:
    both = [record(method, seed, (), status="diverged") for method in ("lsq", "ascending") for seed in range(3)]
    found = claim(2, both)
    assert found.verdict == "cannot be told"
    assert found.parts[0].seeds == 0


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([(10.0, 9.0, 11.0), (10.0, 10.0, 10.0), (15.0, 10.0, 10.0)], "holds"),
        ([(10.0, 9.0, 11.0), (10.0, 10.0, 10.0), (15.1, 10.0, 10.0)], "cannot be told"),
        ([(50.0, 60.0, 61.0), (50.0, 60.0, 61.0), (50.0, 60.0, 61.0)], "does not hold"),
        ([(10.0, 9.0, 11.0)], "cannot be told"),
    ],
)
def test_co_training(accuracies: list[tuple[float, ...]], expected: str) -> None:
    assert verdict(3, runs("co-training", *accuracies)) == expected


def test_co_training_that_stopped() -> None:
    stopped = [record("co-training", seed, (55.0,), status="diverged", reason="loss") for seed in range(2)]
    assert verdict(3, stopped) == "holds"


def test_a_part_of_a_known_data_set_has_its_classes() -> None:
    part = "cifar10, 7,500 training images"
    learned = runs("co-training", (60.0, 61.0, 62.0), (60.0, 61.0, 62.0), (60.0, 61.0, 62.0), data=part)
    assert verdict(3, learned) == "does not hold"


def test_co_training_with_unknown_classes() -> None:
    unknown = runs("co-training", (1.0, 1.0, 1.0), (1.0, 1.0, 1.0), data="folder:/data/flowers")
    assert verdict(3, unknown) == "cannot be told"
    known = runs("co-training", (1.0, 1.0, 1.0), (1.0, 1.0, 1.0), data="folder:/data/flowers", classes=102)
    assert verdict(3, known) == "holds"


def test_fine_tuning() -> None:
    assert verdict(4, JOINT, shifted("qat-finetune", -12.0, -2.0, 0.0)) == "holds"
    assert verdict(4, JOINT, shifted("qat-finetune", -1.0, -2.0, 0.0)) == "does not hold"
    assert verdict(4, JOINT, shifted("qat-finetune", -5.0, 0.0, 0.0)) == "cannot be told"
    # Other widths are told and do not decide.
    assert verdict(4, JOINT, shifted("qat-finetune", -12.0, -12.0, -12.0)) == "holds"


def test_compensation() -> None:
    assert verdict(5, JOINT, shifted("no-compensation", -5.0, -2.0, -0.1)) == "holds"
    assert verdict(5, JOINT, shifted("no-compensation", 5.0, 6.0, 7.0)) == "does not hold"
    # It helps at 2 bits, but more at 3.
    assert verdict(5, JOINT, shifted("no-compensation", -2.0, -6.0, 0.0)) == "does not hold"
    assert verdict(5, JOINT, shifted("no-compensation", -0.05, 0.0, 0.0)) == "cannot be told"


def test_norms() -> None:
    shared = shifted("norms-shared", -30.0, -2.0, -20.0)
    assert verdict(6, JOINT, shared, shifted("norms-statistics", -0.1, -1.0, -1.4)) == "holds"
    assert verdict(6, JOINT, shared, shifted("norms-statistics", 1.0, 1.0, 1.0)) == "does not hold"
    assert verdict(6, JOINT, shared, shifted("norms-statistics", -0.05, 0.0, 0.05)) == "cannot be told"
    assert claim(6, [*JOINT, *shared]).ruling == "cannot be told: not run (norms-statistics)"


def test_objective() -> None:
    assert verdict(7, JOINT, shifted("minimum-norm", 0.1, -0.5, -0.8)) == "holds"
    assert verdict(7, JOINT, shifted("minimum-norm", 0.1, 0.1, 0.1)) == "holds"
    assert verdict(7, JOINT, shifted("minimum-norm", 1.0, 1.0, 1.0)) == "does not hold"
    assert verdict(7, JOINT, shifted("minimum-norm", 0.5, 0.5, 0.5)) == "cannot be told"


def test_distillation() -> None:
    cosine = shifted("joint-cosine", 0.8, 0.4, 0.3)
    assert verdict(8, JOINT, cosine, shifted("joint-kl", 0.0, 0.0, -0.2, noise=0.05)) == "holds"
    assert verdict(8, JOINT, cosine, shifted("joint-kl", 1.5, 1.5, 1.5)) == "does not hold"
    assert (
        verdict(8, JOINT, shifted("joint-cosine", 0.05, 0.0, 0.0), shifted("joint-kl", -1, -1, -1)) == "cannot be told"
    )


def test_own_ends() -> None:
    assert verdict(9, JOINT, shifted("own-ends", 0.2, 0.1, -0.1)) == "holds"
    assert verdict(9, JOINT, shifted("own-ends", 0.2, 0.1, 1.1)) == "does not hold"
    assert verdict(9, JOINT, shifted("own-ends", 0.2, 0.5, 0.1)) == "cannot be told"


def points(*tops: float, objective: str = "weights") -> list[MixedPoint]:
    return [MixedPoint(objective, 2 + index / 2, {}, top, 90.0) for index, top in enumerate(tops)]


def test_rise_is_the_slope_times_the_range() -> None:
    assert rise(points(1.0, 2.0, 3.0)) == pytest.approx(2.0)
    # Slope of least squares over x = 0, 1, 2 with y = 0, 3, 3 is 1.5 for each step.
    assert rise(points(0.0, 3.0, 3.0)) == pytest.approx(3.0)
    assert rise(points(5.0)) is None


def test_budget() -> None:
    both = [points(60.0, 66.0, 68.0) + points(60.0, 66.0, 68.0, objective="energy")] * 3
    rising = [record("mixed", seed, (60.0, 67.0, 68.0), mixed=one) for seed, one in enumerate(both)]
    assert verdict(10, rising) == "holds"
    falling = [
        record("mixed", seed, (60.0,), mixed=points(60, 59, 58) + points(60, 59, 58, objective="energy"))
        for seed in (0, 1, 2)
    ]
    assert verdict(10, falling) == "does not hold"
    one_objective = [record("mixed", seed, (60.0,), mixed=points(60, 61, 62)) for seed in (0, 1, 2)]
    assert verdict(10, one_objective) == "cannot be told"


def test_mixed_against_uniform() -> None:
    assert verdict(11, [mixed(seed, lift=1.0) for seed in range(3)]) == "holds"
    assert verdict(11, [mixed(seed, lift=-2.0) for seed in range(3)]) == "does not hold"


def test_only_networks_of_about_three_bits_and_no_more_are_compared() -> None:
    choices = [MixedPoint("weights", bits, {"a": 2, "b": 4}, 60.0, 90.0) for bits in (3.001, 2.5, 2.99, 2.8)]
    choices.append(MixedPoint("weights", 3.0, {"a": 3, "b": 3}, 60.0, 90.0))  # the uniform network itself
    found = at_three_bits(record("mixed", 0, (), mixed=choices), "weights")
    assert found is not None
    assert found.bits_per_weight == 2.99
    assert at_three_bits(record("mixed", 0, (), mixed=choices[:2]), "weights") is None
    assert at_three_bits(record("mixed", 0, (), mixed=choices), "energy") is None
