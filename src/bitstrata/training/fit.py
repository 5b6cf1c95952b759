"""`fit`: the training loop for those who have none.

Widths run from high to low, each with its backward pass at once, so that the peak memory is that of one width.
A float model is trained by the same loop, as a network with a single pass.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bitstrata.atomic import remove_partial
from bitstrata.errors import BadData, CheckpointMismatch, NotFinite
from bitstrata.training import distributed
from bitstrata.training.checkpoint import check_layout, layout, load_checkpoint, save_checkpoint
from bitstrata.training.evaluate import Accuracy, evaluate, passes
from bitstrata.training.finite import check_gradients, explain_loss
from bitstrata.training.memory import RELEASE_EVERY, release_free_memory
from bitstrata.training.net import StratifiedNet
from bitstrata.training.norms import recalculate_norms
from bitstrata.training.objectives import Criterion, JointLoss, MinimumNorm, detached
from bitstrata.training.parameter_groups import parameter_groups
from bitstrata.training.recipe import Recipe
from bitstrata.training.run_log import RunLog
from bitstrata.training.sources import Source, as_source

CHECKPOINT = "checkpoint.pt"
#: Minimum-norm objective: points of the trace that the log keeps of an epoch.
TRACE_POINTS = 25


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to."""

    epoch: int
    loss: dict[str, float]
    accuracy: dict[str, Accuracy]
    seconds: float
    learning_rate: float
    #: Minimum-norm objective only: the mean weight of every width and the mean norm of its gradient.
    weights: dict[str, float] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)


def fit(
    net: nn.Module,
    data: Any,
    recipe: Recipe,
    *,
    bits: int | None = None,
    folder: str | Path | None = None,
    criterion: Criterion = functional.cross_entropy,
    description: dict[str, Any] | None = None,
    tensorboard: bool = False,
    progress: bool | None = None,
    checkpoint_minutes: float = 5.0,
) -> list[Epoch]:
    """Trains `net` in place by `recipe` and returns one `Epoch` for each epoch.

    net             a `StratifiedNet`: all its widths together; any other module: the float network
    data            a data set of `bitstrata.zoo`, or a pair of loaders (training, test) that give (input, target)
    bits            train and evaluate this width alone, as one stage of a longer method; what must not change in it is
                    frozen by `requires_grad_(False)`
    folder          where the checkpoint and `log.jsonl` go. If a checkpoint is there, training continues from it
                    and ends with the same weights as a run that was never stopped
    description     plain values kept in the checkpoint, from which a program can build the network again
    progress        True or False to force the bar; by default it is shown on a terminal only
    checkpoint_minutes
                    a checkpoint is written after every epoch, and within one after this many minutes
    """
    place = Path(folder) if folder is not None else None
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
    with RunLog(place, tensorboard=tensorboard, progress=progress) as log:
        return _Run(net, bits, as_source(data, recipe), recipe, place, criterion, description or {}, log).run(
            checkpoint_minutes * 60.0
        )


