"""`bitstrata doctor`: what this installation has; works without torch."""

from __future__ import annotations

import argparse
import platform
from typing import Any

from bitstrata import __version__
from bitstrata.cli.output import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It needs none."""


def run(arguments: argparse.Namespace) -> None:
    found = findings()
    if arguments.json:
        print_json(found)
        return
    size = max(map(len, found))
    for name, value in found.items():
        print(f"{name.replace('_', ' '):<{size}}  {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not installed" if value is None else str(value)


def findings() -> dict[str, Any]:
    found: dict[str, Any] = {"bitstrata": __version__, "python": platform.python_version(), "torch": None}
    try:
        import torch

        found |= {"torch": torch.__version__, "threads": torch.get_num_threads(), "cuda": torch.cuda.is_available()}
    except ImportError:
        pass
    # After torch: its thread pool is the one that the native code looks for.
    try:
        from bitstrata import _native

        found |= {"native_extension": True, "native_thread_pool": bool(_native.has_thread_pool())}
    except ImportError:
        found["native_extension"] = False
    return found
