"""How models are written: functions, operators, methods, shapes read and computed with, changes in place."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from capture.parity import prepared, same_everywhere
from torch import Tensor, nn
from torch.nn import functional

from bitstrata.capture import capture
from bitstrata.graph import Network, infer_shapes

Body = Callable[[Any, Tensor], Any]


class Around(nn.Module):
    """A stem, something written in a test, and a quantised layer after it."""

    def __init__(self, body: Body, channels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.gate = nn.Linear(8, 8)
        self.after = nn.Conv2d(channels, 4, 1)
        self.register_buffer("offset", torch.randn(8, 1, 1))
        self.factor = nn.Parameter(torch.rand(1, 8, 1, 1) + 0.5)
        self.body = body

    def forward(self, x: Tensor) -> Any:
        x = self.norm(self.stem(x))
        return self.after(self.body(self, x))


class Headed(Around):
    """The same, with a linear layer after it."""

    def __init__(self, body: Body, features: int) -> None:
        super().__init__(body, 1)
        self.after = nn.Linear(features, 4)


UNUSED = ("second", "gate")


def captured(model: nn.Module, used: tuple[str, ...] = ()) -> Network:
    for name in UNUSED:
        if name not in used:
            delattr(model, name)
    net = prepared(model, (4, 3, 12, 12), (2, 4), quantise=[*used, "after"], activation_init="lsq")
    return same_everywhere(net, (2, 3, 12, 12), torch.randn(3, 3, 11, 17))


def ops_of(network: Network) -> str:
    return " ".join(type(node).__name__ for node in network.graph.nodes)


ELEMENTWISE: dict[str, tuple[Body, str]] = {
    "relu": (lambda m, x: functional.relu(x), "Relu"),
    "torch.relu": (lambda m, x: torch.relu(x), "Relu"),
    "relu_": (lambda m, x: x.relu_(), "Relu"),
    "clamp_min": (lambda m, x: x.clamp(min=0), "Relu"),
    "relu6": (lambda m, x: functional.relu6(x), "Relu6"),
    "hardtanh": (lambda m, x: functional.hardtanh(x, 0.0, 6.0), "Relu6"),
    "clamp": (lambda m, x: torch.clamp(x, 0, 6), "Relu6"),
    "silu": (lambda m, x: functional.silu(x, inplace=True), "Silu"),
    "silu written out": (lambda m, x: x * torch.sigmoid(x), "Silu"),
    "sigmoid": (lambda m, x: x.sigmoid(), "Sigmoid"),
    "hardswish": (lambda m, x: functional.hardswish(x), "HardSwish"),
    "hardswish written out": (lambda m, x: x * functional.relu6(x + 3) / 6, "HardSwish"),
    "hardswish from its gate": (lambda m, x: x * (functional.relu6(x + 3, inplace=True) / 6), "HardSwish"),
    "hardswish by clamp": (lambda m, x: x.mul((x + 3.0).clamp(0, 6)).mul(1 / 6), "HardSwish"),
    "hardsigmoid": (lambda m, x: functional.hardsigmoid(x), "HardSigmoid"),
    "hardsigmoid written out": (lambda m, x: functional.relu6(3 + x).div(6.0), "HardSigmoid"),
    "gate used twice": (lambda m, x: _gated_twice(x), "Sigmoid Mul Add"),
    "constants fold": (lambda m, x: (1 - x * 0.5) / 4 - 2, ""),
    "constants stay": (lambda m, x: torch.relu(x) * 0.5 + 1, "Relu Affine"),
    "tensors per channel": (lambda m, x: torch.relu(x) * m.factor - m.offset, "Relu Affine"),
    "tensor on the left": (lambda m, x: m.offset - m.factor * torch.relu(x), "Relu Affine"),
    "computed constant": (lambda m, x: torch.relu(x) / (m.factor.exp() + 1).view(1, -1, 1, 1), "Relu Affine"),
    "add": (lambda m, x: torch.add(x, torch.relu(x), alpha=2), "Relu Affine Add"),
    "sub": (lambda m, x: torch.sigmoid(x) - x, "Sigmoid Affine Add"),
    "iadd": (lambda m, x: _iadd(x), "Relu Add"),
    "mul": (lambda m, x: torch.mul(x, torch.relu(x)), "Relu Mul"),
    "nothing": (lambda m, x: functional.dropout(x.contiguous().to(x.device).float(), 0.5, m.training).detach(), ""),
    "pad": (lambda m, x: functional.pad(x, (1, 2, 0, 3), value=0.5), "Pad"),
    "reflect": (lambda m, x: functional.pad(x, (1, 2, 2, 3), mode="reflect"), "Pad"),
    "max_pool": (lambda m, x: functional.max_pool2d(x, 3, 2, 1, ceil_mode=True), "MaxPool"),
    "avg_pool": (lambda m, x: functional.avg_pool2d(x, (3, 2), padding=1, count_include_pad=False), "AvgPool"),
    "avg_pool of it all": (lambda m, x: functional.avg_pool2d(x, x.size()[2:]), "AdaptiveAvgPool"),
    "max_pool of it all": (lambda m, x: functional.max_pool2d(x, x.shape[-2:]), "AdaptiveMaxPool"),
    "adaptive": (lambda m, x: functional.adaptive_avg_pool2d(x, (3, 2)), "AdaptiveAvgPool"),
    "adaptive max": (lambda m, x: functional.adaptive_max_pool2d(x, 2), "AdaptiveMaxPool"),
    "one side": (lambda m, x: functional.adaptive_avg_pool2d(x, (None, 1)), "Mean"),
    "mean of one side": (lambda m, x: x.mean(2, keepdim=True), "Mean"),
    "mean kept": (lambda m, x: x.mean((-1, -2), True), "Mean"),
    "amax kept": (lambda m, x: x.amax((2, 3), keepdim=True), "AdaptiveMaxPool"),
    "strided": (lambda m, x: x[:, :, ::2, 1::2], "Slice Slice"),
    "option A": (lambda m, x: functional.pad(x[:, 2:6, ::2, ::2], (0, 0, 0, 0, 2, 2)), "Slice Slice Slice Pad"),
    "chunks": (lambda m, x: torch.cat([p.relu() for p in x.chunk(2, dim=1)], 1), "Slice Slice Relu Relu Concat"),
    "split": (lambda m, x: torch.cat(x.split([3, 5], dim=1)[::-1], dim=1), "Slice Slice Concat"),
    "last row": (lambda m, x: x[..., -1:, :-1], "Slice Slice"),
    "torch.reshape": (lambda m, x: torch.reshape(x, (x.shape[0], 8, -1, x.shape[3])), ""),
    "reshape": (lambda m, x: x.view(x.size(0), 4, 2, -1).reshape(len_(x), 8, *x.shape[2:]), ""),
    "same shape": (lambda m, x: x.reshape(x.shape), ""),
    "gate by linear": (
        lambda m, x: x * torch.sigmoid(m.gate(x.mean((2, 3)))).view(x.size(0), -1, 1, 1).expand_as(x),
        "Mean Linear Sigmoid Reshape Mul",
    ),
    "gate by indexing": (
        lambda m, x: m.gate(functional.adaptive_avg_pool2d(x, 1)[:, :, 0, 0]).sigmoid()[:, :, None, None] * x,
        "AdaptiveAvgPool Flatten Linear Sigmoid Reshape Mul",
    ),
}  # fmt: skip


def len_(x: Tensor) -> Any:
    return x.shape[0]


def _gated_twice(x: Tensor) -> Tensor:
    gate = x.sigmoid()
    return x * gate + gate


def _iadd(x: Tensor) -> Tensor:
    out = torch.relu(x)
    out += x
    return out


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_images(name: str) -> None:
    body, expected = ELEMENTWISE[name]
    network = captured(Around(body, 8), ("gate",) if name.startswith("gate by") else ())
    assert ops_of(network).split() == ["Conv", *expected.split(), "Conv"]


FEATURES: dict[str, tuple[Body, str]] = {
    "flatten": (lambda m, x: functional.adaptive_avg_pool2d(x, 1).flatten(1), "AdaptiveAvgPool Flatten"),
    "view": (lambda m, x: functional.adaptive_avg_pool2d(x, 1).view(x.size(0), -1), "AdaptiveAvgPool Flatten"),
    "view all": (lambda m, x: functional.adaptive_max_pool2d(x, 1).view(-1, 8), "AdaptiveMaxPool Flatten"),
    "counted": (lambda m, x: _counted(functional.adaptive_avg_pool2d(x, 1)), "AdaptiveAvgPool Flatten"),
    "squeeze": (lambda m, x: functional.adaptive_avg_pool2d(x, 1).squeeze(-1).squeeze(-1), "AdaptiveAvgPool Flatten"),
    "squeeze all": (lambda m, x: functional.adaptive_avg_pool2d(x, 1).squeeze(), "AdaptiveAvgPool Flatten"),
    "mean": (lambda m, x: x.mean([2, 3]), "Mean"),
    "mean of means": (lambda m, x: x.mean(3).mean(2), "Mean Mean Flatten"),
    "mean of pixels": (lambda m, x: x.view(x.shape[0], x.shape[1], -1).mean(-1), "Mean"),
    "mean of flat pixels": (lambda m, x: x.flatten(2).mean(2), "Mean"),
    "largest": (lambda m, x: torch.amax(x, (2, 3)), "AdaptiveMaxPool Flatten"),
    "one side used for both": (
        lambda m, x: functional.avg_pool2d(x, x.size()[3]).flatten(1),
        "AdaptiveAvgPool Flatten",
    ),
}


def _counted(x: Tensor) -> Tensor:
    features = 1
    for size in x.size()[1:]:
        features *= size
    return x.view(-1, features)


@pytest.mark.parametrize("name", FEATURES)
def test_features(name: str) -> None:
    body, expected = FEATURES[name]
    model = Headed(body, 8)
    for unused in UNUSED:
        delattr(model, unused)
    net = prepared(model, (4, 3, 12, 12), (2, 4), quantise=["after"], activation_init="lsq")
    # Torch itself takes only square images where one side is used for both.
    size = (13, 13) if name == "one side used for both" else (11, 17)
    network = same_everywhere(net, (2, 3, 12, 12), torch.randn(3, 3, *size))
    assert ops_of(network).split() == ["Conv", *expected.split(), "Linear"]
    assert infer_shapes(network.graph, (7, 3, 31, 24))[network.graph.outputs[0]] == (7, 4)


def test_sizes_are_never_frozen() -> None:
    """The number of pixels is read from the example, and the graph still follows the input."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), Reshaped(), nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 1))
    network = same_everywhere(prepared(model, (2, 3, 6, 6)), (2, 3, 6, 6), torch.randn(3, 3, 5, 7))
    assert infer_shapes(network.graph, (1, 3, 8, 9))["1.reshape"] == (1, 1, 4, 72)


