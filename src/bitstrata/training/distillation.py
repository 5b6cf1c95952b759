"""Self-distillation: each width learns from the next higher one (section 4.2.3 of the paper)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor
from torch.nn import functional

from bitstrata.errors import BadOption

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
        raise BadOption(f"distill={choice!r} is not known; use 'cosine', 'kl', None or a function of two outputs")

    def of_tensors(teacher: Any, student: Any) -> Tensor:
        if not isinstance(student, Tensor):
            raise BadOption(
                f"distill={choice!r} compares tensors of class scores, but the model returns a "
                f"{type(student).__name__}. Give JointLoss a function of teacher and student output instead"
            )
        return known[choice](teacher, student)

    return of_tensors
