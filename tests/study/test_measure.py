"""What the tables count, against the sizes that the paper prints for networks of ImageNet."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bitstrata.study import measure
from bitstrata.training import stratify
from bitstrata.training.net import StratifiedNet
from bitstrata.zoo.nets import build


def network(name: str, **options: Any) -> StratifiedNet:
    return stratify(build(name, 1000, 3), (2, 3, 4), **options)


def served(net: StratifiedNet) -> dict[int, StratifiedNet]:
    return dict.fromkeys(net.widths, net)


def test_weight_size_is_that_of_table_5() -> None:
    net = network("resnet50")
    assert measure.weight_bits(served(net), 4) / 1e6 == pytest.approx(159.6, abs=0.1)
    # AdaBits keeps the float source.
    assert measure.weight_bits(served(net), 32) / 1e6 == pytest.approx(816.1, abs=0.5)


@pytest.mark.parametrize(("norms", "expected"), [("shared", 19_200), ("statistics", 38_400), ("individual", 57_600)])
def test_norm_parameters_are_those_of_table_4(norms: Any, expected: int) -> None:
    # The table prints 0.19M, 0.38M and 0.58M, ten times too many; its per mille of 11.7M are right.
    assert measure.norm_parameters(served(network("resnet18", norms=norms))) == expected


@pytest.mark.parametrize(("name", "millions"), [("resnet18", 1.04), ("resnet50", 4.12)])
def test_added_parameters_are_those_of_table_8(name: str, millions: float) -> None:
    assert measure.added_parameters(served(network(name, ends="own"))) / 1e6 == pytest.approx(millions, abs=0.01)
    assert measure.added_parameters(served(network(name))) == 0


def test_own_ends_are_stored_too() -> None:
    plain, own = served(network("resnet18")), served(network("resnet18", ends="own"))
    added = measure.added_parameters(own)
    assert measure.weight_bits(own, 4) - measure.weight_bits(plain, 4) == 32 * added


def test_dedicated_networks_are_counted_each_by_itself() -> None:
    networks = {bits: stratify(build("resnet8", 10, 3), (bits,)) for bits in (2, 3, 4)}
    one = networks[2]
    quantised, floats = measure.quantised_weights(one), measure.float_weights(one)
    assert measure.weight_bits(networks, 9) == 9 * quantised + 3 * 32 * floats
    assert measure.norm_parameters(networks) == 3 * measure.norm_parameters({2: one})


def test_histograms_count_the_codes_of_every_width() -> None:
    torch.manual_seed(0)
    net = stratify(build("resnet8", 10, 3), (2, 3, 4))
    found = measure.code_histograms(served(net))
    assert set(found) == {"2", "3", "4"}
    for width, counts in found.items():
        bits = int(width)
        assert sum(counts.values()) == measure.quantised_weights(net)
        assert min(map(int, counts)) >= -(2 ** (bits - 1))
        assert max(map(int, counts)) < 2 ** (bits - 1)
    # A lower width has the code of a higher one without its last bit.
    for lower, higher in (("2", "3"), ("3", "4")):
        for code, count in found[lower].items():
            pair = (str(2 * int(code)), str(2 * int(code) + 1))
            assert count == sum(found[higher].get(one, 0) for one in pair)


def test_quantisers_without_codes_have_no_histogram() -> None:
    assert measure.code_histograms(served(network("resnet18", quantizer="binary-planes"))) == {}


def test_input_errors_are_those_of_the_last_layers_at_the_lowest_width() -> None:
    torch.manual_seed(0)
    net = stratify(build("resnet8", 10, 3), (2, 4))
    x = torch.randn(6, 3, 16, 16)
    net.calibrate([x])
    found = measure.input_errors(served(net), x)
    names = [name for name, _ in net.stratified_layers()]
    assert [one.layer for one in found] == names[-5:]
    seen = {}
    layer = dict(net.at(2).named_modules())[names[-1]]
    hook = layer.register_forward_pre_hook(lambda module, arguments: seen.update(x=arguments[0]))
    net.eval()
    with torch.no_grad():
        net(x, bits=2)
        hook.remove()
        values, step = layer.input_quantiser.integers(seen["x"])
    difference = (values * step - seen["x"]).flatten(1).norm(dim=1)
    assert found[-1].norm == pytest.approx(float(difference.mean()), rel=1e-4)
    assert found[-1].relative == pytest.approx(float((difference / seen["x"].flatten(1).norm(dim=1)).mean()), rel=1e-4)