class Reshaped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        if x.ndim != 4 or channels != 4 or len(x.shape) != x.dim():
            raise ValueError
        return x.view(batch, 1, channels, height * width)


# Changes in place


class PreActivation(nn.Module):
    """The activation works in place, so the shortcut carries its result too."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=inplace)
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        out = self.conv(self.relu(x))
        out += x
        return out


@pytest.mark.parametrize("inplace", [True, False])
def test_in_place_activations_change_the_shortcut(inplace: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), PreActivation(inplace), nn.Conv2d(4, 2, 1))
    network = same_everywhere(prepared(model, (2, 3, 8, 8)), (1, 3, 8, 8), torch.randn(4, 3, 6, 9))
    add = next(node for node in network.graph.nodes if node.name == "2.add")
    assert add.inputs == ("2.conv", "2.relu" if inplace else "2.norm")


def test_in_place_without_using_the_result() -> None:
    def body(_: Any, x: Tensor) -> Tensor:
        other = x.clone()
        functional.relu_(x)
        x.add_(other).mul_(2)
        return x

    assert ops_of(captured(Around(body, 8))) == "Conv Relu Add Affine Conv"


def test_dead_nodes_are_dropped() -> None:
    def body(m: Any, x: Tensor) -> Tensor:
        m.second(x).relu()
        return x

    model = Around(body, 8)
    del model.gate
    net = prepared(model, (4, 3, 12, 12), quantise=["second", "after"])
    network = capture(net, torch.empty(2, 3, 12, 12))
    assert [weight.name for weight in network.graph.weights] == ["stem", "after"]
    assert ops_of(network) == "Conv Conv"


# Convolutions


@pytest.mark.parametrize(
    "options",
    [
        {"padding": "same", "kernel_size": 4},
        {"padding": "same", "kernel_size": (2, 3), "dilation": (3, 2)},
        {"padding": "valid", "kernel_size": 3},
        {"padding": 1, "kernel_size": 3, "padding_mode": "reflect"},
        {"padding": (2, 1), "kernel_size": (5, 3), "padding_mode": "circular", "stride": 2},
        {"padding": "same", "kernel_size": 4, "padding_mode": "replicate"},
        {"padding": (1, 0), "kernel_size": (3, 1), "stride": (2, 1), "groups": 2},
        {"padding": 2, "kernel_size": 3, "dilation": 2, "groups": 8, "bias": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("quantised", [True, False])
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_convolutions(options: dict[str, Any], quantised: bool) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, **options), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 4, 1)
    )
    net = prepared(model, (2, 3, 14, 14), (2, 4), quantise=["2", "5"] if quantised else ["5"])
    network = same_everywhere(net, (1, 3, 14, 14), torch.randn(3, 3, 13, 18))
    assert ("2.pad" in {node.name for node in network.graph.nodes}) == ("padding_mode" in options)


# Several outputs


@pytest.mark.parametrize("kind", [tuple, list, dict])
def test_several_outputs(kind: type) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.left, self.right = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1), nn.Conv2d(4, 3, 1)

        def forward(self, x: Tensor, scale: float = 2.0, names: Any = None) -> Any:
            x = self.stem(x)
            outputs = [self.right(x) * scale, self.left(x).mean((2, 3))]
            return dict(zip("ab", outputs, strict=True)) if kind is dict else kind(outputs)

    network = same_everywhere(prepared(Two(), (2, 3, 8, 8)), (2, 3, 8, 8), torch.randn(3, 3, 5, 5))
    assert network.graph.outputs == ("right", "mean")
