"""`pack`: a trained network as an artifact."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from bitstrata.capture.capture import FloatStore, capture_shape
from bitstrata.errors import BadInput
from bitstrata.format import InputDescription, Manifest, write_artifact
from bitstrata.training.net import StratifiedNet


def pack(
    net: StratifiedNet,
    path: str | Path,
    *,
    example: Tensor | None = None,
    name: str | None = None,
    version: int = 1,
    input: InputDescription | None = None,
    float_store: FloatStore = "float32",
) -> Manifest:
    """Captures a network and writes it to `path`, a folder usually named `NAME.strata`; returns its manifest.

    example       an input, of which only the shape is used; not needed where `input` is given
    name          the model's name; by default that of the path
    input         the size of images, how their bytes become numbers, and what the classes are called. By default the
                  example's size and images scaled to 0..1
    float_store   "float32", or "float16" for layers that stay float in half the bytes
    """
    if example is None and input is None:
        raise BadInput("pack needs to know what the network is fed: give an example, or input=InputDescription(...)")
    if example is not None and example.ndim != 4:
        raise BadInput(
            f"the example has the shape {tuple(example.shape)}; artifacts take (batch, channels, height, width)"
        )
    described = _of_example(example) if input is None else input
    shape = (1, *described.shape) if example is None else tuple(example.shape)
    network = capture_shape(net, shape, float_store)
    name = Path(path).stem if name is None else name
    return write_artifact(path, network, name=name, version=version, input=described)


def _of_example(example: Tensor | None) -> InputDescription:
    assert example is not None
    _, channels, height, width = example.shape
    return InputDescription((channels, height, width), mean=(0.0,) * channels, std=(1.0,) * channels)
