"""Several processes train as one would: gradients, calibration, norms and whole runs, over gloo.

All that two processes compute is computed once, by this file run as a program; the tests compare it with one process.
It is computed in float64, where another order of summing cannot move a value to another code.
"""

import copy
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import bitstrata as bs
from bitstrata.errors import CannotStratify
from bitstrata.format import InputDescription
from bitstrata.training import distributed, evaluate, recalculate_norms, synchronise_norms
from bitstrata.training.bound import PerWidth
from bitstrata.training.norms import SynchronisedBatchNorm
from bitstrata.zoo import nets
from bitstrata.zoo.data import ArraySplit, CropAndFlip, Data

WORLD = 2
BATCH = 16
RECIPE = bs.Recipe(epochs=2, batch_size=BATCH, learning_rate=0.05)
#: Seconds; the processes also give up by themselves when one of them is gone.
PATIENCE = 240

Results = dict[str, Any]


# ---- what is computed, in one process or in two: `part` of a batch is this rank's share of it


def part(batch: Tensor) -> Tensor:
    share = len(batch) // distributed.world()
    start = distributed.rank() * share
    return batch[start : start + share]


def images() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH, 1, 8, 8, generator=generator, dtype=torch.float64)
    # Halves that differ, so that one process's statistics are not the other's.
    x[BATCH // 2 :] = 2.0 * x[BATCH // 2 :] + 0.5
    return x, torch.randint(0, 10, (BATCH,), generator=generator)


def resnet8() -> nn.Module:
    torch.manual_seed(0)
    return nets.resnet8(10, channels=1)


def stratified(model: nn.Module) -> bs.StratifiedNet:
    return bs.stratify(model).to(torch.float64)


def with_frozen_norms() -> bs.StratifiedNet:
    """Calibrated on the whole batch by every process, so that what differs is only what is tested."""
    net = stratified(resnet8())
    net.load_state_dict(_calibrated())
    for module in net.model.modules():
        if isinstance(module, (PerWidth, nn.BatchNorm2d)):
            module.training = False
    return net


def without_norms() -> bs.StratifiedNet:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.SiLU(), nn.Flatten(), nn.Linear(8, 16)]
    return stratified(nn.Sequential(*layers, nn.ReLU(), nn.Linear(16, 10)))


@cache
def _calibrated() -> dict[str, Tensor]:
    """Of a network whose norms have seen data; computed by one process, whatever the number of them."""
    net = stratified(resnet8())
    x, _ = images()
    with _alone():
        net.calibrate([x])
    return copy.deepcopy(net.state_dict())


class _alone:  # noqa: N801
    """Within it, `bitstrata.training.distributed` does not see the other processes."""

    def __enter__(self) -> None:
        self.active, distributed.active = distributed.active, lambda: False

    def __exit__(self, *_: object) -> None:
        distributed.active = self.active


def gradients(net: nn.Module) -> Results:
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def joint_gradients() -> Results:
    net = with_frozen_norms()
    # In one process DDP has nothing to do and needs a process group all the same.
    wrapped: nn.Module = DistributedDataParallel(net) if distributed.active() else net
    x, y = (part(tensor) for tensor in images())
    bs.JointLoss(distill="cosine")(wrapped(x), y).backward()
    return gradients(net)


def minimum_norm() -> Results:
    net = with_frozen_norms()
    x, y = (part(tensor) for tensor in images())
    weights = bs.MinimumNorm(net).backward(bs.JointLoss().per_width(net(x), y))
    return {**gradients(net), "weights": torch.tensor([weights[bits] for bits in net.widths])}


def quantiser_tensors(net: bs.StratifiedNet) -> Results:
    kinds = ("step_", "zero_point_", "floor_", "calibrated_")
    return {
        name: tensor.clone()
        for name, tensor in net.state_dict().items()
        if "input_quantiser" in name and name.rpartition(".")[2].startswith(kinds)
    }


def calibration_without_norms() -> Results:
    net = without_norms()
    x, _ = images()
    net.calibrate([part(x[:8]), part(x[8:])])
    return quantiser_tensors(net)


def calibration_by_the_first_batch() -> Results:
    net = without_norms()
    net(part(images()[0]))
    return quantiser_tensors(net)


def calibration_with_synchronised_norms() -> Results:
    net = stratified(synchronise_norms(resnet8()))
    net.calibrate([part(images()[0])])
    return quantiser_tensors(net)


