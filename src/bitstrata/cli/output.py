"""What verbs print: tables for people, one JSON object for programs, and lines about progress on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any


def print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value))


def say(text: str) -> None:
    """A line for people that is no part of the result."""
    print(text, file=sys.stderr, flush=True)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns to the right, but the first: it names the row."""
    columns = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for cells in (header, *rows):
        first, *rest = (
            cell.ljust(size) if index == 0 else cell.rjust(size)
            for index, (cell, size) in enumerate(zip(cells, columns, strict=True))
        )
        print("  ".join([first, *rest]))
