"""The initial weight step: the paper's form, the same base step for every source, and least error where asked for."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bitstrata import codes
from bitstrata.training.stratify import stratify
from bitstrata.training.weight_steps import WeightInit, initial_step


def summed_error(weight: Tensor, step: float, widths: tuple[int, ...], compensated: bool = True) -> float:
    """The squared error of the de-quantised weights, from `codes` alone."""
    values = weight.double().numpy()
    source_codes = codes.quantise(values, step, widths[-1])
    total = 0.0
    for bits in widths:
        shifted = codes.shift_down(source_codes, widths[-1], bits)
        offset = codes.compensation(widths[-1], bits) if compensated else 0.0
        total += float(np.square((shifted + offset) * step * codes.step_factor(widths[-1], bits) - values).sum())
    return total


def test_the_papers_form_at_four_bits() -> None:
    weight = torch.randn(8, 4, 3, 3)
    step = initial_step(weight, (2, 3, 4), "mean", per_channel=False)
    assert step.shape == ()
    assert step.item() == pytest.approx(2 * weight.abs().mean().item() / math.sqrt(2**4 - 1), rel=1e-6)


@pytest.mark.parametrize("source", range(2, 9))
def test_the_base_step_is_the_same_for_every_source(source: int) -> None:
    weight = torch.randn(50, 20)
    at_four = initial_step(weight, (4,), "mean", per_channel=False)
    step = initial_step(weight, (source,), "mean", per_channel=False)
    # s_2 = 2^(K-2) s: what the two-bit network computes with.
    assert step.item() * 2 ** (source - 2) == pytest.approx(at_four.item() * 4, rel=1e-6)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_lsq(bits: int) -> None:
    weight = torch.randn(50, 20)
    step = initial_step(weight, (bits,), "lsq", per_channel=False)
    assert step.item() == pytest.approx(2 * weight.abs().mean().item() / math.sqrt(2 ** (bits - 1) - 1), rel=1e-6)


@pytest.mark.parametrize("init", ["mean", "mse", "lsq"])
def test_a_step_for_each_channel_is_that_of_the_channel_alone(init: WeightInit) -> None:
    weight = torch.randn(5, 4, 3, 3) * torch.tensor([0.01, 0.1, 1.0, 10.0, 100.0]).reshape(-1, 1, 1, 1)
    steps = initial_step(weight, (2, 3, 4), init, per_channel=True)
    assert steps.shape == (5,)
    for channel, step in zip(weight, steps, strict=True):
        alone = initial_step(channel[None], (2, 3, 4), init, per_channel=False)
        assert step.item() == pytest.approx(alone.item(), rel=1e-6)


@pytest.mark.parametrize("compensated", [True, False])
@pytest.mark.parametrize("widths", [(2, 3, 4), (2,), (4,), (2, 8), (2, 4, 6)])
def test_least_error_is_close_to_the_best_of_a_fine_search(widths: tuple[int, ...], compensated: bool) -> None:
    normal = torch.randn(30, 20)
    for weight in (normal, torch.rand(30, 20) - 0.5, normal * normal.abs()):
        step = initial_step(weight, widths, "mse", per_channel=False, compensated=compensated).item()
        largest = weight.abs().max().item()
        candidates = np.geomspace(largest / 2 ** (widths[-1] - 1) / 20, largest * 2, 400)
        best = min(summed_error(weight, candidate, widths, compensated) for candidate in candidates)
        assert summed_error(weight, step, widths, compensated) <= best * 1.05


def test_compensation_changes_the_best_step() -> None:
    weight = torch.randn(30, 20)
    with_it = initial_step(weight, (2, 3, 4), "mse", per_channel=False, compensated=True)
    without = initial_step(weight, (2, 3, 4), "mse", per_channel=False, compensated=False)
    assert with_it.item() != without.item()


@pytest.mark.parametrize("init", ["mean", "mse", "lsq"])
def test_zeros_have_a_positive_step(init: WeightInit) -> None:
    assert initial_step(torch.zeros(4, 3), (2, 4), init, per_channel=False).item() > 0
    assert bool((initial_step(torch.zeros(4, 3), (2, 4), init, per_channel=True) > 0).all())


def test_a_channel_of_zeros_takes_the_scale_of_its_layer() -> None:
    weight = torch.randn(4, 30)
    weight[2] = 0.0
    steps = initial_step(weight, (2, 4), "mean", per_channel=True)
    assert steps[2].item() == pytest.approx(steps[[0, 1, 3]].sum().item() / 4, rel=1e-5)
    assert steps[0].item() == pytest.approx(2 * weight[0].abs().mean().item() / math.sqrt(15), rel=1e-6)


def test_steps_of_narrow_weights_are_computed_in_float32() -> None:
    weight = torch.randn(30, 20).bfloat16()
    step = initial_step(weight, (2, 4), "mean", per_channel=False)
    assert step.dtype == torch.float32
    assert torch.equal(step, initial_step(weight.float(), (2, 4), "mean", per_channel=False))


def test_a_layer_starts_with_this_step_and_its_floor() -> None:
    weight = torch.randn(6, 5)
    for per_channel in (False, True):
        for init in ("mean", "mse", "lsq"):
            layer = nn.Linear(5, 6)
            layer.weight.data.copy_(weight)
            net = stratify(layer, (2, 4), ends="quantised", per_channel=per_channel, weight_init=init)
            expected = initial_step(weight, (2, 4), init, per_channel)
            assert torch.equal(net.model.weight_quantiser.step.detach(), expected)
            assert torch.equal(net.model.weight_quantiser.floor, expected / 256)
