"""Running a study: what is not in its results yet, one run after the other or several at a time.

A run is one method with one seed on one network. Finished runs are lines of `runs.jsonl` and are never run again, on
this machine or another; a run that was stopped goes on from its checkpoints. A run whose numbers stop being finite is
a result too.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor, nn

from bitstrata.baselines import Job, Trained
from bitstrata.errors import BitstrataError, NotFinite
from bitstrata.study import measure
from bitstrata.study.methods import BUILT_IN, MIXED, find_method
from bitstrata.study.mixed import mixed_points
from bitstrata.study.records import Accuracy, RunRecord, append_record, read_records
from bitstrata.study.spec import FLOAT_METHOD, MethodEntry, NetEntry, Study
from bitstrata.training import Recipe, fit, load_checkpoint
from bitstrata.training.checkpoint import save_checkpoint
from bitstrata.training.evaluate import evaluate
from bitstrata.training.fit import CHECKPOINT
from bitstrata.training.train_once import plain_options
from bitstrata.zoo.data import Data, load_data
from bitstrata.zoo.nets import build, load_float_weights

#: Test images in a batch; on the first batch the input errors of figure 7 (c) are measured.
TEST_BATCH = 500
#: Batches for the norms of mixed networks, where the recipe does not say how many.
NORM_BATCHES = 30


@dataclass(frozen=True)
class Task:
    """One run that is to be done."""

    study: Study
    #: Where the study's file lies; methods of its own are looked up there.
    home: Path
    entry: NetEntry
    method: str
    seed: int
    #: As `load_data` takes it, with the place of the files.
    data: str
    #: Where checkpoints go.
    work: Path
    #: Run in this many threads.
    threads: int
    device: str = "cpu"

    @property
    def how(self) -> MethodEntry:
        return self.study.methods[self.method]

    @property
    def after(self) -> str | None:
        """The method of the same network and seed that must be done first."""
        if self.method == FLOAT_METHOD:
            return None
        return self.how.of or FLOAT_METHOD

    @property
    def folder(self) -> Path:
        return self.work / self.entry.net.replace(":", "-") / f"seed{self.seed}"

    def settings(self) -> dict[str, Any]:
        """Everything that the result depends on, as plain values without any folder."""
        study, entry = self.study, self.entry
        whole = {
            "net_options": dict(entry.options),
            "weights": Path(entry.weights).name if entry.weights is not None else None,
            "limit": study.limit,
        }
        if self.method == FLOAT_METHOD:
            return {**whole, "recipe": _float_recipe(self).as_dict() if entry.weights is None else {}}
        how = study.methods[self.how.of] if self.how.of is not None else self.how
        return {
            **whole,
            "widths": list(study.widths),
            "use": self.how.use,
            "file": None if self.how.use in (*BUILT_IN, MIXED) else _digest(self.home / self.how.use),
            "recipe": study.recipe_of(how, self.seed).as_dict(),
            "stratify": plain_options({**study.stratify, **how.stratify}),
        }


def plan(study: Study, home: Path, *, data: str | None, work: Path, threads: int) -> list[Task]:
    """All runs of a study: seed by seed, so that what is there when time runs out is whole seeds."""
    where = data or study.data
    tasks = []
    seeds = sorted({*study.seeds, *(seed for how in study.methods.values() for seed in how.seeds or ())})
    for seed in seeds:
        for entry in study.networks():
            for method in (FLOAT_METHOD, *study.methods):
                wanted = seeds if method == FLOAT_METHOD else study.methods[method].seeds or study.seeds
                if seed in wanted:
                    tasks.append(Task(study, home, entry, method, seed, where, work, threads))
    return tasks


def run_study(
    study: Study,
    home: Path,
    *,
    results: Path,
    work: Path,
    data: str | None = None,
    devices: Sequence[str] = ("cpu",),
    threads: int = 1,
    say: Callable[[str], None] = lambda text: None,
) -> list[str]:
    """Does the runs that `results` has no record of; returns what went wrong, a line for each run that failed.

    As many runs go on at a time as there are `devices`; one may be named several times.
    """
    tasks = plan(study, home, data=data, work=work, threads=threads)
    for task in tasks:
        if task.method != FLOAT_METHOD and task.how.use != MIXED:
            find_method(task.how.use, home)  # before anything is trained
    known = {(record.net, record.method, record.seed, _spelled(record.settings)) for record in read_records(results)}
    waiting = [t for t in tasks if (t.entry.net, t.method, t.seed, _spelled(t.settings())) not in known]
    say(f"{len(tasks) - len(waiting)} of {len(tasks)} runs are done")
    done = {(t.entry.net, t.method, t.seed) for t in tasks if t not in waiting}
    deadline = time.monotonic() + study.minutes * 60 if study.minutes is not None else float("inf")
    failures: list[str] = []
    running: dict[Future[RunRecord], Task] = {}
    context = multiprocessing.get_context("spawn")
    free = list(devices)
    with ProcessPoolExecutor(len(devices), context) as pool:
        try:
            while waiting or running:
                ready = [t for t in waiting if t.after is None or (t.entry.net, t.after, t.seed) in done]
                for task in ready[: len(free)] if time.monotonic() < deadline else ():
                    waiting.remove(task)
                    placed = replace(task, device=free.pop(0))
                    running[pool.submit(run_task, placed)] = placed
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    task = running.pop(future)
                    free.append(task.device)
                    where = f"{task.entry.net}, {task.method}, seed {task.seed}"
                    try:
                        record = future.result()
                    except BrokenProcessPool:
                        raise ChildProcessError(
                            f"{where}: a process of the study was killed, as it happens where memory runs out; what is "
                            "finished is kept, and the same command goes on with the rest"
                        ) from None
                    except Exception as error:  # noqa: BLE001 (anybody's method; whatever it is, the others go on)
                        if not isinstance(error, (BitstrataError, OSError)):
                            say("".join(traceback.format_exception(error)))
                        failures.append(f"{where}: {str(error) or type(error).__name__}")
                        say(failures[-1])
                        continue
                    append_record(results, record)
                    done.add((task.entry.net, task.method, task.seed))
                    say(f"[{len(tasks) - len(waiting) - len(running)}/{len(tasks)}] {where}: {_shown(record)}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list((pool._processes or {}).values()):  # none where the pool is broken
                process.terminate()
            raise
    if waiting:
        say(f"{len(waiting)} runs are left; the same command goes on with them")
    return failures


def run_task(task: Task) -> RunRecord:
    """Does one run, or the rest of it, and measures what it came to."""
    torch.set_num_threads(task.threads)
    started, cpu = time.monotonic(), time.process_time()
    data = load_data(task.data, limit=task.study.limit)
    fields = _float_run(task, data) if task.method == FLOAT_METHOD else _method_run(task, data)
    return RunRecord(
        method=task.method,
        seed=task.seed,
        net=task.entry.net,
        data=_described(task),
        classes=len(data.input.labels),
        settings=task.settings(),
        **{"status": "trained", **fields},
        seconds=round(time.monotonic() - started, 1),
        cpu_seconds=round(time.process_time() - cpu, 1),
        finished=datetime.now(timezone.utc).date().isoformat(),
    )


def _float_run(task: Task, data: Data) -> dict[str, Any]:
    model = _train_float(task, data)
    accuracy = evaluate(model, _on(task.device, data.test.batches(TEST_BATCH)))
    return {
        "accuracy": {name: Accuracy(found.top1, found.top5) for name, found in accuracy.items()},
        "parameters": _count(model),
    }


def _train_float(task: Task, data: Data) -> nn.Module:
    torch.manual_seed(task.seed)
    model = _built(task, data)
    recipe = replace(_float_recipe(task), evaluate_every=0)
    if task.entry.weights is not None:
        load_float_weights(model, task.home / task.entry.weights)
        recipe = replace(recipe, epochs=0)
    folder = task.folder / FLOAT_METHOD
    folder.mkdir(parents=True, exist_ok=True)
    # Several runs may need it at once; the others wait, and find it finished.
    with FileLock(folder / "lock"):
        fit(model, data, recipe, folder=folder, progress=False)
        if not (folder / CHECKPOINT).exists():  # no epoch, no checkpoint: the given weights are the network
            save_checkpoint(folder / CHECKPOINT, {"model": dict(model.state_dict())})
    return model


def _float_recipe(task: Task) -> Recipe:
    return task.study.recipe_of(MethodEntry(use=FLOAT_METHOD), task.seed).float_phase()


def _method_run(task: Task, data: Data) -> dict[str, Any]:
    trains = task.how.of or task.method
    how = task.study.methods[trains]
    recipe = task.study.recipe_of(how, task.seed)
    float_checkpoint = task.folder / FLOAT_METHOD / CHECKPOINT
    if not float_checkpoint.exists():  # its record came from another machine
        _train_float(task, data)
    float_state = load_checkpoint(float_checkpoint)["model"]

    def model() -> nn.Module:
        built = _built(task, data)
        built.load_state_dict(float_state)
        return built

    job = Job(
        model=model,
        data=data,
        recipe=replace(recipe, evaluate_every=0),
        widths=task.study.widths,
        folder=task.folder / trains,
        options={**task.study.stratify, **how.stratify},
        progress=False,
    )
    torch.manual_seed(task.seed)
    try:
        trained = find_method(how.use, task.home)(job)
    except NotFinite as error:
        return {"status": "diverged", "reason": str(error), "accuracy": {}, "parameters": _count(model())}
    test = list(_on(task.device, data.test.batches(TEST_BATCH)))
    measured = _measured(trained, test)
    if task.how.use == MIXED:
        # The batches that the statistics of the uniform widths come from.
        batches = data.train.batches(recipe.batch_size, training=True, epoch=recipe.epochs - 1, seed=recipe.seed)
        inputs = [x for x, _ in _on(task.device, islice(batches, recipe.norm_batches or NORM_BATCHES))]
        measured["mixed"] = mixed_points(trained.networks[task.study.widths[-1]], inputs, test)
    else:
        measured["trace"] = measure.trace_of(job.folder / "joint")
    return {**measured, "parameters": _count(model())}


def _measured(trained: Trained, test: list[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    networks = trained.networks
    accuracy = measure.accuracy_by_width(networks, test)
    return {
        "accuracy": {name: Accuracy(found.top1, found.top5) for name, found in accuracy.items()},
        "quantised_weights": measure.quantised_weights(next(iter(networks.values()))),
        "weight_bits": measure.weight_bits(networks, trained.stored_bits),
        "norm_parameters": measure.norm_parameters(networks),
        "added_parameters": measure.added_parameters(networks),
        "histograms": measure.code_histograms(networks),
        "input_errors": measure.input_errors(networks, test[0][0]),
    }


def _built(task: Task, data: Data) -> nn.Module:
    model = build(task.entry.net, len(data.input.labels), data.input.shape[0], **task.entry.options)
    return model.to(task.device)


def _on(device: str, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    return ((x.to(device, memory_format=torch.channels_last), y.to(device)) for x, y in batches)


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _described(task: Task) -> str:
    kind = task.data.partition(":")[0].partition("?")[0]
    return kind if task.study.limit is None else f"{kind}, {task.study.limit:,} training images"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _spelled(settings: dict[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


def _shown(record: RunRecord) -> str:
    if record.status == "diverged":
        return f"diverged ({record.reason})"
    widths = "  ".join(f"{name}: {found.top1:.2f}" for name, found in record.accuracy.items())
    return f"{widths}  in {record.seconds:.0f} s"
