"""`bitstrata remove`: forgets a model, with all that was fetched for it."""

from __future__ import annotations

import argparse

from bitstrata.cli.output import print_json
from bitstrata.cli.store import add_home, store_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a model that this device holds")
    add_home(parser)


def run(arguments: argparse.Namespace) -> None:
    freed = store_of(arguments).remove(arguments.name)
    if arguments.json:
        print_json({"name": arguments.name, "files": freed.files, "bytes": freed.bytes})
    else:
        print(f"{arguments.name} is gone: {freed.files} files, {freed.bytes:,} bytes")
