"""`bitstrata study`: runs what a study file asks for and has no result yet, then writes the report."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch

from bitstrata.cli.output import print_json, say
from bitstrata.cli.processes import positive
from bitstrata.errors import BadStudy
from bitstrata.study.records import read_records
from bitstrata.study.report import write_report
from bitstrata.study.run import run_study
from bitstrata.study.spec import read_study

RUNS = "runs.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("studies", nargs="+", metavar="STUDY", help="a TOML file, as those in studies/")
    parser.add_argument("--data", metavar="SPEC", help="the study's data with its place, as in cifar10:DIR")
    parser.add_argument(
        "--results", default="results", metavar="DIR", help="runs and report go to DIR/NAME of the study (results)"
    )
    parser.add_argument("--work", default="runs/studies", metavar="DIR", help="where checkpoints go (runs/studies)")
    parser.add_argument("--jobs", type=positive, default=1, metavar="N", help="runs at a time (1)")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one, a GPU per run")
    parser.add_argument("--threads", type=positive, metavar="N", help="threads of each (the cores, shared by the runs)")
    parser.add_argument("--report-only", action="store_true", help="run nothing; write the report of what is there")


def run(arguments: argparse.Namespace) -> None:
    threads = arguments.threads or max(1, (os.cpu_count() or 1) // arguments.jobs)
    failures: list[str] = []
    summary = []
    for file in map(Path, arguments.studies):
        study = read_study(file)
        folder = Path(arguments.results) / file.stem
        if not arguments.report_only:
            failures += run_study(
                study,
                file.parent,
                results=folder / RUNS,
                work=Path(arguments.work) / file.stem,
                data=arguments.data,
                devices=_devices(arguments.device, arguments.jobs),
                threads=threads,
                say=say,
            )
        records = read_records(folder / RUNS)
        write_report(records, folder, title=study.title, about=study.about)
        say(f"report: {folder / 'report.html'} and {folder / 'report.md'}")
        summary.append({"study": str(file), "runs": len(records), "report": str(folder / "report.html")})
    if arguments.json:
        print_json({"studies": summary, "failures": failures})
    if failures:
        raise BadStudy(f"{len(failures)} runs failed: {'; '.join(failures)}")


def _devices(choice: str | None, jobs: int) -> list[str]:
    """A device for each run that goes on at a time."""
    if (choice or ("cuda" if torch.cuda.is_available() else "cpu")) == "cpu":
        return ["cpu"] * jobs
    return [f"cuda:{number % torch.cuda.device_count()}" for number in range(jobs)]
