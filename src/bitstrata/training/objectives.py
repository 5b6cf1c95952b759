"""From one loss per width to one update: the mean of the losses, or the minimum-norm combination of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from bitstrata.errors import UnknownWidth
from bitstrata.training import distributed
from bitstrata.training.distillation import Distillation, distance
from bitstrata.training.net import StratifiedNet

Criterion = Callable[[Any, Any], Tensor]


class JointLoss:
    """The mean over widths of criterion plus self-distillation (eqs. 8 and 10): unitary scalarisation.

        loss = JointLoss(distill="cosine")(net(x), y)

    criterion   of the model's own output and the target; cross-entropy unless said otherwise
    distill     "cosine", "kl", None, or a function of teacher and student output; the teacher is always detached
    """

    def __init__(
        self, criterion: Criterion = functional.cross_entropy, *, distill: Distillation = None, weight: float = 1.0
    ) -> None:
        self.criterion = criterion
        self.distance = distance(distill)
        self.weight = weight

    def __call__(self, outputs: Mapping[int, Any], target: Any) -> Tensor:
        losses = self.per_width(outputs, target)
        return torch.stack(list(losses.values())).mean()

    def per_width(self, outputs: Mapping[int, Any], target: Any) -> dict[int, Tensor]:
        """The loss of every width, highest first; what `MinimumNorm.backward` takes."""
        if not outputs:
            raise UnknownWidth("no outputs were given; call the stratified network without bits=")
        losses: dict[int, Tensor] = {}
        teacher = None
        for bits in sorted(outputs, reverse=True):
            losses[bits] = self.of_width(outputs[bits], target, teacher)
            teacher = outputs[bits]
        return losses

    def of_width(self, output: Any, target: Any, teacher: Any = None) -> Tensor:
        """One width's loss, given the output of the next higher width where there is one."""
        loss = self.criterion(output, target)
        if self.distance is not None and teacher is not None:
            loss = loss + self.weight * self.distance(detached(teacher), output)
        return loss


class MinimumNorm:
    """The convex combination of the widths' gradients that has the least norm (eq. 9).

        MinimumNorm(net).backward(JointLoss().per_width(net(x), y))

    Only shared parameters are combined; those of one width receive the full gradient of their own loss. The losses
    must come from a joint pass, `net(x)` or `net.at(bits, joint=True)`.
    """

    def __init__(self, net: StratifiedNet) -> None:
        self.net = net
        self._shared = [parameter for parameter in net.shared_parameters() if parameter.requires_grad]
        self._own = {bits: [p for p in net.own_parameters(bits) if p.requires_grad] for bits in net.widths}
        self._collected: dict[int, list[Tensor]] = {}
        #: Of the last step: the weight of every width, and the norm of its gradient.
        self.weights: dict[int, float] = {}
        self.norms: dict[int, float] = {}

    def backward(self, losses: Mapping[int, Tensor]) -> dict[int, float]:
        """Adds the combined gradient to `.grad` and returns the weight of every width."""
        for bits, loss in losses.items():
            self.collect(bits, loss)
        return self.combine()

    def collect(self, bits: int, loss: Tensor) -> None:
        """Keeps the gradients of one width's loss; its graph is freed, so widths may be run one after the other."""
        own = self._own[bits]
        gradients = torch.autograd.grad(loss, self._shared + own, allow_unused=True)
        filled = [
            torch.zeros_like(parameter) if gradient is None else gradient
            for parameter, gradient in zip(self._shared + own, gradients, strict=True)
        ]
        distributed.average_(filled)
        self._collected[bits] = filled[: len(self._shared)]
        for parameter, gradient in zip(own, filled[len(self._shared) :], strict=True):
            # A joint pass has multiplied them by the number of widths, to undo a mean that was not taken here.
            _accumulate(parameter, gradient / len(self.net.widths))

    def combine(self) -> dict[int, float]:
        """Solves for the weights, adds the combination to `.grad`, and forgets what was collected."""
        widths = list(self._collected)
        gram = np.empty((len(widths), len(widths)))
        for row, first in enumerate(widths):
            for column, second in enumerate(widths):
                gram[row, column] = sum(
                    float(torch.dot(a.reshape(-1).double(), b.reshape(-1).double()))
                    for a, b in zip(self._collected[first], self._collected[second], strict=True)
                )
        solution = minimum_norm_weights(gram)
        for index, parameter in enumerate(self._shared):
            combined = sum(
                float(weight) * self._collected[bits][index] for bits, weight in zip(widths, solution, strict=True)
            )
            assert isinstance(combined, Tensor)
            _accumulate(parameter, combined)
        self.weights = {bits: float(weight) for bits, weight in zip(widths, solution, strict=True)}
        self.norms = {bits: float(np.sqrt(max(gram[i, i], 0.0))) for i, bits in enumerate(widths)}
        self._collected = {}
        return self.weights


def minimum_norm_weights(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weights on the simplex that minimise w' G w.

    There are few widths, so every set of widths that could carry the weight is tried: within one, the minimum is a
    small linear system. Iterative methods (the paper names Frank-Wolfe) crawl where gradients differ much in length.
    """
    count = len(gram)
    if not np.isfinite(gram).all():
        return np.full(count, 1.0 / count)  # keeps what is not finite in sight
    lengths = np.sqrt(np.clip(np.diag(gram), 0.0, None))
    best: NDArray[np.float64] = np.zeros(count)
    best[int(np.argmin(lengths))] = 1.0
    if not lengths.all():
        return best  # a width without gradient is the minimum itself
    least = float(lengths.min() ** 2)
    inverse = lengths.min() / lengths
    cosines = gram / np.outer(lengths, lengths)
    for size in range(2, count + 1):
        for carrying in map(list, combinations(range(count), size)):
            # In units of each gradient's length: cosines @ v + multiplier * inverse = 0, inverse @ v = 1.
            ratios = inverse[carrying]
            system = np.block([[cosines[np.ix_(carrying, carrying)], ratios[:, None]], [ratios, 0.0]])
            solution = np.linalg.lstsq(system, np.eye(size + 1)[-1], rcond=None)[0]
            weights = np.zeros(count)
            weights[carrying] = solution[:size] * ratios
            if weights.min() < 0 or not weights.sum() > 0:
                continue
            weights /= weights.sum()
            value = float(weights @ gram @ weights)
            if value < least:
                best, least = weights, value
    return best


def detached(output: Any) -> Any:
    """The output without its history, whatever a model puts its tensors in."""
    if isinstance(output, Tensor):
        return output.detach()
    if isinstance(output, Mapping):
        return {key: detached(value) for key, value in output.items()}
    if isinstance(output, (tuple, list)):
        return [detached(value) for value in output]
    return output


def _accumulate(parameter: nn.Parameter, gradient: Tensor) -> None:
    parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad + gradient