def calibration_with_norms() -> Results:
    """Each process normalises by its own half, so that this is not what one process would do; but all agree."""
    net = stratified(resnet8())
    net.calibrate([part(images()[0])])
    statistics = {n: b.clone() for n, b in net.state_dict().items() if n.endswith(("running_mean", "running_var"))}
    return {**quantiser_tensors(net), **statistics}


def norm(kind: type[nn.Module], **options: Any) -> Results:
    torch.manual_seed(2)
    module = kind(3, **options).train()
    if options.get("affine", True):
        nn.init.normal_(module.weight)
        nn.init.normal_(module.bias)
    # Far from zero compared with its spread, which is where a careless variance loses its digits.
    x = part(torch.randn(8, 3, 4, 4) * torch.tensor([0.05, 1.0, 3.0]).view(3, 1, 1) + 50.0).requires_grad_()
    target = part(torch.randn(8, 3, 4, 4))
    results: Results = {}
    for step in range(2):
        output = module(x)
        functional.mse_loss(output, target).backward()
        results[f"output {step}"] = output.detach().clone()
    # Parts of a batch: put together they are the whole. Each rank's loss is the mean over its own half.
    results["input gradient"] = x.grad / distributed.world()
    shared = {name: p.grad / distributed.world() for name, p in module.named_parameters()}
    results |= {f"gradient of {name}": distributed.total(gradient) for name, gradient in shared.items()}
    results |= {name: buffer.clone() for name, buffer in module.named_buffers()}
    module.eval()
    return results | {"evaluated": module(x).detach().clone()}


def synchronised_norm() -> Results:
    return norm(SynchronisedBatchNorm if distributed.active() else nn.BatchNorm2d)


def synchronised_norm_without_affine() -> Results:
    kind = SynchronisedBatchNorm if distributed.active() else nn.BatchNorm2d
    return norm(kind, affine=False, momentum=None)


class InFloat64(ArraySplit):
    def batches(self, *arguments: Any, **options: Any) -> Iterator[tuple[Tensor, Tensor]]:
        return ((x.double(), y) for x, y in super().batches(*arguments, **options))


@cache
def patterns() -> Data:
    """Bytes with a row that tells the class; a number of test samples that two processes cannot share evenly."""
    numbers = np.random.Generator(np.random.PCG64(3))
    description = InputDescription((1, 8, 8), mean=(0.5,), std=(0.3,), labels=tuple("0123456789"))

    def split(count: int, augmentation: CropAndFlip | None = None) -> InFloat64:
        labels = numbers.integers(0, 10, count)
        images = numbers.integers(0, 128, (count, 1, 8, 8), dtype=np.uint8)
        images[np.arange(count), 0, labels % 8] += 100
        return InFloat64(images, labels, description, augmentation)

    return Data("patterns", description, split(3 * BATCH, CropAndFlip(padding=1)), split(31))


def fitted(net: bs.StratifiedNet, recipe: bs.Recipe, folder: Path | None = None) -> Results:
    history = bs.fit(net, patterns(), recipe, folder=folder)
    results = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    return {**results, "accuracy": history[-1].accuracy, "history": history}


def fit_without_norms() -> Results:
    return fitted(without_norms(), RECIPE)


def fit_with_synchronised_norms() -> Results:
    return fitted(stratified(synchronise_norms(resnet8())), RECIPE)


def fit_by_minimum_norm() -> Results:
    return fitted(without_norms(), replace(RECIPE, objective="minimum-norm", norm_batches=1))


def fit_from_other_weights() -> Results:
    """The first process's weights count."""
    net = without_norms()
    if distributed.rank():
        with torch.no_grad():
            for parameter in net.parameters():
                parameter += 1.0
    return fitted(net, replace(RECIPE, epochs=1))


def fit_in_two_goes(folder: Path) -> Results:
    """Stopped in the middle of the second epoch, and continued by fresh processes' networks."""
    from bitstrata.training.fit import _Run

    class Stopped(Exception):
        pass

    step, done = _Run._step, 0

    def failing(self: Any, x: Tensor, y: Tensor) -> None:
        nonlocal done
        if done == 4:
            raise Stopped
        done += 1
        step(self, x, y)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Run, "_step", failing)
        with pytest.raises(Stopped):
            bs.fit(without_norms(), patterns(), RECIPE, folder=folder, checkpoint_minutes=0.0)
    return fitted(without_norms(), RECIPE, folder)


