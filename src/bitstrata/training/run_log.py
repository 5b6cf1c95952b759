"""What a training run leaves behind while it runs: JSON lines, TensorBoard curves, and a progress bar on a terminal."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from bitstrata.atomic import write_atomically
from bitstrata.training import distributed


class RunLog(AbstractContextManager["RunLog"]):
    """Writes the log of one run into `folder` (nowhere when that is None); only the first process writes."""

    def __init__(self, folder: Path | None, *, tensorboard: bool = False, progress: bool | None = None) -> None:
        writes = folder is not None and distributed.rank() == 0
        self.path = folder / "log.jsonl" if writes and folder is not None else None
        self._board: Any = None
        if tensorboard and writes and folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            # Points after the last epoch in the log were written by a run that crashed and will be written again.
            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=self._logged_epochs() + 1)
        shows = sys.stderr.isatty() if progress is None else progress
        self._bar = _bar() if shows and distributed.rank() == 0 else None
        self._task: Any = None

    def __enter__(self) -> RunLog:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._board is not None:
            self._board.close()

    def event(self, name: str, **values: Any) -> None:
        """Adds one line."""
        if self.path is not None:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"event": name, **values}) + "\n")

    def curves(self, step: int, values: dict[str, float]) -> None:
        """Adds one point to each of the named TensorBoard curves."""
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

    def _logged_epochs(self) -> int:
        if self.path is None or not self.path.exists():
            return 0
        return self.path.read_text(encoding="utf-8").count('"event": "epoch"')

    def forget_epochs_from(self, epoch: int) -> None:
        """Drops the lines of epochs that are about to be run again after a crash."""
        if self.path is None or not self.path.exists():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:  # the line that the crash cut off
                continue
            if entry.get("epoch", -1) < epoch:
                kept.append(line)
        write_atomically(self.path, "".join(line + "\n" for line in kept).encode())

    def begin(self, title: str, total: int, done: int) -> None:
        """Starts the bar of the run at step `done` of `total`."""
        if self._bar is not None:
            self._task = self._bar.add_task(title, total=total, completed=done, note="")

    def advance(self, note: str) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=1, note=note)

    def say(self, text: str) -> None:
        """A line for the person at the terminal."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
    )
