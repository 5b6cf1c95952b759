"""`bitstrata pull`: fetches a model, or brings it up to date; needs no torch."""

from __future__ import annotations

import argparse

from bitstrata.cli.output import print_json
from bitstrata.cli.progress import listener
from bitstrata.cli.store import add_home, add_view, chosen_view, shown, store_of
from bitstrata.device.choose import Limits
from bitstrata.errors import BadOption


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="SRC",
        help="a published folder, http(s)://, s3://bucket/prefix, hf://org/name@revision, or a model that is held",
    )
    add_view(parser, "default: what is held, or the base")
    parser.add_argument("--name", help="what to call it on this device; default: as its publisher does")
    parser.add_argument("--version", type=int, metavar="N", help="this version; default: the newest")
    parser.add_argument(
        "--trust", metavar="KEY", help="a public key or .pub file; only what it signed is accepted from now on"
    )
    parser.add_argument("--max-bytes", type=int, metavar="N", help="the best view that takes no more bytes")
    parser.add_argument(
        "--max-latency", type=float, metavar="MS", help="the best view that takes no longer for an image, measured here"
    )
    parser.add_argument("--fit", action="store_true", help="the best view that takes at most half of the free memory")
    add_home(parser)


def run(arguments: argparse.Namespace) -> None:
    view = chosen_view(arguments)
    limits = None
    if arguments.max_bytes is not None or arguments.max_latency is not None or arguments.fit:
        if view is not None:
            raise BadOption("give --bits or --view, or limits by which a view is chosen, not both")
        latency = None if arguments.max_latency is None else arguments.max_latency / 1000
        limits = Limits(arguments.max_bytes, latency, arguments.fit)
    trust = None
    if arguments.trust is not None:
        from bitstrata.device.trust import read_public_key

        trust = read_public_key(arguments.trust)
    store = store_of(arguments)
    record = store.pull(
        arguments.source,
        view,
        name=arguments.name,
        version=arguments.version,
        trust=trust,
        limits=limits,
        listen=listener(arguments.json),
    )
    found = shown(store, record)
    if arguments.json:
        print_json(found)
    else:
        print(
            f"{found['name']}, version {found['version']}, runs at view {found['view']} ({found['bytes']:,} bytes held)"
        )
