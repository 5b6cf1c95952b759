"""`fit`: what a run gives and leaves behind, and that a run that was stopped ends as one that was not.

Run as a program, this file is the run that the tests kill.
"""

import copy
import json
import os
import random
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import bitstrata as bs
from bitstrata import atomic
from bitstrata.errors import BadData, CheckpointDamaged, CheckpointMismatch, NotFinite
from bitstrata.training import Epoch, evaluate, load_checkpoint
from bitstrata.training import fit as fit_function
from bitstrata.training.fit import _Run
from bitstrata.zoo import nets
from bitstrata.zoo.data import ArraySplit, Data, load_data

RECIPE = bs.Recipe(epochs=2, batch_size=16, learning_rate=0.05)
STEPS = 3  # in an epoch


@cache
def digits() -> Data:
    """48 training samples, three batches, and 30 to test."""
    data = load_data("digits", limit=16 * STEPS)
    assert isinstance(data.test, ArraySplit)
    return replace(data, test=ArraySplit(data.test.images[:30], data.test.labels[:30], data.input))


def small_net(seed: int = 0, **options: Any) -> bs.StratifiedNet:
    torch.manual_seed(seed)
    return bs.stratify(nets.resnet8(10, channels=1), **options)


class Perceptron(nn.Module):
    """Draws random numbers in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3),
            nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 10),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def perceptron(seed: int = 0) -> bs.StratifiedNet:
    torch.manual_seed(seed)
    return bs.stratify(Perceptron())


class NoisyDigits(Dataset):
    """Each look at a sample draws a random number, as augmentation does."""

    def __init__(self) -> None:
        ((self.x, self.y),) = digits().train.batches(16 * STEPS)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index] + 0.1 * torch.randn(1, 8, 8), self.y[index]


def loaders() -> tuple[DataLoader, DataLoader]:
    data = NoisyDigits()
    return DataLoader(data, batch_size=16, shuffle=True), DataLoader(data, batch_size=32)


def comparable(history: list[Epoch]) -> list[Epoch]:
    """Everything but the time it took."""
    return [replace(epoch, seconds=0.0) for epoch in history]


def assert_same_weights(first: nn.Module, second: nn.Module) -> None:
    expected = second.state_dict()
    assert first.state_dict().keys() == expected.keys()
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# What a run gives


def test_history_log_and_files(tmp_path: Path) -> None:
    net = small_net()
    history = bs.fit(net, digits(), RECIPE, folder=tmp_path / "run", description={"net": "resnet8"})
    assert [epoch.epoch for epoch in history] == [0, 1]
    for epoch in history:
        assert list(epoch.loss) == list(epoch.accuracy) == ["4", "3", "2"]
        assert epoch.seconds > 0
        for result in epoch.accuracy.values():
            assert result.samples == 30
            assert 0 <= result.top1 <= result.top5 <= 100
    assert history[0].learning_rate == pytest.approx(0.025)
    assert history[1].learning_rate == 0.0
    assert history[-1].accuracy == evaluate(net, digits().test.batches(30))

    lines = log_of(tmp_path / "run")
    assert [line["event"] for line in lines] == ["start", "epoch", "epoch"]
    assert lines[0]["recipe"] == RECIPE.as_dict()
    assert lines[0]["description"] == {"net": "resnet8"}
    for line, epoch in zip(lines[1:], history, strict=True):
        assert line["epoch"] == epoch.epoch
        assert line["loss"] == epoch.loss
        assert line["accuracy"]["2"] == vars(epoch.accuracy["2"])
    assert files_in(tmp_path / "run") == ["checkpoint.pt", "log.jsonl"]


def test_training_lowers_the_loss_of_every_width() -> None:
    history = bs.fit(perceptron(), digits(), replace(RECIPE, epochs=30, learning_rate=0.1, distill="none"))
    for width in ("2", "3", "4"):
        assert history[-1].loss[width] < 0.9 * history[0].loss[width]
        assert history[-1].accuracy[width].top1 > 30  # a guess is right in one of ten


def test_the_accuracy_is_counted_right() -> None:
    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    scores = torch.eye(10)[torch.tensor([0, 1, 2, 3])] + 0.1 * torch.arange(10.0, 0.0, -1.0)
    # The first is right at once; for the others the right class comes third, fifth and last.
    labels = torch.tensor([0, 2, 4, 9])
    scores[1] = torch.tensor([3.0, 4, 2.5, 1, 1, 1, 1, 1, 1, 1])
    scores[2] = torch.tensor([9.0, 8, 7, 6, 5, 4, 3, 2, 1, 0])
    result = evaluate(Fixed(), [(scores[:3], labels[:3]), (scores[3:], labels[3:])])["float"]
    assert (result.top1, result.top5, result.samples) == (25.0, 75.0, 4)


def test_no_folder_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(bs.fit(perceptron(), digits(), replace(RECIPE, epochs=1))) == 1
    assert files_in(tmp_path) == []


def test_the_same_seed_gives_the_same_weights_and_another_does_not() -> None:
    runs = []
    for seed in (0, 0, 1):
        net = perceptron()
        bs.fit(net, digits(), replace(RECIPE, epochs=1, seed=seed))
        runs.append(net)
    assert_same_weights(runs[0], runs[1])
    with pytest.raises(AssertionError):
        assert_same_weights(runs[0], runs[2])


@pytest.mark.parametrize("distill", ["none", "cosine", "kl"])
def test_the_loss_of_a_step_is_that_of_joint_loss(distill: Any) -> None:
    """Width after width, with the backward pass at once, must come to the gradients of one joint pass."""
    recipe = bs.Recipe(epochs=1, batch_size=48, learning_rate=0.1, momentum=0.0, weight_decay=0.0, distill=distill,
                       channels_last=False)  # fmt: skip
    net = small_net()
    twin = copy.deepcopy(net)
    history = bs.fit(net, digits(), recipe)
    ((x, y),) = digits().train.batches(48, training=True, epoch=0, seed=0)
    joint = bs.JointLoss(distill=None if distill == "none" else distill)
    losses = joint.per_width(twin(x), y)
    torch.stack(list(losses.values())).mean().backward()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter -= 0.1 * parameter.grad
    assert history[0].loss == pytest.approx(
        {str(bits): float(loss.detach()) for bits, loss in losses.items()}, rel=1e-5
    )
    for (name, parameter), other in zip(net.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(parameter, other, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def test_the_minimum_norm_objective() -> None:
    recipe = bs.Recipe(epochs=1, batch_size=48, learning_rate=0.1, momentum=0.0, weight_decay=0.0,
                       objective="minimum-norm", channels_last=False)  # fmt: skip
    net = small_net()
    twin = copy.deepcopy(net)
    (epoch,) = bs.fit(net, digits(), recipe)
    assert list(epoch.weights) == list(epoch.norms) == ["4", "3", "2"]
    assert sum(epoch.weights.values()) == pytest.approx(1.0)
    assert min(epoch.weights.values()) >= 0.0
    assert min(epoch.norms.values()) > 0.0
    ((x, y),) = digits().train.batches(48, training=True, epoch=0, seed=0)
    weights = bs.MinimumNorm(twin).backward(bs.JointLoss(distill="cosine").per_width(twin(x), y))
    assert epoch.weights == pytest.approx({str(bits): weight for bits, weight in weights.items()}, abs=1e-3)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter -= 0.1 * parameter.grad
    for (name, parameter), other in zip(net.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(parameter, other, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_a_float_model_is_trained_by_the_same_loop(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nets.resnet8(10, channels=1)
    before = model.layer1[0].conv1.weight.detach().clone()
    history = bs.fit(model, digits(), RECIPE, folder=tmp_path)
    assert list(history[0].loss) == list(history[0].accuracy) == ["float"]
    assert not torch.equal(model.layer1[0].conv1.weight, before)
    fresh = nets.resnet8(10, channels=1)
    assert comparable(bs.fit(fresh, digits(), RECIPE, folder=tmp_path)) == comparable(history)
    assert_same_weights(fresh, model)


def test_norm_statistics_are_estimated_again_after_each_epoch() -> None:
    net = perceptron()
    bs.fit(net, digits(), replace(RECIPE, epochs=1, norm_batches=2))
    norm = net.model.layers[2].copies["2"]
    assert int(norm.num_batches_tracked) == 2
    inputs = [x for x, _ in digits().train.batches(16, training=True, epoch=0, seed=0)][:2]
    with torch.no_grad():
        hidden = [net.model.layers[1](x.flatten(1)) for x in inputs]
    torch.testing.assert_close(norm.running_mean, torch.stack([h.mean(0) for h in hidden]).mean(0))
    assert norm.momentum == 0.1
    plain = perceptron()
    bs.fit(plain, digits(), replace(RECIPE, epochs=1))
    assert int(plain.model.layers[2].copies["2"].num_batches_tracked) == STEPS


def test_the_learning_rate_rises_and_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    step = _Run._step

    def noting(self: _Run, x: Tensor, y: Tensor) -> None:
        step(self, x, y)
        rates.extend({group["lr"] for group in self.optimiser.param_groups})

    monkeypatch.setattr(_Run, "_step", noting)
    bs.fit(perceptron(), digits(), replace(RECIPE, warmup_epochs=2 / 3, learning_rate=0.3))
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.3 * (2 + 2**0.5) / 4, 0.15, 0.3 * (2 - 2**0.5) / 4])


def test_a_progress_bar_on_request_only(capfd: pytest.CaptureFixture[str]) -> None:
    bs.fit(perceptron(), digits(), replace(RECIPE, epochs=1))
    assert capfd.readouterr() == ("", "")
    bs.fit(perceptron(), digits(), replace(RECIPE, epochs=1), progress=True)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "epoch 1/1  top-1" in captured.err
    assert "left" in captured.err


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ([1, 2], "pair of loaders"),
        (None, "pair of loaders"),
        ((iter([]), []), "no length"),
        (([], []), "no batch"),
    ],
)
def test_data_that_are_none_are_refused(data: Any, reason: str) -> None:
    with pytest.raises(BadData, match=reason):
        bs.fit(perceptron(), data, RECIPE)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_curves(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    history = bs.fit(perceptron(), digits(), RECIPE, folder=tmp_path, tensorboard=True)
    accumulator = EventAccumulator(str(tmp_path / "tensorboard"))
    accumulator.Reload()
    kinds = ("loss", "top1", "top5")
    assert set(accumulator.Tags()["scalars"]) == {f"{kind}/{bits}" for kind in kinds for bits in (2, 3, 4)}
    points = accumulator.Scalars("top1/2")
    assert [point.step for point in points] == [1, 2]
    assert [point.value for point in points] == pytest.approx([epoch.accuracy["2"].top1 for epoch in history])


# Memory


@pytest.mark.parametrize("objective", ["mean", "minimum-norm"])
def test_what_one_width_keeps_for_its_backward_pass_is_gone_before_the_next(objective: Any) -> None:
    """So that the peak is that of one width."""

    class Kept:
        """Stands for a tensor that autograd keeps."""

        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

    net = small_net()
    alive: weakref.WeakSet[Kept] = weakref.WeakSet()
    outputs: list[weakref.ref[Tensor]] = []
    at_start: list[int] = []
    at_end: list[int] = []

    def pack(tensor: Tensor) -> Kept:
        kept = Kept(tensor)
        alive.add(kept)
        return kept

    def started(*_: object) -> None:
        at_start.append(len(alive) + sum(output() is not None for output in outputs))

    def ended(module: nn.Module, inputs: Any, output: Tensor) -> None:
        at_end.append(len(alive))
        outputs.append(weakref.ref(output))

    for bits in net.widths:
        net.at(bits, joint=True).register_forward_pre_hook(started)
        net.at(bits, joint=True).register_forward_hook(ended)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
        bs.fit(net, digits(), replace(RECIPE, epochs=1, objective=objective))
    assert at_start == [0] * (3 * STEPS)
    assert min(at_end) > 20


# Stopping and continuing


class Stopped(Exception):
    pass


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """The next run fails in the step after so many."""
    step = _Run._step
    done = 0

    def failing(self: _Run, x: Tensor, y: Tensor) -> None:
        nonlocal done
        if done == steps:
            raise Stopped
        done += 1
        step(self, x, y)

    monkeypatch.setattr(_Run, "_step", failing)


def fit_until_stopped(steps: int, net: nn.Module, data: Any, folder: Path, recipe: bs.Recipe = RECIPE) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, steps)
        with pytest.raises(Stopped):
            bs.fit(net, data, recipe, folder=folder, checkpoint_minutes=0.0)


CASES: dict[str, tuple[Callable[[int], bs.StratifiedNet], Callable[[], Any], bs.Recipe]] = {
    "zoo data": (small_net, digits, RECIPE),
    "minimum norm": (perceptron, digits, replace(RECIPE, objective="minimum-norm", norm_batches=1)),
    "loaders": (perceptron, loaders, RECIPE),
    "loaders and norms": (perceptron, loaders, replace(RECIPE, norm_batches=2)),
}


@cache
def uninterrupted(case: str) -> tuple[bs.StratifiedNet, list[Epoch]]:
    make, data, recipe = CASES[case]
    net = make(0)
    return net, comparable(bs.fit(net, data(), recipe))


@pytest.mark.parametrize(
    ("case", "steps"),
    [(case, steps) for case in CASES for steps in (range(1, 2 * STEPS) if case == "loaders" else (2, 3, 4))],
)
def test_a_run_that_failed_at_any_step_ends_as_one_that_did_not(case: str, steps: int, tmp_path: Path) -> None:
    make, data, recipe = CASES[case]
    expected, expected_history = uninterrupted(case)
    fit_until_stopped(steps, make(0), data(), tmp_path, recipe)
    state = load_checkpoint(tmp_path / "checkpoint.pt")
    at = (state["epoch"], state["step_in_epoch"])
    assert at in (divmod(steps, STEPS), (0, STEPS))  # at the end of an epoch, before or after it was closed
    # Other weights and another state of the random numbers than those of the run that was stopped.
    net = make(7)
    history = bs.fit(net, data(), recipe, folder=tmp_path)
    assert_same_weights(net, expected)
    assert comparable(history) == expected_history
    lines = log_of(tmp_path)
    assert [line["epoch"] for line in lines if line["event"] == "epoch"] == [0, 1]
    assert [line["event"] for line in lines].count("resume") == 1
    assert files_in(tmp_path) == ["checkpoint.pt", "log.jsonl"]


def test_a_run_that_failed_many_times_ends_as_one_that_did_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The places come from a seed that is printed where the test fails."""
    seed = random.SystemRandom().randrange(10**6)
    numbers = random.Random(seed)
    for attempt in range(20):
        net = perceptron(attempt)
        try:
            with monkeypatch.context() as patch:
                stop_after(patch, numbers.randint(1, 3))
                bs.fit(net, loaders(), RECIPE, folder=tmp_path, checkpoint_minutes=0.0)
            break
        except Stopped:
            continue
    else:
        pytest.fail("the run never ended")
    print(f"seed {seed}")
    # The first attempt is the run that is compared with, so it must start from the same weights.
    assert_same_weights(net, uninterrupted("loaders")[0])


