"""Steps and zero points from data: near the best there is, and sane for data that are odd."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from bitstrata import codes
from bitstrata.errors import NotCalibrated, NotFinite
from bitstrata.training.calibration import BINS, ActivationInit, Histogram, choose_step
from bitstrata.training.layers import StratifiedLayer
from bitstrata.training.net import StratifiedNet
from bitstrata.training.steps import ActivationQuantiser
from bitstrata.training.stratify import stratify

KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "silu": functional.silu,
    "hardswish": functional.hardswish,
    "symmetric": lambda x: x,
    "sigmoid": torch.sigmoid,
    "negative": lambda x: -functional.softplus(x),
    "heavy tails": lambda x: x * x.abs(),
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def samples(kind: Callable[[Tensor], Tensor], count: int = 20_000) -> Tensor:
    return kind(torch.randn(count) * 1.5)


def chosen(values: Tensor, bits: int, init: ActivationInit = "mse", width_index: int = 0) -> tuple[float, int]:
    return choose_step(Histogram.of(values, "layer"), bits, init, width_index)


def quantised(values: Tensor, step: float, zero_point: int, bits: int) -> NDArray[np.float32]:
    return codes.dequantise_activations(
        codes.quantise_activations(values.numpy(), step, zero_point, bits), step, zero_point
    )


def error(values: Tensor, step: float, zero_point: int, bits: int) -> float:
    return float(np.square(quantised(values, step, zero_point, bits) - values.numpy()).mean())


# The default: least squared error


@every_kind
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_the_chosen_step_is_close_to_the_best_of_all(kind: Callable[[Tensor], Tensor], bits: int) -> None:
    """Against a fine search over the values themselves, over every zero point up to the middle."""
    values = samples(kind, 4000)
    step, zero_point = chosen(values, bits)
    largest = float(values.abs().max())
    candidates = [
        (s, o) for o in range(2 ** (bits - 1) + 1) for s in np.geomspace(largest / 2**bits / 4, largest * 2, 200)
    ]
    best = min(error(values, s, o, bits) for s, o in candidates)
    assert error(values, step, zero_point, bits) <= best * 1.02


@pytest.mark.parametrize("bits", [5, 8])
@every_kind
def test_wider_codes_are_close_to_the_best_as_well(kind: Callable[[Tensor], Tensor], bits: int) -> None:
    """Of many zero points only some are tried, so the bound is wider."""
    values = samples(kind, 2000)
    step, zero_point = chosen(values, bits)
    largest = float(values.abs().max())
    offsets = sorted({*np.linspace(0, 2 ** (bits - 1), 17).astype(int).tolist(), zero_point})
    candidates = [
        (s, o) for o in offsets for s in np.geomspace(largest / 2**bits / 2, largest * 2.1 / 2 ** (bits - 1), 80)
    ]
    best = min(error(values, s, o, bits) for s, o in candidates)
    assert error(values, step, zero_point, bits) <= best * 1.25


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_every_width_uses_its_codes_after_a_relu(bits: int) -> None:
    values = samples(functional.relu)
    step, zero_point = chosen(values, bits)
    counts = np.bincount(codes.quantise_activations(values.numpy(), step, zero_point, bits), minlength=2**bits)
    assert zero_point == 0
    populated = int((counts > len(values) * 0.001).sum())
    assert populated >= (3 if bits == 2 else 2**bits - 2)


def test_more_bits_have_less_error() -> None:
    for kind in ("relu", "silu", "symmetric"):
        values = samples(KINDS[kind])
        errors = [error(values, *chosen(values, bits), bits) for bits in range(2, 9)]
        assert errors == sorted(errors, reverse=True)


# The other choices


def test_the_papers_printed_form_leaves_the_base_width_codes_0_and_1() -> None:
    values = samples(functional.relu)
    for width_index, bits in enumerate((2, 3, 4)):
        step, zero_point = chosen(values, bits, "paper", width_index)
        assert step == pytest.approx(float(values.max()) / (2 ** (width_index + 1) - 1), rel=1e-6)
        used = set(codes.quantise_activations(values.numpy(), step, zero_point, bits).tolist())
        assert used == set(range(2 ** (width_index + 1))), "never more than half of the codes"


@every_kind
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_max_clips_nothing_and_wastes_no_code(kind: Callable[[Tensor], Tensor], bits: int) -> None:
    values = samples(kind)
    step, zero_point = chosen(values, bits, "max")
    scaled = values.double() / step
    low, high = -zero_point, 2**bits - 1 - zero_point
    assert float(scaled.min()) >= low - 1e-6
    assert float(scaled.max()) <= high + 1e-6
    reaches = [float(scaled.max()) / high, float(scaled.min()) / low if low else 0.0]
    assert max(reaches) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("bits", [2, 4])
def test_lsq_is_twice_the_mean_over_the_root_of_the_highest_code(bits: int) -> None:
    after_relu, signed = samples(functional.relu), samples(lambda x: x)
    step, zero_point = chosen(after_relu, bits, "lsq")
    assert zero_point == 0
    assert step == pytest.approx(2 * float(after_relu.mean()) / math.sqrt(2**bits - 1), rel=1e-3)
    step, zero_point = chosen(signed, bits, "lsq")
    assert zero_point == 2 ** (bits - 1)
    assert step == pytest.approx(2 * float(signed.abs().mean()) / math.sqrt(2 ** (bits - 1) - 1), rel=1e-3)


# Zero points


@pytest.mark.parametrize("init", ["mse", "max", "lsq", "paper"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_the_zero_point_is_zero_where_nothing_is_negative(bits: int, init: ActivationInit) -> None:
    for values in (samples(functional.relu), samples(torch.sigmoid) + 3.0, torch.zeros(10), torch.full((5,), 2.5)):
        assert chosen(values, bits, init)[1] == 0


@pytest.mark.parametrize("kind", ["silu", "hardswish"])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_a_short_negative_tail_gets_a_smaller_zero_point(bits: int, kind: str) -> None:
    tail, symmetric = chosen(samples(KINDS[kind]), bits)[1], chosen(samples(KINDS["symmetric"]), bits)[1]
    assert tail < symmetric
    assert tail <= 2 ** (bits - 1) / 2
    assert symmetric >= 2 ** (bits - 1) * 0.75


@every_kind
@pytest.mark.parametrize("init", ["mse", "max", "lsq", "paper"])
@pytest.mark.parametrize("bits", [2, 3, 8])
def test_step_and_zero_point_are_always_usable(
    kind: Callable[[Tensor], Tensor], init: ActivationInit, bits: int
) -> None:
    step, zero_point = chosen(samples(kind, 500), bits, init)
    assert math.isfinite(step)
    assert step > 0
    assert isinstance(zero_point, int)
    assert 0 <= zero_point <= 2 ** (bits - 1)


# Odd inputs


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("constant", [2.5, 1e-6, 1e6, -3.0, -1e-6, -1e6])
def test_a_constant_comes_back_as_itself(constant: float, bits: int) -> None:
    values = torch.full((7, 3), constant)
    step, zero_point = chosen(values, bits)
    np.testing.assert_allclose(quantised(values, step, zero_point, bits), constant, rtol=0.05)


@pytest.mark.parametrize("init", ["mse", "max", "lsq", "paper"])
def test_all_zeros_give_a_usable_step(init: ActivationInit) -> None:
    for bits in (2, 8):
        step, zero_point = chosen(torch.zeros(3, 4), bits, init)
        assert math.isfinite(step)
        assert step > 0
        np.testing.assert_array_equal(quantised(torch.zeros(3, 4), step, zero_point, bits), 0.0)


@pytest.mark.parametrize("init", ["mse", "max", "lsq", "paper"])
@pytest.mark.parametrize("values", [[0.0, 1.0], [-1.0, 0.0], [-1.0, 1.0], [-1e-4, 1000.0], [-1000.0, 1e-4], [5.0, 6.0]])
def test_two_values_are_enough(values: list[float], init: ActivationInit) -> None:
    for bits in (2, 4):
        step, zero_point = chosen(torch.tensor(values), bits, init)
        assert math.isfinite(step)
        assert step > 0
        assert 0 <= zero_point <= 2 ** (bits - 1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_name_the_layer(bad: float) -> None:
    values = torch.randn(100)
    values[57] = bad
    with pytest.raises(NotFinite, match=r"input of layer 'features\.3' is not finite"):
        Histogram.of(values, "features.3")


def test_a_network_names_the_layer_that_saw_a_nan() -> None:
    net = stratify(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)), widths=(2, 4))
    with pytest.raises(NotFinite, match="layer '1'"):
        net(torch.full((3, 4), math.nan))
    with pytest.raises(NotFinite, match="layer '1'"):
        net.calibrate([torch.full((3, 4), math.inf)])
    net.eval()
    with pytest.raises(NotCalibrated, match="layer '1' has no activation step at 2 bits"):
        net(torch.zeros(3, 4), bits=2)


# Histograms


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_values_of_any_type_are_counted(kind: torch.dtype) -> None:
    values = torch.randn(5, 6, 7).to(kind)
    histogram = Histogram.of(values.requires_grad_(), "layer")
    values = values.detach()
    assert histogram.counts.sum() == 210
    assert (histogram.low, histogram.high) == pytest.approx((float(values.min()), float(values.max())))


def test_exact_zeros_after_a_relu_stay_zeros() -> None:
    histogram = Histogram.of(functional.relu(torch.randn(1000)), "layer")
    assert histogram.centres[0] == 0.0
    assert histogram.counts[0] >= 400
    assert len(histogram.centres) == len(histogram.counts) == BINS


@every_kind
def test_merged_histograms_stand_for_all_values(kind: Callable[[Tensor], Tensor]) -> None:
    first, second, third = samples(kind), samples(kind) * 3.0, samples(kind) * 0.2
    merged = Histogram.of(first, "a").merged(Histogram.of(second, "b")).merged(Histogram.of(third, "c"))
    values = torch.cat([first, second, third])
    together = Histogram.of(values, "layer")
    assert merged.counts.sum() == together.counts.sum() == len(values)
    assert (merged.low, merged.high) == (together.low, together.high)
    # A count may have moved by the width of one bin.
    difference = np.abs(np.cumsum(merged.counts) - np.cumsum(together.counts))
    assert bool((difference <= together.counts + np.roll(together.counts, -1) + 1).all())
    for bits in (2, 4):
        found, wanted = choose_step(merged, bits, "mse", 0), choose_step(together, bits, "mse", 0)
        assert error(values, *found, bits) == pytest.approx(error(values, *wanted, bits), rel=0.02)


def test_merging_with_the_same_range_adds_the_counts() -> None:
    values = torch.randn(1000)
    histogram = Histogram.of(values, "layer")
    doubled = histogram.merged(Histogram.of(values.flip(0), "layer"))
    np.testing.assert_array_equal(doubled.counts, 2 * histogram.counts)
    assert (doubled.low, doubled.high) == (histogram.low, histogram.high)


# In a network


def small_net(**options: object) -> StratifiedNet:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8), nn.Linear(8, 2))
    return stratify(model, widths=(2, 3, 4), **options)  # type: ignore[arg-type]


def quantiser_of(net: StratifiedNet, name: str) -> ActivationQuantiser:
    layer = dict(net.stratified_layers())[name]
    assert isinstance(layer, StratifiedLayer)
    return layer.input_quantiser


@torch.no_grad()
def test_calibration_over_batches_is_that_of_all_values_together() -> None:
    net, batches = small_net(), [torch.randn(50, 4) * scale for scale in (1.0, 3.0, 0.3)]
    assert not net.is_calibrated
    net.calibrate((x, "target") for x in batches)
    assert net.is_calibrated
    inputs = torch.cat([net.model[1](net.model[0](x)) for x in batches])
    quantiser = quantiser_of(net, "2")
    for bits in net.widths:
        step, zero_point = chosen(inputs, bits)
        assert int(getattr(quantiser, f"zero_point_{bits}")) == zero_point == 0
        found = float(getattr(quantiser, f"step_{bits}"))
        assert error(inputs, found, 0, bits) == pytest.approx(error(inputs, step, 0, bits), rel=0.02)
        assert float(getattr(quantiser, f"floor_{bits}")) == pytest.approx(found / 256)
        assert int(getattr(quantiser_of(net, "4"), f"zero_point_{bits}")) > 0


@torch.no_grad()
def test_the_first_training_batch_calibrates_and_later_ones_do_not() -> None:
    net = small_net()
    net(torch.randn(20, 4))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    net(torch.randn(20, 4) * 100)
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name])


@torch.no_grad()
def test_the_choice_of_the_option_is_the_one_made() -> None:
    x = torch.randn(30, 4)
    for init in ("mse", "max", "lsq", "paper"):
        net = small_net(activation_init=init)
        net(x)
        inputs = net.model[1](net.model[0](x))
        for index, bits in enumerate(net.widths):
            expected, _ = chosen(inputs, bits, init, index)
            assert float(getattr(quantiser_of(net, "2"), f"step_{bits}")) == pytest.approx(expected, rel=1e-6)
