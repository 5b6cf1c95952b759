"""What a session may be called with."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitstrata.errors import BadGraph, BadInput
from bitstrata.graph import Graph, infer_shapes
from bitstrata.graph.network import Floats


def check_input(x: Any, graph: Graph) -> Floats:
    """`x` as a float32 array whose shape the graph can take, or `BadInput`."""
    array = np.asarray(x)
    if array.dtype.kind not in "fiub":
        raise BadInput(f"an input is an array of numbers, not of {array.dtype}")
    if array.ndim not in (2, 4):
        raise BadInput(f"an input has the shape (batch, channels, height, width), not {array.shape}")
    if not array.size:
        raise BadInput(f"an input of shape {array.shape} is empty")
    try:
        infer_shapes(graph, array.shape)
    except BadGraph as error:
        raise BadInput(f"the network cannot take an input of shape {array.shape}: {error}") from error
    return np.ascontiguousarray(array, dtype=np.float32)
