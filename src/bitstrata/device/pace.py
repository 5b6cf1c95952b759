"""How long a source may take: to connect, to say anything, and for every stretch of a body."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from bitstrata.errors import Interrupted


@dataclass(frozen=True)
class Patience:
    """Seconds and bytes; a source that is slower is given up, and tried again later."""

    connect: float = 10.0
    stall: float = 30.0
    """Seconds without a byte; also for all headers of an answer together."""
    window: float = 60.0
    """Seconds of waiting after which what came is counted."""
    slowest: float = 1000.0
    """Bytes per second that must come in every window."""


class Pace:
    """Finds a body that drips: every byte in time, and yet never done."""

    def __init__(self, patience: Patience, place: str) -> None:
        self._patience = patience
        self._place = place
        self._waited = 0.0
        self._arrived = 0

    def count(self, seconds: float, arrived: int) -> None:
        """So many bytes came after waiting so long; time in which nobody waited for the source is not its fault."""
        self._waited += seconds
        self._arrived += arrived
        if self._waited < self._patience.window:
            return
        if self._arrived < self._patience.slowest * self._waited:
            raise Interrupted(
                f"{self._place}: only {self._arrived} bytes came in {self._waited:.0f} s, less than "
                f"{self._patience.slowest:.0f} a second"
            )
        self._waited, self._arrived = 0.0, 0


@contextmanager
def limited(seconds: float, stop: Callable[[], None]) -> Iterator[None]:
    """Calls `stop` from another thread where what is inside takes too long, and then raises TimeoutError.

    Time limits of sockets are for each call that brings a byte; headers and the lines between chunks are read by
    many of them, with no limit on the whole.
    """
    late = threading.Event()

    def end() -> None:
        late.set()
        with suppress(OSError, ValueError, RuntimeError):  # closed meanwhile
            stop()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception:
        if late.is_set():
            raise TimeoutError("timed out") from None
        raise
    finally:
        timer.cancel()
    if late.is_set():
        raise TimeoutError("timed out")
