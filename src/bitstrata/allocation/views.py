"""A mixed network as a view of the artifact that its network was packed to."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from bitstrata.capture import capture_mixed
from bitstrata.capture.capture import FloatStore
from bitstrata.format import Artifact, Manifest, add_view
from bitstrata.format.views import check_free
from bitstrata.training.net import StratifiedNet


def add_mixed_view(
    path: str | Path,
    net: StratifiedNet,
    mixed: nn.Module,
    name: str,
    *,
    replace: bool = False,
    version: int | None = None,
) -> Manifest:
    """Captures `mixed`, which `mixed_network` made of `net`, and adds it to the artifact `path` as the view `name`."""
    artifact = Artifact.open(path)
    check_free(artifact, name, replace=replace)
    # Float layers are stored as the artifact has them; with none of them, either is right.
    stores = {weight.store for weight in artifact.graph.weights}
    float_store: FloatStore = "float16" if "float16" in stores else "float32"
    network = capture_mixed(net, mixed, name, (1, *artifact.input.shape), float_store=float_store)
    return add_view(path, network, replace=replace, version=version)
