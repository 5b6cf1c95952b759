"""`bitstrata verify`: checks every byte of an artifact; works without torch."""

from __future__ import annotations

import argparse
import time

from bitstrata.cli.output import print_json
from bitstrata.format import verify_artifact


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="ARTIFACT", help="a .strata folder")


def run(arguments: argparse.Namespace) -> None:
    started = time.monotonic()
    found = verify_artifact(arguments.path)
    seconds = time.monotonic() - started
    if arguments.json:
        print_json(
            {
                "path": arguments.path,
                "name": found.name,
                "version": found.version,
                "bytes": found.bytes,
                "files": found.files,
                "segments": found.segments,
                "views": list(found.views),
                "other_files": list(found.other_files),
                "seconds": round(seconds, 3),
            }
        )
        return
    print(
        f"{found.name}, version {found.version}: {len(found.files)} files, {found.segments} segments and views "
        f"{', '.join(found.views)} are sound ({found.bytes:,} bytes in {seconds:.2f} s)"
    )
    if found.other_files:
        print(f"no part of it: {', '.join(map(ascii, found.other_files))}")
