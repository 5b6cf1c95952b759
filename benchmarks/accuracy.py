"""Joint training against dedicated LSQ networks, with the same epochs and the same recipe.

    python benchmarks/accuracy.py --data cifar10:DIR --weights resnet20_cifar10.safetensors --work DIR

For every seed: the joint network with and without self-distillation, and one LSQ network for each width. Each run is
one folder in --work with its checkpoint and log; a run that was stopped continues, a finished one is skipped. The
logs are kept in --results, and the table is printed from them: `--table` prints it without running anything.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from dataclasses import asdict
from pathlib import Path

WIDTHS = (2, 3, 4)
METHODS = ("joint-cosine", "lsq-2", "lsq-3", "lsq-4", "joint-none")


def run_name(method: str, seed: int) -> str:
    return f"{method}-seed{seed}"


def run(method: str, seed: int, arguments: argparse.Namespace) -> None:
    """One training run, into its own folder."""
    import torch

    from bitstrata.baselines import lsq
    from bitstrata.training import Recipe, fit, stratify
    from bitstrata.zoo import nets, recipes
    from bitstrata.zoo.data import load_data

    torch.manual_seed(seed)
    model = nets.build(arguments.net)
    nets.load_float_weights(model, arguments.weights)
    kind, _, variant = method.partition("-")
    net = lsq(model, int(variant)) if kind == "lsq" else stratify(model, WIDTHS)
    data = load_data(arguments.data)
    changes = {"distill": "cosine" if variant == "cosine" else "none", "seed": seed}
    if arguments.epochs is not None:
        changes["epochs"] = arguments.epochs
    recipe = Recipe.from_dict(changes, recipes.recipe(arguments.recipe).recipe)
    folder = Path(arguments.work) / run_name(method, seed)
    # Enough to build the network again: `bitstrata eval` and `bitstrata pack` take these runs.
    description = {
        "method": method,
        "net": arguments.net,
        "classes": len(data.input.labels),
        "channels": data.input.shape[0],
        "widths": list(net.widths),
        "stratify": {"weight_init": net.options.weight_init},
        "data": arguments.data.partition(":")[0],
        "input": asdict(data.input),
        "seed": seed,
    }
    fit(net, data, recipe, folder=folder, description=description)
    Path(arguments.results).mkdir(parents=True, exist_ok=True)
    shutil.copyfile(folder / "log.jsonl", Path(arguments.results) / f"{run_name(method, seed)}.jsonl")


def final_accuracies(path: Path) -> dict[int, float]:
    """Top-1 of every width after the last epoch."""
    epochs = [entry for line in path.read_text().splitlines() if (entry := json.loads(line))["event"] == "epoch"]
    return {int(bits): result["top1"] for bits, result in epochs[-1]["accuracy"].items()}


def table(results: Path) -> str:
    """Mean top-1 over seeds for each width, and the distance of the joint networks to dedicated LSQ."""
    means: dict[str, dict[int, float]] = {}
    lines = ["| method | seeds | 2 bits | 3 bits | 4 bits |", "|---|---|---|---|---|"]
    rows = {
        "dedicated LSQ": ["lsq-2", "lsq-3", "lsq-4"],
        "joint": ["joint-none"],
        "joint, self-distilled": ["joint-cosine"],
    }
    for title, methods in rows.items():
        values: dict[int, list[float]] = {bits: [] for bits in WIDTHS}
        for method in methods:
            for path in sorted(results.glob(f"{method}-seed*.jsonl")):
                for bits, top1 in final_accuracies(path).items():
                    values[bits].append(top1)
        if not all(values.values()):
            continue
        means[title] = {bits: statistics.fmean(found) for bits, found in values.items()}
        cells = [
            f"{statistics.fmean(found):.2f} ({', '.join(f'{one:.2f}' for one in found)})" for found in values.values()
        ]
        lines.append(f"| {title} | {min(map(len, values.values()))} | {' | '.join(cells)} |")
    for title in ("joint", "joint, self-distilled"):
        if title in means and "dedicated LSQ" in means:
            gaps = [f"{means[title][bits] - means['dedicated LSQ'][bits]:+.2f}" for bits in WIDTHS]
            lines.append(f"| {title}, minus LSQ | | {' | '.join(gaps)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="for example cifar10:DIR")
    parser.add_argument("--weights", help="the float network to start from")
    parser.add_argument("--net", default="resnet20")
    parser.add_argument("--work", default="runs/accuracy", help="where checkpoints go")
    parser.add_argument("--results", default="results/cifar10-resnet20", help="where logs are kept")
    parser.add_argument("--recipe", default="cifar10-short")
    parser.add_argument("--epochs", type=int, help="other than the recipe's")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--table", action="store_true", help="print the table of what is there and stop")
    arguments = parser.parse_args()
    if not arguments.table:
        for seed in arguments.seeds:
            for method in arguments.methods:
                print(run_name(method, seed), flush=True)
                run(method, seed, arguments)
    print(table(Path(arguments.results)))


if __name__ == "__main__":
    main()
