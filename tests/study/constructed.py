"""Records made up for tests of the report."""

import math
import random

from bitstrata.study.records import Accuracy, InputError, MixedPoint, RunRecord, TracePoint

Top1 = tuple[float, ...]


def record(method: str, seed: int, top1: Top1 | dict[str, float], **fields: object) -> RunRecord:
    """A run with these accuracies at 2, 3, 4 bits; top-5 lies halfway between top-1 and all."""
    by_width = top1 if isinstance(top1, dict) else dict(zip("234", top1, strict=False))
    values: dict[str, object] = {
        "net": "resnet8",
        "data": "cifar10:/somewhere/cifar",
        "settings": {},
        "status": "trained",
        "accuracy": {width: Accuracy(value, (100 + value) / 2) for width, value in by_width.items()},
        "parameters": 78_042,
        "quantised_weights": 76_000,
        "seconds": 100.0,
        "cpu_seconds": 150.0,
        "finished": "2026-01-31",
    }
    return RunRecord(method=method, seed=seed, **(values | fields))  # type: ignore[arg-type]


def runs(method: str, *seeds: Top1, **fields: object) -> list[RunRecord]:
    """One run for each of the accuracies, with seeds 0, 1, 2, ..."""
    return [record(method, seed, top1, **fields) for seed, top1 in enumerate(seeds)]


def around(method: str, centre: Top1, seeds: int = 3, noise: float = 0.3, **fields: object) -> list[RunRecord]:
    """Runs whose accuracies scatter about the centre; the part of the seed is the same for all methods."""
    found = []
    for seed in range(seeds):
        common = random.Random(seed).gauss(0, noise)
        own = random.Random(f"{method} {seed}")
        found.append(
            record(method, seed, tuple(value + common + own.gauss(0, noise / 4) for value in centre), **fields)
        )
    return found


def histograms(sharpness: float, seed: int) -> dict[str, dict[str, int]]:
    random_numbers = random.Random(seed)
    return {
        str(bits): {
            str(code): int(
                10_000
                * math.exp(-(((code + 0.5) / 2 ** (bits - 1)) ** 2) * sharpness)
                * random_numbers.uniform(0.9, 1.1)
            )
            for code in range(-(2 ** (bits - 1)), 2 ** (bits - 1))
        }
        for bits in (2, 3, 4)
    }


def trace(seed: int, epochs: int = 6) -> list[TracePoint]:
    random_numbers = random.Random(seed)
    points = []
    for step in range(1, 4 * epochs + 1):
        parts = [1.5, 0.7, 0.5]
        parts = [part * random_numbers.uniform(0.5, 1.5) for part in parts]
        norms = {str(bits): 40 / bits**2 / step**0.9 * random_numbers.uniform(0.8, 1.2) for bits in (2, 3, 4)}
        weights = {str(bits): part / sum(parts) for bits, part in zip((2, 3, 4), parts, strict=True)}
        points.append(TracePoint(step / 4, weights, norms))
    return points


def errors(scale: float, seed: int) -> list[InputError]:
    random_numbers = random.Random(seed)
    names = ("blocks.1.conv2", "blocks.2.shortcut", "blocks.2.conv1", "blocks.2.conv2", "head.conv")
    return [
        InputError(name, scale * (3 + index) * random_numbers.uniform(0.9, 1.1), scale * 0.1 * (1 + 0.2 * index))
        for index, name in enumerate(names)
    ]


def mixed(seed: int, uniform: Top1 = (60.0, 68.0, 70.0), lift: float = 0.8) -> RunRecord:
    """Points on a concave curve through the uniform widths, lifted between them."""
    random_numbers = random.Random(seed)
    points = []
    for objective, more in (("weights", 0.0), ("energy", 0.4)):
        for budget in (2.0, 2.25, 2.5, 2.75, 3.0, 3.25, 3.5, 3.75, 4.0):
            low, high = (uniform[0], uniform[1]) if budget <= 3 else (uniform[1], uniform[2])
            start = 2 if budget <= 3 else 3
            top1 = low + (high - low) * (budget - start) ** 0.7
            top1 += (lift + more if 2 < budget < 4 else 0) + random_numbers.gauss(0, 0.1)
            points.append(
                MixedPoint(objective, budget - (0.01 if 2 < budget < 4 else 0), {"conv": 2, "other": 4}, top1, 95.0)
            )
    return record("mixed", seed, uniform, mixed=points)


def full_study(seeds: int = 3) -> list[RunRecord]:
    """Every method of the paper and one of somebody's own, much as the paper found them."""
    found = [record("float", seed, {"float": 72.0 + seed / 10}) for seed in range(seeds)]
    plain: dict[str, tuple[Top1, dict[str, object]]] = {
        "lsq": ((60.0, 68.2, 70.3), {"weight_bits": 700_000}),
        "joint": ((60.1, 68.1, 70.4), {"weight_bits": 324_000, "norm_parameters": 2_688}),
        "joint-cosine": ((61.0, 68.5, 70.6), {"weight_bits": 324_000}),
        "joint-kl": ((60.2, 68.0, 70.2), {}),
        "ascending": ((60.0, 64.0, 65.0), {"weight_bits": 324_000}),
        "qat-finetune": ((40.0, 65.0, 70.2), {"weight_bits": 324_000}),
        "adabits": ((59.0, 67.5, 69.0), {"weight_bits": 2_450_000}),
        "norms-shared": ((30.0, 60.0, 50.0), {"norm_parameters": 896}),
        "norms-statistics": ((59.0, 67.0, 69.3), {"norm_parameters": 1_792}),
        "no-compensation": ((52.0, 65.0, 70.3), {}),
        "minimum-norm": ((60.3, 66.5, 68.5), {}),
        "own-ends": ((60.1, 68.1, 70.3), {"added_parameters": 2_164}),
        "own <idea> | 1": ((61.5, 68.9, 70.7), {"weight_bits": 324_000}),
    }
    plain |= {name: ((58.0, 66.5, 69.0), {}) for name in ("pact", "lq-nets", "dsq", "qil", "lqw", "diffq")}
    for method, (centre, fields) in plain.items():
        for one in around(method, centre, seeds, **fields):
            more: dict[str, object] = {}
            if method in ("lsq", "qat-finetune", "joint"):
                more["histograms"] = histograms({"lsq": 3.0, "qat-finetune": 9.0, "joint": 5.0}[method], one.seed)
            if method in ("joint", "joint-cosine", "joint-kl"):
                more["input_errors"] = errors({"joint": 1.0, "joint-cosine": 0.7, "joint-kl": 0.95}[method], one.seed)
            if method == "minimum-norm":
                more["trace"] = trace(one.seed)
            values = {name: getattr(one, name) for name in one.__struct_fields__} | more
            found.append(RunRecord(**values))
    for seed in range(seeds):
        found.append(record("co-training", seed, (), status="diverged", reason="loss of 4 bits, step 12"))
        found.append(mixed(seed))
    return found
