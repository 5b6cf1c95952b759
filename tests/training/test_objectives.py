"""One update from several widths: whose loss reaches which parameter, and with what weight."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from bitstrata.errors import NotFinite, UnknownWidth
from bitstrata.training.distillation import cosine_distance, distance, kl_divergence
from bitstrata.training.finite import check_gradients
from bitstrata.training.net import StratifiedNet
from bitstrata.training.objectives import JointLoss, MinimumNorm, minimum_norm_weights
from bitstrata.training.stratify import stratify

WIDTHS = (2, 3, 4)
Gradients = dict[str, Tensor]


def small_net(widths: tuple[int, ...] = WIDTHS, **options: Any) -> StratifiedNet:
    """Calibrated, in training mode, with norms that are not all alike."""
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(16, 6),
        nn.Linear(6, 3),
    )
    net = stratify(model, widths, **options)
    net.calibrate([torch.randn(8, 2, 6, 6)])
    return net.train()


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(5, 2, 6, 6), torch.randint(0, 3, (5,))


def gradients_of(net: StratifiedNet, loss: Tensor) -> Gradients:
    net.zero_grad()
    loss.backward()
    return taken(net)


def taken(net: StratifiedNet) -> Gradients:
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in net.named_parameters()
    }


def separate_gradients(net: StratifiedNet, loss: JointLoss, x: Tensor, y: Tensor) -> dict[int, Gradients]:
    """The gradients of each width's own loss, from passes of one width at a time."""
    found: dict[int, Gradients] = {}
    teacher = None
    for bits in reversed(net.widths):
        output = net.at(bits)(x)
        found[bits] = gradients_of(net, loss.of_width(output, y, teacher))
        teacher = output.detach()
    return found


def names_of(net: StratifiedNet, parameters: list[nn.Parameter]) -> set[str]:
    by_parameter = {parameter: name for name, parameter in net.named_parameters()}
    return {by_parameter[parameter] for parameter in parameters}


# The joint loss


def test_its_value_is_the_mean_over_widths() -> None:
    net, (x, y) = small_net(), batch()
    outputs = net(x)
    expected = sum(functional.cross_entropy(outputs[bits], y) for bits in WIDTHS) / 3
    torch.testing.assert_close(JointLoss()(outputs, y), expected)
    per_width = JointLoss().per_width(outputs, y)
    assert list(per_width) == [4, 3, 2]
    for bits in WIDTHS:
        assert torch.equal(per_width[bits], functional.cross_entropy(outputs[bits], y))


@pytest.mark.parametrize("weight", [1.0, 0.25])
@pytest.mark.parametrize(("name", "function"), [("cosine", cosine_distance), ("kl", kl_divergence)])
def test_each_width_is_distilled_from_the_next_higher(
    name: Any, function: Callable[[Tensor, Tensor], Tensor], weight: float
) -> None:
    outputs = {bits: torch.randn(5, 3) for bits in (2, 4, 8)}
    y = torch.randint(0, 3, (5,))
    losses = JointLoss(distill=name, weight=weight).per_width(outputs, y)
    plain = JointLoss().per_width(outputs, y)
    assert torch.equal(losses[8], plain[8])
    for teacher, student in ((8, 4), (4, 2)):
        expected = plain[student] + weight * function(outputs[teacher], outputs[student])
        torch.testing.assert_close(losses[student], expected)


@pytest.mark.parametrize(
    "options",
    [{}, {"norms": "shared"}, {"norms": "statistics"}, {"ends": "own"}, {"ends": "quantised", "per_channel": True}],
    ids=str,
)
@pytest.mark.parametrize("distill", [None, "cosine", "kl"])
def test_shared_parameters_get_the_mean_and_own_ones_the_full_gradient(distill: Any, options: dict[str, Any]) -> None:
    net, (x, y), loss = small_net(**options), batch(), JointLoss(distill=distill)
    joint = gradients_of(net, loss(net(x), y))
    separate = separate_gradients(net, loss, x, y)
    owner = {name: bits for bits in WIDTHS for name in names_of(net, net.own_parameters(bits))}
    shared = names_of(net, net.shared_parameters())
    assert shared | set(owner) == set(joint)
    assert not shared & set(owner)
    for name, found in joint.items():
        if name in owner:
            expected = separate[owner[name]][name]
            others = [separate[bits][name] for bits in WIDTHS if bits != owner[name]]
            assert all(not other.any() for other in others), f"{name} belongs to one width"
        else:
            expected = torch.stack([separate[bits][name] for bits in WIDTHS]).mean(0)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
        assert bool(found.any()), f"{name} learns nothing"