def test_without_checkpoints_within_an_epoch_the_epoch_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(monkeypatch, STEPS + 2)
    with pytest.raises(Stopped):
        bs.fit(perceptron(), loaders(), RECIPE, folder=tmp_path)
    monkeypatch.undo()
    assert load_checkpoint(tmp_path / "checkpoint.pt")["epoch"] == 1
    net = perceptron(7)
    assert comparable(bs.fit(net, loaders(), RECIPE, folder=tmp_path)) == uninterrupted("loaders")[1]
    assert_same_weights(net, uninterrupted("loaders")[0])


def test_an_epoch_that_was_logged_but_not_saved_is_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(self: _Run) -> None:
        raise Stopped

    monkeypatch.setattr(_Run, "_save", stop)
    with pytest.raises(Stopped):
        bs.fit(perceptron(), digits(), replace(RECIPE, epochs=1), folder=tmp_path)
    monkeypatch.undo()
    assert [line["event"] for line in log_of(tmp_path)] == ["start", "epoch"]
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"event": "epo')  # a line that was cut off
    bs.fit(perceptron(), digits(), replace(RECIPE, epochs=1), folder=tmp_path)
    assert [line.get("epoch") for line in log_of(tmp_path) if line["event"] == "epoch"] == [0]


def test_a_finished_run_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = bs.fit(perceptron(), digits(), RECIPE, folder=tmp_path)
    content = (tmp_path / "checkpoint.pt").read_bytes()
    stop_after(monkeypatch, 0)
    net = perceptron(7)
    assert bs.fit(net, digits(), RECIPE, folder=tmp_path) == history
    assert (tmp_path / "checkpoint.pt").read_bytes() == content
    assert evaluate(net, digits().test.batches(30)) == history[-1].accuracy


