"""`bitstrata bench`, and what it measures with."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from artifacts import write_small_artifact

from bitstrata import _native
from bitstrata.cli.main import main
from bitstrata.runtime import load
from bitstrata.runtime.first_run import first_run
from bitstrata.runtime.measure import TURN_CALLS, Spread, in_turns
from bitstrata.runtime.profile import Machine, profile

LAYERS = ["(input)", "stem", "first", "second", "mean", "head", "(results)"]
QUICK = ["--seconds", "0", "--threads", "1"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_small_artifact(tmp_path)


def test_what_people_see(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(path), "--batch", "1", "3", *QUICK]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"small, 3 x 8 x 6, kernels for {_native.isa()}"
    rows = [line.split() for line in lines]
    assert [row[:3] for row in rows if row[:1] in (["2"], ["3"], ["4"]) and len(row) == 10] == [
        [view, "1", batch] for batch in "13" for view in "234"
    ]
    assert sum(row[:1] == ["first"] for row in rows) == 3


def test_json(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", str(path), "--bits", "4", "2", "--batch", "2", "--threads", "1", "2", "--size", "12x9"]
    assert main([*command, "--seconds", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["shape"] == [3, 12, 9]
    assert [(one["threads"], one["view"], one["batch"]) for one in found["speeds"]] == [
        (1, "4", 2),
        (1, "2", 2),
        (2, "4", 2),
        (2, "2", 2),
    ]
    for speed in found["speeds"]:
        spread = speed["latency"]
        assert 0 < spread["least"] <= spread["lower"] <= spread["median"] <= spread["upper"] <= spread["p95"]
        assert speed["images_per_second"] == pytest.approx(2 / spread["median"])
    for layers in found["layers"]:
        assert [part["name"] for part in layers["parts"]] == LAYERS
        macs = {part["name"]: part["macs"] for part in layers["parts"] if part["macs"]}
        assert macs == {"stem": 2 * 108 * 216, "first": 2 * 108 * 576, "second": 2 * 108 * 64, "head": 2 * 24}
        assert all(part["seconds"] > 0 and part["limit_seconds"] > 0 for part in layers["parts"])
    for one in found["first_runs"].values():
        assert min(one["import_seconds"], one["load_seconds"], one["first_seconds"]) > 0
        assert one["imported_bytes"] < one["peak_bytes"] < 1 << 30
    assert found["prepare_seconds"].keys() == {"2", "4"}


def test_bytes_of_a_step(path: Path) -> None:
    """Bordered codes of one byte, floats of four; what the residual reads counts too."""
    model = load(path, 2, threads=1)
    session = model.at(2)
    parts = profile(session, np.zeros((1, 3, 8, 6), np.float32), Machine(1e9, 1e9, {1 << 30: 1e9}), rounds=1)  # type: ignore[arg-type]
    sizes = {part.name: part.bytes for part in parts}
    codes, floats = 8 * 6 * 8, 4 * 8 * 6 * 8
    padded = 10 * 8 * 8
    assert sizes["first"] == 8 * 8 * 9 + padded + codes
    assert sizes["second"] == 8 * 8 + codes + floats + floats
    first = next(part for part in parts if part.name == "first")
    assert first.limit_seconds == pytest.approx(48 * 576 / 1e9)


def test_picture(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "bench.svg"
    assert main(["bench", str(path), "--picture", str(picture), "--json", *QUICK]) == 0
    streams = capsys.readouterr()
    json.loads(streams.out)
    assert str(picture) in streams.err
    shown = "".join(ET.parse(picture).getroot().itertext())
    assert all(text in shown for text in ("view 2", "view 4", "first", "limit"))


def test_refusals(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"] == "NotAnArtifact"
    assert main(["bench", str(path), "--bits", "2", "5", *QUICK]) == 1
    assert "2, 3, 4, not '5'" in capsys.readouterr().err
    assert main(["bench", str(path), "--seconds", "-1"]) == 1
    assert "seconds=-1" in capsys.readouterr().err


@pytest.mark.parametrize("flag", [["--size", "12by9"], ["--size", "0x4"], ["--batch", "0"], ["--threads", "none"]])
def test_usage_errors(path: Path, flag: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", str(path), *flag])
    assert stopped.value.code == 2


def test_torch_is_not_needed(path: Path) -> None:
    program = f"""
import sys
sys.modules["torch"] = None
from bitstrata.cli.main import main
sys.exit(main(["bench", {str(path)!r}, "--seconds", "0", "--bits", "2"]))
"""
    run = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_a_first_run_that_fails_says_why(path: Path) -> None:
    with pytest.raises(Exception, match="UnknownView"):
        first_run(path, "7", (1, 3, 8, 6))


def test_turns_rotate() -> None:
    called: list[str] = []

    def call(name: str) -> None:
        called.append(name)

    times = in_turns({name: lambda name=name: call(name) for name in "abc"}, 0, least_rounds=3)  # type: ignore[misc]
    turns = [name for index, name in enumerate(called[3:]) if index % (1 + TURN_CALLS) == 0]
    assert "".join(called[:3]) == "abc"
    assert "".join(turns) == "abc" + "bca" + "cab"
    assert all(len(one.first) == len(one.rounds) == 3 and len(one.steady) == 3 * TURN_CALLS for one in times.values())


def test_spread() -> None:
    spread = Spread.of([5.0, 1.0, 2.0, 3.0, 4.0])
    assert (spread.count, spread.least, spread.lower, spread.median, spread.upper) == (5, 1.0, 2.0, 3.0, 4.0)
    assert spread.p95 == pytest.approx(4.8)


def test_rates_of_the_machine() -> None:
    """No exact number is right everywhere, but bytes go no slower than floats, and no machine is below these."""
    byte_macs, float_macs = _native.multiply_rate(False), _native.multiply_rate(True)
    assert 1e8 < float_macs < byte_macs * 1.5 < 1e14
    assert 1e8 < _native.read_rate(1 << 14) < 1e14
    assert _native.read_rate(0) > 0


def test_profile_runs_what_a_call_runs(path: Path) -> None:
    session = load(path, 3, threads=1).at(3)
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 6), dtype=np.float32)
    times = session.profile(x)  # type: ignore[attr-defined]
    assert [None if one.step is None or one.step.node is None else one.step.node.name for one in times] == [
        None,
        *LAYERS[1:-1],
        None,
    ]
    assert all(one.seconds >= 0 for one in times)
    kernels = session.kernels()  # type: ignore[attr-defined]
    assert {one.step.node.name: one.kernel for one in times[1:4]} == {
        name: kernels[name] for name in ("stem", "first", "second")
    }
