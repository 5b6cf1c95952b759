"""`bitstrata gc`: frees the disk of what no model needs."""

from __future__ import annotations

import argparse

from bitstrata.cli.output import print_json
from bitstrata.cli.store import add_home, store_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_home(parser)


def run(arguments: argparse.Namespace) -> None:
    freed = store_of(arguments).gc()
    if arguments.json:
        print_json({"files": freed.files, "bytes": freed.bytes})
    else:
        print(f"{freed.files} files removed, {freed.bytes:,} bytes freed")
