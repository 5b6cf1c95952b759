"""`bitstrata list`: the models that this device holds."""

from __future__ import annotations

import argparse

from bitstrata.cli.output import print_json, print_table
from bitstrata.cli.progress import size_text
from bitstrata.cli.store import add_home, shown, store_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_home(parser)


def run(arguments: argparse.Namespace) -> None:
    store = store_of(arguments)
    found = [shown(store, record) for record in store.models()]
    if arguments.json:
        print_json({"home": str(store.home.root), "models": found})
        return
    if not found:
        print(f"{store.home.root} holds no model; `bitstrata pull SRC` fetches one")
        return
    rows = [
        (
            one["name"],
            str(one["version"]),
            one["view"],
            " ".join(one["views"]),
            size_text(one["bytes"]),
            "yes" if one["signed"] else "no",
            one["source"],
        )
        for one in found
    ]
    print_table(("name", "version", "view", "held", "size", "signed", "source"), rows)
