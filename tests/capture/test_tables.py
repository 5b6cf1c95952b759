"""What is in a captured network: codes, folded tables, names, shared weights."""

import numpy as np
import pytest
import torch
from capture.parity import prepared, same_everywhere
from torch import Tensor, nn

from bitstrata import codes
from bitstrata.capture import capture
from bitstrata.errors import BadOption, BadTable, NotFinite
from bitstrata.graph import ops
from bitstrata.training.norms import synchronise_norms


def small(**norm: float | bool) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4, **norm),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3),
        nn.BatchNorm2d(6, **norm),
        nn.ReLU(),
        nn.Conv2d(6, 5, 3, bias=False),
        nn.Conv2d(5, 2, 1),
    )


EXAMPLE = torch.empty(2, 3, 10, 10)


@pytest.mark.parametrize("per_channel", [False, True])
def test_codes_and_steps_are_those_of_the_layers(per_channel: bool) -> None:
    net = prepared(small(), (2, 3, 10, 10), per_channel=per_channel)
    with torch.no_grad():  # where the optimiser drove the step below its floor, the floor is used
        net.model[6].weight_quantiser.step.mul_(-1.0)
        net.model[6].input_quantiser.step_3.fill_(0.0)
    network = capture(net, EXAMPLE)
    for view in network.views:
        bits = int(view.name)
        for name in ("3", "6"):
            layer = net.at(bits)[int(name)]
            integers, _ = layer.weight_quantiser.integers(layer.weight)
            shifted = codes.shift_down(network.codes[name], 4, bits)
            np.testing.assert_array_equal(codes.odd_integers(shifted, 4, bits), integers.detach().numpy())
            table = view.tables[name]
            assert table.step == layer.input_quantiser.step().item()
            assert table.zero_point == int(getattr(layer.input_quantiser, f"zero_point_{bits}"))
            _, half_scale = layer.accumulate(torch.randn(1, layer.in_channels, 5, 5))
            if name == "6":  # no norm after it: the layer's own scale, to the bit
                np.testing.assert_array_equal(table.scale, half_scale.expand(5).numpy())
                assert not table.bias.any()
        assert view.bits == {"3": bits, "6": bits}


@pytest.mark.parametrize("norm", [{}, {"eps": 0.1}, {"affine": False}], ids=str)
def test_norms_fold_in_double_precision(norm: dict[str, float | bool]) -> None:
    net = prepared(small(**norm), (2, 3, 10, 10))
    if norm.get("affine", True):
        assert any((net.model[4].copies[str(bits)].weight < 0).any() for bits in net.widths)
    network = same_everywhere(net, (2, 3, 10, 10), torch.randn(3, 3, 12, 9))
    assert [type(node) for node in network.graph.nodes].count(ops.Affine) == 0
    for view in network.views:
        layer, norms = net.at(int(view.name))[3], net.at(int(view.name))[4].copies[view.name]
        eps = norm.get("eps", 1e-5)
        scale = 1.0 / np.sqrt(norms.running_var.double().numpy() + eps)
        if norms.affine:
            scale *= norms.weight.detach().double().numpy()
        bias = (layer.bias.detach().double().numpy() - norms.running_mean.double().numpy()) * scale
        if norms.affine:
            bias += norms.bias.detach().double().numpy()
        step = layer.weight_quantiser.step.detach().double().item() * 0.5 * layer.input_quantiser.step().double().item()
        np.testing.assert_allclose(view.tables["3"].scale, scale * step, rtol=1e-7)
        np.testing.assert_allclose(view.tables["3"].bias, bias, rtol=1e-6, atol=1e-7)


def test_a_norm_of_a_shared_value_stays_a_node() -> None:
    class Fork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.conv, self.last = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 1)
            self.norm = nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            out = self.conv(self.stem(x))
            result: Tensor = self.last(out + self.norm(out))
            return result

    network = same_everywhere(prepared(Fork(), (2, 3, 8, 8)), (2, 3, 8, 8), torch.randn(2, 3, 6, 6))
    assert [node.name for node in network.graph.nodes] == ["stem", "conv", "norm", "add", "last"]
    assert not np.array_equal(network.views[0].tables["norm"].scale, network.views[1].tables["norm"].scale)


def test_synchronised_norms() -> None:
    net = prepared(synchronise_norms(small()), (2, 3, 10, 10))
    same_everywhere(net, (2, 3, 10, 10), torch.randn(2, 3, 10, 10))


