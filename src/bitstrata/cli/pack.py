"""`bitstrata pack`: from a training run to an artifact that devices run."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from bitstrata.capture import pack
from bitstrata.cli import processes
from bitstrata.cli.output import print_json, print_table
from bitstrata.errors import CheckpointMismatch
from bitstrata.format import Artifact, InputDescription, describe
from bitstrata.training import load_net


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="the folder of a training run, or a checkpoint")
    parser.add_argument("out", metavar="OUT", help="the artifact to write, usually NAME.strata")
    parser.add_argument("--name", help="the name of the model; default: that of OUT")
    parser.add_argument("--model-version", type=processes.positive, default=1, metavar="N", help="default: 1")
    parser.add_argument(
        "--float16", action="store_true", help="store the float first and last layer in 16 bits instead of 32"
    )


def run(arguments: argparse.Namespace) -> None:
    net, content = load_net(arguments.path)
    try:
        description = msgspec.convert(content["description"].get("input"), InputDescription)
    except msgspec.ValidationError as error:
        raise CheckpointMismatch(
            f"{arguments.path} does not say what its inputs look like ({error}). Pack it from Python: "
            "bitstrata.pack(net, path, input=InputDescription(...))"
        ) from error
    pack(
        net,
        arguments.out,
        name=arguments.name,
        version=arguments.model_version,
        input=description,
        float_store="float16" if arguments.float16 else "float32",
    )
    report = describe(Artifact.open(arguments.out))
    if arguments.json:
        print_json(report)
        return
    print_table(
        ("view", "fetched"), [(name, f"{view['fetched_bytes']:,} bytes") for name, view in report["views"].items()]
    )
    print(f"{Path(arguments.out)}: {report['total_bytes']:,} bytes serve every view")
