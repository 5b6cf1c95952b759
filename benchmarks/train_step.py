"""The cost of a joint training step over three widths, against the float step of the same network and batch.

    python benchmarks/train_step.py [--net resnet20] [--batch 128] [--rounds 12] [--threads N] [--json]

Times come from one process in alternating rounds (float, joint, float, ...), so that a busy machine disturbs both
alike; the ratio is given for each round, as median and quartiles. Peak memory is that of a process of its own for each
kind of step, over what the process held before its first one: once with large blocks taken from and given back to the
system one by one, which is what the step needs, and once with the C library's heap as it is, holes included.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from bitstrata.training import JointLoss, StratifiedNet, parameter_groups, stratify
from bitstrata.training.memory import RELEASE_EVERY, release_free_memory
from bitstrata.zoo import nets

#: As many as fit takes from one release of free memory to the next would take minutes; the peak is there by then.
STEPS_FOR_MEMORY = 10

#: name of the step -> what it does, as told in the table
KINDS = {
    "float": "float network",
    "one": "2 bits alone, as a dedicated network trains",
    "joint": "3 widths, each with its backward pass at once, as fit does",
    "plain": "the same in a plain autograd chain of torch operations",
    "together": "3 widths in one call, one backward pass",
}


def make_step(kind: str, net_name: str, batch: int) -> Callable[[], None]:
    """One training step of the given kind, on data of its own."""
    torch.manual_seed(0)
    model = nets.build(net_name)
    x = torch.randn(batch, 3, 32, 32).to(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (batch,))
    net: Any = model if kind == "float" else stratify(model, (2,) if kind == "one" else (2, 3, 4))
    net = net.to(memory_format=torch.channels_last)
    net.train()
    optimiser = torch.optim.SGD(parameter_groups(net, weight_decay=1e-4), lr=1e-3, momentum=0.9)
    loss = JointLoss(distill="cosine")
    steps_done = 0

    def float_step() -> None:
        optimiser.zero_grad(set_to_none=True)
        functional.cross_entropy(net(x), y).backward()
        optimiser.step()

    def joint_step() -> None:
        nonlocal steps_done
        assert isinstance(net, StratifiedNet)
        optimiser.zero_grad(set_to_none=True)
        teacher = None
        for bits in reversed(net.widths):
            output = net.at(bits, joint=True)(x)
            (loss.of_width(output, y, teacher) / len(net.widths)).backward()
            teacher = output.detach()
            del output
            if steps_done % RELEASE_EVERY == 0:
                release_free_memory()
        optimiser.step()
        steps_done += 1

    def together_step() -> None:
        optimiser.zero_grad(set_to_none=True)
        loss(net(x), y).backward()
        optimiser.step()

    if kind == "plain":
        return with_plain_quantisers(joint_step)
    return {"float": float_step, "together": together_step}.get(kind, joint_step)


def with_plain_quantisers(step: Callable[[], None]) -> Callable[[], None]:
    """The step with the native quantisers replaced by autograd through elementary torch operations."""
    from bitstrata.training import steps
    from bitstrata.training.quantisers import Grid

    def chain(x: torch.Tensor, s: torch.Tensor, floor: torch.Tensor, grid: Grid, scale: float) -> torch.Tensor:
        scaled_step = (s * scale) + (s - s * scale).detach()
        scaled = x / (scaled_step if s.ndim == 0 else scaled_step.reshape((-1,) + (1,) * (x.ndim - 1)))
        clipped = torch.clamp(scaled, grid.low, grid.high)
        rounded = clipped + (torch.round(clipped) - clipped).detach()
        lowered = torch.floor(rounded * 2.0**-grid.dropped) + grid.offset / 2.0 ** (grid.dropped + 1)
        down = rounded * 2.0**-grid.dropped
        return (down + (lowered - down).detach()) * (scaled_step * 2.0**grid.dropped)

    def replaced() -> None:
        kept = steps.fake_quantise
        steps.fake_quantise = chain
        try:
            step()
        finally:
            steps.fake_quantise = kept

    return replaced


def seconds(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def peak_mebibytes(kind: str, arguments: argparse.Namespace, *, holes: bool) -> float:
    """Peak memory of a few steps in a fresh process, with or without the holes in its heap."""
    command = [sys.executable, __file__, "--measure", kind, "--net", arguments.net, "--batch", str(arguments.batch)]
    command += ["--threads", str(arguments.threads)]
    environment = os.environ if holes else {**os.environ, "MALLOC_MMAP_THRESHOLD_": "262144"}
    return float(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)


def measure_peak(kind: str, net_name: str, batch: int) -> float:
    step = make_step(kind, net_name, batch)
    # What the libraries take once, whatever the step, is not counted: a step of two samples makes them take it.
    make_step(kind, net_name, 2)()
    gc.collect()
    before = kibibytes("VmRSS")
    for _ in range(STEPS_FOR_MEMORY):
        step()
    return (kibibytes("VmHWM") - before) / 1024


def kibibytes(entry: str) -> int:
    """Memory of this process as Linux counts it: VmRSS now, VmHWM at its peak (getrusage tells the parent's too)."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(entry))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", default="resnet20")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", choices=KINDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.measure:
        print(measure_peak(arguments.measure, arguments.net, arguments.batch))
        return
    steps = {kind: make_step(kind, arguments.net, arguments.batch) for kind in KINDS}
    for step in steps.values():
        seconds(step)
        seconds(step)
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(arguments.rounds):
        for kind, step in steps.items():
            times[kind].append(seconds(step))
    rows = []
    for kind in KINDS:
        ratios = [mine / base for mine, base in zip(times[kind], times["float"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        rows.append(
            {
                "step": kind,
                "milliseconds": 1e3 * statistics.median(times[kind]),
                "ratio": middle,
                "quartiles": [low, high],
                "needed_mebibytes": peak_mebibytes(kind, arguments, holes=False),
                "resident_mebibytes": peak_mebibytes(kind, arguments, holes=True),
            }
        )
    if arguments.json:
        print(json.dumps({"net": arguments.net, "batch": arguments.batch, "threads": arguments.threads, "rows": rows}))
        return
    print(f"{arguments.net}, batch {arguments.batch}, {arguments.threads} threads, {arguments.rounds} rounds\n")
    print("| step | ms | times the float step (quartiles) | peak MiB needed | peak MiB resident |")
    print("|---|---|---|---|---|")
    for row in rows:
        spread = f"{row['ratio']:.2f} ({row['quartiles'][0]:.2f} to {row['quartiles'][1]:.2f})"
        memory = f"{row['needed_mebibytes']:.0f} | {row['resident_mebibytes']:.0f}"
        print(f"| {KINDS[row['step']]} | {row['milliseconds']:.0f} | {spread} | {memory} |")


if __name__ == "__main__":
    main()