class Tied(nn.Module):
    """Two layers on one weight, and one layer that is called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.left = nn.Conv2d(4, 4, 3, padding=1)
        self.right = nn.Conv2d(4, 4, 3, padding=2, dilation=2)
        self.right.weight = self.left.weight
        self.again = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.last = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.left(x) + self.right(x)
        for _ in range(3):
            x = self.again(x)
        result: Tensor = self.last(x)
        return result


@pytest.mark.parametrize("quantise", [["left", "right", "again.0"], ["last"]])
def test_shared_weights_are_stored_once(quantise: list[str]) -> None:
    net = prepared(Tied(), (4, 3, 8, 8), quantise=quantise)
    network = same_everywhere(net, (2, 3, 8, 8), torch.randn(5, 3, 7, 9))
    assert [weight.name for weight in network.graph.weights] == ["stem", "left", "again.0", "last"]
    convolutions = {node.name: node.weight for node in network.graph.nodes if isinstance(node, ops.Conv)}
    assert convolutions == {
        "stem": None,
        "left": None,
        "right": "left",
        "again.0": None,
        "again.0@2": "again.0",
        "again.0@3": "again.0",
        "last": None,
    }
    assert "again.2@3" in {node.name for node in network.graph.nodes}


def test_names_are_those_that_readers_take() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.input = nn.Conv2d(3, 4, 1)
            self.add_module("größe 1/2", nn.Conv2d(4, 4, 1))
            self.add_module("größe 1+2", nn.Conv2d(4, 4, 1))
            inner: nn.Module = nn.Conv2d(4, 2, 1)
            for _ in range(12):
                inner = nn.Sequential(nn.Sequential(), inner)
                inner = nn.ModuleDict({"a_rather_long_name": inner})["a_rather_long_name"]
            self.deep = nn.Sequential()
            self.deep.add_module("x" * 150, inner)

        def forward(self, x: Tensor) -> Tensor:
            x = self.input(x)
            for name in ("größe 1/2", "größe 1+2", "deep"):
                x = self.get_submodule(name)(x)
            return x

    network = same_everywhere(prepared(Named(), (2, 3, 4, 4)), (2, 3, 4, 4), torch.randn(2, 3, 4, 4))
    names = [node.name for node in network.graph.nodes]
    assert names[:3] == ["input@2", "gr__e_1_2", "gr__e_1_2@2"]
    assert len(names[3]) <= 128
    assert names[3].endswith("x.1.1.1.1.1.1.1.1.1.1.1.1")


def test_float_layers_as_float16() -> None:
    net = prepared(small(), (2, 3, 10, 10))
    wide, half = capture(net, EXAMPLE), capture(net, EXAMPLE, float_store="float16")
    assert [weight.store for weight in half.graph.weights] == ["float16", "planes", "planes", "float16"]
    for name, values in half.floats.items():
        np.testing.assert_array_equal(values, wide.floats[name].astype(np.float16).astype(np.float32))
        assert values.dtype == np.float32
        assert (values != wide.floats[name]).any()


def test_what_is_not_finite_is_named() -> None:
    net = prepared(small(), (2, 3, 10, 10))
    with torch.no_grad():
        net.model[0].weight[0, 0, 0, 0] = 1e5
    capture(net, EXAMPLE)
    with pytest.raises(NotFinite, match=r"'0'.*float16"):
        capture(net, EXAMPLE, float_store="float16")
    with torch.no_grad():
        net.model[3].weight[0, 0, 0, 0] = torch.nan
    with pytest.raises(NotFinite, match="'3'"):
        capture(net, EXAMPLE)
    net = prepared(small(), (2, 3, 10, 10))
    with torch.no_grad():
        net.model[4].copies["2"].running_mean[1] = torch.inf
    with pytest.raises(BadTable, match=r"'2'.*'3'"):
        capture(net, EXAMPLE)


def test_unknown_float_store() -> None:
    with pytest.raises(BadOption, match="float_store"):
        capture(prepared(small(), (2, 3, 10, 10)), EXAMPLE, float_store="bfloat16")  # type: ignore[arg-type]


def test_the_network_is_left_as_it_was() -> None:
    net = prepared(small(), (2, 3, 10, 10))
    net.train()
    net.model[1].eval()
    flags = [module.training for module in net.modules()]
    state = {name: value.clone() for name, value in net.state_dict().items()}
    capture(net, EXAMPLE)
    assert [module.training for module in net.modules()] == flags
    assert all("forward" not in vars(module) for bits in net.widths for module in net.at(bits).modules())
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    net(torch.randn(2, 3, 10, 10))
