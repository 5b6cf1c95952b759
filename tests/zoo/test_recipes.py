"""Named recipes: the paper's numbers, and networks and data that exist."""

from pathlib import Path

import pytest
import torch

from bitstrata.errors import BadRecipe
from bitstrata.training import Recipe
from bitstrata.zoo.data import known_data
from bitstrata.zoo.nets import build
from bitstrata.zoo.recipes import RECIPES, recipe


@pytest.mark.parametrize("name", RECIPES)
def test_its_network_and_data_exist(name: str) -> None:
    chosen = recipe(name)
    assert isinstance(chosen.recipe, Recipe)
    assert chosen.description
    assert any(pattern.partition(":")[0].partition("[")[0] == chosen.data for pattern in known_data())
    with torch.device("meta"):  # shapes only: the large ones would take seconds to fill
        build(chosen.net, **chosen.net_options)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(BadRecipe, match=r"'imagenet'.*paper-cifar100.*digits"):
        recipe("imagenet")


def test_cifar100_as_in_the_paper() -> None:
    """Section 6.1: 300 epochs, learning rate 0.1 and a tenth of it, batch 128, weight decay 1e-3."""
    paper = recipe("paper-cifar100").recipe
    assert (paper.float_epochs, paper.epochs) == (300, 300)
    assert (paper.float_learning_rate, paper.learning_rate) == (0.1, 0.01)
    assert (paper.float_weight_decay, paper.weight_decay) == (1e-3, 1e-3)
    assert (paper.batch_size, paper.momentum) == (128, 0.9)


@pytest.mark.parametrize(
    ("net", "batch_size", "float_learning_rate", "weight_decay"),
    [("resnet18", 256, 0.1, 5e-5), ("resnet34", 256, 0.1, 1e-4), ("resnet50", 128, 0.05, 1e-4)],
)
def test_imagenet_as_in_the_paper(net: str, batch_size: int, float_learning_rate: float, weight_decay: float) -> None:
    paper = recipe(f"paper-imagenet-{net}").recipe
    assert (paper.batch_size, paper.float_learning_rate, paper.learning_rate) == (batch_size, float_learning_rate, 0.01)
    assert (paper.float_weight_decay, paper.weight_decay) == (1e-4, weight_decay)
    assert (paper.momentum, paper.distill, paper.objective) == (0.9, "cosine", "mean")
    assert paper.float_epochs == paper.epochs > 0


@pytest.mark.parametrize("name", ["paper-imagenet-mobilenetv2", "paper-imagenet-vgg16", "cifar10-short"])
def test_those_from_given_weights_have_no_float_phase(name: str) -> None:
    assert recipe(name).recipe.float_epochs == 0


@pytest.mark.long
def test_digits_are_learned(tmp_path: Path) -> None:
    from bitstrata.training import evaluate, train_once
    from bitstrata.zoo.data import load_data

    chosen = recipe("digits")
    data = load_data(chosen.data)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(chosen.recipe.seed)
        net = train_once(build(chosen.net, classes=10, channels=1), data, chosen.recipe, folder=tmp_path)
    finally:
        torch.set_num_threads(threads)
    accuracy = evaluate(net, data.test.batches(250))
    assert accuracy["4"].top1 >= 97
    assert accuracy["2"].top1 >= 95
