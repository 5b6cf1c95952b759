"""`bitstrata VERB ...`: finds the verb, runs it, and turns what goes wrong into a message and an exit code.

Only the file of the chosen verb is imported, so that `bitstrata --help` is quick and works where torch is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from bitstrata import __version__
from bitstrata.errors import BitstrataError, MissingExtra

OK, REFUSED, USAGE, INTERRUPTED = 0, 1, 2, 130

EXIT_CODES = f"""\
exit codes:
  {OK}    done
  {REFUSED}    refused, with the reason on standard error; with --json also as {{"error": ..., "message": ...}} on
       standard output
  {USAGE}    the command line was not understood
  {INTERRUPTED}  interrupted; a training run continues when the same command is given again"""

#: Verb -> the module in this folder, and what the verb does.
VERBS = {
    "train": ("train", "train a network at every width"),
    "eval": ("evaluate", "measure the accuracy of a trained network or an artifact at every width"),
    "pack": ("pack", "write a trained network as an artifact that devices run"),
    "allocate": ("allocate", "choose a width for each layer within a budget, and add it to an artifact as a view"),
    "inspect": ("inspect", "show what lies in an artifact"),
    "verify": ("verify", "check every byte of an artifact, or of a model of this device"),
    "pull": ("pull", "fetch a published model to this device, or bring it up to date"),
    "upgrade": ("upgrade", "more bits for a model of this device: fetch what is missing"),
    "downgrade": ("downgrade", "fewer bits for a model of this device"),
    "list": ("list", "show the models of this device"),
    "remove": ("remove", "forget a model of this device"),
    "gc": ("gc", "free the disk of what no model needs"),
    "predict": ("predict", "say what a network sees in images"),
    "bench": ("bench", "measure how fast an artifact runs here, layer by layer"),
    "study": ("study", "train and compare methods as a study file says, and report in the shape of the paper"),
    "push": ("push", "publish an artifact to a folder or an object store"),
    "serve": ("serve", "serve a published folder over HTTP, for trying things"),
    "keygen": ("keygen", "make a pair of keys to sign releases with"),
    "demo": ("demo", "train a small network on embedded data and show what its widths come to"),
    "doctor": ("doctor", "show what this installation has"),
}

#: Verbs that tell what they are doing.
TELLS_EVENTS = ("pull", "upgrade", "downgrade")

#: What a verb takes besides its options.
POSITIONALS = {
    "eval": " RUN|ARTIFACT",
    "pack": " RUN OUT",
    "allocate": " RUN [ARTIFACT]",
    "inspect": " ARTIFACT",
    "verify": " ARTIFACT|NAME",
    "pull": " SRC",
    "upgrade": " NAME",
    "downgrade": " NAME",
    "remove": " NAME",
    "predict": " ARTIFACT|SRC IMAGE...",
    "bench": " ARTIFACT",
    "study": " STUDY...",
    "push": " ARTIFACT DEST",
    "serve": " DIR",
    "keygen": " NAME",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        parser, module = _parser(given)
        parsed = parser.parse_args(given)
        module.run(parsed)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except ModuleNotFoundError as missing:
        return _refused(_missing_extra(missing), given)
    except (BitstrataError, OSError) as error:
        return _refused(error, given)
    return OK


def _parser(given: list[str]) -> tuple[argparse.ArgumentParser, Any]:
    """The parser, complete for the verb that was given, and the module of that verb."""
    parser = argparse.ArgumentParser(
        prog="bitstrata",
        description="Train a network once, and run it at every width from one copy of its weights.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"bitstrata {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    chosen = next((argument for argument in given if not argument.startswith("-")), None)
    module = None
    for name, (file, purpose) in VERBS.items():
        # A usage error shows one line: the list of all flags would push the reason off the screen.
        usage = f"bitstrata {name} [options]{POSITIONALS.get(name, '')}"
        verb = verbs.add_parser(
            name,
            help=purpose,
            description=f"{purpose[0].upper()}{purpose[1:]}.",
            usage=usage,
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if name == chosen:
            module = import_module(f"bitstrata.cli.{file}")
            module.add_arguments(verb)
            events = "; events before it, one to a line" if name in TELLS_EVENTS else ""
            verb.add_argument(
                "--json",
                action="store_true",
                help=f"print one JSON object, and nothing else, on standard output{events}",
            )
    return parser, module


def _missing_extra(missing: ModuleNotFoundError) -> Exception:
    if missing.name is None or missing.name.partition(".")[0] == "bitstrata":
        raise missing  # a defect of ours, which no extra would mend
    return MissingExtra(f"this needs {missing.name}, which is not installed: pip install 'bitstrata[train]'")


def _refused(error: Exception, given: list[str]) -> int:
    print(f"bitstrata: {error}", file=sys.stderr)
    # Of several processes only the first owns standard output; each says on standard error what stopped it.
    if "--json" in given and os.environ.get("RANK", "0") == "0":
        print(json.dumps({"error": type(error).__name__, "message": str(error)}))
    return REFUSED


if __name__ == "__main__":
    sys.exit(main())
