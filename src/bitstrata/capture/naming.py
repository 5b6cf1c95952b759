"""Names for drafts: readable, unique, and such that any reader takes them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bitstrata.graph import INPUT
from bitstrata.limits import MAX_NAME

#: Room for `@2` and the like at the end of a name.
_SUFFIX_ROOM = 8


def unique_names(places: Iterable[str]) -> list[str]:
    """One name per place; the second node of a place is PLACE@2."""
    taken = {INPUT}
    names = []
    for place in places:
        base = name = _clean(place)
        count = 1
        while name in taken:
            count += 1
            name = f"{base}@{count}"
        taken.add(name)
        names.append(name)
    return names


def _clean(place: str) -> str:
    allowed = re.sub(r"[^A-Za-z0-9_.-]", "_", place)
    allowed = re.sub(r"\.{2,}", ".", allowed)
    # The end of a long path says more than its beginning.
    allowed = allowed[-(MAX_NAME - _SUFFIX_ROOM) :].lstrip(".-")
    return allowed or "node"
