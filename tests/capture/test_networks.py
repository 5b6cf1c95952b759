"""Whole networks, captured and run by the reference: the same results as torch, at other sizes than the example's."""

from typing import Any

import pytest
import torch
from capture.parity import prepared, same_everywhere
from families import FAMILIES
from torch import nn

from bitstrata.zoo.nets import build

# (network, options, example, input): the input has another batch, height and width, and is not square.
ZOO = [
    ("resnet8", {}, (2, 3, 16, 16), (3, 3, 20, 12)),
    ("resnet20", {}, (2, 3, 16, 16), (3, 3, 14, 19)),
    ("resnet18", {"classes": 10}, (2, 3, 32, 32), (2, 3, 40, 33)),
    ("resnet50", {"classes": 10}, (2, 3, 32, 32), (3, 3, 24, 40)),
    ("mobilenet_v2", {"classes": 10, "width_multiplier": 0.25}, (2, 3, 32, 32), (5, 3, 40, 33)),
    ("mobilenetv2_cifar", {"width_multiplier": 0.25}, (2, 3, 16, 16), (5, 3, 12, 17)),
    ("vgg16_bn", {"single_linear": True, "classes": 10}, (2, 3, 32, 32), (2, 3, 40, 33)),
]
# The small ones stand for every width; of the large ones a single width is slow enough.
WIDTHS = {"resnet8": (2, 3, 4), "resnet50": (4,), "vgg16_bn": (4,)}


@pytest.mark.parametrize(
    ("name", "options", "example", "shape"), ZOO, ids=lambda value: value if isinstance(value, str) else ""
)
def test_zoo(name: str, options: dict[str, Any], example: tuple[int, ...], shape: tuple[int, ...]) -> None:
    net = prepared(build(name, **options), example, WIDTHS.get(name, (2, 4)))
    same_everywhere(net, example, torch.randn(shape))


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("regnet", {}),
    ("regnet", {"widths": (2, 4, 8)}),
    ("regnet", {"per_channel": True}),
    ("regnet", {"ends": "own"}),
    ("regnet", {"ends": "quantised"}),
    ("regnet", {"widths": (3,)}),
    ("densenet", {}),
    ("densenet", {"norms": "statistics"}),
    ("densenet", {"norms": "shared"}),
    ("efficientnet", {}),
    ("efficientnet", {"widths": (2, 4, 8), "per_channel": True, "ends": "own"}),
]


@pytest.mark.parametrize(("family", "options"), OPTIONS, ids=str)
def test_families_and_options(family: str, options: dict[str, Any]) -> None:
    net = prepared(FAMILIES[family](), (4, 3, 32, 32), **options)
    network = same_everywhere(net, (1, 3, 32, 32), torch.randn(4, 3, 24, 36))
    stores = [weight.store for weight in network.graph.weights]
    own = [weight.name for weight in network.graph.weights if weight.own]
    assert stores.count("planes") == len(list(net.stratified_layers()))
    assert stores.count("float32") == (0 if options.get("ends") == "quantised" else 2)
    assert len(own) == (2 if options.get("ends") == "own" else 0)
    assert all(set(view.own) == set(own) for view in network.views)


def test_own_ends_differ_between_views() -> None:
    net = prepared(FAMILIES["regnet"](), (2, 3, 32, 32), ends="own")
    with torch.no_grad():
        net.model[0][0].copies["2"].weight.mul_(0.5)
        net.model[6].copies["3"].bias.add_(1.0)
    network = same_everywhere(net, (2, 3, 32, 32), torch.randn(3, 3, 32, 32))
    assert not network.floats
    first, second, _ = network.views
    assert abs(first.own["0.0"] * 2 - second.own["0.0"]).max() < 1e-6


class VggLike(nn.Sequential):
    """A network for one image size: its first linear layer counts the pixels."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * 4 * 4, 16),
            nn.BatchNorm1d(16),
            nn.ReLU6(inplace=True),
            nn.Dropout(),
            nn.Linear(16, 5),
        )


def test_a_network_for_one_image_size() -> None:
    network = same_everywhere(prepared(VggLike(), (4, 3, 16, 16)), (2, 3, 16, 16), torch.randn(5, 3, 16, 16))
    assert [type(node).__name__ for node in network.graph.nodes] == [
        "Conv", "Relu", "MaxPool", "Conv", "Relu", "MaxPool", "Flatten", "Linear", "Relu6", "Linear",
    ]  # fmt: skip


def test_a_perceptron() -> None:
    model = nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Hardswish(), nn.Linear(8, 3)
    )
    same_everywhere(prepared(model, (16, 6)), (1, 6), torch.randn(7, 6))


def test_a_single_layer() -> None:
    net = prepared(nn.Conv2d(3, 4, 3, padding=1), (2, 3, 8, 8), ends="quantised")
    network = same_everywhere(net, (2, 3, 8, 8), torch.randn(3, 3, 5, 9))
    assert network.graph.outputs == ("conv",)