class _Run:
    """One training run: its network, optimiser and place in time."""

    def __init__(
        self,
        net: nn.Module,
        bits: int | None,
        source: Source,
        recipe: Recipe,
        folder: Path | None,
        criterion: Criterion,
        description: dict[str, Any],
        log: RunLog,
    ) -> None:
        self.net = net.to(memory_format=torch.channels_last) if recipe.channels_last else net  # type: ignore[call-overload]
        self.source, self.recipe, self.log = source, recipe, log
        self.folder, self.description = folder, description
        distributed.broadcast_(net.state_dict().values())
        self.loss = JointLoss(criterion, distill=None if recipe.distill == "none" else recipe.distill)
        self.optimiser = torch.optim.SGD(
            parameter_groups(net, weight_decay=recipe.weight_decay), lr=recipe.learning_rate, momentum=recipe.momentum
        )
        self.bits = bits
        combines = recipe.objective == "minimum-norm" and isinstance(net, StratifiedNet) and bits is None
        self.combiner = MinimumNorm(net) if combines else None  # type: ignore[arg-type]
        self.trace: list[dict[int, tuple[float, float]]] = []
        self.device = next(net.parameters()).device
        self.steps_per_epoch = source.steps()
        if self.steps_per_epoch == 0 and recipe.epochs:
            raise BadData(f"the training data give no batch of {recipe.batch_size}; use a smaller batch_size")
        self.epoch = 0
        self.step_in_epoch = 0
        self.sums: dict[str, float] = {}
        self.seconds = 0.0
        self.history: list[Epoch] = []

    # ---- the loop

    def run(self, checkpoint_seconds: float) -> list[Epoch]:
        self._resume()
        total = self.recipe.epochs * self.steps_per_epoch
        self.log.begin("training", total, self.epoch * self.steps_per_epoch + self.step_in_epoch)
        last_saved = time.monotonic()
        while self.epoch < self.recipe.epochs:
            self._enter_training_mode()
            started = time.monotonic()
            for x, y in self._batches():
                self._step(x, y)
                if self.folder is not None and time.monotonic() - last_saved > checkpoint_seconds:
                    self.seconds += time.monotonic() - started
                    started = last_saved = time.monotonic()
                    self._save()
            self.seconds += time.monotonic() - started
            self._finish_epoch()
            last_saved = time.monotonic()
        return self.history

    def _enter_training_mode(self) -> None:
        """Leaves frozen what its owner froze: a network already in training mode keeps the flags of its modules."""
        if not self.net.training:
            self.net.train()
        if isinstance(self.net, StratifiedNet):
            self.net.follow_modes()

    def _batches(self) -> Iterator[tuple[Any, Any]]:
        """The rest of this epoch, from the step at which a stopped run left it."""
        random_state = torch.get_rng_state()
        # From this seed loaders draw their order, in a run that was stopped as in one that was not.
        torch.manual_seed(self.recipe.seed * 1_000_003 + self.epoch)
        batches = self.source.training(self.epoch, self.step_in_epoch)
        if self.step_in_epoch > 0:
            # Loaders that cannot skip have drawn random numbers again to get here.
            torch.set_rng_state(random_state)
        for x, y in batches:
            yield self._prepare(x), y.to(self.device)

    def _prepare(self, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        wants_channels_last = self.recipe.channels_last and x.ndim == 4
        return x.to(self.device, memory_format=torch.channels_last if wants_channels_last else torch.preserve_format)

    def _step(self, x: Any, y: Any) -> None:
        where = f"epoch {self.epoch + 1}, step {self.step_in_epoch + 1}"
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning_rate()
        self.optimiser.zero_grad(set_to_none=True)
        views = passes(self.net, joint=self.bits is None, bits=self.bits)
        teacher = None
        for name, view in views.items():
            try:
                output = view(x)
            except NotFinite as seen:  # by a quantiser that was being calibrated
                raise explain_loss(view, x, name, where, seen) from seen
            loss = self.loss.of_width(output, y, teacher)
            value = float(loss.detach())
            if not math.isfinite(value):
                raise explain_loss(view, x, name, where)
            if self.combiner is not None:
                self.combiner.collect(int(name), loss)
            else:
                (loss / len(views)).backward()  # type: ignore[no-untyped-call]
            teacher = detached(output) if self.loss.distance is not None else None
            self._add(f"loss {name}", value)
            del output, loss
            if self.step_in_epoch % RELEASE_EVERY == 0:
                release_free_memory()
        if self.combiner is not None:
            for bits, weight in self.combiner.combine().items():
                self._add(f"weight {bits}", weight)
                self._add(f"norm {bits}", self.combiner.norms[bits])
            self._follow(self.combiner)
        else:
            distributed.average_(p.grad for p in self.net.parameters() if p.grad is not None)
        check_gradients(self.net, where)
        self.optimiser.step()
        self.step_in_epoch += 1
        self.log.advance("  ".join(f"{name}: {self._mean(f'loss {name}'):.3f}" for name in views))

    def _follow(self, combiner: MinimumNorm) -> None:
        """Adds a point to the trace in the log now and then: means over the steps since the last one."""
        self.trace.append({bits: (weight, combiner.norms[bits]) for bits, weight in combiner.weights.items()})
        step = self.step_in_epoch + 1
        if step * TRACE_POINTS // self.steps_per_epoch > (step - 1) * TRACE_POINTS // self.steps_per_epoch:
            weights, norms = (
                {str(bits): fmean(point[bits][index] for point in self.trace) for bits in combiner.weights}
                for index in (0, 1)
            )
            at = round(self.epoch + step / self.steps_per_epoch, 4)
            self.log.event("trace", epoch=self.epoch, at=at, weights=weights, norms=norms)
            self.trace = []

    def _evaluate(self) -> dict[str, Accuracy]:
        every, number = self.recipe.evaluate_every, self.epoch + 1
        last = number == self.recipe.epochs
        due = every > 0 and (last or number % every == 0)
        if (due or last) and self.recipe.norm_batches and isinstance(self.net, StratifiedNet):
            batches = islice(self.source.training(self.epoch, 0), self.recipe.norm_batches)
            recalculate_norms(self.net, [self._prepare(x) for x, _ in batches], bits=self.bits)
        return evaluate(self.net, self.source.test(), bits=self.bits, prepare=self._prepare) if due else {}

    def _finish_epoch(self) -> None:
        accuracy = self._evaluate()
        epoch = Epoch(
            self.epoch,
            self._means("loss "),
            accuracy,
            round(self.seconds, 3),
            self.learning_rate(),
            self._means("weight "),
            self._means("norm "),
        )
        self.history.append(epoch)
        self.log.event("epoch", **asdict(epoch))
        self.log.curves(
            self.epoch + 1,
            {f"loss/{name}": value for name, value in epoch.loss.items()}
            | {f"top1/{name}": result.top1 for name, result in accuracy.items()}
            | {f"top5/{name}": result.top5 for name, result in accuracy.items()},
        )
        shown = "  ".join(f"{name}: {result.top1:.2f}" for name, result in accuracy.items())
        self.log.say(f"epoch {self.epoch + 1}/{self.recipe.epochs}  {f'top-1  {shown}' if shown else ''}")
        self.epoch += 1
        self.step_in_epoch, self.sums, self.seconds = 0, {}, 0.0
        self._save()

    def learning_rate(self) -> float:
        """Cosine decay to zero, after a linear rise over the warm-up."""
        step = self.epoch * self.steps_per_epoch + self.step_in_epoch
        total = self.recipe.epochs * self.steps_per_epoch
        warmup = self.recipe.warmup_epochs * self.steps_per_epoch
        if step < warmup:
            return self.recipe.learning_rate * (step + 1) / (warmup + 1)
        progress = (step - warmup) / max(total - warmup, 1)
        return self.recipe.learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress))

    # ---- running means of this epoch

    def _add(self, name: str, value: float) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + value

    def _mean(self, name: str) -> float:
        return self.sums[name] / max(self.step_in_epoch, 1)

    def _means(self, prefix: str) -> dict[str, float]:
        return {name.removeprefix(prefix): self._mean(name) for name in self.sums if name.startswith(prefix)}

    # ---- checkpoints

    def _save(self) -> None:
        if self.folder is None or distributed.rank() != 0:
            return
        save_checkpoint(
            self.folder / CHECKPOINT,
            {
                "layout": layout(self.net),
                "model": dict(self.net.state_dict()),
                "optimiser": self.optimiser.state_dict(),
                "recipe": self.recipe.as_dict(),
                "description": self.description,
                "epoch": self.epoch,
                "step_in_epoch": self.step_in_epoch,
                "sums": self.sums,
                "seconds": self.seconds,
                "history": [asdict(epoch) for epoch in self.history],
                "random_state": torch.get_rng_state(),
            },
        )

    def _resume(self) -> None:
        path = self.folder / CHECKPOINT if self.folder is not None else None
        if path is not None and distributed.rank() == 0:
            remove_partial(path)
        if path is None or not path.exists():
            self.log.forget_epochs_from(0)
            self.log.event("start", recipe=self.recipe.as_dict(), description=self.description, torch=torch.__version__)
            return
        state = load_checkpoint(path)
        check_layout(path, state["layout"], self.net)
        if state["recipe"] != self.recipe.as_dict():
            changed = [key for key, value in self.recipe.as_dict().items() if state["recipe"].get(key) != value]
            raise CheckpointMismatch(
                f"{path} was made by a recipe with another {', '.join(changed)}. Continue with that recipe, or train "
                f"into another folder"
            )
        self.net.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.epoch, self.step_in_epoch = state["epoch"], state["step_in_epoch"]
        self.sums, self.seconds = dict(state["sums"]), state["seconds"]
        self.history = [
            Epoch(**{**entry, "accuracy": {name: Accuracy(**value) for name, value in entry["accuracy"].items()}})
            for entry in state["history"]
        ]
        torch.set_rng_state(state["random_state"])
        self.log.forget_epochs_from(self.epoch)
        self.log.event("resume", at_epoch=self.epoch, at_step=self.step_in_epoch)
