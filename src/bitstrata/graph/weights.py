"""What a graph says of a weight: its name, its shape, and how it is stored."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec

from bitstrata.limits import MAX_NAME

#: Letters, digits and a few signs, no two dots in a row: no path, no escape sequence, nothing that prints as another.
NAME_PATTERN = rf"^(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9_.@-]{{0,{MAX_NAME - 1}}}(?!\n)$"

Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]

#: A number of a file; what does not fit 64 bits is refused before anything is computed with it.
Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

Store = Literal["planes", "float32", "float16"]


class Weight(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One weight: of a convolution (out, in / groups, height, width), or of a linear layer (out, in)."""

    name: Name
    shape: Annotated[tuple[Whole, ...], msgspec.Meta(min_length=2, max_length=4)]
    store: Store = "planes"
    own: bool = False
    """A float weight of which every view holds its own, in its own file."""

    @property
    def quantised(self) -> bool:
        return self.store == "planes"

    @property
    def count(self) -> int:
        return math.prod(self.shape)
