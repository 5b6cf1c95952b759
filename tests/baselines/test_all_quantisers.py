"""What every quantiser to compare with must do: learn, survive saving, say what it cannot do."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch.nn import functional

import bitstrata as bs
from bitstrata.errors import CannotStratify
from bitstrata.training import evaluate, parameter_groups, train_once
from bitstrata.training.quantiser_kinds import QuantizerName
from bitstrata.zoo import nets
from bitstrata.zoo.data import Data, load_data
from bitstrata.zoo.recipes import RECIPES

KINDS = ["pact", "lq-nets", "dsq", "qil", "lqw", "diffq", "adabits"]
DEDICATED = [kind for kind in KINDS if kind != "adabits"]
SETTINGS: list[Any] = [(kind, (2,)) for kind in KINDS]
SETTINGS.append(("adabits", (2, 4)))
SETTINGS += [pytest.param(kind, (4,), marks=pytest.mark.long) for kind in KINDS]


@pytest.fixture(autouse=True)
def fixed_seed_and_one_thread() -> Any:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def data() -> Data:
    return load_data("digits")


def small_net(kind: Any, widths: tuple[int, ...]) -> bs.StratifiedNet:
    return bs.stratify(nets.resnet8(10, channels=1), widths, quantizer=kind)


def test_the_list_is_complete() -> None:
    assert {*KINDS, "learned-step", "binary-planes"} == set(get_args(QuantizerName))


@pytest.mark.parametrize(("kind", "widths"), SETTINGS)
def test_a_small_network_learns(kind: str, widths: tuple[int, ...], data: Data) -> None:
    net = small_net(kind, widths).train()
    optimiser = torch.optim.SGD(parameter_groups(net, weight_decay=1e-4), lr=0.05, momentum=0.9)
    losses = []
    # Noise of a third of the weights' range takes longer to learn with.
    for x, y in [*data.train.batches(64)] * (3 if (kind, widths) == ("diffq", (2,)) else 1):
        loss = torch.stack([functional.cross_entropy(out, y) for out in net(x).values()]).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[0] > 2.0
    assert sum(losses[-4:]) / 4 < 0.5 * losses[0]
    net.eval()
    x, y = next(data.test.batches(128))
    with torch.no_grad():
        for bits in widths:
            assert (net(x, bits=bits).argmax(1) == y).float().mean() > 0.4


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_of_a_network_makes_another_the_same(kind: str) -> None:
    x = torch.rand(16, 1, 8, 8)
    net = small_net(kind, (3,)).train()
    net(x)[3].sum().backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.sub_(0.01 * parameter.grad)
    other = small_net(kind, (3,))
    other.load_state_dict(net.state_dict())
    with torch.no_grad():
        assert torch.equal(other.eval()(x, bits=3), net.eval()(x, bits=3))


@pytest.mark.parametrize("kind", KINDS)
def test_channels_last_and_other_types_give_the_same(kind: str) -> None:
    x = torch.rand(8, 1, 8, 8)
    net = small_net(kind, (2,)).train()
    net(x)
    with torch.no_grad():
        expected = net.eval()(x, bits=2)
        last = net.to(memory_format=torch.channels_last)(x.contiguous(memory_format=torch.channels_last), bits=2)
        torch.testing.assert_close(last, expected, rtol=1e-3, atol=1e-3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.isfinite(net(x, bits=2)).all()
        assert net.double()(x.double(), bits=2).dtype == torch.float64


@pytest.mark.parametrize("kind", DEDICATED)
def test_several_widths_are_refused(kind: Any) -> None:
    with pytest.raises(CannotStratify, match=f"the quantizer {kind} makes a network of one width"):
        small_net(kind, (2, 4))


@pytest.fixture(scope="module")
def float_phase(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The float network from which all start."""
    folder = tmp_path_factory.mktemp("float")
    torch.manual_seed(0)
    recipe = replace(RECIPES["digits"].recipe, epochs=1)
    train_once(nets.resnet8(10, channels=1), data, recipe, folder=folder, widths=(2,), progress=False)
    return folder / "float"


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_digits_recipe_ends_well(kind: str, data: Data, float_phase: Path, tmp_path: Path) -> None:
    shutil.copytree(float_phase, tmp_path / "float")
    model = nets.resnet8(10, channels=1)
    recipe = RECIPES["digits"].recipe
    net = train_once(model, data, recipe, folder=tmp_path, widths=(2,), options={"quantizer": kind}, progress=False)
    assert evaluate(net, data.test.batches(256))["2"].top1 > (85.0 if kind == "diffq" else 93.0)
