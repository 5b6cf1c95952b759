"""How fast is bitstrata beside other engines, on the same networks, on this machine, in one run?

    pip install "bitstrata[train,bench]"            # engines that are missing are left out, and named
    python benchmarks/peers.py --picture peers.svg

The networks have random weights. Every engine gets the same float network: bitstrata stratified and calibrated, the
int8 engines through their own calibration on the same batches. All engines of a table run in one process and take turns
in rounds with rotating order; each turn begins with a call that does not count. With one thread, everything is pinned
to one processor and time is the process's CPU time; with more, the main thread is pinned to the first processor, all
others to the rest, and time is wall time. "Times as fast" compares with the fastest int8 engine, round by round.
`--isa avx2` keeps the engines that can be kept to AVX2, as on processors that have no more, and leaves out the others.
The cosine with float PyTorch says that an engine computes the network, and nothing about accuracy.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from peer_engines import (
    ISA_UNREACHED,
    ISA_VARIABLES,
    OURS,
    PEERS,
    SIZES,
    Engine,
    batch,
    float_net,
    open_engine,
    pin,
    prepare,
    short,
    version,
)
from peers_picture import draw

from bitstrata.runtime.measure import Spread, in_turns


def measure(net: str, folder: Path, size: int, threads: int, seconds: float, isa: str | None) -> dict[str, Any]:
    """One table: all engines in this process, which must be new."""
    import torch

    torch.set_num_threads(threads)
    x = batch(net, size, 1000)
    with torch.inference_mode():
        expected = float_net(net)(torch.from_numpy(x)).numpy().ravel()
    calls, rows, failed = {}, {}, {}
    for engine in (*OURS, *PEERS):
        found = version(engine)
        if found is None:
            failed[engine.title] = "not installed"
            continue
        if isa is not None and engine.name in ISA_UNREACHED:
            failed[engine.title] = f"cannot be kept to {isa}"
            continue
        try:
            call = open_engine(engine, net, folder, size, threads)
            got = np.asarray(call(x), dtype=np.float64).ravel()
        except Exception as error:  # noqa: BLE001 (a peer's; whatever it is, the others go on)
            failed[engine.title] = short(error)
            continue
        cosine = float(got @ expected / (np.linalg.norm(got) * np.linalg.norm(expected)))
        calls[engine.title] = lambda call=call: call(x)
        rows[engine.title] = {"engine": engine.name, "precision": engine.precision, "version": found, "cosine": cosine}
    if threads > 1:
        pin(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    for title, times in in_turns(calls, seconds, clock=clock).items():
        rows[title] |= {"seconds": vars(Spread.of(times.steady)), "rounds": times.rounds}
    return {"net": net, "batch": size, "threads": threads, "rows": rows, "failed": failed} | compared(rows)


def compared(rows: dict[str, Any]) -> dict[str, Any]:
    """Our rows against the fastest int8 engine, round by round."""
    rivals = {title: row for title, row in rows.items() if row["precision"] == "int8"}
    if not rivals:
        return {"fastest_int8": None, "times_as_fast": {}}
    fastest = min(rivals, key=lambda title: rivals[title]["seconds"]["median"])
    ratios = {
        row["precision"]: vars(Spread.of(np.divide(rows[fastest]["rounds"], row["rounds"]).tolist()))
        for row in rows.values()
        if row["engine"] == "bitstrata"
    }
    return {"fastest_int8": fastest, "times_as_fast": ratios}


def in_new_process(arguments: list[str], threads: int) -> dict[str, Any]:
    """Pinned before anything is imported, so that no pool finds more processors than it may use."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    environment["PYTHONWARNINGS"] = "ignore"

    def restrict() -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])

    command = [sys.executable, __file__, *arguments]
    process = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, preexec_fn=restrict)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed")
    found: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return found


