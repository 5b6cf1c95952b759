"""Running studies: what is done is kept and skipped, what diverges is a result, and a method is one file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bitstrata.cli.main import main
from bitstrata.errors import BadStudy
from bitstrata.study.records import RunRecord, append_record, read_records
from bitstrata.study.run import plan, run_study, run_task
from bitstrata.study.spec import Study, read_study

HEAD = """
title = "A small one"
nets = ["resnet8"]
data = "digits"
limit = 128
seeds = [0, 1]

[recipe]
epochs = 1
batch_size = 32
learning_rate = 0.05
float_epochs = 1
norm_batches = 2
distill = "none"

[methods]
"""


def study_file(folder: Path, methods: str, head: str = HEAD) -> Path:
    path = folder / "small.toml"
    path.write_text(head + methods, encoding="utf-8")
    return path


def the_study(folder: Path, methods: str, head: str = HEAD) -> Study:
    return read_study(study_file(folder, methods, head))


def run_here(study: Study, folder: Path) -> list[RunRecord]:
    """All runs of a study in this process, in their order."""
    return [run_task(task) for task in plan(study, folder, data=None, work=folder / "work", threads=1)]


def test_runs_go_seed_by_seed_and_the_float_network_first(tmp_path: Path) -> None:
    study = the_study(tmp_path, 'a = { use = "joint" }\nb = { use = "dedicated", seeds = [1, 5] }\n')
    tasks = plan(study, tmp_path, data=None, work=tmp_path, threads=1)
    assert [(task.seed, task.method) for task in tasks] == [
        (0, "float"), (0, "a"), (1, "float"), (1, "a"), (1, "b"), (5, "float"), (5, "b"),
    ]  # fmt: skip
    assert [task.after for task in tasks[:2]] == [None, "float"]


def test_a_record_says_what_the_tables_need(tmp_path: Path) -> None:
    study = the_study(tmp_path, 'joint = { use = "joint" }\nmixed = { use = "mixed", of = "joint" }\n')
    float_run, joint, mixed = run_here(study, tmp_path)[:3]
    assert set(float_run.accuracy) == {"float"}
    assert float_run.parameters == joint.parameters > joint.quantised_weights > 0
    assert set(joint.accuracy) == set(joint.histograms) == {"2", "3", "4"}
    assert all(0 <= found.top1 <= found.top5 <= 100 for found in joint.accuracy.values())
    assert joint.data == "digits, 128 training images"
    assert len(joint.input_errors) == 5
    assert joint.settings["recipe"]["seed"] == 0
    assert joint.cpu_seconds > 0
    # The mixed run measures the joint network of its seed, and trains nothing.
    assert mixed.accuracy == joint.accuracy
    assert {point.objective for point in mixed.mixed} == {"weights", "energy"}
    sizes = [point.bits_per_weight for point in mixed.mixed if point.objective == "weights"]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (2.0, 4.0)


def test_minimum_norm_leaves_its_trace(tmp_path: Path) -> None:
    study = the_study(tmp_path, 'minimum-norm = { use = "joint", recipe = { objective = "minimum-norm" } }\n')
    _, record = run_here(study, tmp_path)[:2]
    assert [point.epoch for point in record.trace] == [0.25, 0.5, 0.75, 1.0]  # four steps, a point each
    for point in record.trace:
        assert set(point.weights) == set(point.norms) == {"2", "3", "4"}
        assert sum(point.weights.values()) == pytest.approx(1.0)


def test_a_run_that_diverges_is_a_result(tmp_path: Path) -> None:
    study = the_study(tmp_path, 'wild = { use = "joint", recipe = { learning_rate = 1e12 } }\n')
    _, record = run_here(study, tmp_path)[:2]
    assert record.status == "diverged"
    assert "epoch 1, step" in record.reason
    assert record.accuracy == {}


METHOD = '''
from bitstrata.baselines import Trained


def train(job):
    """Two widths of their own, the third from nowhere."""
    net = job.stratify((3,), norms="shared")
    job.fit(net, "mine")
    return Trained({3: net}, stored_bits=3)
'''


def test_a_method_of_ones_own_is_one_file_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(METHOD, encoding="utf-8")
    study = the_study(tmp_path, 'mine = { use = "mine.py" }\n')
    _, record = run_here(study, tmp_path)[:2]
    assert set(record.accuracy) == {"3"}
    # Changing the file makes it another run.
    tasks = plan(study, tmp_path, data=None, work=tmp_path / "work", threads=1)
    assert tasks[1].settings() == record.settings
    (tmp_path / "mine.py").write_text(METHOD + "\n# changed\n", encoding="utf-8")
    assert tasks[1].settings() != record.settings


def test_a_float_network_that_is_missing_is_trained_again(tmp_path: Path) -> None:
    study = the_study(tmp_path, 'joint = { use = "joint" }\n')
    tasks = plan(study, tmp_path, data=None, work=tmp_path / "here", threads=1)
    first = [run_task(task) for task in tasks[:2]][1]
    elsewhere = plan(study, tmp_path, data=None, work=tmp_path / "there", threads=1)
    assert run_task(elsewhere[1]).accuracy == first.accuracy


@pytest.mark.long
def test_what_is_done_is_skipped_and_failures_do_not_stop_the_rest(tmp_path: Path) -> None:
    methods = (
        'mine = { use = "mine.py" }\njoint = { use = "joint" }\n'
        'pact = { use = "joint", stratify = { quantizer = "pact" } }\n'
    )
    (tmp_path / "mine.py").write_text("def train(job):\n    return job.no_such_thing\n", encoding="utf-8")
    study = the_study(tmp_path, methods, HEAD.replace("[0, 1]", "[0]"))
    results, said = tmp_path / "runs.jsonl", []
    where = {"results": results, "work": tmp_path / "work"}
    failures = run_study(study, tmp_path, say=said.append, **where)  # type: ignore[arg-type]
    assert len(failures) == 2
    assert "mine" in failures[0]
    assert "no_such_thing" in failures[0]
    assert any("mine.py" in text for text in said)  # where it happened
    assert "pact" in failures[1]
    assert "one width" in failures[1]
    assert [record.method for record in read_records(results)] == ["float", "joint"]
    assert said[0] == "0 of 4 runs are done"
    said.clear()
    without = the_study(tmp_path, 'joint = { use = "joint" }\n', HEAD.replace("[0, 1]", "[0]"))
    assert run_study(without, tmp_path, say=said.append, **where) == []  # type: ignore[arg-type]
    assert said == ["2 of 2 runs are done"]
    # Another recipe is another run.
    changed = the_study(tmp_path, 'joint = { use = "joint", recipe = { momentum = 0.8 } }\n')
    todo = plan(changed, tmp_path, data=None, work=tmp_path, threads=1)
    assert todo[1].settings() != read_records(results)[1].settings


@pytest.mark.long
def test_a_killed_process_is_named_and_what_is_finished_is_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import os\n\n\ndef train(job):\n    os._exit(9)\n", encoding="utf-8")
    study = the_study(tmp_path, 'mine = { use = "mine.py" }\n', HEAD.replace("[0, 1]", "[0]"))
    results = tmp_path / "runs.jsonl"
    with pytest.raises(ChildProcessError, match="mine, seed 0: a process of the study was killed"):
        run_study(study, tmp_path, results=results, work=tmp_path / "work")
    assert [record.method for record in read_records(results)] == ["float"]


def test_the_verb_writes_results_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = study_file(tmp_path, 'joint = { use = "joint" }\n', HEAD.replace("[0, 1]", "[0]"))
    where = ["--results", str(tmp_path / "results"), "--work", str(tmp_path / "work"), "--json"]
    assert main(["study", str(file), *where]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["failures"] == []
    assert printed["studies"][0]["runs"] == 2
    report = tmp_path / "results" / "small" / "report.md"
    assert "joint" in report.read_text(encoding="utf-8")
    report.unlink()
    # What is done is not done again.
    runs = (tmp_path / "results" / "small" / "runs.jsonl").read_bytes()
    assert main(["study", str(file), *where]) == 0
    assert "2 of 2 runs are done" in capsys.readouterr().err
    assert (tmp_path / "results" / "small" / "runs.jsonl").read_bytes() == runs
    assert report.exists()
    report.unlink()
    assert main(["study", str(file), *where, "--report-only"]) == 0
    assert report.exists()


@pytest.mark.parametrize(
    ("methods", "reason"),
    [
        ('float = { use = "joint" }\n', "no method may be called 'float'"),
        ('a = { use = "joint", of = "b" }\n', "'b' is no method of this study"),
        ('a = { use = "joint", recipe = { speed = 3 } }\n', "method a: unknown recipe field 'speed'"),
        ('a = { used = "joint" }\n', "unknown field `used`"),
        ('"a/b" = { use = "joint" }\n', "matching regex"),
        ("", "length >= 1"),
    ],
)
def test_a_wrong_study_says_what_is_wrong(tmp_path: Path, methods: str, reason: str) -> None:
    with pytest.raises(BadStudy, match=reason):
        the_study(tmp_path, methods)


def test_unknown_methods_are_refused_before_anything_is_trained(tmp_path: Path) -> None:
    results = tmp_path / "runs.jsonl"
    for use, reason in (("nonsense", "there is no method 'nonsense'"), ("missing.py", "there is no such file")):
        study = the_study(tmp_path, f'joint = {{ use = "joint" }}\na = {{ use = "{use}" }}\n')
        with pytest.raises(BadStudy, match=reason):
            run_study(study, tmp_path, results=results, work=tmp_path / "work")
    (tmp_path / "empty.py").write_text("", encoding="utf-8")
    study = the_study(tmp_path, 'a = { use = "empty.py" }\n')
    with pytest.raises(BadStudy, match="a method is a function"):
        run_study(study, tmp_path, results=results, work=tmp_path / "work")
    assert not results.exists()


def test_a_line_cut_off_by_a_crash_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "runs.jsonl"
    record = RunRecord(method="joint", seed=0, net="resnet8", data="digits", settings={}, status="trained", accuracy={})
    append_record(path, record)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40])
    assert read_records(path) == [record]
    append_record(path, record)
    assert path.read_bytes() == whole + whole
    path.write_bytes(whole + b'{"method": 3}\n')
    with pytest.raises(BadStudy, match="line 2"):
        read_records(path)


def test_the_studies_of_the_project_can_be_read() -> None:
    studies = sorted((Path(__file__).parents[2] / "studies").glob("*.toml"))
    assert "quick.toml" in [path.name for path in studies]
    for path in studies:
        study = read_study(path)
        tasks = plan(study, path.parent, data=None, work=Path("x"), threads=1)
        assert all(task.settings() for task in tasks)