def test_which_parameters_are_own() -> None:
    net = small_net()
    assert names_of(net, net.own_parameters(2)) == {
        "model.1.copies.2.weight",
        "model.1.copies.2.bias",
        "model.3.input_quantiser.step_2",
        "model.4.copies.2.weight",
        "model.4.copies.2.bias",
        "model.7.input_quantiser.step_2",
    }
    assert names_of(net, net.shared_parameters()) == {
        "model.0.weight",
        "model.0.bias",
        "model.3.weight",
        "model.3.weight_quantiser.step",
        "model.7.weight",
        "model.7.bias",
        "model.7.weight_quantiser.step",
        "model.8.weight",
        "model.8.bias",
    }


def test_a_joint_pass_gives_the_outputs_and_statistics_of_single_ones() -> None:
    """The gain on gradients changes no value."""
    net, (x, _) = small_net(), batch()
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    joint = net(x)
    after_joint = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    net.load_state_dict(state)
    for bits in WIDTHS:
        assert torch.equal(net(x, bits=bits), joint[bits])
    changed = [name for name, tensor in net.state_dict().items() if not torch.equal(tensor, state[name])]
    assert len(changed) == 3 * 2 * len(WIDTHS), "mean, variance and count of two norms"
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, after_joint[name])


def test_a_criterion_of_ones_own() -> None:
    outputs = {2: torch.tensor([1.0]), 4: torch.tensor([3.0])}
    loss = JointLoss(lambda output, target: (output - target).square().sum())(outputs, torch.tensor([2.0]))
    assert loss.item() == 1.0
    halved = JointLoss(lambda output, target: output.sum(), distill=lambda teacher, student: (teacher * student).sum())
    assert halved(outputs, None).item() == (3.0 + 1.0 + 3.0) / 2


def test_no_outputs_are_an_error_that_says_what_to_do() -> None:
    with pytest.raises(UnknownWidth, match="without bits="):
        JointLoss()({}, torch.zeros(3))


# Distillation


@pytest.mark.parametrize("distill", ["cosine", "kl", lambda teacher, student: (teacher * student).sum()])
def test_no_gradient_reaches_the_teacher(distill: Any) -> None:
    outputs = {bits: torch.randn(5, 3, requires_grad=True) for bits in WIDTHS}
    losses = JointLoss(lambda output, _: output.sum() * 0.0, distill=distill).per_width(outputs, None)
    for student, teacher in ((2, 3), (3, 4)):
        found = torch.autograd.grad(
            losses[student], [outputs[student], outputs[teacher]], allow_unused=True, retain_graph=True
        )
        assert bool(found[0].any())
        assert found[1] is None
    (of_source,) = torch.autograd.grad(losses[4], outputs[4])
    assert not of_source.any()


def softmax(logits: Tensor) -> NDArray[np.float64]:
    powers = np.exp(logits.double().numpy())
    return powers / powers.sum(-1, keepdims=True)


def test_cosine_distance_is_its_formula() -> None:
    teacher, student = torch.randn(7, 5), torch.randn(7, 5)
    p, q = softmax(teacher), softmax(student)
    cosines = (p * q).sum(-1) / np.sqrt((p * p).sum(-1) * (q * q).sum(-1))
    assert cosine_distance(teacher, student).item() == pytest.approx(1.0 - cosines.mean(), rel=1e-5)
    assert cosine_distance(teacher, teacher).item() == pytest.approx(0.0, abs=1e-6)
    one_hot = torch.eye(3) * 100
    assert cosine_distance(one_hot, one_hot.roll(1, 0)).item() == pytest.approx(1.0, abs=1e-6)


def test_kl_divergence_is_its_formula() -> None:
    teacher, student = torch.randn(7, 5), torch.randn(7, 5)
    p, q = softmax(teacher), softmax(student)
    expected = (p * np.log(p / q)).sum(-1).mean()
    assert kl_divergence(teacher, student).item() == pytest.approx(expected, rel=1e-5)
    assert kl_divergence(teacher, teacher).item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("function", [cosine_distance, kl_divergence])
