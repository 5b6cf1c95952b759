"""What the verbs about a device's store have in common."""

from __future__ import annotations

import argparse
from typing import Any

from bitstrata.device.records import Record
from bitstrata.device.store import Store
from bitstrata.errors import BadOption


def add_home(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--home", metavar="DIR", help="the store; default: BITSTRATA_HOME, or the platform's data folder"
    )


def add_view(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("--bits", type=int, metavar="WIDTH", help=f"the view of this width; {default}")
    parser.add_argument("--view", metavar="NAME", help="a view by name, in place of --bits")


def chosen_view(arguments: argparse.Namespace, *, needed: bool = False) -> str | None:
    if arguments.bits is not None and arguments.view is not None:
        raise BadOption("give --bits or --view, not both")
    if arguments.bits is None and arguments.view is None:
        if needed:
            raise BadOption("say to what: --bits WIDTH or --view NAME")
        return None
    return arguments.view if arguments.view is not None else str(arguments.bits)


def store_of(arguments: argparse.Namespace) -> Store:
    return Store(arguments.home)


def shown(store: Store, record: Record) -> dict[str, Any]:
    """A model that is held, as JSON."""
    release = record.release
    return {
        "name": record.name,
        "version": release.version,
        "view": record.view,
        "views": store.held_views(record.name),
        "bytes": store.held_bytes(record.name),
        "source": record.source,
        "manifest": release.manifest,
        "signed": record.trusted is not None,
    }
