"""`stratify`: which layers become what, in which networks, and what is refused."""

import copy
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from families import FAMILIES, attention_by_multihead
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune

import bitstrata as bs
from bitstrata import codes
from bitstrata.errors import (
    BadOption,
    BadWidths,
    CannotStratify,
    LayerBypassed,
    NotCalibrated,
    NothingToStratify,
    UnknownWidth,
)
from bitstrata.training.bound import PerWidth
from bitstrata.training.layers import StratifiedConv2d, StratifiedLayer, StratifiedLinear
from bitstrata.zoo import nets

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    **FAMILIES,
    "resnet8": nets.resnet8,
    "resnet18": lambda: nets.resnet18(10, small_input=True),
    "resnet50": lambda: nets.resnet50(10),
    "mobilenet_v2": lambda: nets.mobilenet_v2(10, width_multiplier=0.25),
    "vgg16_bn": lambda: nets.vgg16_bn(10, small_input=True),
}
#: VGG halves its input five times; the others are content with less.
SMALLEST_INPUT = {"vgg16_bn": 32, "convnext": 32, "vision_transformer": 32}


class Called(nn.Module):
    """Given layers, and a function of them and the input for `forward`."""

    def __init__(self, forward: Callable[["Called", Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.function = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def perceptron(*sizes: int) -> nn.Sequential:
    """Linear layers `0`, `2`, `4`, ... with a ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def between_ends(*middle: nn.Module, channels: int = 4, outputs: int = 4) -> nn.Sequential:
    """A first and a last 1x1 convolution, which stay float, and layers `1`, `2`, ... between them."""
    return nn.Sequential(nn.Conv2d(3, channels, 1), *middle, nn.Conv2d(outputs, 2, 1))


def quantised_names(net: bs.StratifiedNet) -> list[str]:
    return [name for name, _ in net.stratified_layers()]


def layer_named(net: bs.StratifiedNet, name: str) -> StratifiedLayer:
    return dict(net.stratified_layers())[name]


def train_one_step(net: nn.Module, x: Tensor, y: Tensor, learning_rate: float = 0.01) -> float:
    optimiser = torch.optim.SGD(bs.parameter_groups(net, weight_decay=1e-4), lr=learning_rate)
    loss = bs.JointLoss(distill="cosine")(net(x), y)
    loss.backward()
    optimiser.step()
    return float(loss.detach())


# Networks of every family


@pytest.mark.parametrize("name", NETWORKS)
def test_every_family_trains_a_step_and_runs_at_every_width(name: str) -> None:
    model = NETWORKS[name]()
    convertible = [n for n, m in model.named_modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    size = SMALLEST_INPUT.get(name, 16)
    x, y = torch.randn(4, 3, size, size), torch.randint(0, 10, (4,))
    net = bs.stratify(model)

    assert quantised_names(net) == convertible[1:-1]
    left_float = [n for n, m in net.model.named_modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert left_float == [convertible[0], convertible[-1]]

    before = {n: p.detach().flatten()[:100].clone() for n, p in net.named_parameters()}
    assert torch.isfinite(torch.tensor(train_one_step(net, x, y)))
    for parameter_name, parameter in net.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
    weights = [(n, p) for n, p in net.named_parameters() if n.endswith("weight")]
    unmoved = [n for n, p in weights if torch.equal(p.detach().flatten()[:100], before[n])]
    assert unmoved == []

    net.eval()
    with torch.no_grad():
        outputs = {bits: net.at(bits)(x) for bits in net.widths}
    for output in outputs.values():
        assert output.shape == (4, 10)
        assert torch.isfinite(output).all()
    assert not torch.equal(outputs[2], outputs[3])
    assert not torch.equal(outputs[3], outputs[4])


def test_a_few_steps_lower_the_loss() -> None:
    net = bs.stratify(nets.resnet8())
    x, y = torch.randn(32, 3, 8, 8), torch.randint(0, 10, (32,))
    optimiser = torch.optim.SGD(bs.parameter_groups(net, weight_decay=0.0), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(12):
        optimiser.zero_grad()
        by_width = bs.JointLoss().per_width(net(x), y)
        torch.stack(list(by_width.values())).mean().backward()
        optimiser.step()
        losses.append({bits: float(loss.detach()) for bits, loss in by_width.items()})
    for bits in net.widths:
        assert losses[-1][bits] < 0.7 * losses[0][bits]


# What is refused, and what is left as it is on request


def test_multihead_attention_is_refused_by_name() -> None:
    with pytest.raises(CannotStratify, match=r"'blocks\.0\.attn\.attention' \(MultiheadAttention\)"):
        bs.stratify(attention_by_multihead())


def test_multihead_attention_stays_float_on_request_and_the_rest_is_quantised() -> None:
    net = bs.stratify(attention_by_multihead(), keep_float=["blocks.*.attn.attention"])
    assert quantised_names(net) == [f"blocks.{block}.mlp.{layer}" for block in (0, 1) for layer in (0, 2)]
    assert sum(isinstance(m, nn.MultiheadAttention) for m in net.model.modules()) == 2
    assert net(torch.randn(2, 3, 32, 32))[2].shape == (2, 10)


class RecurrentTail(nn.Module):
    def __init__(self, tail: nn.Module) -> None:
        super().__init__()
        self.body = perceptron(6, 6, 6, 6)
        self.tail = tail

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x)
        if isinstance(self.tail, nn.RNNBase):
            return self.tail(out)[0]
        if isinstance(self.tail, (nn.Conv1d, nn.ConvTranspose1d)):
            return self.tail(out.transpose(1, 2))
        if isinstance(self.tail, nn.Bilinear):
            return self.tail(out, out)
        if isinstance(self.tail, nn.RNNCellBase):
            state = self.tail(out[:, 0])
            return state[0] if isinstance(state, tuple) else state
        return self.tail(out.transpose(1, 2).unsqueeze(-1))


@pytest.mark.parametrize(
    "tail",
    [
        nn.Conv1d(6, 4, 3),
        nn.ConvTranspose1d(6, 4, 3),
        nn.ConvTranspose2d(6, 4, 2),
        nn.LSTM(6, 4),
        nn.GRU(6, 4),
        nn.LSTMCell(6, 4),
        nn.Bilinear(6, 6, 4),
    ],
    ids=lambda module: type(module).__name__,
)
def test_layers_without_a_stratified_form_are_refused_by_name(tail: nn.Module) -> None:
    with pytest.raises(CannotStratify, match=rf"'tail' \({type(tail).__name__}\).*keep_float=\['tail'\]"):
        bs.stratify(RecurrentTail(copy.deepcopy(tail)))
    model = RecurrentTail(copy.deepcopy(tail))
    x = torch.randn(3, 5, 6)
    expected = model(x).shape
    net = bs.stratify(model, keep_float=["tail"])
    assert quantised_names(net) == ["body.2"]
    assert type(net.model.tail) is type(tail)
    outputs = net(x)
    assert outputs[2].shape == expected
    outputs[2].sum().backward()
    assert all(p.grad is not None for p in net.model.tail.parameters() if p.ndim > 1)


def test_a_refused_model_is_left_as_it_was() -> None:
    model = RecurrentTail(nn.LSTM(6, 4))
    with pytest.raises(CannotStratify):
        bs.stratify(model)
    assert [type(m) for m in model.body] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]


def test_parametrised_layers_are_refused_by_name() -> None:
    model = perceptron(4, 4, 4, 4)
    parametrizations.weight_norm(model[2])
    with pytest.raises(CannotStratify, match=r"'2' .*parametrisation"):
        bs.stratify(model)
    net = bs.stratify(model, keep_float=["2"], ends="quantised")
    assert quantised_names(net) == ["0", "4"]
    assert net(torch.randn(3, 4))[2].shape == (3, 4)


def test_weights_computed_by_a_hook_are_refused_by_name() -> None:
    """Pruning, like the older weight norm, makes `weight` a plain attribute that a hook sets before each call."""
    model = perceptron(4, 4, 4, 4)
    prune.l1_unstructured(model[2], "weight", amount=0.5)
    with pytest.raises(CannotStratify, match=r"'2' .*parametrisation"):
        bs.stratify(model)


class StandardisedConv2d(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(x, self.weight - self.weight.mean(), self.bias)


class OtherPadding(nn.Conv2d):
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.conv2d(input.roll(1), weight, bias)


class NamedLinear(nn.Linear):
    """A subclass that computes what its base does is no reason to refuse."""


@pytest.mark.parametrize("kind", [StandardisedConv2d, OtherPadding])
def test_subclasses_that_compute_otherwise_are_refused_by_name(kind: type[nn.Conv2d]) -> None:
    with pytest.raises(CannotStratify, match=rf"'1' \({kind.__name__}\) changes how its base class computes"):
        bs.stratify(between_ends(kind(4, 4, 1)))


def test_subclasses_that_compute_as_their_base_are_quantised() -> None:
    net = bs.stratify(nn.Sequential(nn.Linear(4, 4), NamedLinear(4, 4), nn.Linear(4, 4)))
    assert quantised_names(net) == ["1"]


@pytest.mark.parametrize("lazy", [nn.LazyLinear(4), nn.LazyConv2d(4, 1), nn.LazyBatchNorm2d()])
def test_lazy_modules_are_refused_until_they_have_weights(lazy: nn.Module) -> None:
    with pytest.raises(CannotStratify, match=r"'1' .*run the model once"):
        bs.stratify(between_ends(lazy))


def test_a_stratified_network_is_not_stratified_again() -> None:
    with pytest.raises(CannotStratify, match="already"):
        bs.stratify(bs.stratify(perceptron(4, 4, 4, 4)))


@pytest.mark.parametrize(
    ("model", "count"), [(nn.Sequential(nn.ReLU()), 0), (perceptron(4, 4), 1), (perceptron(4, 4, 4), 2)]
)
def test_models_with_nothing_left_to_quantise_are_refused(model: nn.Module, count: int) -> None:
    with pytest.raises(NothingToStratify, match=f"has {count} convolution and linear"):
        bs.stratify(model)


def test_two_layers_can_be_quantised_when_asked_for() -> None:
    assert quantised_names(bs.stratify(perceptron(4, 4, 4), ends="quantised")) == ["0", "2"]


def test_a_single_layer_can_be_the_whole_model() -> None:
    net = bs.stratify(nn.Linear(6, 4), ends="quantised")
    assert isinstance(net.model, StratifiedLinear)
    assert net(torch.randn(3, 6))[2].shape == (3, 4)


# Which layers


def test_choice_by_names_with_wildcards() -> None:
    model = nn.Sequential(perceptron(4, 4, 4), perceptron(4, 4, 4))
    net = bs.stratify(model, quantise=["0.*", "1.2"])
    assert quantised_names(net) == ["0.0", "0.2", "1.2"]
    assert type(net.model[1][0]) is nn.Linear


def test_a_name_that_chooses_nothing_is_an_error() -> None:
    with pytest.raises(NothingToStratify, match=r"'9'.*it has 0, 2, 4"):
        bs.stratify(perceptron(4, 4, 4, 4), quantise=["2", "9"])


def test_choice_by_predicate() -> None:
    model = perceptron(4, 8, 8, 4)
    net = bs.stratify(model, quantise=lambda name, layer: name != "2" and layer.out_features > 4)
    assert quantised_names(net) == ["0"]


def test_keep_float_takes_a_whole_branch_norms_included() -> None:
    branch = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
    net = bs.stratify(between_ends(branch, nn.Conv2d(4, 4, 1)), keep_float=["1"])
    assert quantised_names(net) == ["2"]
    assert type(branch[1]) is nn.BatchNorm2d


def test_float_ends_are_shared_by_all_widths() -> None:
    net = bs.stratify(perceptron(4, 4, 4, 4))
    assert net.at(2)[0].weight is net.at(4)[0].weight is net.model[0].weight
    assert net.at(2)[4].bias is net.at(4)[4].bias


def test_own_ends_are_float_copies_per_width() -> None:
    net = bs.stratify(perceptron(4, 4, 4, 4), ends="own")
    assert quantised_names(net) == ["2"]
    for end in ("0", "4"):
        module = net.model.get_submodule(end)
        assert isinstance(module, PerWidth)
        copies = [module.copies[str(bits)] for bits in net.widths]
        assert all(type(one) is nn.Linear for one in copies)
        assert len({one.weight for one in copies}) == 3
        assert torch.equal(copies[0].weight, copies[2].weight)
        assert {module.copies["2"].weight, module.copies["2"].bias} <= set(net.own_parameters(2))
    x = torch.randn(3, 4)
    net(x)
    before = net.at(4)(x)
    with torch.no_grad():
        net.model.get_submodule("4").copies["2"].bias += 1.0
    assert torch.equal(net.at(4)(x), before)


def test_quantised_ends_leave_nothing_float() -> None:
    net = bs.stratify(nets.resnet8(), ends="quantised")
    assert not [m for m in net.model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert net(torch.randn(2, 3, 8, 8))[2].shape == (2, 10)


def test_an_example_finds_the_ends_in_order_of_call() -> None:
    def model() -> nn.Module:
        # Registered as a, b, c, d; called as c, a, d, b.
        return Called(
            lambda self, x: self.b(self.d(self.a(self.c(x)))),
            **{name: nn.Linear(4, 4) for name in ("a", "b", "c", "d")},
        )

    assert quantised_names(bs.stratify(model())) == ["b", "c"]
    assert quantised_names(bs.stratify(model(), example=torch.randn(2, 4))) == ["a", "d"]
    assert quantised_names(bs.stratify(model(), example=(torch.randn(2, 4),))) == ["a", "d"]


def test_an_example_changes_neither_statistics_nor_modes() -> None:
    model = between_ends(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
    model[2].eval()
    net = bs.stratify(model, example=torch.randn(2, 3, 4, 4))
    norm = net.model[2].copies["2"]
    assert torch.equal(norm.running_mean, torch.zeros(4))
    assert int(norm.num_batches_tracked) == 0
    assert net.training
    assert not norm.training


def test_an_example_that_reaches_no_layer_is_an_error() -> None:
    model = Called(lambda self, x: x, a=nn.Linear(4, 4), b=nn.Linear(4, 4), c=nn.Linear(4, 4))
    with pytest.raises(NothingToStratify, match="reached none"):
        bs.stratify(model, example=torch.randn(2, 4))


# Norms


def norm_storages(net: bs.StratifiedNet, name: str) -> dict[str, int]:
    """How many different tensors the three widths have under each name of a norm."""
    views = [net.at(bits).get_submodule(name) for bits in net.widths]
    norms = [
        view.copies[str(bits)] if isinstance(view, PerWidth) else view
        for bits, view in zip(net.widths, views, strict=True)
    ]
    tensors = ("weight", "bias", "running_mean", "running_var")
    return {tensor: len({getattr(norm, tensor).data_ptr() for norm in norms}) for tensor in tensors}


@pytest.mark.parametrize(
    ("norms", "affine", "statistics"), [("individual", 3, 3), ("statistics", 1, 3), ("shared", 1, 1)]
)
@pytest.mark.parametrize(("family", "name"), [("resnet8", "layer1.0.bn2"), ("densenet", "block1.1.norm1")])
def test_what_the_widths_share_of_a_norm(family: str, name: str, norms: Any, affine: int, statistics: int) -> None:
    net = bs.stratify(NETWORKS[family](), norms=norms)
    expected = {"weight": affine, "bias": affine, "running_mean": statistics, "running_var": statistics}
    assert norm_storages(net, name) == expected
    own = set(net.own_parameters(2))
    assert any(p in own for n, p in net.named_parameters() if name in n) is (norms == "individual")


@pytest.mark.parametrize("norms", ["individual", "statistics", "shared"])
@pytest.mark.parametrize("family", ["resnet8", "densenet"])
def test_a_step_at_one_width_moves_what_that_width_uses(family: str, norms: Any) -> None:
    net = bs.stratify(NETWORKS[family](), norms=norms)
    x = torch.randn(4, 3, 16, 16)
    net(x)
    name = {"resnet8": "layer1.0.bn2", "densenet": "block1.1.norm1"}[family]
    module = net.model.get_submodule(name)
    norm_of = {bits: module.copies[str(bits)] if isinstance(module, PerWidth) else module for bits in net.widths}
    means = {bits: norm.running_mean.clone() for bits, norm in norm_of.items()}
    net.at(3)(x).square().sum().backward()
    moved = {bits for bits in net.widths if not torch.equal(norm_of[bits].running_mean, means[bits])}
    assert moved == ({2, 3, 4} if norms == "shared" else {3})
    reached = {bits for bits in net.widths if norm_of[bits].weight.grad is not None}
    assert reached == ({3} if norms == "individual" else {2, 3, 4})


def test_norms_of_one_and_three_dimensions_are_per_width_too() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    net = bs.stratify(model)
    assert isinstance(net.model[1], PerWidth)
    assert isinstance(bs.stratify(nn.Sequential(*perceptron(4, 4, 4, 4), nn.BatchNorm3d(4))).model[5], PerWidth)
    net(torch.randn(8, 4))
    statistics = [net.model[3].copies[str(bits)].running_var for bits in net.widths]
    assert not torch.equal(statistics[0], statistics[2])


# Steps per channel


def test_one_step_per_output_channel() -> None:
    model = between_ends(nn.Conv2d(4, 6, 3), nn.Conv2d(6, 4, 1))
    with torch.no_grad():
        model[1].weight *= torch.tensor([1.0, 10.0, 0.1, 1.0, 1.0, 1.0]).reshape(-1, 1, 1, 1)
        expected = 2 * model[1].weight.abs().mean((1, 2, 3)) / 15**0.5
    net = bs.stratify(model, per_channel=True)
    layer = layer_named(net, "1")
    assert layer.weight_quantiser.step.shape == (6,)
    torch.testing.assert_close(layer.weight_quantiser.step.detach(), expected)
    x, y = torch.randn(2, 3, 8, 8), torch.randn(2, 2, 6, 6)
    sum(functional.mse_loss(out, y) for out in net(x).values()).backward()
    assert torch.count_nonzero(layer.weight_quantiser.step.grad) == 6


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_a_layer_computes_with_the_weights_of_codes(per_channel: bool, bits: int) -> None:
    net = bs.stratify(between_ends(nn.Conv2d(4, 6, 3), outputs=6), per_channel=per_channel)
    layer = layer_named(net, "1")
    weight, step = layer.weight.detach().numpy(), layer.weight_quantiser.step.detach()
    shaped = step.reshape(-1, 1, 1, 1).numpy() if per_channel else step.numpy()
    source = codes.quantise(weight, shaped, 4)
    expected = codes.dequantise(codes.shift_down(source, 4, bits), shaped, 4, bits)
    quantiser = net.at(bits)[1].weight_quantiser
    torch.testing.assert_close(quantiser(layer.weight).detach().double(), torch.from_numpy(expected))


# What was one weight or one module stays one


def tied() -> nn.Sequential:
    model = perceptron(6, 6, 6, 6, 6)
    model[4].weight = model[2].weight
    return model


def test_tied_weights_have_one_step_and_the_same_codes() -> None:
    net = bs.stratify(tied())
    first, second = layer_named(net, "2"), layer_named(net, "4")
    assert first.weight is second.weight
    assert first.weight_quantiser is second.weight_quantiser
    assert first.bias is not second.bias
    assert first.input_quantiser is not second.input_quantiser
    x = torch.randn(4, 6)
    optimiser = torch.optim.SGD(bs.parameter_groups(net, weight_decay=0.0), lr=0.1)
    sum(out.sum() for out in net(x).values()).backward()
    optimiser.step()
    for bits in net.widths:
        view = net.at(bits)
        assert torch.equal(view[2].weight_quantiser(view[2].weight), view[4].weight_quantiser(view[4].weight))


def test_gradients_of_tied_weights_add() -> None:
    model = tied()
    separate = copy.deepcopy(model)
    separate[4].weight = nn.Parameter(separate[4].weight.detach().clone())
    net, other = bs.stratify(model), bs.stratify(separate)
    x = torch.randn(4, 6)
    for either in (net, other):
        sum(out.square().sum() for out in either(x).values()).backward()
    torch.testing.assert_close(net.model[2].weight.grad, other.model[2].weight.grad + other.model[4].weight.grad)
    torch.testing.assert_close(
        net.model[2].weight_quantiser.step.grad,
        other.model[2].weight_quantiser.step.grad + other.model[4].weight_quantiser.step.grad,
    )


def test_a_module_under_two_names_stays_one() -> None:
    shared = nn.Linear(4, 4)
    norm = nn.BatchNorm1d(4)
    model = Called(
        lambda self, x: self.last(self.norm_b(self.b(self.norm_a(self.a(self.first(x)))))),
        first=nn.Linear(4, 4), a=shared, norm_a=norm, b=shared, norm_b=norm, last=nn.Linear(4, 4),
    )  # fmt: skip
    net = bs.stratify(model)
    for view in (net.model, net.at(2), net.at(4, joint=True)):
        assert view.a is view.b
        assert view.norm_a is view.norm_b
    assert len([line for line in net.report if line.treatment.endswith("bits")]) == 1
    net(torch.randn(4, 4))
    assert int(net.model.norm_a.copies["2"].num_batches_tracked) == 2


def test_a_module_under_two_names_is_kept_by_either() -> None:
    for name in ("a", "b"):
        shared = nn.Linear(4, 4)
        layers = {"first": nn.Linear(4, 4), "a": shared, "b": shared, "c": nn.Linear(4, 4), "last": nn.Linear(4, 4)}
        model = Called(lambda self, x: self.last(self.c(self.b(self.a(self.first(x))))), **layers)
        net = bs.stratify(model, keep_float=[name])
        assert quantised_names(net) == ["c"]
        assert net.model.a is net.model.b is shared


def test_a_module_called_twice_is_calibrated_on_both_calls() -> None:
    model = Called(
        lambda self, x: self.last(self.twice(5 * self.twice(self.first(x)))),
        first=nn.Linear(4, 4), twice=nn.Linear(4, 4), last=nn.Linear(4, 4),
    )  # fmt: skip
    net = bs.stratify(model)
    seen: list[Tensor] = []
    hook = net.at(4).twice.input_quantiser.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    net.calibrate([torch.randn(16, 4)])
    hook.remove()
    # The same layer called once, on two batches that are what the two calls saw.
    alone = bs.stratify(nn.Linear(4, 4), ends="quantised").calibrate(seen[:2])
    for tensor in ("step_4", "zero_point_4"):
        assert torch.equal(
            getattr(net.model.twice.input_quantiser, tensor), getattr(alone.model.input_quantiser, tensor)
        )


def test_gradients_of_a_module_called_twice_add() -> None:
    """As those of two layers that share everything but their names."""
    net = bs.stratify(Called(lambda self, x: self.d(self.b(self.b(self.a(x)))), **{n: nn.Linear(4, 4) for n in "abd"}))
    x = torch.randn(8, 4)
    net.calibrate([x])
    separate = bs.stratify(
        Called(lambda self, x: self.d(self.c(self.b(self.a(x)))), **{n: nn.Linear(4, 4) for n in "abcd"})
    )
    values = net.state_dict()
    separate.load_state_dict(values | {n.replace("model.b", "model.c"): v for n, v in values.items() if "model.b" in n})
    for either in (net, separate):
        sum(out.square().sum() for out in either(x).values()).backward()
    for name, parameter in net.model.b.named_parameters():
        parts = [separate.model.get_submodule(layer).get_parameter(name).grad for layer in "bc"]
        torch.testing.assert_close(parameter.grad, parts[0] + parts[1])


# Every way to convolve


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3, "stride": 2},
        {"kernel_size": 3, "stride": (2, 1), "padding": 1},
        {"kernel_size": (1, 3), "padding": (0, 1), "bias": False},
        {"kernel_size": 3, "padding": "same"},
        {"kernel_size": 2, "padding": "same", "dilation": 2},
        {"kernel_size": 3, "padding": "valid"},
        {"kernel_size": 3, "padding": 2, "dilation": 2},
        {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
        {"kernel_size": 3, "padding": "same", "padding_mode": "replicate"},
        {"kernel_size": 3, "padding": (1, 2), "padding_mode": "circular", "stride": 2},
        {"kernel_size": 3, "padding": 1, "groups": 2},
        {"kernel_size": 3, "padding": 1, "groups": 4, "bias": False},
        {"kernel_size": 3, "padding": 1, "groups": 4, "out_channels": 8, "stride": 2},
        {"kernel_size": 1, "bias": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("per_channel", [False, True])
def test_convolutions_of_every_kind(options: dict[str, Any], per_channel: bool) -> None:
    """Against torch's own convolution, on the de-quantised input and weight."""
    options = {"in_channels": 4, "out_channels": 4, **options}
    original = nn.Conv2d(**options)
    plain = copy.deepcopy(original)
    # The last layer takes whatever number of channels comes; negative inputs make zero points.
    net = bs.stratify(between_ends(original, outputs=options["out_channels"]), per_channel=per_channel)
    x = torch.randn(2, 3, 7, 9)
    net(x)
    for mode in (True, False):
        net.train(mode)
        for bits in net.widths:
            view = net.at(bits)
            layer = view[1]
            assert isinstance(layer, StratifiedConv2d)
            hidden = view[0](x).detach()
            quantised_input = layer.input_quantiser(hidden).detach()
            with torch.no_grad():
                plain.weight.copy_(layer.weight_quantiser(layer.weight))
            torch.testing.assert_close(layer(hidden), plain(quantised_input), rtol=1e-4, atol=1e-5)
            loss = functional.mse_loss(layer(hidden), torch.zeros_like(plain(quantised_input)))
            gradients = torch.autograd.grad(loss, [layer.weight, layer.weight_quantiser.step])
            assert all(gradient.abs().sum() > 0 for gradient in gradients)


def test_layers_keep_the_attributes_that_forward_passes_read() -> None:
    """`x.view(-1, self.fc.in_features)` is a common line."""
    convolution, linear = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), nn.Linear(6, 4)
    net = bs.stratify(nn.Sequential(copy.deepcopy(convolution), copy.deepcopy(linear)), ends="quantised")
    names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
    assert {n: getattr(net.model[0], n) for n in names} == {n: getattr(convolution, n) for n in names}
    names = ("in_features", "out_features")
    assert {n: getattr(net.model[1], n) for n in names} == {n: getattr(linear, n) for n in names}


# Layers that are reached in other ways than by their name


def test_blocks_kept_in_a_list_besides_their_registration_work() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.a, self.b = perceptron(4, 4, 4), perceptron(4, 4, 4)
            self.last = nn.Linear(4, 4)
            self.order = [self.b, self.a]
            self.by_name = {"b": self.b}
            self.entry = self.b.forward

        def forward(self, x: Tensor) -> Tensor:
            out = self.first(x)
            for block in self.order:
                out = block(out)
            out = self.by_name["b"](out)
            return self.last(self.entry(out))

    net = bs.stratify(Listed())
    assert quantised_names(net) == ["a.0", "a.2", "b.0", "b.2"]
    view = net.at(2)
    assert view.order == [view.b, view.a]
    assert view.b is not net.model.b
    x = torch.randn(3, 4)
    net(x)
    net.eval()
    assert not torch.equal(net.at(2)(x), net.at(4)(x))


def test_a_layer_that_is_reached_by_a_list_of_layers_is_bypassed_by_name() -> None:
    """The list still holds the layer that was replaced."""

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.order = [self.a, self.b, self.c]

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.order:
                x = layer(x)
            return x

    with pytest.raises(LayerBypassed, match=r"'b'.*keep_float=\['b'\]"):
        bs.stratify(Listed())(torch.randn(2, 4))


def test_a_norm_that_is_reached_by_a_list_is_bypassed_by_name() -> None:
    """All widths would share its statistics without a word."""

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = perceptron(4, 4, 4, 4)
            self.norm = nn.BatchNorm1d(4)
            self.ends = [self.norm]

        def forward(self, x: Tensor) -> Tensor:
            return self.ends[0](self.body(x))

    with pytest.raises(LayerBypassed, match="'norm'"):
        bs.stratify(Listed())(torch.randn(2, 4))
    net = bs.stratify(Listed(), norms="shared")
    assert net(torch.randn(2, 4))[2].shape == (2, 4)


def test_a_layer_in_a_closure_is_bypassed_by_name() -> None:
    model = perceptron(4, 4, 4, 4)
    outer = Called(lambda self, x: model(x), body=model)
    with pytest.raises(LayerBypassed, match=r"'body\.2'.*closure"):
        bs.stratify(outer)(torch.randn(2, 4))


def test_a_layer_whose_weight_is_read_directly_is_bypassed_by_name() -> None:
    model = Called(
        lambda self, x: self.c(functional.linear(self.a(x), self.b.weight, self.b.bias)),
        a=nn.Linear(4, 4), b=nn.Linear(4, 4), c=nn.Linear(4, 4),
    )  # fmt: skip
    net = bs.stratify(model)
    for _ in range(2):  # not only the first time
        with pytest.raises(LayerBypassed, match=r"did not call 'b'"):
            net(torch.randn(2, 4))


def test_a_layer_that_is_bypassed_in_evaluation_only_is_found_then() -> None:
    """In evaluation, torch's own encoder layer takes a short cut that reads the weights of its linear layers."""
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Linear(8, 8), encoder, nn.Linear(8, 2))
    net = bs.stratify(model, keep_float=["1.self_attn"])
    assert quantised_names(net) == ["1.linear1", "1.linear2"]
    x = torch.randn(2, 5, 8)
    net.calibrate([x])
    net.eval()
    with torch.no_grad(), pytest.raises(LayerBypassed, match=r"'1\.linear1', '1\.linear2'"):
        net.at(2)(x)


def test_a_layer_in_an_unregistered_list_is_refused() -> None:
    """torch itself does not see it: no optimiser would train it, and each width would run a copy of its own."""

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = perceptron(4, 4, 4, 4)
            self.hidden = {"of": [nn.Linear(4, 4)]}

        def forward(self, x: Tensor) -> Tensor:
            return self.hidden["of"][0](self.body(x))

    with pytest.raises(CannotStratify, match=r"'hidden' holds a Linear.*ModuleList"):
        bs.stratify(Hidden())
    net = bs.stratify(Hidden(), keep_float=["hidden"])
    assert net.at(2).hidden["of"][0] is net.at(4).hidden["of"][0] is net.model.hidden["of"][0]


def test_the_source_model_itself_cannot_be_called() -> None:
    net = bs.stratify(perceptron(4, 4, 4, 4))
    with pytest.raises(LayerBypassed, match=r"'2' was called outside any width"):
        net.model(torch.randn(2, 4))


def test_what_cannot_be_copied_is_named() -> None:
    model = nn.Sequential(*perceptron(4, 4, 4, 4))
    model[1].guard = threading.Lock()
    with pytest.raises(CannotStratify, match=r"'1\.guard' cannot be copied"):
        bs.stratify(model)


def test_tensors_in_plain_attributes_are_shared_by_all_widths() -> None:
    model = Called(lambda self, x: self.body(x) + self.shift + self.tables["a"][0], body=perceptron(4, 4, 4, 4))
    model.shift = torch.zeros(4)
    model.tables = {"a": [torch.zeros(4)]}
    net = bs.stratify(model)
    x = torch.randn(3, 4)
    net(x)
    net.eval()
    before = net.at(2)(x)
    net.model.shift += 1.0
    net.model.tables["a"][0] += 2.0
    torch.testing.assert_close(net.at(2)(x), before + 3.0)


# Widths


@pytest.mark.parametrize("widths", [(2, 4, 8), (2,), (3, 5, 8), [2, 3, 4], (8,)])
def test_any_increasing_widths(widths: Any) -> None:
    net = bs.stratify(between_ends(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1)), widths)
    assert net.widths == tuple(widths)
    x, y = torch.randn(4, 3, 6, 6), torch.randint(0, 2, (4, 4, 4))
    train_one_step(net, x, y)
    net.eval()
    outputs = net(x)
    assert list(outputs) == sorted(widths, reverse=True)
    layer = layer_named(net, "1")
    for bits in net.widths:
        step = layer.weight_quantiser.step.detach()
        dequantised = net.at(bits)[1].weight_quantiser(layer.weight).detach() / step
        spacing = 2.0 ** (net.widths[-1] - bits)
        assert len((dequantised / spacing).round(decimals=3).unique()) <= 2**bits
        assert net.at(bits)[1].input_quantiser(x).unique().numel() <= 2**bits


