"""One network, three implementations: torch's simulation, the NumPy reference, and the native kernels.

Layer by layer, each fed the reference's own input codes, they have the same integer accumulators. Reference and native
runtime also have the same output codes, and the same floats wherever no float layer is involved.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from capture.parity import prepared, session
from families import FAMILIES

from bitstrata import _native, codes
from bitstrata.capture import capture
from bitstrata.graph import Network, ops
from bitstrata.runtime.native import NativeSession, accumulators
from bitstrata.runtime.reference import ReferenceSession
from bitstrata.training.layers import StratifiedLayer
from bitstrata.training.net import StratifiedNet
from bitstrata.zoo.nets import build

# network, options, shape of the input
ZOO: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("resnet8", {}, (4, 3, 17, 12)),
    ("resnet20", {}, (2, 3, 32, 28)),
    ("resnet18", {"classes": 10}, (1, 3, 40, 33)),
    ("resnet50", {"classes": 10}, (1, 3, 33, 40)),
    ("mobilenetv2_cifar", {"width_multiplier": 0.25}, (2, 3, 19, 16)),
    ("vgg16_bn", {"single_linear": True, "classes": 10}, (1, 3, 32, 32)),
]
NAMES = [name for name, _, _ in ZOO]


def model_of(name: str) -> tuple[torch.nn.Module, tuple[int, ...]]:
    if name in FAMILIES:
        return FAMILIES[name](), (2, 3, 33, 32)
    _, options, shape = ZOO[NAMES.index(name)]
    return build(name, **options), shape


def native(network: Network, bits: int, **changes: Any) -> NativeSession:
    reference = session(network, bits)
    graph = msgspec.structs.replace(network.graph, **changes)
    return NativeSession(graph, network.source_bits, reference.view, reference.weights, reference.floats)


def conv_of(node: ops.Op) -> ops.Conv:
    return node if isinstance(node, ops.Conv) else ops.Conv(name=node.name, inputs=node.inputs)


def fed_with_codes(net: StratifiedNet, bits: int, reference: ReferenceSession, x: np.ndarray) -> tuple[int, int]:
    """Runs torch with every quantised layer fed the reference's codes: accumulators equal; codes seen and flipped."""
    values = reference.values(x)
    nodes = {node.name: node for node in reference.graph.nodes if reference.graph.is_quantised(node)}
    seen = flipped = 0

    def feed(layer: Any, inputs: tuple[torch.Tensor, ...], name: str) -> tuple[torch.Tensor]:
        nonlocal seen, flipped
        node = nodes.pop(name)
        table = reference.view.tables[name]
        u = reference.input_codes(node, values[node.inputs[0]])
        own, step = layer.input_quantiser.integers(inputs[0])
        seen += u.size
        flipped += int((own.numpy() + table.zero_point != u).sum())
        fed = torch.from_numpy(u.astype(np.float32) - table.zero_point) * step
        expected, _ = layer.accumulate(fed)
        whole = reference.accumulate(node, u)
        np.testing.assert_array_equal(whole, expected.numpy().astype(np.int64), err_msg=name)
        same_in_every_kernel(reference, node, u, whole)
        return (fed,)

    handles = [
        module.register_forward_pre_hook(lambda layer, inputs, name=name: feed(layer, inputs, name))
        for name, module in net.at(bits).named_modules()
        if isinstance(module, StratifiedLayer)
    ]
    try:
        with torch.no_grad():
            net.at(bits)(torch.from_numpy(x))
    finally:
        for handle in handles:
            handle.remove()
    assert not nodes, f"torch never called {list(nodes)}"
    return seen, flipped


def same_in_every_kernel(
    reference: ReferenceSession, node: ops.Op, u: np.ndarray, expected: np.ndarray, extremes: bool = True
) -> None:
    table = reference.view.tables[node.name]
    weight = reference.graph.weight_of(node)
    assert weight is not None
    bits = reference.view.bits[weight.name]
    image = (*u.shape, 1, 1)[:4] if u.ndim == 2 else u.shape
    stored = reference.weights[weight.name]
    stored = stored.reshape(*stored.shape, *(1,) * (4 - stored.ndim))
    coding: dict[str, Any] = {"bits": bits, "source_bits": reference.source_bits, "zero_point": table.zero_point}
    taken = set()
    for kernel in _native.kernel_names():
        found = accumulators(kernel, stored, u.reshape(image), conv_of(node), **coding)
        if found is not None:
            taken.add(kernel)
            np.testing.assert_array_equal(found.reshape(expected.shape), expected, err_msg=f"{kernel}, {node.name}")
    assert len(taken) >= 2 or not any("avx2" in name for name in _native.kernel_names()), taken
    if extremes:
        full = np.full_like(u, codes.activation_top(bits))
        same_in_every_kernel(reference, node, full, reference.accumulate(node, full), extremes=False)


#: All their kinds of layers are in the smaller ones too.
LARGE = ("resnet50", "vgg16_bn")


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.long) if name in LARGE else name for name in NAMES),
        *("regnet", "densenet", "efficientnet"),
    ],
)
def test_layer_by_layer(name: str) -> None:
    model, shape = model_of(name)
    net = prepared(model, shape)
    network = capture(net, torch.empty(shape))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    seen = flipped = 0
    for bits in net.widths:
        counts = fed_with_codes(net, bits, session(network, bits), x)
        seen, flipped = seen + counts[0], flipped + counts[1]
    # The simulation does not fold its norms, so it may round another way once in 100,000 codes.
    assert flipped <= max(1, seen / 100_000), f"{flipped} of {seen} codes"


@pytest.mark.parametrize("widths", [(2, 3, 4), (2, 4, 8)], ids=str)
@pytest.mark.parametrize("name", [*NAMES, "regnet", "densenet", "efficientnet"])
def test_native_gives_the_bits_of_the_reference(name: str, widths: tuple[int, ...]) -> None:
    """Without float layers every value of the graph is equal; fused, as without extra outputs, so is the result."""
    model, shape = model_of(name)
    net = prepared(model, shape, widths, ends="quantised")
    network = capture(net, torch.empty(shape))
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    every = tuple(node.name for node in network.graph.nodes)
    for bits in widths:
        values = session(network, bits).values(x)
        np.testing.assert_array_equal(native(network, bits)(x), values[network.graph.outputs[0]])
        for node, found in zip(every, native(network, bits, outputs=every)(x), strict=True):
            np.testing.assert_array_equal(found, values[node], err_msg=f"{bits} bits, {node}")


@pytest.mark.parametrize("name", [*NAMES, "efficientnet"])
def test_float_layers_agree_closely(name: str) -> None:
    """Each float layer fed the reference's input: within 1e-5 of the largest result."""
    model, shape = model_of(name)
    network = capture(prepared(model, shape), torch.empty(shape))
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    reference = session(network, 2)
    values = reference.values(x)
    layers = [n for n in network.graph.nodes if isinstance(n, (ops.Conv, ops.Linear)) and n.name in reference.floats]
    assert len(layers) == 2
    for node in layers:
        alone = msgspec.structs.replace(node, inputs=("input",))
        weight = network.graph.weight_of(node)
        graph = msgspec.structs.replace(network.graph, weights=(weight,), nodes=(alone,), outputs=(node.name,))
        found = NativeSession(graph, 4, reference.view, {}, reference.floats)(values.get(node.inputs[0], x))
        error = np.abs(found - values[node.name]).max() / np.abs(values[node.name]).max()
        assert error < 1e-5, node.name
