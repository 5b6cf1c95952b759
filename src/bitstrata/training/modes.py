"""Training flags, module by module: some submodules may have been frozen by their owner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def modes_kept(*networks: nn.Module) -> Iterator[None]:
    """Gives every module its own flag back afterwards; `network.train(was_training)` would thaw those frozen in it."""
    flags = [(module, module.training) for network in networks for module in network.modules()]
    try:
        yield
    finally:
        for module, training in flags:
            module.training = training
