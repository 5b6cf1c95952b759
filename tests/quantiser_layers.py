"""Single layers with a published quantiser, for tests against its formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bitstrata.training.layers import StratifiedLayer
from bitstrata.training.net import StratifiedNet
from bitstrata.training.stratify import stratify

Array = NDArray[np.float64]


def layer_net(kind: Any, *widths: int, layer: nn.Module | None = None) -> StratifiedNet:
    """One layer as a network; a convolution unless another is given."""
    if layer is None:
        layer = nn.Conv2d(6, 5, 3, padding=1)
    return stratify(layer, widths, quantizer=kind, ends="quantised").train()


def bound(net: StratifiedNet, bits: int, *, joint: bool = False) -> StratifiedLayer:
    layer = net.at(bits, joint=joint)
    assert isinstance(layer, StratifiedLayer)
    return layer


def quantised_weight(net: StratifiedNet, bits: int) -> Tensor:
    layer = bound(net, bits)
    result: Tensor = layer.weight_quantiser(layer.weight)
    return result


def calibrated(net: StratifiedNet, bits: int, x: Tensor) -> Any:
    """The input quantiser of a width, having seen `x`."""
    quantiser = bound(net, bits).input_quantiser
    quantiser(x)
    return quantiser


def double(tensor: Tensor) -> Array:
    array: Array = tensor.detach().double().numpy()
    return array


def gradients(out: Tensor, seed: Tensor, *to: Tensor) -> list[Array]:
    return [double(gradient) for gradient in torch.autograd.grad(out, to, seed)]


def levels(tensor: Tensor) -> int:
    return len(torch.unique(tensor.detach()))
