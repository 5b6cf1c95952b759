"""The NEON kernels give the bits of all others: built by a cross compiler, run by an emulator, beside this host's."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from grid_program import build, run, tool

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
LIBRARIES = "/usr/aarch64-linux-gnu"

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not all(map(shutil.which, (COMPILER, EMULATOR))), reason=f"needs {COMPILER} and {EMULATOR}"),
    pytest.mark.skipif(not (tool("cmake") and tool("ninja")), reason="needs CMake and Ninja"),
]

KERNELS = {"direct", "wide", "depthwise", "narrow_depthwise", "float", "winograd2", "winograd3", "winograd4", "steps"}
DOT_PRODUCTS = {"direct", "winograd2", "winograd3", "winograd4"}


@pytest.fixture(scope="module")
def program() -> Path:
    return build(
        "aarch64",
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        f"-DCMAKE_CXX_COMPILER={COMPILER}",
    )


def emulated(processor: str, program: Path) -> list[str]:
    return [EMULATOR, "-cpu", processor, "-L", LIBRARIES, str(program)]


def test_every_kernel_equals_the_host(program: Path) -> None:
    """A processor without the dot product and one that has it; all accumulators, codes and floats."""
    host = run([str(build("host"))])
    plain, newer = run(emulated("cortex-a53", program)), run(emulated("max", program))
    assert len(host.digests) > 3000
    assert plain.digests == host.digests
    assert newer.digests == host.digests
    neon, dot_products = {f"neon.{name}" for name in KERNELS}, {f"dotprod.{name}" for name in DOT_PRODUCTS}
    common = {name for name in host.ran if name.startswith("portable.")} | {"networks"}
    assert set(plain.ran) == common | neon
    assert set(newer.ran) == common | neon | dot_products
    assert min(newer.ran.values()) >= 100, newer.ran


def test_the_emulator_sees_forbidden_memory(program: Path) -> None:
    done = subprocess.run([*emulated("max", program), "overrun"], capture_output=True, check=False)
    assert done.returncode in (-signal.SIGSEGV, 128 + signal.SIGSEGV)
    assert b"read" not in done.stdout
