"""What views need from a published model: whole strata, or single segments where they use only some."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

from bitstrata.format import layout, published
from bitstrata.format.manifest import Manifest, ViewEntry


@dataclass(frozen=True)
class Need:
    """Bytes with a hash: a file, or a segment of one."""

    digest: str
    size: int
    path: str
    """Where its file is published."""
    what: str
    """For messages."""
    start: int | None = None
    """Where a segment begins in its file; None for a whole file."""


def needs_of(
    manifest: Manifest, views: Set[str], has: Callable[[str, int], bool] = lambda digest, size: False
) -> list[Need]:
    """All that some views need, the base first. A stratum of which each uses a part only is needed as segments, unless
    `has` says that the whole is there."""
    chosen = [manifest.view(name) for name in sorted(views)]
    bits = _most_bits(manifest, chosen)
    needs = []
    for index, stratum in enumerate(manifest.strata):
        path = published.blob(stratum.sha256)
        segments = manifest.segments_of(index)
        used = [one for one in segments if index == 0 or bits[one.weight] >= stratum.bits]
        # Not where parts merely add up to the whole: those parts came one by one, and are what the device holds.
        whole = index == 0 or any(min(view.bits, default=0) >= stratum.bits for view in chosen)
        if used and (whole or has(stratum.sha256, stratum.size)):
            needs.append(Need(stratum.sha256, stratum.size, path, stratum.file))
        else:
            needs += [
                Need(one.sha256.hex(), one.size, path, f"{one.weight} of {stratum.file}", one.offset) for one in used
            ]
    needs += [Need(view.sha256, view.size, published.blob(view.sha256), view.file) for view in chosen]
    return list({need.digest: need for need in needs}.values())


def covered_views(manifest: Manifest, view: str) -> set[str]:
    """A view, and the uniform ones whose planes it brings along: their small files come with it, for a way back."""
    lowest = min(manifest.view(view).bits, default=0)
    below = {one.name for one in manifest.views if len(set(one.bits)) == 1 and one.bits[0] <= lowest}
    return {view, *below}


def mean_bits(manifest: Manifest, view: str) -> float:
    """Bits per weight of the quantised layers."""
    weights = layout.quantised_weights(manifest.graph)
    count = sum(weight.count for weight in weights)
    total = sum(weight.count * bits for weight, bits in zip(weights, manifest.view(view).bits, strict=True))
    return total / count if count else 0.0


def _most_bits(manifest: Manifest, views: list[ViewEntry]) -> dict[str, int]:
    """By weight: the highest width among the views."""
    names = [weight.name for weight in layout.quantised_weights(manifest.graph)]
    columns = zip(*(view.bits for view in views), strict=True)
    return {name: max(bits) for name, bits in zip(names, columns, strict=True)}
