"""`bitstrata push`: publishes an artifact; works without torch."""

from __future__ import annotations

import argparse

from bitstrata.cli.output import print_json, say
from bitstrata.device.trust import fingerprint, read_public_key
from bitstrata.errors import BadOption
from bitstrata.format import Artifact
from bitstrata.publish.card import read_facts
from bitstrata.publish.destinations import FolderDestination, open_destination
from bitstrata.publish.keys import OLD_PASSPHRASE, SigningKey, load_key, open_to_others, public_text
from bitstrata.publish.push import Pushed, push


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="ARTIFACT", help="a .strata folder")
    parser.add_argument("destination", metavar="DEST", help="a folder, or s3://bucket/name (gs://, az://)")
    parser.add_argument("--sign", metavar="KEY", help="the private key that signs the release: NAME.key of keygen")
    parser.add_argument(
        "--rotate-from", metavar="KEY", help="the private key that devices trust so far: from now on they trust --sign"
    )
    parser.add_argument(
        "--spare",
        metavar="PUB",
        action="append",
        default=[],
        help="with --rotate-from: a public key that may sign and rotate too; may be given again",
    )
    parser.add_argument("--accuracy", metavar="FILE", help="for the model card: what `bitstrata eval --json` printed")
    parser.add_argument("--latency", metavar="FILE", help="for the model card: what `bitstrata bench --json` printed")
    parser.add_argument("--address", metavar="URL", help="for the model card: where people will fetch it from")
    parser.add_argument("--hub", action="store_true", help="the folder is for a model hub: also write .gitattributes")


def run(arguments: argparse.Namespace) -> None:
    key = _key(arguments.sign)
    old = _key(arguments.rotate_from, OLD_PASSPHRASE)
    spares = [read_public_key(one) for one in arguments.spare]
    destination = open_destination(arguments.destination)
    if arguments.hub and not isinstance(destination, FolderDestination):
        raise BadOption("--hub is for folders that are uploaded to a hub")
    address = arguments.address or (destination.address if destination.public else None)
    facts = read_facts(Artifact.open(arguments.path).name, arguments.accuracy, arguments.latency, address)
    done = push(
        arguments.path,
        destination,
        key=key,
        rotate_from=old,
        spares=spares,
        facts=facts,
        hub=arguments.hub,
        say=say,
    )
    for note in done.notes:
        say(note)
    if arguments.json:
        print_json(
            {
                "address": done.address,
                "name": done.name,
                "version": done.version,
                "manifest": done.manifest,
                "key_set": done.key_set,
                "signed_by": [public_text(signer) for signer in done.signers],
                "written": done.written,
                "written_bytes": sum(done.written.values()),
                "shared_bytes": sum(done.shared.values()),
                "notes": list(done.notes),
            }
        )
        return
    _print(done)


def _key(path: str | None, *variables: str) -> SigningKey | None:
    if path is None:
        return None
    key = load_key(path, *variables)
    if open_to_others(path):
        say(f"warning: others on this machine can read {path}: chmod 600 {path}")
    return key


def _print(done: Pushed) -> None:
    shared = f"; {sum(done.shared.values()):,} bytes of its strata and views were there" if done.shared else ""
    what = f"{done.name}, version {done.version}, at {done.address}"
    if done.written:
        print(f"published {what}: {sum(done.written.values()):,} bytes written{shared}")
    else:
        print(f"{what}: all was there, nothing to do")
    if done.signers:
        print(f"signed by {', '.join(map(fingerprint, done.signers))}; pull it with --trust")
    else:
        print("not signed: devices can tell damage, and not who published it. See `bitstrata keygen` and --sign")
