"""`StratifiedNet`: one set of tensors behind every width, however the network is copied, moved, saved or run."""

import copy
import io
import os
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import bitstrata as bs
from bitstrata.errors import NotCalibrated
from bitstrata.training import evaluate, recalculate_norms
from bitstrata.training.bound import PerWidth
from bitstrata.zoo import nets


class SmallNet(nn.Module):
    """Two quantised convolutions with norms, one of them after a signed input, and a residual addition."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.conv1 = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 6, 1)
        self.norm2 = nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 5)

    def block(self, x: Tensor) -> Tensor:
        out = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(out)) + x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.stem(x)).mean((2, 3)))


def small_net(**options: Any) -> bs.StratifiedNet:
    """Calibrated, in training mode, with norms that are no longer as they were made."""
    net = bs.stratify(SmallNet(), **options)
    net.calibrate([torch.randn(8, 3, 6, 6)])
    with torch.no_grad():
        for module in net.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.add_(0.2 * torch.randn(6))
                module.bias.add_(0.2 * torch.randn(6))
    return net


def images(count: int = 4) -> Tensor:
    return torch.randn(count, 3, 6, 6)


def outputs_of(net: bs.StratifiedNet, x: Tensor) -> dict[int, Tensor]:
    """In evaluation, at every width; the network's mode stays as it was."""
    training = net.training
    net.eval()
    with torch.no_grad():
        outputs = {bits: net.at(bits)(x) for bits in net.widths}
    net.train(training)
    return outputs


def assert_equal_outputs(first: dict[int, Tensor], second: dict[int, Tensor]) -> None:
    assert first.keys() == second.keys()
    for bits, output in first.items():
        assert torch.equal(output, second[bits]), f"{bits} bits"


