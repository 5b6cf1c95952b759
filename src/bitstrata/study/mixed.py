"""Mixed-precision networks over the planes of a joint one, at several budgets: figure 8."""

from __future__ import annotations

from typing import Any

from bitstrata.study.records import MixedPoint
from bitstrata.training.net import StratifiedNet
from bitstrata.training.recipe import Recipe


def mixed_points(net: StratifiedNet, data: Any, recipe: Recipe) -> list[MixedPoint]:
    raise NotImplementedError
