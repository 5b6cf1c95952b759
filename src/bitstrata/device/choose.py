"""Choosing for the user: the view with the most bits that stays within what this device has."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from bitstrata.device.needs import mean_bits, needs_of
from bitstrata.errors import BadOption, NothingFits
from bitstrata.format.manifest import Manifest

#: Of the memory that is free, the share that a model may take.
MEMORY_SHARE = 0.5


@dataclass(frozen=True)
class Limits:
    """What a view may cost. At least one is given."""

    max_bytes: int | None = None
    """To be fetched and kept, everything included."""
    max_latency: float | None = None
    """Seconds for one image, measured here with the real kernels."""
    fit: bool = False
    """Whether it must fit into half of the memory that is free now."""

    def __post_init__(self) -> None:
        if self.max_bytes is None and self.max_latency is None and not self.fit:
            raise BadOption("no limit is given by which to choose a view")
        for name, value in (("max_bytes", self.max_bytes), ("max_latency", self.max_latency)):
            if value is not None and not value > 0:
                raise BadOption(f"{name}={value}: a limit is above zero")


def choose(manifest: Manifest, limits: Limits, say: Callable[[str], None] = lambda text: None) -> tuple[str, str]:
    """The view with the most bits per weight that stays within the limits, and why it is that one."""
    memory = free_memory() if limits.fit else None
    refused: list[str] = []
    names = sorted((view.name for view in manifest.views), key=lambda name: mean_bits(manifest, name), reverse=True)
    for name in names:
        reason, costs = _judge(manifest, name, limits, memory)
        if reason is None:
            why = f"{name}: {', '.join(costs)}"
            return name, "; ".join([why, *refused])
        refused.append(f"{name} not: {reason}")
    raise NothingFits(f"no view of {manifest.name} stays within the limits: {'; '.join(refused)}")


def _judge(manifest: Manifest, name: str, limits: Limits, memory: int | None) -> tuple[str | None, list[str]]:
    """Why a view is too much, or None, and what it costs as far as that was found out."""
    costs = []
    size = sum(need.size for need in needs_of(manifest, {name}))
    if limits.max_bytes is not None:
        costs.append(f"{size:,} bytes, at most {limits.max_bytes:,} allowed")
        if size > limits.max_bytes:
            return costs[-1], costs
    if limits.max_latency is not None or memory is not None:
        from bitstrata.device.trial import try_view

        trial = try_view(manifest, name)
        if limits.max_latency is not None:
            costs.append(f"{1000 * trial.seconds:.3g} ms, at most {1000 * limits.max_latency:.3g} allowed")
            if trial.seconds > limits.max_latency:
                return costs[-1], costs
        if memory is not None:
            share = int(MEMORY_SHARE * memory)
            costs.append(f"{trial.bytes / 2**20:.0f} MiB of memory, at most {share / 2**20:.0f} allowed")
            if trial.bytes > share:
                return costs[-1], costs
    return None, costs


def free_memory() -> int:
    """Bytes that this process could still take, by the system and by its control group where there is one."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            limit = file.read().strip()
        with open("/sys/fs/cgroup/memory.current", encoding="ascii") as file:
            used = int(file.read())
        if limit != "max":
            free = min(free, max(int(limit) - used, 0))
    except (OSError, ValueError):
        pass  # no control group, or another kind
    return free
