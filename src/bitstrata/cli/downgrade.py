"""`bitstrata downgrade`: fewer bits for a model that is held; fetches nothing, and may free the disk."""

from __future__ import annotations

import argparse

from bitstrata.cli.output import print_json
from bitstrata.cli.progress import listener
from bitstrata.cli.store import add_home, add_view, chosen_view, shown, store_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a model that this device holds")
    add_view(parser, "one of the two is needed")
    parser.add_argument("--prune", action="store_true", help="remove what the view does not need")
    add_home(parser)


def run(arguments: argparse.Namespace) -> None:
    store = store_of(arguments)
    view = chosen_view(arguments, needed=True)
    assert view is not None
    record = store.downgrade(arguments.name, view, prune=arguments.prune, listen=listener(arguments.json))
    if arguments.json:
        print_json(shown(store, record))
    else:
        print(f"{record.name} runs at view {record.view}; {store.held_bytes(record.name):,} bytes are held")