@pytest.mark.parametrize("widths", [(1, 2), (2, 9), (4, 2), (2, 2), (), (2, 3.0), (True, 2), ("2", "3"), (0,), (-2, 4)])
def test_bad_widths_are_refused_before_the_model_is_touched(widths: Any) -> None:
    model = perceptron(4, 4, 4, 4)
    with pytest.raises(BadWidths):
        bs.stratify(model, widths)
    assert type(model[2]) is nn.Linear


def test_an_unknown_width_is_refused() -> None:
    net = bs.stratify(perceptron(4, 4, 4, 4))
    for ask in (lambda: net.at(5), lambda: net(torch.randn(2, 4), bits=8)):
        with pytest.raises(UnknownWidth, match=r"\(2, 3, 4\)"):
            ask()


# Calibration


def test_evaluating_before_calibration_is_an_error_that_names_the_layer() -> None:
    net = bs.stratify(perceptron(4, 4, 4, 4)).eval()
    x = torch.randn(8, 4)
    assert not net.is_calibrated
    with pytest.raises(NotCalibrated, match="'2' has no activation step at 2 bits"):
        net.at(2)(x)
    net.train()
    net(x, bits=3)
    net.eval()
    net.at(3)(x)
    with pytest.raises(NotCalibrated, match="at 2 bits"):
        net.at(2)(x)


