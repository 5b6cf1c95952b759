"""What the tests of capture share: networks with something in their norms, and the comparison with torch."""

from collections import defaultdict
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bitstrata import codes
from bitstrata.capture import capture
from bitstrata.graph import Graph, Network, ops
from bitstrata.runtime.reference import ReferenceSession
from bitstrata.training.layers import StratifiedLayer
from bitstrata.training.net import StratifiedNet
from bitstrata.training.stratify import stratify


def prepared(model: nn.Module, shape: tuple[int, ...], widths: tuple[int, ...] = (2, 3, 4), **options: Any) -> Any:
    """A stratified network whose norms have scales of both signs, other ones at each width, and real statistics."""
    net = stratify(model, widths, **options)
    with torch.no_grad():
        for module in net.model.modules():
            if isinstance(module, _BatchNorm) and module.affine:
                module.weight.copy_(torch.rand_like(module.weight) + 0.5)
                module.weight[torch.rand_like(module.weight) < 0.2] *= -1.0
                module.bias.normal_(0.0, 0.3)
    return net.calibrate([torch.randn(shape) + 0.2]).eval()


def session(network: Network, bits: int) -> ReferenceSession:
    view = next(view for view in network.views if view.name == str(bits))
    shifted = {name: codes.shift_down(one, network.source_bits, bits) for name, one in network.codes.items()}
    return ReferenceSession(network.graph, network.source_bits, view, shifted, network.floats)


def same_everywhere(net: StratifiedNet, example: tuple[int, ...], x: Tensor) -> Network:
    """Captures with one shape, runs with `x` of another, and compares with torch at every width.

    A code may flip where a rounded sum lies on the edge between two; it spoils its own sample only.
    """
    network = capture(net, torch.empty(example))
    # What a reader would check: names, ranges, nothing but plain numbers.
    assert msgspec.json.decode(msgspec.json.encode(network.graph), type=Graph) == network.graph
    assert [view.name for view in network.views] == [str(bits) for bits in net.widths]
    for bits in net.widths:
        run = session(network, bits)
        inputs, expected = _run_torch(net, bits, x)
        _same_accumulators(net, bits, run, inputs)
        found = run(x.numpy())
        found = found if isinstance(found, tuple) else (found,)
        assert len(found) == len(expected)
        for one, wanted in zip(found, expected, strict=True):
            assert one.shape == wanted.shape
            assert wanted.std() > 0
            errors = np.abs(one - wanted).reshape(len(wanted), -1).max(1) / np.abs(wanted).max()
            assert np.median(errors) < 1e-4, f"{bits} bits: {errors}"
    return network


def _run_torch(net: StratifiedNet, bits: int, x: Tensor) -> tuple[dict[str, list[Tensor]], list[Any]]:
    """What each quantised layer was given, call by call, and the outputs."""
    inputs: dict[str, list[Tensor]] = defaultdict(list)
    layers = [(name, m) for name, m in net.at(bits).named_modules() if isinstance(m, StratifiedLayer)]
    hooks = [
        layer.register_forward_pre_hook(lambda _, args, name=name: inputs[name].append(args[0].clone()))
        for name, layer in layers
    ]
    with torch.no_grad():
        result = net.at(bits)(x.clone())
    for hook in hooks:
        hook.remove()
    if isinstance(result, dict):
        result = list(result.values())
    results = result if isinstance(result, (list, tuple)) else [result]
    return inputs, [one.numpy() for one in results]


def _same_accumulators(net: StratifiedNet, bits: int, run: ReferenceSession, inputs: dict[str, list[Tensor]]) -> None:
    """Layer by layer, fed torch's own inputs: the same whole numbers, and as many calls."""
    nodes = [node for node in run.graph.nodes if run.graph.is_quantised(node)]
    assert len(nodes) == sum(map(len, inputs.values()))
    padded = {node.name for node in run.graph.nodes if isinstance(node, ops.Pad)}
    modules = dict(net.at(bits).named_modules())
    for node in nodes:
        name, _, call = node.name.partition("@")
        if node.inputs[0] in padded or name not in inputs:
            continue
        x = inputs[name][int(call or 1) - 1]
        with torch.no_grad():
            expected, _ = modules[name].accumulate(x)
        found = run.accumulate(node, run.input_codes(node, x.numpy()))
        np.testing.assert_array_equal(found, expected.numpy().astype(np.int64), err_msg=node.name)
