"""Which width a norm, or an own first or last layer, has in a network whose layers have several."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bitstrata.capture.drafts import Draft
from bitstrata.capture.record import record
from bitstrata.graph.ops import Shape
from bitstrata.training.binding import bind
from bitstrata.training.bound import PerWidth
from bitstrata.training.net import StratifiedNet


def widths_beside(net: StratifiedNet, widths: Mapping[str, int], shape: Shape) -> dict[str, int]:
    """For every module that each width has a copy of, by name: the width whose copy it takes.

    It is that of the quantised layer that feeds it. Where several layers or none of these do, it is the lowest width
    among the quantised layers that it feeds, those behind a sum or concatenation only if there are no others; where it
    feeds none, the lowest among those that feed it; and where there are none of these either, the lowest of all.
    """
    names = [name for name, module in net.model.named_modules() if isinstance(module, PerWidth)]
    if not names:
        return {}
    drafts, _ = record(bind(net.model, net.widths[-1], 1.0), shape)
    neighbours = _Neighbours(drafts, widths)
    return {name: neighbours.width(name) for name in names}


class _Neighbours:
    """The drafts of a network, followed against and along the flow of data up to the next layers."""

    def __init__(self, drafts: list[Draft], widths: Mapping[str, int]) -> None:
        self.drafts = drafts
        self.widths = widths
        self.users: dict[Draft, list[Draft]] = {draft: [] for draft in drafts}
        for draft in drafts:
            for one in draft.inputs:
                self.users[one].append(draft)

    def width(self, name: str) -> int:
        own = [draft for draft in self.drafts if draft.place == name]
        feeding = self._next(own, lambda draft: draft.inputs)
        quantised = self._quantised(feeding)
        if len(feeding) == len(quantised) == 1:
            return quantised[0]
        fed = self._next(own, lambda draft: [user for user in self.users[draft] if len(user.inputs) == 1])
        if not self._quantised(fed):
            fed = self._next(own, lambda draft: self.users[draft])
        return min(self._quantised(fed) or quantised or self.widths.values())

    def _quantised(self, layers: set[str]) -> list[int]:
        """The widths of those of the layers that have one."""
        return [self.widths[layer] for layer in layers if layer in self.widths]

    def _next(self, start: list[Draft], neighbours: Callable[[Draft], list[Draft]]) -> set[str]:
        """The layers that are met first on the ways from here, float ones included."""
        found: set[str] = set()
        seen = set(start)
        open_ends = list(start)
        while open_ends:
            for one in neighbours(open_ends.pop()):
                if one in seen:
                    continue
                seen.add(one)
                if one.weight is None:
                    open_ends.append(one)
                else:
                    found.add(one.place)
        return found