def test_a_model_in_evaluation_mode_gives_a_network_in_evaluation_mode() -> None:
    net = bs.stratify(perceptron(4, 4, 4, 4).eval())
    assert not net.training
    with pytest.raises(NotCalibrated):
        net(torch.randn(8, 4))


def test_calibration_sets_every_step_and_leaves_weights_and_mode_alone() -> None:
    net = bs.stratify(nets.resnet8()).eval()
    parameters = {n: p.detach().clone() for n, p in net.named_parameters() if "input_quantiser" not in n}
    batches = [(torch.randn(8, 3, 8, 8), torch.zeros(8)) for _ in range(3)]
    assert net.calibrate(batches) is net
    assert net.is_calibrated
    assert not net.training
    assert not net.at(2).training
    assert all(torch.equal(p, parameters[n]) for n, p in net.named_parameters() if n in parameters)
    for _, layer in net.stratified_layers():
        steps = [float(getattr(layer.input_quantiser, f"step_{bits}").detach()) for bits in net.widths]
        assert steps[0] > steps[1] > steps[2] > 0
    outputs = net(batches[0][0])
    assert torch.isfinite(outputs[2]).all()


def test_calibration_sets_the_statistics_of_every_width() -> None:
    net = bs.stratify(between_ends(nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)))
    batches = [torch.randn(8, 3, 6, 6) + shift for shift in (0.0, 1.0)]
    net.calibrate(batches)
    for bits in net.widths:
        first = net.model[1].copies[str(bits)]
        with torch.no_grad():
            hidden = [net.model[0](x) for x in batches]
        torch.testing.assert_close(first.running_mean, torch.stack([h.mean((0, 2, 3)) for h in hidden]).mean(0))
        torch.testing.assert_close(first.running_var, torch.stack([h.var((0, 2, 3)) for h in hidden]).mean(0))
        assert first.momentum == net.at(bits)[1].copies[str(bits)].momentum == 0.1
    assert not torch.equal(net.model[3].copies["2"].running_mean, net.model[3].copies["4"].running_mean)


