"""Builds and runs the program in tests/native, C++ alone: all kernels on a grid of layers, in guarded memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Results:
    """What one run printed."""

    digests: dict[str, str]
    """By case; the same on every machine."""
    ran: dict[str, int]
    """By kernel: how many layers it was run on. Likewise the steps without weights of each instruction set."""


def tool(name: str) -> str | None:
    """A program beside this Python, or in the path."""
    return shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


def build(name: str, *options: str) -> Path:
    """The program, built in a folder of that name, which is kept: later builds compile what changed."""
    folder = ROOT / "build" / f"grid-{name}"
    cmake = tool("cmake")
    assert cmake is not None
    flags = ["-DBITSTRATA_GRID=ON", "-DSKBUILD_PROJECT_VERSION=0", *options]
    for command in (
        [cmake, "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}", *flags],
        [cmake, "--build", str(folder)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "warning:" not in done.stdout, done.stdout
    return folder / "grid"


def run(command: Sequence[str], environment: dict[str, str] | None = None) -> Results:
    """Runs the program; every difference from its model, and every word of a sanitiser, is a failure."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})}
    )
    wrong = [line for line in done.stdout.splitlines() if line.startswith("differs")]
    assert not wrong, wrong[:20]
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[:4000]
    lines = [line.rsplit(" ", 1) for line in done.stdout.splitlines()]
    return Results(
        {name: digest for name, digest in lines if name.startswith("case ")},
        {name.removeprefix("ran "): int(count) for name, count in lines if name.startswith("ran ")},
    )
