"""What a change of the store shows while it goes on: a bar on a terminal, events as lines of JSON, else plain lines."""

from __future__ import annotations

import json
import shutil
import sys
import time

from bitstrata.cli.output import say
from bitstrata.device.events import Event, Fetching, Listener, Resolved, Waiting

#: Seconds between two drawings of a bar, and between two events of progress.
PERIOD = 0.1

_UNITS = ("B", "kB", "MB", "GB")


def listener(as_json: bool) -> Listener:
    if as_json:
        return JsonLines()
    return Bar()


def size_text(count: float) -> str:
    """Bytes for people."""
    for unit in _UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {_UNITS[-1]}"


class JsonLines:
    """One object per line on standard output; of progress not more than ten a second."""

    def __init__(self) -> None:
        self._shown = 0.0

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        if isinstance(event, Fetching) and event.bytes < event.total and now < self._shown + PERIOD:
            return
        self._shown = now
        print(json.dumps(event.to_dict()), flush=True)


class Bar:
    """How much, how fast, and how long still; drawn over itself on a terminal, and nowhere else."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._started = self._drawn = 0.0
        self._first = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Waiting):
            say("waiting for another process that is changing the store")
        elif isinstance(event, Resolved):
            trust = "signed by a pinned key" if event.signed else "integrity only, no key is pinned"
            say(
                f"{event.name}, version {event.version}, view {event.view} ({trust}): {size_text(event.bytes)} to fetch"
            )
            if event.why:
                say(f"chosen: {event.why}")
        elif isinstance(event, Fetching) and self._terminal:
            self._draw(event)

    def _draw(self, event: Fetching) -> None:
        now = time.monotonic()
        if not self._started:
            self._started, self._first = now, event.bytes
        done = event.bytes >= event.total
        if not done and now < self._drawn + PERIOD:
            return
        self._drawn = now
        speed = (event.bytes - self._first) / max(now - self._started, 1e-3)
        left = (event.total - event.bytes) / speed if speed else 0.0
        text = (
            f" {event.bytes / max(event.total, 1):4.0%}  {size_text(event.bytes)} of {size_text(event.total)}  "
            f"{size_text(speed)}/s  {left:.0f} s left"
        )
        room = max(shutil.get_terminal_size().columns - len(text) - 3, 0)
        filled = room * event.bytes // max(event.total, 1)
        sys.stderr.write(f"\r[{'#' * filled}{' ' * (room - filled)}]{text}" + ("\n" if done else ""))
        sys.stderr.flush()