def test_calibration_uses_at_most_so_many_batches() -> None:
    taken = []

    def batches() -> Iterator[Tensor]:
        for number in range(100):
            taken.append(number)
            yield torch.randn(4, 4)

    bs.stratify(perceptron(4, 4, 4, 4)).calibrate(batches(), limit=3)
    assert taken == [0, 1, 2]


def test_calibrating_on_nothing_is_an_error() -> None:
    with pytest.raises(NothingToStratify, match="no batches"):
        bs.stratify(perceptron(4, 4, 4, 4)).calibrate([])


def test_calibration_keeps_frozen_modules_frozen() -> None:
    net = bs.stratify(between_ends(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)))
    net.model[2].eval()
    net(torch.randn(4, 3, 6, 6), bits=2)  # by which the width's own modules follow
    net.calibrate([torch.randn(4, 3, 6, 6)])
    assert net.training
    assert not net.model[2].training
    assert not net.model[2].copies["2"].training
    assert not net.at(2)[2].copies["2"].training


def test_zero_points_follow_the_sign_of_the_input() -> None:
    """0 after a ReLU, the middle for symmetric inputs, little for the short negative tail of SiLU."""
    layers = {"relu": nn.ReLU(), "tanh": nn.Tanh(), "silu": nn.SiLU(), "negative": nn.Threshold(0.0, 0.0)}
    for name, activation in layers.items():
        model = nn.Sequential(nn.Identity(), nn.Linear(16, 4), nn.Identity())
        net = bs.stratify(model, ends="quantised")
        values = activation(2.0 * torch.randn(512, 16))
        net.calibrate([-values if name == "negative" else values])
        points = [int(getattr(net.model[1].input_quantiser, f"zero_point_{bits}")) for bits in net.widths]
        if name == "relu":
            assert points == [0, 0, 0]
        elif name == "tanh":
            assert points[2] in (7, 8)
            assert points[1] in (3, 4)
        elif name == "silu":
            assert 0 <= points[0] <= 1
            assert 0 < points[2] < 4
        else:
            assert points == [2, 4, 8]


