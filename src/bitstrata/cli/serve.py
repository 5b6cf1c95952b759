"""`bitstrata serve`: a published folder over HTTP, until it is interrupted."""

from __future__ import annotations

import argparse
import sys

from bitstrata.cli.output import print_json, say
from bitstrata.publish.serve import Answer, Server


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="what `bitstrata push` wrote")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="default: 8000; 0 takes any that is free")
    parser.add_argument(
        "--host", default="127.0.0.1", help="default: 127.0.0.1, this machine alone; 0.0.0.0 for all networks"
    )


def run(arguments: argparse.Namespace) -> None:
    server = Server(arguments.folder, arguments.host, arguments.port, _show if sys.stderr.isatty() else None)
    try:
        if arguments.json:
            print_json({"address": server.address, "folder": arguments.folder})
        else:
            print(f"serving {arguments.folder} at {server.address} (Ctrl-C ends it)")
        # Whoever waits for the address reads it through a pipe.
        sys.stdout.flush()
        server.serve_forever()
    finally:
        server.server_close()


def _show(answer: Answer) -> None:
    # The path is the client's text: only what cannot move the cursor is shown.
    say(f"{answer.status} {answer.method} {ascii(answer.path)[1:-1]} {answer.bytes:,} bytes")
