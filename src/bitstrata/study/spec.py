"""A study as its TOML file says it: networks, data, recipe, seeds, and methods.

title = "..."
nets = ["resnet8"]              # each with every method and seed; or { net = ..., weights = ..., options = {...} }
data = "cifar10"                # as `bitstrata train` takes it; where the files lie is given on the command line
limit = 10000                   # only the first training samples
seeds = [0, 1, 2]
minutes = 75                    # no new run is begun after this time; the next call goes on
base_recipe = "cifar10-short"   # the recipe that [recipe] changes

[recipe]                        # fields of `Recipe`
[stratify]                      # options of `stratify`, for all methods

[methods]
joint = { use = "joint" }
pact = { use = "dedicated", stratify = { quantizer = "pact" }, seeds = [0] }
mine = { use = "mine.py" }      # a file beside the study with a function `train(job)`
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec

from bitstrata.codes import check_widths
from bitstrata.errors import BadRecipe, BadStudy
from bitstrata.training.recipe import Recipe, read_toml
from bitstrata.zoo.recipes import recipe as named_recipe

#: The name of the run that trains the float network, from which all others of its seed start.
FLOAT_METHOD = "float"

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,60}$")]
Seeds = Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, le=2**31)], ...], msgspec.Meta(min_length=1)]


class NetEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network of the zoo, torchvision or timm, and the float weights that it starts from, if any."""

    net: str
    weights: str | None = None
    options: dict[str, bool | int | float | str] = {}


class MethodEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the tables."""

    use: str
    """A method that is built in, or a Python file beside the study."""
    recipe: dict[str, Any] = {}
    stratify: dict[str, Any] = {}
    seeds: Seeds | None = None
    """Where they are not those of the study."""
    of: Name | None = None
    """The method whose networks this one takes, where it trains none."""


class Study(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole study."""

    title: str
    about: str = ""
    nets: Annotated[tuple[str | NetEntry, ...], msgspec.Meta(min_length=1)]
    data: str
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None
    widths: tuple[int, ...] = (2, 3, 4)
    seeds: Seeds = (0,)
    minutes: Annotated[float, msgspec.Meta(gt=0)] | None = None
    base_recipe: str | None = None
    recipe: dict[str, Any] = {}
    stratify: dict[str, Any] = {}
    methods: Annotated[dict[Name, MethodEntry], msgspec.Meta(min_length=1)]

    def networks(self) -> list[NetEntry]:
        return [NetEntry(one) if isinstance(one, str) else one for one in self.nets]

    def recipe_of(self, method: MethodEntry, seed: int) -> Recipe:
        base = named_recipe(self.base_recipe).recipe if self.base_recipe is not None else None
        return Recipe.from_dict({**self.recipe, **method.recipe, "seed": seed}, base)


def read_study(path: str | Path) -> Study:
    """The study in a TOML file, checked as far as it can be without running it."""
    try:
        values = read_toml(path)
    except BadRecipe as error:
        raise BadStudy(str(error)) from error
    try:
        study = msgspec.convert(values, Study)
    except msgspec.ValidationError as error:
        raise BadStudy(f"{path}: {error}") from error
    if FLOAT_METHOD in study.methods:
        raise BadStudy(f"{path}: no method may be called {FLOAT_METHOD!r}: every study has that one")
    check_widths(study.widths)
    for name, method in study.methods.items():
        try:
            study.recipe_of(method, 0)
        except BadRecipe as error:
            raise BadStudy(f"{path}, method {name}: {error}") from error
        if method.of is not None and method.of not in study.methods:
            raise BadStudy(f"{path}, method {name}: of = {method.of!r} is no method of this study")
        if method.of is not None and study.methods[method.of].of is not None:
            raise BadStudy(f"{path}, method {name}: of = {method.of!r} trains no network itself")
    return study
