"""Self-distillation: each width learns from the next higher one (section 4.2.3 of the paper)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor
from torch.nn import functional

Distance = Callable[[Tensor, Tensor], Tensor]
Distillation = Literal["cosine", "kl"] | Distance | None


def cosine_distance(teacher: Tensor, student: Tensor) -> Tensor:
    """1 - cosine of the two softmax outputs, averaged over the batch (eq. 10)."""
    similarity = functional.cosine_similarity(teacher.float().softmax(-1), student.float().softmax(-1), dim=-1)
    return 1.0 - similarity.mean()


def kl_divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(teacher || student) of the two softmax outputs, averaged over the batch."""
    return functional.kl_div(
        student.float().log_softmax(-1).flatten(0, -2),
        teacher.float().log_softmax(-1).flatten(0, -2),
        reduction="batchmean",
        log_target=True,
    )


def distance(choice: Distillation) -> Distance | None:
    """The function that a name stands for."""
    if choice is None or callable(choice):
        return choice
    known: dict[str, Distance] = {"cosine": cosine_distance, "kl": kl_divergence}
    if choice not in known:
        raise ValueError(f"distill={choice!r} is not known; use 'cosine', 'kl', None or a function of two outputs")
    return known[choice]