def gradients_of(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def assert_close_gradients(first: dict[str, Tensor], second: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert first.keys() == second.keys()
    assert first
    for name, gradient in first.items():
        torch.testing.assert_close(
            gradient, second[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def norms_frozen(net: bs.StratifiedNet) -> bs.StratifiedNet:
    for module in net.model.modules():
        if isinstance(module, (PerWidth, nn.BatchNorm2d)):
            module.training = False
    return net


def train_a_step(net: bs.StratifiedNet) -> None:
    optimiser = torch.optim.SGD(bs.parameter_groups(net, weight_decay=0.0), lr=0.1)
    bs.JointLoss()(net(images()), torch.randint(0, 5, (4,))).backward()
    optimiser.step()
    optimiser.zero_grad()


# What the calls give


def test_a_joint_pass_gives_every_width_highest_first() -> None:
    net = small_net().eval()
    x = images()
    outputs = net(x)
    assert list(outputs) == [4, 3, 2]
    for bits, output in outputs.items():
        assert torch.equal(output, net(x, bits=bits))
        assert torch.equal(output, net.at(bits)(x))
        assert torch.equal(output, net.at(bits, joint=True)(x))
    assert type(net.at(2)) is SmallNet


def test_a_joint_pass_gives_width_specific_parameters_the_full_gradient_of_their_loss() -> None:
    """The mean over three widths divides every gradient by three; own parameters must not see that."""
    net = small_net(norms="individual", ends="own").train()
    norms_frozen(net)
    x, y = images(), torch.randint(0, 5, (4,))
    loss = bs.JointLoss()
    loss(net(x), y).backward()
    joint = gradients_of(net)
    by_width = {}
    for bits in net.widths:
        net.zero_grad()
        loss.of_width(net(x, bits=bits), y).backward()
        by_width[bits] = gradients_of(net)
    names = {parameter: name for name, parameter in net.named_parameters()}
    for bits in net.widths:
        own = [names[parameter] for parameter in net.own_parameters(bits)]
        assert len(own) == 2 + 4 + 4  # activation steps, norm affine, two ends of weight and bias
        for name in own:
            torch.testing.assert_close(joint[name], by_width[bits][name])
    shared = [names[parameter] for parameter in net.shared_parameters()]
    assert sorted(shared) == sorted(
        [f"model.conv{n}.{p}" for n in (1, 2) for p in ("weight", "weight_quantiser.step")] + ["model.conv2.bias"]
    )
    for name in shared:
        mean = sum(by_width[bits][name] for bits in net.widths) / 3
        torch.testing.assert_close(joint[name], mean)


def test_keyword_and_further_arguments_reach_the_model() -> None:
    class Scaled(SmallNet):
        def forward(self, x: Tensor, factor: float, *, shift: float = 0.0) -> tuple[Tensor, float]:  # type: ignore[override]
            return super().forward(x) * factor + shift, shift

    net = bs.stratify(Scaled())
    x = images()
    net(x, 1.0)
    net.eval()
    plain, _ = net.at(2)(x, 1.0)
    scaled, shift = net(x, 2.0, shift=3.0)[2]
    assert shift == 3.0
    torch.testing.assert_close(scaled, plain * 2.0 + 3.0)
    torch.testing.assert_close(net(x, 2.0, bits=2, shift=3.0)[0], plain * 2.0 + 3.0)


# State dicts


@pytest.mark.parametrize(
    "options", [{}, {"per_channel": True, "norms": "statistics"}, {"norms": "shared", "ends": "own"}]
)
def test_a_state_dict_carries_everything_to_a_fresh_network(options: dict[str, Any]) -> None:
    net = small_net(**options)
    train_a_step(net)
    buffer = io.BytesIO()
    torch.save(net.state_dict(), buffer)
    buffer.seek(0)
    fresh = bs.stratify(SmallNet(), **options)
    assert not fresh.is_calibrated
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    assert fresh.is_calibrated
    x = images()
    assert_equal_outputs(outputs_of(net, x), outputs_of(fresh, x))
    quantisers = [(layer.input_quantiser, dict(fresh.stratified_layers())[name].input_quantiser)
                  for name, layer in net.stratified_layers()]  # fmt: skip
    assert any(int(old.zero_point_4) for old, _ in quantisers)
    for old, new in quantisers:
        assert torch.equal(old.zero_point_4, new.zero_point_4)
    # It also trains on as the old one would.
    for either in (net, fresh):
        torch.manual_seed(5)
        train_a_step(either)
    assert_equal_outputs(outputs_of(net, x), outputs_of(fresh, x))


def test_a_state_dict_from_before_calibration_is_not_calibrated() -> None:
    uncalibrated = bs.stratify(SmallNet()).state_dict()
    net = small_net()
    outputs_of(net, images())
    net.load_state_dict(uncalibrated)
    assert not net.is_calibrated
    net.eval()
    with pytest.raises(NotCalibrated):
        net(images())


def test_loading_with_assignment_is_seen_at_every_width() -> None:
    net, other = small_net(), small_net()
    x = images()
    view = net.at(2)
    net.load_state_dict({name: tensor.clone() for name, tensor in other.state_dict().items()}, assign=True)
    assert view.conv1.weight is net.model.conv1.weight
    assert_equal_outputs(outputs_of(net, x), outputs_of(other, x))


def test_a_state_dict_of_other_widths_does_not_load() -> None:
    with pytest.raises(RuntimeError, match=r"step_8"):
        bs.stratify(SmallNet(), (2, 8)).load_state_dict(small_net().state_dict())


def test_parameters_and_buffers_are_listed_once() -> None:
    """The bound copies must not add to what optimisers and checkpoints see."""
    net = small_net(norms="shared")
    model = SmallNet()
    extra = 2 + 2 * 3  # weight steps, activation steps
    assert len(list(net.parameters())) == len(list(model.parameters())) + extra
    assert {name.removeprefix("model.") for name in net.state_dict()} >= set(model.state_dict())


# Copies


def test_a_deep_copy_is_independent() -> None:
    net = small_net()
    x = images()
    before = outputs_of(net, x)
    twin = copy.deepcopy(net)
    assert_equal_outputs(outputs_of(twin, x), before)
    assert not {p.data_ptr() for p in net.parameters()} & {p.data_ptr() for p in twin.parameters()}
    train_a_step(twin)
    assert_equal_outputs(outputs_of(net, x), before)
    for bits in net.widths:
        assert not torch.equal(outputs_of(twin, x)[bits], before[bits])


def test_the_widths_of_a_deep_copy_see_the_copy() -> None:
    net = small_net()
    twin = copy.deepcopy(net)
    for joint in (False, True):
        for bits in net.widths:
            view = twin.at(bits, joint=joint)
            assert view.conv1.weight is twin.model.conv1.weight
            assert view.norm1.copies[str(bits)].running_mean is twin.model.norm1.copies[str(bits)].running_mean
            assert view.conv1.input_quantiser.state is twin.model.conv1.input_quantiser.state
    assert twin.model.conv1.input_quantiser.state is not net.model.conv1.input_quantiser.state
    twin.calibrate([100 * images(8)])
    x = images()
    assert int(net.model.conv1.input_quantiser.calibrated_2)
    assert not torch.equal(net.model.conv1.input_quantiser.step_2, twin.model.conv1.input_quantiser.step_2)
    assert not torch.equal(outputs_of(net, x)[2], outputs_of(twin, x)[2])


def test_a_deep_copy_can_be_made_between_backward_and_step() -> None:
    net = small_net()
    bs.JointLoss()(net(images()), torch.randint(0, 5, (4,))).backward()
    twin = copy.deepcopy(net)
    x = images()
    assert_equal_outputs(outputs_of(twin, x), outputs_of(net, x))


# Moving and converting


def test_conversion_is_seen_by_widths_taken_earlier() -> None:
    net = small_net()
    views = {(bits, joint): net.at(bits, joint=joint) for bits in net.widths for joint in (False, True)}
    x = images()
    before = outputs_of(net, x)
    net.to(torch.float64)
    for view in views.values():
        assert {p.dtype for p in view.parameters()} == {torch.float64}
        assert view.conv1.weight is net.model.conv1.weight
    for bits, output in outputs_of(net, x.double()).items():
        assert output.dtype == torch.float64
        torch.testing.assert_close(output.float(), before[bits], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_converted_network_trains_and_evaluates(dtype: torch.dtype, per_channel: bool) -> None:
    net = small_net(per_channel=per_channel).to(dtype)
    x = images().to(dtype)
    outputs = net(x)
    sum(output.float().square().sum() for output in outputs.values()).backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.dtype == dtype for p in net.parameters())
    net.eval()
    for training in (torch.enable_grad, torch.no_grad):
        with training():
            assert {output.dtype for output in net(x).values()} == {dtype}


def test_loaded_weights_are_seen_by_widths_taken_earlier() -> None:
    net, other = small_net(), small_net()
    views = {bits: net.at(bits).eval() for bits in net.widths}
    x = images()
    expected = outputs_of(other, x)
    net.eval()
    with torch.no_grad():
        first = views[2](x)
        net.load_state_dict(other.state_dict())
        loaded = {bits: view(x) for bits, view in views.items()}
    assert not torch.equal(first, expected[2])
    assert_equal_outputs(loaded, expected)


def test_a_replaced_parameter_is_seen_by_widths_taken_earlier() -> None:
    net = small_net().eval()
    view = net.at(4)
    x = images()
    net.model.head.bias = nn.Parameter(net.model.head.bias.detach() + 1.0)
    with torch.no_grad():
        torch.testing.assert_close(view(x), outputs_of(net, x)[4])
        assert view.head.bias is net.model.head.bias


@pytest.mark.parametrize("per_channel", [False, True])
def test_channels_last_gives_equal_results(per_channel: bool) -> None:
    net = small_net(per_channel=per_channel)
    x, y = images(), torch.randint(0, 5, (4,))
    twin = copy.deepcopy(net).to(memory_format=torch.channels_last)
    assert twin.at(2).conv1.weight.is_contiguous(memory_format=torch.channels_last)
    both = ((net, x), (twin, x.to(memory_format=torch.channels_last)))
    for either, inputs in both:
        bs.JointLoss(distill="kl")(either(inputs), y).backward()
    assert_close_gradients(gradients_of(net), gradients_of(twin))
    first, second = (outputs_of(either, inputs) for either, inputs in both)
    for bits in net.widths:
        torch.testing.assert_close(first[bits], second[bits], rtol=1e-5, atol=1e-6)


# Modes


def test_modes_reach_every_width() -> None:
    net = small_net()
    views = [net.at(bits, joint=joint) for bits in net.widths for joint in (False, True)]
    for mode in (False, True):
        assert net.train(mode) is net
        for view in views:
            assert {module.training for module in view.modules()} == {mode}
    assert net.eval().training is False
    assert not any(module.training for view in views for module in view.modules())


@pytest.mark.parametrize("norms", ["individual", "shared"])
def test_a_single_frozen_norm_is_honoured(norms: Any) -> None:
    net = small_net(norms=norms)
    net.train()
    net.model.norm1.eval()

    def statistics(norm: nn.Module) -> list[Tensor]:
        return [buffer.clone() for name, buffer in norm.named_buffers() if name.endswith("running_mean")]

    frozen, free = statistics(net.model.norm1), statistics(net.model.norm2)
    net(images())
    net(images(), bits=2)
    assert all(map(torch.equal, frozen, statistics(net.model.norm1)))
    assert not any(map(torch.equal, free, statistics(net.model.norm2)))
    net.train()
    net(images())
    assert not any(map(torch.equal, frozen, statistics(net.model.norm1)))


def test_looking_at_a_network_in_training_leaves_frozen_norms_frozen() -> None:
    net = small_net()
    net.model.norm1.eval()
    net(images())
    evaluate(net, [(images(), torch.randint(0, 5, (4,)))])
    recalculate_norms(net, [images()])
    for network in (net.model, net.at(2, joint=True)):
        assert not network.norm1.copies["2"].training
        assert network.norm2.copies["2"].training


# The width is part of the module that is called


def test_interleaved_widths_do_not_disturb_each_other() -> None:
    net = small_net()
    norms_frozen(net)
    x = images()
    two, four = net.at(2), net.at(4)
    expected = {}
    for bits, view in ((2, two), (4, four)):
        net.zero_grad()
        view(x).square().sum().backward()
        expected[bits] = gradients_of(net)
    net.zero_grad()
    first = two(x)
    second = four(x)
    again = two(x)
    assert torch.equal(first, again)
    second.square().sum().backward()
    assert_close_gradients(gradients_of(net), expected[4])
    net.zero_grad()
    first.square().sum().backward()
    assert_close_gradients(gradients_of(net), expected[2])


@pytest.mark.parametrize("training", [False, True])
def test_threads_at_different_widths_give_what_one_thread_gives(training: bool) -> None:
    net = small_net()
    norms_frozen(net)
    net(images())  # so that all widths have seen the flags
    if not training:
        net.eval()
    batches = [images() for _ in range(12)]

    def run(bits: int, results: dict[int, list[Tensor]]) -> None:
        results[bits] = []
        for x in batches:
            x = x.clone().requires_grad_()
            output = net.at(bits, joint=training)(x)
            (gradient,) = torch.autograd.grad(output.square().sum(), x)
            results[bits] += [output.detach(), gradient]

    alone: dict[int, list[Tensor]] = {}
    together: dict[int, list[Tensor]] = {}
    for bits in (2, 4):
        run(bits, alone)
    threads = [threading.Thread(target=run, args=(bits, together)) for bits in (2, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together.keys() == alone.keys()
    for bits, results in alone.items():
        assert len(together[bits]) == len(results)
        assert all(map(torch.equal, results, together[bits]))


def test_a_joint_pass_puts_nothing_into_modules_that_threads_share() -> None:
    """Two threads in joint passes would put back each other's stand-ins for the parameters, for good."""
    net = small_net(ends="own")
    inside = []

    def look(*_: object) -> None:
        inside.append([type(p) for m in net.model.modules() for p in m._parameters.values() if p is not None])

    for module in (net.at(2, joint=True).norm1.copies["2"], net.at(4, joint=True).head.copies["4"]):
        module.register_forward_pre_hook(look)
    net(images())
    assert len(inside) == 2
    assert {kind for kinds in inside for kind in kinds} == {nn.Parameter}


class Checkpointed(SmallNet):
    """Keeps nothing of the block between forward and backward pass, but runs it again."""

    use_reentrant = False
    enabled = True

    def forward(self, x: Tensor) -> Tensor:
        out = self.stem(x)
        if not self.enabled:
            return self.head(self.block(out).mean((2, 3)))
        return self.head(checkpoint(self.block, out, use_reentrant=self.use_reentrant).mean((2, 3)))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing_gives_the_same_gradients(
    use_reentrant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Checkpointed, "use_reentrant", use_reentrant)
    net = bs.stratify(Checkpointed())
    x, y = images(), torch.randint(0, 5, (4,))
    net(x)
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    # The recalculation of one width comes when another was called last.
    passes: dict[str, Callable[[], Tensor]] = {
        "joint": lambda: bs.JointLoss(distill="cosine")(net(x), y),
        "two, then four": lambda: net.at(2)(x).square().sum() + net.at(4)(x).sum(),
        **{str(bits): partial(lambda b: functional.cross_entropy(net.at(b)(x), y), bits) for bits in net.widths},
    }
    hooks = [net.at(bits, joint=joint).conv1.register_forward_hook(count) for bits in (2, 3, 4) for joint in (0, 1)]
    for name, run in passes.items():
        results = {}
        for enabled in (False, True):
            monkeypatch.setattr(Checkpointed, "enabled", enabled)
            net.zero_grad()
            calls = 0
            run().backward()
            results[enabled] = (gradients_of(net), calls)
        assert_close_gradients(results[False][0], results[True][0], tolerance=1e-6)
        assert results[True][1] == 2 * results[False][1], name
    for hook in hooks:
        hook.remove()


# torch.compile


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    with warnings.catch_warnings():
        # torch warns about its own internals here and there; what is compared below are the results.
        warnings.simplefilter("ignore")
        yield
    torch.compiler.reset()


def net_to_compile(**options: Any) -> bs.StratifiedNet:
    """As little as shows everything: compiling takes a second or so for each layer and width."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Conv2d(4, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5)
    )
    return bs.stratify(model, (2, 4), **options).calibrate([images(8)])


def compare_compiled(net: bs.StratifiedNet, compiled: Callable[[Tensor], Any], plain: Callable[[Tensor], Any]) -> None:
    """Values and gradients in training, values in evaluation; 1e-4 is room for another order of sums."""

    def loss_of(outputs: Any) -> Tensor:
        if isinstance(outputs, dict):
            assert list(outputs) == [*reversed(net.widths)]
            return sum((out.square().mean() for out in outputs.values()), torch.zeros(()))
        return outputs.square().mean()

    x = images()
    net.train()
    results = []
    for function in (plain, compiled):
        net.zero_grad()
        outputs = function(x)
        loss_of(outputs).backward()
        results.append((outputs, gradients_of(net)))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-4, atol=1e-4)
    assert_close_gradients(results[0][1], results[1][1], tolerance=1e-4)
    net.eval()
    with torch.no_grad():
        for batch in (x, images()):
            torch.testing.assert_close(compiled(batch), plain(batch), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_width_computes_the_same() -> None:
    net = net_to_compile()
    compare_compiled(net, torch.compile(net.at(2), backend="aot_eager"), net.at(2))


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_network_computes_the_same() -> None:
    net = net_to_compile()
    compare_compiled(net, torch.compile(net, backend="aot_eager"), net)


@pytest.mark.long
@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_network_needs_no_calibration_beforehand() -> None:
    net = bs.stratify(SmallNet())
    twin = copy.deepcopy(net)
    x = images()
    outputs = torch.compile(net, backend="aot_eager")(x)
    torch.testing.assert_close(outputs, twin(x), rtol=1e-4, atol=1e-4)
    assert net.is_calibrated


@pytest.mark.long
@pytest.mark.usefixtures("fresh_compiler")
def test_one_compiled_network_serves_every_width() -> None:
    net = small_net().eval()
    compiled = torch.compile(net, backend="aot_eager")
    x = images()
    with torch.no_grad():
        for bits in (2, 4, 2):
            torch.testing.assert_close(compiled(x, bits=bits), net(x, bits=bits), rtol=1e-4, atol=1e-4)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="the inductor needs a C++ compiler")
def test_the_inductor_computes_the_same() -> None:
    net = net_to_compile(per_channel=True)
    compare_compiled(net, torch.compile(net.at(2)), net.at(2))
    compare_compiled(net, torch.compile(net), net)


# Autocast


def test_autocast_leaves_steps_and_rounding_in_float32() -> None:
    net = small_net()
    x, y = images(), torch.randint(0, 5, (4,))
    seen: list[torch.dtype] = []

    def look(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        (values,) = inputs
        step, zero_point = module.step_4.detach(), int(module.zero_point_4)
        codes = torch.clamp(torch.round(values.float() * step.reciprocal()), -zero_point, 15 - zero_point)
        assert torch.equal(output, (codes * step).to(values.dtype))
        seen.append(values.dtype)

    hook = net.at(4, joint=True).conv2.input_quantiser.register_forward_hook(look)
    weights: list[Tensor] = []
    other = net.at(4, joint=True).conv2.weight_quantiser.register_forward_hook(lambda m, i, out: weights.append(out))
    with torch.autocast("cpu", torch.bfloat16):
        outputs = net(x)
        loss = bs.JointLoss(distill="cosine")(outputs, y)
    loss.backward()
    hook.remove()
    other.remove()
    assert seen == [torch.bfloat16]
    assert weights[0].dtype == torch.float32
    assert torch.equal(weights[0], net.at(4).conv2.weight_quantiser(net.model.conv2.weight))
    for name, parameter in net.named_parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32
        assert torch.isfinite(parameter.grad).all()
    exact = net(x)
    for bits in net.widths:
        torch.testing.assert_close(outputs[bits].float(), exact[bits], rtol=0.2, atol=0.2)


def test_quantised_layers_are_exact_in_evaluation_under_autocast() -> None:
    net = small_net().eval()
    layer = net.at(2).conv1
    x = torch.randn(4, 6, 6, 6)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        inside = layer(x)
    with torch.no_grad():
        outside = layer(x)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, outside)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert all(torch.isfinite(output).all() for output in net(images()).values())


def test_the_first_batch_may_come_under_autocast() -> None:
    net = bs.stratify(nets.resnet8())
    with torch.autocast("cpu", torch.bfloat16):
        outputs = net(torch.randn(4, 3, 8, 8))
    assert net.is_calibrated
    assert all(torch.isfinite(output).all() for output in outputs.values())
    assert all(layer.input_quantiser.step_2.dtype == torch.float32 for _, layer in net.stratified_layers())


# Gradient accumulation


@pytest.mark.parametrize("distill", [None, "cosine", "kl"])
def test_accumulated_gradients_equal_those_of_one_big_batch(distill: Any) -> None:
    """With frozen norms: batch statistics are the one thing that a part of a batch cannot know."""
    net = small_net()
    norms_frozen(net)
    loss = bs.JointLoss(distill=distill)
    x, y = images(12), torch.randint(0, 5, (12,))
    loss(net(x), y).backward()
    whole = gradients_of(net)
    net.zero_grad()
    for part in range(3):
        rows = slice(4 * part, 4 * part + 4)
        (loss(net(x[rows]), y[rows]) / 3).backward()
    assert_close_gradients(gradients_of(net), whole, tolerance=1e-6)


def test_accumulated_minimum_norm_gradients_add() -> None:
    net = small_net()
    norms_frozen(net)
    x, y = images(8), torch.randint(0, 5, (8,))
    parts = []
    combiner = bs.MinimumNorm(net)
    for rows in (slice(0, 4), slice(4, 8)):
        net.zero_grad()
        combiner.backward(bs.JointLoss().per_width(net(x[rows]), y[rows]))
        parts.append(gradients_of(net))
    net.zero_grad()
    for rows in (slice(0, 4), slice(4, 8)):
        combiner.backward(bs.JointLoss().per_width(net(x[rows]), y[rows]))
    assert_close_gradients(gradients_of(net), {name: parts[0][name] + parts[1][name] for name in parts[0]})


@pytest.mark.parametrize("training", [True, False])
def test_the_model_may_work_in_place_on_what_a_layer_returns(training: bool) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 3), nn.Flatten()
    )
    net = bs.stratify(model, (2, 4))
    x = torch.randn(2, 3, 9, 9)
    net(x)
    net.train(training)
    loss = sum(output.square().mean() for output in net(x).values())
    assert isinstance(loss, Tensor)
    loss.backward()
    assert all(layer.weight.grad is not None for _, layer in net.stratified_layers())