def test_an_input_of_one_value_can_be_calibrated() -> None:
    for value in (0.0, 3.0, -3.0):
        net = bs.stratify(nn.Linear(4, 4), ends="quantised")
        x = torch.full((2, 4), value)
        net.calibrate([x])
        net.eval()
        torch.testing.assert_close(net.at(4).input_quantiser(x).detach(), x)


# The summary


def test_the_summary_says_what_became_of_each_layer() -> None:
    model = nets.mobilenet_v2(10, width_multiplier=0.25)
    parameters = sum(p.numel() for p in model.parameters())
    net = bs.stratify(model, ends="own")
    lines = net.summary().splitlines()
    assert lines[0].split() == ["layer", "kind", "parameters", "treatment"]
    by_name = {line.split()[0]: line for line in lines[1:-1]}
    assert by_name["features.0.0"].endswith("float, own copy per width")
    assert "Conv2d, depthwise" in by_name["features.1.conv.0.0"]
    assert by_name["features.1.conv.0.0"].endswith("2, 3, 4 bits")
    assert by_name["features.1.conv.0.1"].endswith("norm, own statistics and affine")
    quantised = sum(layer.weight.numel() for _, layer in net.stratified_layers())
    assert lines[-1] == f"{quantised:,} of {parameters:,} parameters are stored as bit layers, widths (2, 3, 4)"


def test_the_summary_counts_tied_weights_once() -> None:
    assert bs.stratify(tied()).summary().splitlines()[-1].startswith("36 of 132 parameters")


def test_the_summary_names_what_was_kept() -> None:
    net = bs.stratify(RecurrentTail(nn.LSTM(6, 4)), keep_float=["tail"], norms="shared")
    line = next(line for line in net.summary().splitlines() if line.startswith("tail"))
    assert line.split()[1] == "LSTM"
    assert line.endswith("float (kept)")


def test_a_name_to_keep_that_no_module_has_is_refused() -> None:
    with pytest.raises(BadOption, match=r"keep_float=\['layer9'\] names no module"):
        bs.stratify(perceptron(4, 4, 4, 4), keep_float=["layer9"])


@pytest.mark.parametrize("option", ["norms", "ends", "weight_init", "activation_init"])
def test_a_misspelt_choice_is_refused(option: str) -> None:
    wrong: dict[str, Any] = {option: "wrogn"}
    with pytest.raises(BadOption, match=f"{option}='wrogn' is not one of"):
        bs.stratify(perceptron(4, 4, 4, 4), **wrong)
