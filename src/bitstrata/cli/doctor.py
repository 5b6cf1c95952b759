"""`bitstrata doctor`: what this installation has; works without torch."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
from typing import Any

from bitstrata import __version__
from bitstrata.cli.output import print_json
from bitstrata.device.store import Store

NO_EXTENSION = "networks run with NumPy, far slower: reinstall with a C++ compiler to build the native extension"


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
    if isinstance(value, list):
        return ", ".join(map(str, value))
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

        found |= {
            "native_extension": True,
            "native_thread_pool": bool(_native.has_thread_pool()),
            "instruction_set": _native.isa(),
            "kernels": _native.kernel_names(),
        }
        if found["instruction_set"] == "portable":
            found["advice"] = _why_portable(found["kernels"])
    except ImportError:
        found |= {"native_extension": False, "advice": NO_EXTENSION}
    return found | _store()


def _store() -> dict[str, Any]:
    """The store of this device, and whether it can be written."""
    store = Store()
    root = store.home.root
    nearest = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    return {
        "store": str(root),
        "store_writable": os.access(nearest, os.W_OK),
        "store_free_bytes": shutil.disk_usage(nearest).free,
        "models": store.records.names(),
        "offline": bool(os.environ.get("BITSTRATA_OFFLINE")),
    }


def _why_portable(kernels: list[str]) -> str:
    if any(not name.startswith("portable.") for name in kernels):
        return "only the portable kernels run, several times slower: unset BITSTRATA_KERNELS in the environment"
    return (
        f"only the portable kernels run, several times slower: this {platform.machine()} processor or build has no more"
    )
