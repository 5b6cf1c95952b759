"""The frame of the command line: what it lists, what it imports, and its exit codes."""

import json
import re
import subprocess
import sys

import pytest

from bitstrata import __version__
from bitstrata.cli import doctor
from bitstrata.cli.main import VERBS, main
from bitstrata.errors import BadData


def python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_are_light(flag: str) -> None:
    run = python(
        f"""
import sys
from bitstrata.cli.main import main
try:
    main([{flag!r}])
except SystemExit as exit:
    print(exit.code, sorted({{"torch", "numpy", "msgspec"}} & set(sys.modules)))
"""
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "0 []"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.strip() == f"bitstrata {__version__}"


def test_help_lists_the_verbs_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(re.search(rf"\n    {verb}\s", shown) for verb in VERBS)
    assert "130" in shown
    assert "melt" not in shown  # a verb that is not there is not listed


@pytest.mark.parametrize(
    "arguments", [[], ["melt"], ["pack"], ["train", "--no-such-flag"], ["train", "--widths", "two"], ["eval"]]
)
def test_usage_errors_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "error:" in streams.err


def test_flags_cannot_be_abbreviated() -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["train", "--learning", "0.1"])
    assert stopped.value.code == 2


@pytest.mark.parametrize(
    ("error", "code"), [(BadData("no pictures"), 1), (PermissionError("no entry"), 1), (KeyboardInterrupt(), 130)]
)
def test_exit_codes(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(arguments: object) -> None:
        raise error

    monkeypatch.setattr(doctor, "run", fails)
    assert main(["doctor"]) == code
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "Traceback" not in streams.err
    assert (str(error) or "interrupted") in streams.err


def test_errors_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(arguments: object) -> None:
        raise BadData("no pictures")

    monkeypatch.setattr(doctor, "run", fails)
    assert main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"error": "BadData", "message": "no pictures"}
    monkeypatch.setenv("RANK", "1")
    assert main(["doctor", "--json"]) == 1
    assert capsys.readouterr().out == ""  # standard output belongs to the first process


def test_defects_of_ours_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(arguments: object) -> None:
        raise ModuleNotFoundError("No module named 'bitstrata.lost'", name="bitstrata.lost")

    monkeypatch.setattr(doctor, "run", fails)
    with pytest.raises(ModuleNotFoundError):
        main(["doctor"])


@pytest.mark.parametrize("verb", ["train", "demo"])
def test_without_torch_the_error_names_the_extra(verb: str) -> None:
    run = python(
        f"""
import sys
sys.modules["torch"] = None
from bitstrata.cli.main import main
sys.exit(main([{verb!r}, "--json"]))
"""
    )
    assert run.returncode == 1
    assert "bitstrata[train]" in run.stderr
    assert "Traceback" not in run.stderr
    assert json.loads(run.stdout)["error"] == "MissingExtra"


def test_doctor_works_without_torch() -> None:
    run = python(
        """
import sys
sys.modules["torch"] = None
from bitstrata.cli.main import main
sys.exit(main(["doctor"]))
"""
    )
    assert run.returncode == 0, run.stderr
    assert "not installed" in run.stdout


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bitstrata"] == __version__
    assert found["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert main(["doctor"]) == 0
    assert f"threads             {torch.get_num_threads()}\n" in capsys.readouterr().out


def test_doctor_names_the_instruction_set(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from bitstrata import _native

    monkeypatch.delenv("BITSTRATA_KERNELS", raising=False)
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["instruction_set"] == _native.isa()
    assert found["kernels"] == _native.kernel_names()
    assert ("advice" in found) == (_native.isa() == "portable")
    assert main(["doctor"]) == 0
    assert ", ".join(_native.kernel_names()) in capsys.readouterr().out


def test_doctor_says_that_only_portable_kernels_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BITSTRATA_KERNELS", "portable")
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "portable\n" in shown
    assert "only the portable kernels run" in shown


def test_doctor_without_the_extension() -> None:
    run = python(
        """
import sys
sys.modules["bitstrata._native"] = None
from bitstrata.cli.main import main
sys.exit(main(["doctor"]))
"""
    )
    assert run.returncode == 0, run.stderr
    assert "networks run with NumPy" in run.stdout