def test_distances_average_over_every_position(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Outputs of shape (batch, position, class), as of a segmentation or a language model."""
    teacher, student = torch.randn(4, 6, 5), torch.randn(4, 6, 5)
    flat = function(teacher.reshape(24, 5), student.reshape(24, 5))
    torch.testing.assert_close(function(teacher, student), flat)


@pytest.mark.parametrize("function", [cosine_distance, kl_divergence])
def test_distances_of_narrow_outputs_are_taken_in_float32(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    teacher, student = torch.randn(7, 5).bfloat16(), torch.randn(7, 5).bfloat16()
    assert torch.equal(function(teacher, student), function(teacher.float(), student.float()))


def test_an_unknown_distance_is_named() -> None:
    with pytest.raises(ValueError, match="distill='euclid' is not known; use 'cosine', 'kl'"):
        JointLoss(distill="euclid")  # type: ignore[arg-type]
    assert distance(None) is None
    assert distance(cosine_distance) is cosine_distance


# The weights of the minimum norm

unhurried = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


#: A grid over all weights of three widths.
SIMPLEX = np.array([(a, b, 40 - a - b) for a in range(41) for b in range(41 - a)]) / 40.0


def gram_of(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    return vectors @ vectors.T


@unhurried
@given(seed=st.integers(0, 2**32 - 1), dimensions=st.integers(1, 20), ratio=st.floats(0.01, 100.0))
def test_two_widths_have_a_closed_form(seed: int, dimensions: int, ratio: float) -> None:
    vectors = np.random.default_rng(seed).normal(size=(2, dimensions)) * [[1.0], [ratio]]
    first, second = vectors
    difference = first - second
    weight = float(np.clip(-(difference @ second) / (difference @ difference), 0.0, 1.0))
    found = minimum_norm_weights(gram_of(vectors))
    least = np.square(weight * first + (1 - weight) * second).sum()
    assert np.square(found @ vectors).sum() <= least + 1e-8 * np.square(vectors).sum()
    np.testing.assert_allclose(found, [weight, 1 - weight], atol=1e-4)


@unhurried
@given(seed=st.integers(0, 2**32 - 1), dimensions=st.sampled_from([1, 2, 3, 10]), spread=st.floats(0.0, 3.0))
def test_three_widths_are_as_good_as_the_best_of_a_grid(seed: int, dimensions: int, spread: float) -> None:
    generator = np.random.default_rng(seed)
    vectors = generator.normal(size=(3, dimensions)) * np.exp(generator.normal(size=(3, 1)) * spread)
    gram = gram_of(vectors)
    found = minimum_norm_weights(gram)
    best = np.einsum("ni,ij,nj->n", SIMPLEX, gram, SIMPLEX, optimize=True).min()
    assert found @ gram @ found <= best * (1 + 1e-9) + 1e-12 * gram.max()


@unhurried
@given(
    seed=st.integers(0, 2**32 - 1), count=st.integers(1, 7), dimensions=st.integers(1, 30), spread=st.floats(0.0, 8.0)
)
def test_weights_are_on_the_simplex_and_no_width_is_made_worse(
    seed: int, count: int, dimensions: int, spread: float
) -> None:
    generator = np.random.default_rng(seed)
    vectors = generator.normal(size=(count, dimensions)) * np.exp(generator.normal(size=(count, 1)) * spread)
    found = minimum_norm_weights(gram_of(vectors))
    assert bool((found >= 0).all())
    assert found.sum() == pytest.approx(1.0, abs=1e-9)
    combined = found @ vectors
    norm = np.square(combined).sum()
    # The condition for a minimum: every width's gradient has at least this much in common with the combination.
    scale = np.square(vectors).sum(1).max()
    assert bool((vectors @ combined >= norm - 1e-6 * scale).all())


@pytest.mark.parametrize(
    ("vectors", "expected"),
    [
        ([[1.0, 0.0]], [1.0]),
        ([[1.0, 0.0], [0.0, 1.0]], [0.5, 0.5]),
        ([[1.0, 0.0], [-1.0, 0.0]], [0.5, 0.5]),
        ([[1.0, 0.0], [3.0, 0.0]], [1.0, 0.0]),
        ([[4.0, 0.0], [0.0, 2.0]], [0.2, 0.8]),
        ([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], [1 / 3, 1 / 3, 1 / 3]),
        ([[1.0, 1.0], [1.0, -1.0], [5.0, 0.0]], [0.5, 0.5, 0.0]),
        ([[1e-9, 0.0], [0.0, 1e-9]], [0.5, 0.5]),
        ([[1e9, 0.0], [0.0, 1e9]], [0.5, 0.5]),
    ],
)
def test_known_weights(vectors: list[list[float]], expected: list[float]) -> None:
    np.testing.assert_allclose(minimum_norm_weights(gram_of(np.array(vectors))), expected, atol=1e-6)


def test_degenerate_gradients_still_give_weights() -> None:
    for gram in (np.zeros((3, 3)), np.ones((3, 3)), gram_of(np.array([[0.0, 0.0], [1.0, 1.0]]))):
        found = minimum_norm_weights(gram)
        assert bool((found >= 0).all())
        assert found.sum() == pytest.approx(1.0)
        assert found @ gram @ found == pytest.approx(np.diag(gram).min())


# The minimum norm on a network


@pytest.mark.parametrize("distill", [None, "cosine"])
def test_the_combination_is_that_of_the_widths_gradients(distill: Any) -> None:
    net, (x, y), loss = small_net(), batch(), JointLoss(distill=distill)
    separate = separate_gradients(net, loss, x, y)
    net.zero_grad()
    minimum_norm = MinimumNorm(net)
    weights = minimum_norm.backward(loss.per_width(net(x), y))
    found = taken(net)
    assert list(weights) == [4, 3, 2]
    assert min(weights.values()) >= 0
    assert sum(weights.values()) == pytest.approx(1.0)
    shared = sorted(names_of(net, net.shared_parameters()))
    vectors = {bits: torch.cat([separate[bits][name].reshape(-1) for name in shared]).double() for bits in WIDTHS}
    combined = torch.cat([found[name].reshape(-1) for name in shared]).double()
    expected = sum(weights[bits] * vectors[bits] for bits in WIDTHS)
    torch.testing.assert_close(combined, expected, rtol=1e-3, atol=1e-6)
    # No convex combination on a grid is shorter, and a small step along it improves every width.
    shortest = float(combined.norm())
    for first in np.linspace(0, 1, 21):
        for second in np.linspace(0, 1 - first, 21):
            other = first * vectors[2] + second * vectors[3] + (1 - first - second) * vectors[4]
            assert shortest <= float(other.norm()) * (1 + 1e-4)
    for bits in WIDTHS:
        assert float(vectors[bits] @ combined) >= shortest**2 * (1 - 1e-3) > 0
        assert minimum_norm.norms[bits] == pytest.approx(float(vectors[bits].norm()), rel=1e-4)
        for name in names_of(net, net.own_parameters(bits)):
            torch.testing.assert_close(found[name], separate[bits][name], rtol=1e-4, atol=1e-6)


def test_collecting_one_width_after_the_other_is_the_same() -> None:
    net, (x, y), loss = small_net(), batch(), JointLoss(distill="cosine")
    minimum_norm = MinimumNorm(net)
    at_once = minimum_norm.backward(loss.per_width(net(x), y))
    expected = taken(net)
    net.zero_grad()
    teacher = None
    for bits in reversed(net.widths):
        output = net.at(bits, joint=True)(x)
        minimum_norm.collect(bits, loss.of_width(output, y, teacher))
        teacher = output.detach()
    assert minimum_norm.combine() == at_once == minimum_norm.weights
    for name, found in taken(net).items():
        assert torch.equal(found, expected[name]), name


def test_gradients_add_up_and_nothing_is_kept_between_steps() -> None:
    net, (x, y), loss = small_net(), batch(), JointLoss()
    minimum_norm = MinimumNorm(net)
    minimum_norm.backward(loss.per_width(net(x), y))
    once = taken(net)
    minimum_norm.backward(loss.per_width(net(x), y))
    for name, twice in taken(net).items():
        torch.testing.assert_close(twice, 2 * once[name])
    outputs = net(x)
    assert list(minimum_norm.backward(loss.per_width({bits: outputs[bits] for bits in (2, 4)}, y))) == [4, 2]


def test_frozen_and_unused_parameters_are_left_alone() -> None:
    net, (x, y) = small_net(), batch()
    frozen = [net.model[0].weight, net.model[1].copies["2"].weight]
    for parameter in frozen:
        parameter.requires_grad_(False)
    net.model.register_parameter("unused", nn.Parameter(torch.ones(2)))
    minimum_norm = MinimumNorm(net)
    minimum_norm.backward(JointLoss().per_width(net(x), y))
    assert all(parameter.grad is None for parameter in frozen)
    assert bool(net.model[3].weight.grad.any())
    assert not net.model.unused.grad.any()


def test_a_step_along_the_combination_lowers_every_loss() -> None:
    """On smooth losses, where a gradient is a gradient: two widths' worth of parabolas on one shared vector."""
    centres = np.random.default_rng(0).normal(size=(3, 6))
    place = np.full(6, 2.0)
    gradients = place - centres
    direction = minimum_norm_weights(gram_of(gradients)) @ gradients
    after = place - 0.05 * direction
    assert bool((np.square(after - centres).sum(1) < np.square(place - centres).sum(1)).all())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_gradients_that_are_not_finite_stay_visible(bad: float) -> None:
    """As after an ordinary backward pass; `check_gradients` then names where."""
    net, (x, y) = small_net(), batch()
    losses = JointLoss().per_width(net(x), y)
    losses[3] = losses[3] * bad
    weights = MinimumNorm(net).backward(losses)
    assert sum(weights.values()) == pytest.approx(1.0)
    with pytest.raises(NotFinite, match=r"step 1: the gradient of 'model\.0\.weight' is not finite"):
        check_gradients(net, "step 1")
