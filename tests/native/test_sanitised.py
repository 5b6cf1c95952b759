"""All kernels of this processor under the address and undefined-behaviour sanitisers, next to forbidden pages."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from grid_program import build, run, tool

from bitstrata import _native

SANITISERS = "-fsanitize=address,undefined"
COMPILER = shutil.which("c++")


def _has_sanitisers() -> bool:
    if COMPILER is None:
        return False
    command = [COMPILER, SANITISERS, "-x", "c++", "-", "-o", "/dev/null"]
    return subprocess.run(command, input=b"int main() {}", capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not _has_sanitisers(), reason="the compiler has no sanitisers"),
    pytest.mark.skipif(not (tool("cmake") and tool("ninja")), reason="needs CMake and Ninja"),
]


@pytest.fixture(scope="module")
def program() -> Path:
    # Frame pointers would take a register that assembly needs.
    flags = f"-O1 -g1 -fomit-frame-pointer -fno-sanitize-recover=all {SANITISERS}"
    return build("sanitised", "-DCMAKE_BUILD_TYPE=Debug", f"-DCMAKE_CXX_FLAGS_DEBUG={flags}")


def test_every_kernel_stays_within_its_memory(program: Path) -> None:
    results = run([str(program)])
    assert set(_native.kernel_names()) <= set(results.ran)
    assert min(results.ran.values()) >= 100, results.ran


def test_forbidden_memory_is_seen(program: Path) -> None:
    done = subprocess.run(
        [str(program), "overrun"], capture_output=True, check=False, env={"ASAN_OPTIONS": "handle_segv=0"}
    )
    assert done.returncode == -signal.SIGSEGV
    assert b"read" not in done.stdout
