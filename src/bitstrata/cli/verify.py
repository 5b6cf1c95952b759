"""`bitstrata verify`: checks every byte of an artifact, or of a model that this device holds; works without torch."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from bitstrata.cli.output import print_json
from bitstrata.cli.store import add_home, store_of
from bitstrata.errors import WrongHash
from bitstrata.format import verify_artifact


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="ARTIFACT|NAME", help="a .strata folder, or a model that this device holds")
    add_home(parser)


def run(arguments: argparse.Namespace) -> None:
    if not Path(arguments.path).exists() and store_of(arguments).records.get(arguments.path) is not None:
        _verify_held(arguments)
    else:
        _verify_artifact(arguments)


def _verify_held(arguments: argparse.Namespace) -> None:
    found = store_of(arguments).verify(arguments.path)
    if found.damaged:
        raise WrongHash(
            f"{found.name}: {', '.join(found.damaged)} missing or damaged; `bitstrata pull {found.name}` fetches again "
            f"what is needed, and nothing else"
        )
    if arguments.json:
        print_json({"name": found.name, "files": found.files, "bytes": found.bytes})
    else:
        print(f"{found.name}: all {found.files} files that are held are sound ({found.bytes:,} bytes)")


def _verify_artifact(arguments: argparse.Namespace) -> None:
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