def accuracy() -> Results:
    net = without_norms()
    net.calibrate([images()[0]])
    batches = patterns().test.batches(8, rank=distributed.rank(), world=distributed.world())
    return {"accuracy": evaluate(net, batches)}


def statistics_again() -> Results:
    net = stratified(synchronise_norms(resnet8()))
    net.load_state_dict(_calibrated())
    recalculate_norms(net, [part(images()[0])])
    return {n: b.clone() for n, b in net.state_dict().items() if n.endswith(("running_mean", "num_batches_tracked"))}


SCENARIOS: tuple[Callable[..., Results], ...] = (
    joint_gradients,
    minimum_norm,
    calibration_without_norms,
    calibration_by_the_first_batch,
    calibration_with_synchronised_norms,
    calibration_with_norms,
    synchronised_norm,
    synchronised_norm_without_affine,
    fit_without_norms,
    fit_with_synchronised_norms,
    fit_by_minimum_norm,
    fit_from_other_weights,
    fit_in_two_goes,
    accuracy,
    statistics_again,
)


def process(rank: int, folder: Path) -> None:
    """One of the processes: runs everything and keeps the results, or what went wrong."""
    torch.set_num_threads(1)
    # A file to meet at needs no free port.
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    results: dict[str, Any] = {}
    for scenario in SCENARIOS:
        name = scenario.__name__
        try:
            results[name] = scenario(folder / name) if name == "fit_in_two_goes" else scenario()
        except BaseException:  # noqa: BLE001 - a pytest.fail is none of Exception's children
            results[name] = traceback.format_exc()
            break  # the processes are no longer in step
    torch.save(results, folder / f"results-{rank}.pt")
    dist.destroy_process_group()


# ---- the tests


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("processes")
    source = str(Path(bs.__file__).parents[1])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    outputs = [folder / f"output-{rank}.txt" for rank in range(WORLD)]
    processes = []
    for rank, output in enumerate(outputs):
        with output.open("w") as file:
            command = [sys.executable, __file__, str(rank), str(folder)]
            processes.append(subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT))
    try:
        codes = [started.wait(timeout=PATIENCE) for started in processes]
    finally:
        for started in processes:
            started.kill()
            started.wait()
    assert codes == [0] * WORLD, "\n".join(output.read_text() for output in outputs)
    return [torch.load(folder / f"results-{rank}.pt", weights_only=False) for rank in range(WORLD)]


def results_of(by_two: list[dict[str, Any]], name: str) -> list[Results]:
    for results in by_two:
        failed = {scenario: value for scenario, value in results.items() if isinstance(value, str)}
        if name not in results or name in failed:
            pytest.fail(f"{name} did not come to an end in two processes: {failed}")
    return [results[name] for results in by_two]


