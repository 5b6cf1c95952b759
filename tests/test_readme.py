"""The README does what it says: its Python runs in order, and its commands exist with the flags that it names."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[int, str]]:
    """The first line number and the text of every block in a language."""
    found = (match for match in FENCED.finditer(README) if match[1] == language)
    return [(README.count("\n", 0, match.start(2)) + 1, match[2]) for match in found]


def commands(program: str) -> list[str]:
    lines = (line.partition("#")[0].strip() for _, text in blocks("sh") for line in text.splitlines())
    return [line for line in lines if line.split()[:1] == [program]]


def test_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    namespace: dict[str, Any] = {"__name__": "readme"}
    assert blocks("python")
    for line, text in blocks("python"):
        # Blank lines above, so that a traceback shows the line of the README.
        exec(compile("\n" * (line - 1) + text, str(ROOT / "README.md"), "exec"), namespace)
    assert namespace["net"].widths == (2, 3, 4)


@pytest.mark.parametrize("command", commands("make"))
def test_make_targets_exist(command: str) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert command.split()[1] in targets


@pytest.mark.parametrize("command", commands("bitstrata"))
def test_commands_know_their_flags(command: str) -> None:
    _, verb, *arguments = command.split()
    program = f"import sys; from bitstrata.cli.main import main; sys.exit(main([{verb!r}, '--help']))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    unknown = [flag for flag in arguments if flag.startswith("--") and flag not in run.stdout]
    assert not unknown, f"`bitstrata {verb}` does not know {unknown}"


def test_the_two_commands_stand_within_the_first_screen() -> None:
    first_screen = "\n".join(README.splitlines()[:40])
    assert "make demo" in first_screen
    assert "make test" in first_screen


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert not missing
