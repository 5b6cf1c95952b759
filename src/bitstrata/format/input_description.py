"""What a device must know to prepare an input."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from bitstrata.errors import BadInputDescription
from bitstrata.limits import MAX_DIMENSION, MAX_ELEMENTS, MAX_LABELS, MAX_NAME

#: What labels must not hold: control characters, line separators, signs that turn the direction of writing, and
#: halves of characters. Any script is welcome otherwise.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


@dataclass(frozen=True)
class InputDescription:
    """The size of an input, how its bytes become numbers, and what the classes are called."""

    shape: tuple[int, int, int]
    """Channels, height, width."""
    mean: tuple[float, ...]
    """Per channel, on the 0..1 scale."""
    std: tuple[float, ...]
    """Per channel, on the 0..1 scale."""
    labels: tuple[str, ...] = ()
    """The name of each class, by its index; may be empty."""
    crop: float = 1.0
    """The part of an image's shorter side that is kept, centred, before it is resized to height x width."""

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or min(self.shape) < 1:
            raise BadInputDescription(f"shape must be (channels, height, width), all positive, not {self.shape}")
        if max(self.shape) > MAX_DIMENSION or math.prod(self.shape) > MAX_ELEMENTS:
            raise BadInputDescription(f"shape {self.shape} is too large")
        if len(self.mean) != self.shape[0] or len(self.std) != self.shape[0]:
            raise BadInputDescription(
                f"mean and std must have one value for each of {self.shape[0]} channels, "
                f"not {len(self.mean)} and {len(self.std)}"
            )
        if not all(map(math.isfinite, self.mean)):
            raise BadInputDescription(f"mean must be finite, not {self.mean}")
        if not all(0 < one < math.inf for one in self.std):
            raise BadInputDescription(f"std must be positive, not {self.std}")
        if not 0 < self.crop <= 1:
            raise BadInputDescription(f"crop must be above 0 and at most 1, not {self.crop}")
        if len(self.labels) > MAX_LABELS:
            raise BadInputDescription(f"{len(self.labels)} labels are more than {MAX_LABELS}")
        for label in self.labels:
            if not 0 < len(label) <= MAX_NAME or _UNPRINTABLE.search(label):
                raise BadInputDescription(
                    f"labels must be 1 to {MAX_NAME} printable characters, not {label[: MAX_NAME + 1]!a}"
                )
