"""The naive baselines: what each stage trains, and what it must leave as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bitstrata import baselines
from bitstrata.baselines import Job, Trained
from bitstrata.baselines.binary_planes import BinaryPlanes
from bitstrata.capture import pack
from bitstrata.errors import CannotCapture
from bitstrata.training import Recipe, load_checkpoint, stratify
from bitstrata.training.fit import CHECKPOINT
from bitstrata.training.net import StratifiedNet
from bitstrata.zoo.data import load_data
from bitstrata.zoo.nets import build

DATA = load_data("digits", limit=128)
X, _ = next(iter(DATA.test.batches(16)))


def job(folder: Path, **options: Any) -> Job:
    torch.manual_seed(3)
    state = build("resnet8", 10, 1).state_dict()

    def model() -> nn.Module:
        built = build("resnet8", 10, 1)
        built.load_state_dict(state)
        return built

    recipe = Recipe(epochs=1, batch_size=32, learning_rate=0.05, distill="none", norm_batches=2, evaluate_every=0)
    return Job(model, DATA, recipe, (2, 3, 4), folder, options, progress=False)


def planes_net(widths: tuple[int, ...] = (2, 3, 4), **options: Any) -> tuple[StratifiedNet, list[tuple[str, Any]]]:
    torch.manual_seed(5)
    net = stratify(build("resnet8", 10, 1), widths, quantizer="binary-planes", **options)
    for _, layer in net.stratified_layers():
        for bits in range(widths[0] + 1, widths[-1] + 1):
            getattr(layer.weight_quantiser, f"plane_{bits}").data.normal_()
    return net, list(net.stratified_layers())


def bound_layer(net: StratifiedNet, name: str, bits: int) -> Any:
    return dict(net.at(bits).named_modules())[name]


def base_code(weight: Any, step: Any, bits: int) -> Any:
    top = 2 ** (bits - 1) - 1
    return np.clip(np.rint(weight / step), -top - 1, top)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("widths", [(2, 3, 4), (2, 4), (3, 5)])
def test_planes_double_the_code_and_halve_the_step(widths: tuple[int, ...], per_channel: bool) -> None:
    net, layers = planes_net(widths, per_channel=per_channel)
    for name, layer in layers:
        quantiser = layer.weight_quantiser
        weight = layer.weight.detach().numpy().astype(np.float64)
        step = quantiser.step.detach().numpy().astype(np.float64)
        step = step.reshape((-1,) + (1,) * (weight.ndim - 1)) if step.ndim else step
        code = base_code(weight, step, widths[0])
        for bits in range(widths[0], widths[-1] + 1):
            if bits > widths[0]:
                code = 2 * code + (getattr(quantiser, f"plane_{bits}").detach().numpy() > 0)
                step = step / 2
            if bits in widths:
                found = bound_layer(net, name, bits).weight_quantiser(layer.weight).detach().numpy()
                np.testing.assert_allclose(found, code * step, rtol=1e-5, atol=1e-7)


def test_a_plane_takes_the_gradient_of_the_weight_and_the_base_its_own() -> None:
    net, layers = planes_net()
    name, layer = layers[2]
    quantiser = layer.weight_quantiser
    gradient = torch.randn_like(layer.weight)
    (bound_layer(net, name, 4).weight_quantiser(layer.weight) * gradient).sum().backward()
    for bits in (3, 4):
        torch.testing.assert_close(getattr(quantiser, f"plane_{bits}").grad, gradient)
    scaled = layer.weight / quantiser.step
    inside = (scaled >= -2) & (scaled <= 1)
    torch.testing.assert_close(layer.weight.grad, torch.where(inside, gradient, 0.0))
    code = torch.clamp(torch.round(scaled), -2, 1)
    bits = [(getattr(quantiser, f"plane_{bits}") > 0).float() for bits in (3, 4)]
    slope = code + bits[0] / 2 + bits[1] / 4 - torch.where(inside, scaled, 0.0)
    expected = (gradient * slope).sum() / layer.weight.numel() ** 0.5  # Q_P is 1 at two bits
    torch.testing.assert_close(quantiser.step.grad, expected, rtol=1e-4, atol=1e-5)


def test_the_base_width_has_nothing_to_do_with_planes() -> None:
    net, layers = planes_net()
    name, layer = layers[0]
    bound_layer(net, name, 2).weight_quantiser(layer.weight).sum().backward()
    assert layer.weight_quantiser.plane_3.grad is None


def test_planes_start_where_they_bring_the_weight_nearest() -> None:
    net = stratify(build("resnet8", 10, 1), quantizer="binary-planes")
    for name, layer in net.stratified_layers():
        quantiser = layer.weight_quantiser
        assert isinstance(quantiser, BinaryPlanes)
        values = {bits: bound_layer(net, name, bits).weight_quantiser(layer.weight).detach() for bits in (2, 3, 4)}
        for lower, bits in ((2, 3), (3, 4)):
            step = quantiser.step.detach() / 2 ** (bits - 2)
            without, with_bit = values[lower], values[lower] + step
            nearest = torch.minimum((without - layer.weight).abs(), (with_bit - layer.weight).abs())
            torch.testing.assert_close((values[bits] - layer.weight).abs().detach(), nearest.detach())


def outputs(net: StratifiedNet, bits: int) -> torch.Tensor:
    net.eval()
    with torch.no_grad():
        return net(X, bits=bits)  # type: ignore[no-any-return]


def stage_output(method_job: Job, net: StratifiedNet, stage: str, bits: int) -> torch.Tensor:
    """What a width gave when a stage ended."""
    now = {name: value.clone() for name, value in net.state_dict().items()}
    net.load_state_dict(load_checkpoint(method_job.folder / stage / CHECKPOINT)["model"])
    found = outputs(net, bits)
    net.load_state_dict(now)
    return found


def test_ascending_leaves_lower_widths_as_they_are(tmp_path: Path) -> None:
    this = job(tmp_path)
    trained = baselines.ascending(this)
    net = trained.networks[4]
    assert trained.stored_bits == 4
    assert set(map(id, trained.networks.values())) == {id(net)}
    for stage, bits in (("2-bits", 2), ("3-bits", 3), ("4-bits", 4)):
        assert torch.equal(stage_output(this, net, stage, bits), outputs(net, bits))


def test_ascending_trains_only_what_its_stage_adds(tmp_path: Path) -> None:
    baselines.ascending(job(tmp_path))
    states = {bits: load_checkpoint(tmp_path / f"{bits}-bits" / CHECKPOINT)["model"] for bits in (3, 4)}
    changed = {name for name in states[3] if not torch.equal(states[3][name], states[4][name])}
    assert any(name.endswith("plane_4") for name in changed)
    assert not [name for name in changed if not name.endswith("_4") and ".copies.4." not in name]


def test_fine_tuning_keeps_the_weights_of_the_highest_width(tmp_path: Path) -> None:
    this = job(tmp_path)
    trained = baselines.qat_finetune(this)
    net = trained.networks[2]
    assert trained.stored_bits == 4
    assert not net.options.compensated
    assert torch.equal(stage_output(this, net, "4-bits", 4), outputs(net, 4))
    for name, layer in net.stratified_layers():
        four = bound_layer(net, name, 4).weight_quantiser.integers(layer.weight)[0] / 2
        two = bound_layer(net, name, 2).weight_quantiser.integers(layer.weight)[0] / 8
        assert torch.equal(two, torch.floor(four / 4))


def test_co_training_moves_every_plane(tmp_path: Path) -> None:
    this = job(tmp_path)
    start = this.stratify(quantizer="binary-planes")
    net = baselines.co_training(this).networks[3]
    for (_, old), (_, new) in zip(start.stratified_layers(), net.stratified_layers(), strict=True):
        for bits in (3, 4):
            old_plane = getattr(old.weight_quantiser, f"plane_{bits}")
            assert not torch.equal(old_plane, getattr(new.weight_quantiser, f"plane_{bits}"))


def test_dedicated_networks_are_stored_each_by_itself(tmp_path: Path) -> None:
    trained = baselines.dedicated(job(tmp_path, weight_init="lsq"))
    assert trained.stored_bits == 9
    assert [net.widths for net in trained.networks.values()] == [(2,), (3,), (4,)]
    assert len(set(map(id, trained.networks.values()))) == 3


@pytest.mark.parametrize("method", [baselines.ascending, baselines.qat_finetune, baselines.joint, baselines.dedicated])
def test_a_method_called_again_only_reads_its_checkpoints(tmp_path: Path, method: Any) -> None:
    first: Trained = method(job(tmp_path))
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob(CHECKPOINT)}
    again: Trained = method(job(tmp_path))
    assert times == {path: path.stat().st_mtime_ns for path in tmp_path.rglob(CHECKPOINT)}
    for bits in (2, 3, 4):
        assert torch.equal(outputs(first.networks[bits], bits), outputs(again.networks[bits], bits))


def test_adabits_stores_the_float_weight(tmp_path: Path) -> None:
    assert baselines.joint(job(tmp_path, quantizer="adabits")).stored_bits == 32


def test_networks_of_planes_are_not_packed(tmp_path: Path) -> None:
    net, _ = planes_net()
    net.calibrate([X])
    with pytest.raises(CannotCapture, match="quantizer 'binary-planes'"):
        pack(net, tmp_path / "x.strata", example=X)
