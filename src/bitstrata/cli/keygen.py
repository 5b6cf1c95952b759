"""`bitstrata keygen`: a pair of keys, one to sign releases with and one to give away."""

from __future__ import annotations

import argparse

from bitstrata.cli.output import print_json
from bitstrata.device.trust import fingerprint
from bitstrata.publish.keys import PASSPHRASE, generate, public_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        metavar="NAME",
        help=f"writes NAME.key, to be kept secret, and NAME.pub; {PASSPHRASE} in the environment encrypts the former",
    )


def run(arguments: argparse.Namespace) -> None:
    made = generate(arguments.name)
    if arguments.json:
        print_json(
            {
                "private_key": str(made.private),
                "encrypted": made.encrypted,
                "public_key_file": str(made.public),
                "public_key": public_text(made.key),
                "fingerprint": fingerprint(made.key),
            }
        )
        return
    secret = "encrypted" if made.encrypted else "not encrypted: who can read the file can sign"
    print(f"private key  {made.private} ({secret})")
    print(f"public key   {made.public}: {public_text(made.key)}")
    print(f"fingerprint  {fingerprint(made.key)}")
    print("\nKeep a copy of the private key in a safe place: without it nobody can publish for those who trust it.")