def markdown(report: dict[str, Any]) -> str:
    lines = [f"{report['machine']}; {', '.join(f'{name} {found}' for name, found in report['versions'].items())}.", ""]
    lines += ["Times as fast as the fastest int8 engine, median (quartiles over rounds):", ""]
    lines += [
        "| network | batch | threads | 4 bits | 3 bits | 2 bits | fastest int8 |",
        "|---|---|---|---|---|---|---|",
    ]
    for table in report["tables"]:
        ratios = table["times_as_fast"]
        cells = [
            f"{one['median']:.2f} ({one['lower']:.2f} - {one['upper']:.2f})" if (one := ratios.get(name)) else "-"
            for name in ("4 bits", "3 bits", "2 bits")
        ]
        fastest = table["fastest_int8"] or "-"
        lines.append(f"| {table['net']} | {table['batch']} | {table['threads']} | {' | '.join(cells)} | {fastest} |")
    lines += ["", "Time with fewer bits as a part of that with more, median (quartiles over rounds):", ""]
    lines += ["| network | batch | threads | 3 bits of 4 | 2 bits of 3 |", "|---|---|---|---|---|"]
    for table in report["tables"]:
        cells = [part_of_time(table["rows"], *pair) for pair in (("3 bits", "4 bits"), ("2 bits", "3 bits"))]
        lines.append(f"| {table['net']} | {table['batch']} | {table['threads']} | {' | '.join(cells)} |")
    for table in report["tables"]:
        clock = "CPU time" if table["threads"] == 1 else "wall time"
        lines += ["", f"### {table['net']}, batch {table['batch']}, {table['threads']} thread(s), {clock}", ""]
        lines += ["| engine | precision | ms, median | quartiles | images/s | cosine |", "|---|---|---|---|---|---|"]
        for row in sorted(table["rows"].values(), key=lambda row: row["seconds"]["median"]):
            spread = {name: 1000 * value for name, value in row["seconds"].items()}
            lines.append(
                f"| {row['engine']} | {row['precision']} | {spread['median']:.2f} | {spread['lower']:.2f} - "
                f"{spread['upper']:.2f} | {1000 * table['batch'] / spread['median']:.1f} | {row['cosine']:.4f} |"
            )
        lines += [f"\nNot measured: {title}: {reason}" for title, reason in table["failed"].items()]
    return "\n".join(lines) + "\n"


def part_of_time(rows: dict[str, Any], fewer: str, more: str) -> str:
    rounds = {row["precision"]: row["rounds"] for row in rows.values() if row["engine"] == "bitstrata"}
    if fewer not in rounds or more not in rounds:
        return "-"
    spread = Spread.of(np.divide(rounds[fewer], rounds[more]).tolist())
    return f"{spread.median:.2f} ({spread.lower:.2f} - {spread.upper:.2f})"


def machine() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        model = next(line.split(":")[1].strip() for line in text.splitlines() if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    from bitstrata import _native

    return f"{model}, kernels for {_native.isa()}, {os.cpu_count()} processors, {time.strftime('%Y-%m-%d')}"


def versions() -> dict[str, str]:
    names = ("bitstrata", "torch", "onnxruntime", "openvino", "nncf", "numpy")
    found = {name: version(Engine(name, "", (name,))) for name in names}
    return {name: one for name, one in found.items() if one is not None}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", default=[*SIZES], choices=[*SIZES])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring each engine in each table (3)")
    parser.add_argument("--isa", choices=[*ISA_VARIABLES], help="measure as on a processor with no more than this")
    parser.add_argument("--work", type=Path, help="where the networks are kept, and found again; default: nowhere")
    parser.add_argument("--json", type=Path, help="write everything that was measured to this file")
    parser.add_argument("--picture", type=Path, help="draw the first batch size and number of threads to this file")
    parser.add_argument("--from", dest="source", type=Path, help="measure nothing: show what --json wrote to this file")
    parser.add_argument("--only", choices=("prepare", "measure"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    os.environ.update(ISA_VARIABLES.get(arguments.isa, {}))  # for the processes that measure
    if arguments.only == "prepare":
        print(json.dumps(prepare(arguments.nets[0], arguments.work, tuple(arguments.batch))))
        return
    if arguments.only == "measure":
        (net,), (size,), (threads,) = arguments.nets, arguments.batch, arguments.threads
        print(json.dumps(measure(net, arguments.work, size, threads, arguments.seconds, arguments.isa)))
        return
    report = json.loads(arguments.source.read_text("utf-8")) if arguments.source else measured(arguments)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report) + "\n", encoding="utf-8")
    if arguments.picture is not None:
        arguments.picture.write_text(draw(report), encoding="utf-8")
    print(markdown(report), end="")


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """All tables, each in a process of its own."""
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        tables = []
        for net in arguments.nets:
            folder = work / net
            sizes = [str(size) for size in arguments.batch]
            prepared = folder / f"prepared-{'-'.join(sizes)}"
            if not prepared.exists():
                print(f"{net}: preparing", file=sys.stderr, flush=True)
                processors = os.cpu_count() or 1
                common = ["--nets", net, "--work", str(folder)]
                failed = in_new_process(["--only", "prepare", *common, "--batch", *sizes], processors)
                for engine, reason in failed.items():
                    print(f"{net}: {engine}: {reason}", file=sys.stderr)
                prepared.touch()
            for threads in arguments.threads:
                for size in sizes:
                    print(f"{net}: batch {size}, {threads} thread(s)", file=sys.stderr, flush=True)
                    one = ["--nets", net, "--work", str(folder), "--batch", size, "--threads", str(threads)]
                    one += ["--seconds", str(arguments.seconds)]
                    one += ["--isa", arguments.isa] if arguments.isa else []
                    tables.append(in_new_process(["--only", "measure", *one], threads))
    return {"machine": machine(), "versions": versions(), "tables": tables}


if __name__ == "__main__":
    main()
