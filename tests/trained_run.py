"""A short training run of digits and its artifact, for tests of several verbs."""

from pathlib import Path

import pytest
import torch

from bitstrata.cli.main import main

FLAGS = ("--limit", "256", "--batch-size", "32", "--epochs", "1", "--float-epochs", "2", "--norm-batches", "2")


def train_and_pack(factory: pytest.TempPathFactory) -> Path:
    """The folder of the run; the artifact in it is `digits.strata`."""
    threads = torch.get_num_threads()
    folder = factory.mktemp("runs") / "run"
    assert main(["train", *FLAGS, "--out", str(folder)]) == 0
    torch.set_num_threads(threads)
    assert main(["pack", str(folder), str(folder / "digits.strata")]) == 0
    return folder
