"""Giving memory back to the system between the widths of a step."""

from __future__ import annotations

import ctypes
import sys

#: Steps from one time to the next: the page faults that follow take a tenth of a step.
RELEASE_EVERY = 32


def release_free_memory() -> None:
    """Returns the holes in the C library's heap to the system, where it can do that.

    The widths of a joint step allocate in patterns of their own, and what one leaves free in pieces does not suit the
    next: without this, a process holds a third more than it ever uses.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
        if trim is not None:
            trim(0)