@pytest.mark.parametrize("moment", [pytest.param("between steps", marks=pytest.mark.long), "while writing"])
def test_a_killed_run_ends_as_one_that_was_not(moment: str, tmp_path: Path) -> None:
    """By SIGKILL, after which a process can do nothing more."""
    steps = random.SystemRandom().randint(1, 2 * STEPS - 1)
    print(f"killed after step {steps}")
    command = [sys.executable, __file__, str(tmp_path), moment, str(steps)]
    source = str(Path(bs.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert run.returncode == -signal.SIGKILL, run.stderr
    left = files_in(tmp_path)
    assert (moment == "while writing") == any(name.endswith(".partial") for name in left)
    resumed = (tmp_path / "checkpoint.pt").exists()
    assert resumed or steps == 1
    net = perceptron(7 if resumed else 0)
    assert comparable(bs.fit(net, loaders(), RECIPE, folder=tmp_path)) == uninterrupted("loaders")[1]
    assert_same_weights(net, uninterrupted("loaders")[0])
    assert files_in(tmp_path) == ["checkpoint.pt", "log.jsonl"]


# Checkpoints that do not fit


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped")
    fit_until_stopped(2, perceptron(), digits(), folder)
    return folder


@pytest.mark.parametrize(
    ("make", "recipe", "reason"),
    [
        (perceptron, replace(RECIPE, learning_rate=0.1), "another learning_rate"),
        (perceptron, replace(RECIPE, epochs=3, seed=1), "another epochs, seed"),
        (small_net, RECIPE, "of another model"),
        (lambda: bs.stratify(Perceptron(), (2, 4)), RECIPE, "of another model: .*3"),
        (lambda: bs.stratify(Perceptron(), norms="shared"), RECIPE, "of another model"),
        (lambda: bs.stratify(Perceptron(), per_channel=True), RECIPE, r"'.*step' has shape \[\] there and \[16\] here"),
        (Perceptron, RECIPE, "of another model"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_and_stays_usable(
    stopped_run: Path, make: Callable[[], nn.Module], recipe: bs.Recipe, reason: str
) -> None:
    content = (stopped_run / "checkpoint.pt").read_bytes()
    net = make()
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(CheckpointMismatch, match=reason):
        bs.fit(net, digits(), recipe, folder=stopped_run)
    assert (stopped_run / "checkpoint.pt").read_bytes() == content
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_a_truncated_checkpoint_is_refused(stopped_run: Path, tmp_path: Path) -> None:
    content = (stopped_run / "checkpoint.pt").read_bytes()
    (tmp_path / "checkpoint.pt").write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointDamaged, match=r"checkpoint\.pt.*remove it to start anew"):
        bs.fit(perceptron(), digits(), RECIPE, folder=tmp_path)


# NaN


class Spoilt:
    """Loaders of fixed batches, one of them with a NaN."""

    def __init__(self, batch: int | None, value: float = float("nan")) -> None:
        self.batches = [(x.clone(), y) for x, y in digits().train.batches(16)]
        if batch is not None:
            self.batches[batch][0][3, 0, 2, 2] = value

    def pair(self) -> tuple[Any, Any]:
        return self.batches, list(digits().test.batches(30))


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_data_that_are_not_finite_stop_the_run_and_name_the_batch(batch: int, value: float, tmp_path: Path) -> None:
    recipe = replace(RECIPE, epochs=1)
    expected = perceptron()
    bs.fit(expected, Spoilt(None).pair(), recipe)
    with pytest.raises(NotFinite, match=rf"epoch 1, step {batch + 1}: the input batch"):
        bs.fit(perceptron(), Spoilt(batch, value).pair(), recipe, folder=tmp_path, checkpoint_minutes=0.0)
    # The data mended, the run goes on from its last good checkpoint as if nothing had happened.
    net = perceptron(7 if batch else 0)
    bs.fit(net, Spoilt(None).pair(), recipe, folder=tmp_path)
    assert_same_weights(net, expected)


@pytest.mark.parametrize("calibrated", [False, True])
def test_a_weight_that_is_not_finite_is_named(calibrated: bool) -> None:
    net = small_net()
    if calibrated:
        net.calibrate([x for x, _ in digits().train.batches(16)])
    with torch.no_grad():
        net.model.layer2[0].conv1.weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(NotFinite, match=r"epoch 1, step 1, width 4: parameter 'layer2\.0\.conv1\.weight'"):
        bs.fit(net, digits(), RECIPE)


@pytest.mark.parametrize("calibrated", [False, True])
def test_a_layer_whose_output_is_not_finite_is_named(calibrated: bool) -> None:
    class Exploding(nn.Module):
        enabled = False

        def forward(self, x: Tensor) -> Tensor:
            return x * 1e38 * 1e38 if self.enabled else x

    torch.manual_seed(0)
    model = Perceptron()
    model.layers[4] = Exploding()
    net = bs.stratify(model)
    if calibrated:
        net.calibrate([x for x, _ in digits().train.batches(16)])
    for network in [net.at(bits, joint=True) for bits in net.widths]:
        network.layers[4].enabled = True
    # A quantiser clips what is infinite, so that the loss stays finite; the gradient of its step does not.
    name = r"the gradient of 'model\.layers\.5\.input_quantiser" if calibrated else r"the input of layer 'layers\.5'"
    with pytest.raises(NotFinite, match=f"step 1.*{name}"):
        bs.fit(net, digits(), RECIPE)


def test_a_float_layer_that_overflows_is_named() -> None:
    torch.manual_seed(0)
    model = nets.resnet8(10, channels=1)
    with torch.no_grad():
        model.layer2[0].bn1.weight.fill_(3e38)
    with pytest.raises(NotFinite, match=r"width float: .*first in the output of layer 'layer2\.0\.bn1'"):
        bs.fit(model, digits(), RECIPE)


def test_a_loss_that_is_not_finite_by_itself_is_told_apart() -> None:
    def criterion(output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target) * float("nan")

    with pytest.raises(NotFinite, match="in the loss itself"):
        bs.fit(perceptron(), digits(), RECIPE, criterion=criterion)


def test_a_gradient_that_is_not_finite_is_named_before_it_reaches_a_weight() -> None:
    def criterion(output: Tensor, target: Tensor) -> Tensor:
        # Finite, and 0: but the slope of the root is infinite there.
        return functional.cross_entropy(output, target) + (output - output.detach()).abs().sum().sqrt()

    net = perceptron()
    before = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    with pytest.raises(NotFinite, match=r"epoch 1, step 1: the gradient of 'model\.layers.*' is not finite"):
        bs.fit(net, digits(), RECIPE, criterion=criterion)
    moved = [n for n, p in net.named_parameters() if "input_quantiser" not in n and not torch.equal(p, before[n])]
    assert moved == []


def test_what_its_owner_froze_stays_frozen() -> None:
    net = small_net()
    net.train()
    frozen = next(module for module in net.model.modules() if isinstance(module, nn.BatchNorm2d))
    frozen.eval()
    before = {name: buffer.clone() for name, buffer in frozen.named_buffers()}
    bs.fit(net, digits(), bs.Recipe(epochs=1, batch_size=16))
    assert not frozen.training
    for name, buffer in frozen.named_buffers():
        assert torch.equal(buffer, before[name])


def killed_run(folder: str, moment: str, steps: str) -> None:
    torch.set_num_threads(1)
    kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        if moment == "between steps":
            stop_after(patch, int(steps))
            patch.setattr(_Run, "_step", _killing(_Run._step))
        else:
            patch.setattr(atomic.os, "replace", _counting(int(steps), atomic.os.replace, kill))
        fit_function(perceptron(), loaders(), RECIPE, folder=folder, checkpoint_minutes=0.0)


def _killing(step: Callable[..., None]) -> Callable[..., None]:
    def call(*arguments: Any) -> None:
        try:
            step(*arguments)
        except Stopped:
            os.kill(os.getpid(), signal.SIGKILL)

    return call


def _counting(calls: int, function: Callable[..., None], then: Callable[..., None]) -> Callable[..., None]:
    """`function` until it was called so often, then `then`."""
    left = iter(range(calls - 1))
    return lambda *arguments: function(*arguments) if next(left, None) is not None else then()


if __name__ == "__main__":
    killed_run(*sys.argv[1:])
