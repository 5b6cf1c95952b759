"""Processes that change a store and are killed, or meet a file system that fails.

A warmed-up interpreter is forked for each change: starting Python anew takes longer than the change itself. The file
is both the program that forks and the class that the tests talk to it with.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitstrata.device.store import Store

Change = Sequence[Any]
"""The name of a method of `Store` and its arguments, the last a dictionary of those with a name."""


def change(home: str | Path, what: Change) -> Any:
    """Makes a change of the store."""
    method, *arguments = what
    named = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
    return getattr(Store(home, patience=30), method)(*arguments, **named)


@dataclass(frozen=True)
class Ended:
    """What became of a child."""

    killed: bool
    seconds: float
    error: str | None = None
    """The class of what it raised."""
    typed: bool = True
    """Whether that is an error of bitstrata or of the system."""
    message: str = ""
    calls: int = 0
    """To the file system, below the home, of those that were to fail; 0 where none were."""


class Children:
    """Talks to the program below."""

    def __init__(self, preload: Path | None = None, **environment: str) -> None:
        variables = {**os.environ, **environment, "OMP_NUM_THREADS": "1"}
        if preload is not None:
            variables["LD_PRELOAD"] = str(preload)
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables
        )

    def run(
        self, home: Path, what: Change, *, kill_after: float | None = None, fault: tuple[int, str] | None = None
    ) -> Ended:
        """Makes a change in a child; kills it after some seconds, or lets its n-th call to the file system fail."""
        order = {"home": str(home), "change": what, "kill_after": kill_after, "fault": fault}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the program that forks is gone"
        return Ended(**json.loads(answer))

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


@contextlib.contextmanager
def children(preload: Path | None = None, **environment: str) -> Iterator[Children]:
    running = Children(preload, **environment)
    try:
        yield running
    finally:
        running.close()


def _child(order: dict[str, Any], pipe: int) -> None:
    """Never returns."""
    library = ctypes.CDLL(None)
    found: dict[str, Any] = {}
    try:
        if order["fault"] is not None:
            number, kind = order["fault"]
            library.fault_arm(order["home"].encode(), ctypes.c_long(number), kind.encode())
        os.write(pipe, b"!")
        change(order["home"], order["change"])
    except BaseException as error:  # noqa: BLE001 (whatever it is, the test is told)
        from bitstrata.errors import BitstrataError

        found = {"error": type(error).__name__, "typed": isinstance(error, BitstrataError | OSError)}
        found["message"] = str(error)
        if not found["typed"]:
            import traceback

            found["message"] = traceback.format_exc()
    if order["fault"] is not None:
        found["calls"] = library.fault_disarm()
    os.write(pipe, json.dumps(found).encode())
    os._exit(0)


def _main() -> None:
    # What is imported at first use would be imported anew in every child.
    import urllib3.util.ssl_  # noqa: F401

    import bitstrata.device.http
    import bitstrata.device.trust  # noqa: F401

    for line in sys.stdin:
        order = json.loads(line)
        reading, writing = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(reading)
            _child(order, writing)
        os.close(writing)
        os.read(reading, 1)  # the child begins
        started = time.perf_counter()
        if order["kill_after"] is not None:
            time.sleep(max(0.0, order["kill_after"] - (time.perf_counter() - started)))
            os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        seconds = time.perf_counter() - started
        with os.fdopen(reading, "rb") as pipe:
            told = pipe.read()
        killed = os.WIFSIGNALED(status) and not told
        if not killed and not told:
            raise SystemExit(f"a child ended with status {status}")
        print(json.dumps({"killed": killed, "seconds": seconds, **json.loads(told or "{}")}), flush=True)


if __name__ == "__main__":
    _main()