def assert_close(first: Results, second: Results, tolerance: float) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(
                value, second[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
            )


def assert_ranks_agree(ranks: list[Results]) -> None:
    assert len(ranks) == WORLD
    for name, value in ranks[0].items():
        if isinstance(value, Tensor):
            assert torch.equal(value, ranks[1][name]), name


@pytest.mark.parametrize("scenario", [joint_gradients, minimum_norm])
def test_gradients_equal_those_of_one_process_on_the_whole_batch(
    by_two: list[dict[str, Any]], scenario: Callable[[], Results]
) -> None:
    ranks = results_of(by_two, scenario.__name__)
    assert_ranks_agree(ranks)
    expected = scenario()
    assert len(expected) >= len(list(with_frozen_norms().parameters()))
    assert_close(ranks[0], expected, 1e-6)


def test_without_communication_the_gradients_would_differ() -> None:
    """The halves are unlike enough for the test above to be one."""
    whole, half = with_frozen_norms(), with_frozen_norms()
    x, y = images()
    for net, count in ((whole, BATCH), (half, BATCH // 2)):
        bs.JointLoss()(net(x[:count]), y[:count]).backward()
    with pytest.raises(AssertionError):
        assert_close(gradients(half), gradients(whole), 1e-3)


@pytest.mark.parametrize(
    "scenario",
    [calibration_without_norms, calibration_by_the_first_batch, calibration_with_synchronised_norms],
)
def test_calibration_equals_that_of_one_process_on_the_whole_batch(
    by_two: list[dict[str, Any]], scenario: Callable[[], Results]
) -> None:
    ranks = results_of(by_two, scenario.__name__)
    assert_ranks_agree(ranks)
    expected = scenario()
    zero_points = [int(value) for name, value in expected.items() if "zero_point" in name]
    assert any(zero_points) is (scenario is not calibration_with_synchronised_norms)  # SiLU, or ReLU only
    assert_close(ranks[0], expected, 1e-6)


def test_processes_agree_on_calibration_and_statistics_with_ordinary_norms(by_two: list[dict[str, Any]]) -> None:
    ranks = results_of(by_two, "calibration_with_norms")
    assert_ranks_agree(ranks)
    assert all(bool(value) for name, value in ranks[0].items() if "calibrated_" in name)
    assert any(name.endswith("running_mean") for name in ranks[0])


@pytest.mark.parametrize("scenario", [synchronised_norm, synchronised_norm_without_affine])
def test_a_synchronised_norm_equals_a_norm_on_the_whole_batch(
    by_two: list[dict[str, Any]], scenario: Callable[[], Results]
) -> None:
    ranks = results_of(by_two, scenario.__name__)
    expected = scenario()
    for name, value in expected.items():
        whole = name.startswith(("output", "input", "evaluated"))
        got = torch.cat([rank[name] for rank in ranks]) if whole else ranks[0][name]
        if not whole:
            assert torch.equal(ranks[0][name], ranks[1][name]), name
        torch.testing.assert_close(got, value, rtol=2e-3, atol=2e-3, msg=lambda m, n=name: f"{n}: {m}")


def test_a_synchronised_norm_is_an_ordinary_one_in_a_single_process() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 5, 5)
    ordinary, synchronised = nn.BatchNorm2d(3), SynchronisedBatchNorm(3)
    assert torch.equal(ordinary(x), synchronised(x))
    assert torch.equal(ordinary.running_var, synchronised.running_var)


def test_synchronising_replaces_every_norm_and_keeps_what_it_learned() -> None:
    shared = nn.BatchNorm2d(4)
    nn.init.normal_(shared.weight)
    model = nn.Sequential(nn.Conv2d(1, 4, 1), shared, nn.Sequential(nn.BatchNorm2d(4, eps=0.1, affine=False), shared))
    model.eval()
    x = torch.randn(2, 1, 3, 3)
    expected = model(x)
    assert synchronise_norms(model) is model
    norms = [model[1], model[2][0], model[2][1]]
    assert {type(module) for module in norms} == {SynchronisedBatchNorm}
    assert norms[0] is norms[2]
    assert not any(module.training for module in norms)
    assert torch.equal(model(x), expected)


def test_a_stratified_network_is_not_synchronised_in_silence() -> None:
    """Its widths would keep the norms that they were bound with."""
    with pytest.raises(CannotStratify, match="before stratify"):
        synchronise_norms(bs.stratify(resnet8()))


@pytest.mark.parametrize("scenario", [fit_without_norms, fit_with_synchronised_norms, fit_by_minimum_norm])
def test_a_run_of_two_processes_ends_as_that_of_one(
    by_two: list[dict[str, Any]], scenario: Callable[[], Results]
) -> None:
    ranks = results_of(by_two, scenario.__name__)
    assert_ranks_agree(ranks)
    expected = scenario()
    assert_close(ranks[0], expected, 1e-6)
    assert ranks[0]["accuracy"] == ranks[1]["accuracy"] == expected["accuracy"]
    assert expected["accuracy"]["2"].samples == 31


def test_processes_start_from_the_weights_of_the_first(by_two: list[dict[str, Any]]) -> None:
    ranks = results_of(by_two, "fit_from_other_weights")
    assert_ranks_agree(ranks)
    assert_close(ranks[0], fit_from_other_weights(), 1e-6)


def test_a_stopped_run_of_two_processes_ends_as_one_that_was_not(by_two: list[dict[str, Any]]) -> None:
    ranks = results_of(by_two, "fit_in_two_goes")
    assert_ranks_agree(ranks)
    for name, value in results_of(by_two, "fit_without_norms")[0].items():
        if isinstance(value, Tensor):
            assert torch.equal(ranks[0][name], value), name


def test_accuracy_is_counted_over_all_processes(by_two: list[dict[str, Any]]) -> None:
    ranks = results_of(by_two, "accuracy")
    assert ranks[0] == ranks[1] == accuracy()


def test_statistics_are_estimated_over_all_processes(by_two: list[dict[str, Any]]) -> None:
    ranks = results_of(by_two, "statistics_again")
    assert_ranks_agree(ranks)
    assert_close(ranks[0], statistics_again(), 1e-6)


if __name__ == "__main__":
    process(int(sys.argv[1]), Path(sys.argv[2]))
