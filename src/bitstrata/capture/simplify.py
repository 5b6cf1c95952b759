"""Drafts, made smaller: dead nodes dropped, written-out activations recognised, constants folded into layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from bitstrata.capture.drafts import Draft
from bitstrata.graph import ops


def simplified(drafts: list[Draft], outputs: list[Draft]) -> tuple[list[Draft], list[Draft]]:
    """The nodes that the outputs need, in an order in which they can be computed, and the outputs."""
    live = _live(drafts, outputs)
    _recognise(live, outputs)
    live = _live(live, outputs)
    live, outputs = _fold(live, outputs)
    return [draft for draft in live if draft.kind is not None], outputs


def _live(drafts: list[Draft], outputs: list[Draft]) -> list[Draft]:
    needed = set(outputs)
    for draft in reversed(drafts):
        if draft in needed:
            needed.update(draft.inputs)
    return [draft for draft in drafts if draft in needed]


def _uses(drafts: Iterable[Draft], outputs: list[Draft]) -> Counter[Draft]:
    return Counter([*outputs, *(one for draft in drafts for one in draft.inputs)])


def _recognise(drafts: list[Draft], outputs: list[Draft]) -> None:
    """Turns the last node of a written-out activation into that activation; the others may then be dead."""
    uses = _uses(drafts, outputs)
    for draft in drafts:
        shifted = _sixth_of_relu6(draft, uses)
        if shifted is not None:
            _become(draft, ops.HardSigmoid, shifted)
        elif draft.kind is ops.Affine and draft.terms is not None and draft.terms.is_uniform(1 / 6, 0.0):
            (scaled,) = draft.inputs
            x = _gated(scaled) if scaled.kind is ops.Mul and uses[scaled] == 1 else None
            if x is not None:
                _become(draft, ops.HardSwish, x)
        elif draft.kind is ops.Mul:
            for x, gate in (draft.inputs, draft.inputs[::-1]):
                whole = {ops.HardSigmoid: ops.HardSwish, ops.Sigmoid: ops.Silu}.get(gate.kind or ops.Op)
                if whole is not None and gate.inputs == [x] and uses[gate] == 1:
                    _become(draft, whole, x)
                    break


def _sixth_of_relu6(draft: Draft, uses: Counter[Draft]) -> Draft | None:
    """x, where the draft is relu6(x + 3) / 6."""
    if draft.kind is not ops.Affine or draft.terms is None or not draft.terms.is_uniform(1 / 6, 0.0):
        return None
    return _shifted_relu6(draft.inputs[0]) if uses[draft.inputs[0]] == 1 else None


def _shifted_relu6(draft: Draft) -> Draft | None:
    """x, where the draft is relu6(x + 3)."""
    if draft.kind is not ops.Relu6:
        return None
    (shifted,) = draft.inputs
    if shifted.kind is not ops.Affine or shifted.terms is None or not shifted.terms.is_uniform(1.0, 3.0):
        return None
    return shifted.inputs[0]


def _gated(product: Draft) -> Draft | None:
    """x, where the draft is x * relu6(x + 3)."""
    for x, gate in (product.inputs, product.inputs[::-1]):
        if _shifted_relu6(gate) is x:
            return x
    return None


def _become(draft: Draft, kind: type[ops.Op], x: Draft) -> None:
    draft.kind, draft.inputs, draft.terms, draft.fields = kind, [x], None, {}


def _fold(drafts: list[Draft], outputs: list[Draft]) -> tuple[list[Draft], list[Draft]]:
    """An affine whose input is a layer, or another affine, that nobody else uses becomes part of its table."""
    uses = _uses(drafts, outputs)
    folded: dict[Draft, Draft] = {}
    kept = []
    for draft in drafts:
        draft.inputs = [folded.get(one, one) for one in draft.inputs]
        if draft.kind is ops.Affine and draft.terms is not None:
            (before,) = draft.inputs
            if before.terms is not None and uses[before] == 1:
                before.terms = before.terms.then(draft.terms)
                folded[draft] = before
                uses[before] = uses[draft]
                continue
        kept.append(draft)
    return kept, [folded.get(one, one) for one in outputs]
