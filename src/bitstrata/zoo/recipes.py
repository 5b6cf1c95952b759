"""Recipes by name: those of the paper, and short ones that suit two cores.

The paper's hyper-parameters stand in its section "Experimental Setup": SGD with momentum 0.9 and cosine decay; the
float network first, then all widths together from its weights at a lower learning rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from bitstrata.errors import BadRecipe
from bitstrata.training.recipe import Recipe


class NamedRecipe(NamedTuple):
    """A recipe, and the network and data that it was made for."""

    recipe: Recipe
    description: str
    net: str
    """For `zoo.nets.build`."""
    data: str
    """For `zoo.data.load_data`; where the files lie is for the user to add."""
    net_options: Mapping[str, Any] = MappingProxyType({})


# The paper does not say how long it trains on ImageNet; 90 epochs are usual for these networks.
_IMAGENET_EPOCHS = 90

_PAPER_CIFAR100 = Recipe(
    epochs=300,
    batch_size=128,
    learning_rate=0.01,
    weight_decay=1e-3,
    float_epochs=300,
    float_learning_rate=0.1,
    float_weight_decay=1e-3,
)
_PAPER_RESNET34 = Recipe(
    epochs=_IMAGENET_EPOCHS,
    batch_size=256,
    learning_rate=0.01,
    weight_decay=1e-4,
    float_epochs=_IMAGENET_EPOCHS,
    float_learning_rate=0.1,
    float_weight_decay=1e-4,
)
_PAPER_RESNET18 = Recipe.from_dict({"weight_decay": 5e-5}, _PAPER_RESNET34)
_PAPER_RESNET50 = Recipe.from_dict({"batch_size": 128, "float_learning_rate": 0.05}, _PAPER_RESNET34)
# The paper takes these two from the PyTorch library, so there is no float phase: give the weights. It names no batch
# size for them; 256 is that of ResNet-18 and 34.
_PAPER_GIVEN_FLOAT = Recipe.from_dict({"float_epochs": 0}, _PAPER_RESNET34)

# Two epochs are too few for the moving averages of the norms to follow the weights, so they are re-estimated.
_SHORT = Recipe(epochs=2, batch_size=64, learning_rate=0.005, norm_batches=30)

RECIPES: Mapping[str, NamedRecipe] = MappingProxyType(
    {
        "paper-cifar100": NamedRecipe(
            _PAPER_CIFAR100,
            "the paper's CIFAR-100 runs: 300 float epochs, then 300 of all widths",
            "resnet18",
            "cifar100",
            # Its accuracies are out of reach for the stem of large images.
            MappingProxyType({"small_input": True}),
        ),
        "paper-imagenet-resnet18": NamedRecipe(
            _PAPER_RESNET18, "the paper's ResNet-18 on ImageNet", "resnet18", "folder"
        ),
        "paper-imagenet-resnet34": NamedRecipe(
            _PAPER_RESNET34, "the paper's ResNet-34 on ImageNet", "resnet34", "folder"
        ),
        "paper-imagenet-resnet50": NamedRecipe(
            _PAPER_RESNET50, "the paper's ResNet-50 on ImageNet", "resnet50", "folder"
        ),
        "paper-imagenet-mobilenetv2": NamedRecipe(
            _PAPER_GIVEN_FLOAT,
            "the paper's MobileNetV2 on ImageNet, from given float weights",
            "mobilenet_v2",
            "folder",
        ),
        "paper-imagenet-vgg16": NamedRecipe(
            _PAPER_GIVEN_FLOAT, "the paper's VGG-16 on ImageNet, from given float weights", "vgg16_bn", "folder"
        ),
        "digits": NamedRecipe(
            Recipe(epochs=10, batch_size=64, learning_rate=0.1, float_epochs=10, norm_batches=10),
            "8x8 digits from scratch, within a minute or so",
            "resnet8",
            "digits",
        ),
        "cifar10-short": NamedRecipe(
            _SHORT, "two epochs of all widths on CIFAR-10, from given float weights", "resnet20", "cifar10"
        ),
        "fashion-mnist-short": NamedRecipe(
            Recipe.from_dict({"float_epochs": 3, "learning_rate": 0.02}, _SHORT),
            "Fashion-MNIST from scratch: three float epochs, then two of all widths",
            "resnet8",
            "fashion-mnist",
        ),
    }
)


def recipe(name: str) -> NamedRecipe:
    """The recipe of that name."""
    try:
        return RECIPES[name]
    except KeyError:
        raise BadRecipe(f"there is no recipe {name!r}; known are {', '.join(RECIPES)}") from None
