"""What a training run is told, from a TOML file and from flags; flags win.

The file has three tables: `[run]` (the fields of `Run`), `[recipe]` (those of `Recipe`) and `[stratify]` (the options
of `stratify`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from bitstrata.errors import BadRecipe
from bitstrata.training.recipe import Recipe, read_toml
from bitstrata.training.train_once import plain_options
from bitstrata.zoo.recipes import recipe as named_recipe

Method = Literal["joint", "lsq"]
DEFAULT = "digits"
"""The recipe, and the data, of a run that is told nothing."""

_TABLES = ("run", "recipe", "stratify")


@dataclass(frozen=True)
class Run:
    """The table `[run]`: what is trained, on what, and where to."""

    net: str = ""
    data: str = ""
    out: str = ""
    recipe: str = ""
    weights: str | None = None
    widths: tuple[int, ...] = (2, 3, 4)
    method: Method = "joint"
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None
    net_options: dict[str, bool | int | float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """A run with nothing left to guess."""

    run: Run
    recipe: Recipe
    stratify: dict[str, Any]


def settle(config: str | None, run: dict[str, Any], recipe: dict[str, Any], stratify: dict[str, Any]) -> Settings:
    """The settings from a file, if any, and from the flags that were given."""
    tables = _read(config) if config is not None else {}
    wanted = _run({**tables.get("run", {}), **run}, config)
    name = wanted.recipe or (DEFAULT if wanted.data in ("", DEFAULT) else "")
    base = named_recipe(name) if name else None
    net = wanted.net or (base.net if base else "")
    data = wanted.data or (base.data if base else "")
    if not net:
        raise BadRecipe(f"name a network for {data}: --net resnet20, or a recipe that comes with one: --recipe")
    # The options of a recipe belong to its network.
    net_options = {**(base.net_options if base and base.net == net else {}), **wanted.net_options}
    options = {**tables.get("stratify", {}), **stratify}
    if wanted.method == "lsq":
        if len(wanted.widths) != 1:
            raise BadRecipe(f"method lsq trains one width, as in --widths 2, not {wanted.widths}")
        # As `baselines.lsq` has it.
        options = {"weight_init": "lsq", **options}
    kind = data.partition(":")[0].partition("?")[0]
    usual_place = f"runs/{kind}-{net.replace(':', '-')}" + (
        f"-lsq-{wanted.widths[0]}" if wanted.method == "lsq" else ""
    )
    return Settings(
        run=Run(
            **{
                **asdict(wanted),
                "net": net,
                "data": data,
                "recipe": name,
                "net_options": net_options,
                "out": wanted.out or usual_place,
            }
        ),
        recipe=Recipe.from_dict({**tables.get("recipe", {}), **recipe}, base.recipe if base else None),
        stratify=plain_options(options),
    )


def _read(config: str) -> dict[str, dict[str, Any]]:
    tables = read_toml(config)
    for name, table in tables.items():
        if name not in _TABLES:
            raise BadRecipe(f"{config}: unknown table or key {name!r}; known are the tables {', '.join(_TABLES)}")
        if not isinstance(table, dict):
            raise BadRecipe(f"{config}: {name!r} is a table: write [{name}] and its keys below")
    return tables


def _run(values: dict[str, Any], config: str | None) -> Run:
    known = [entry.name for entry in fields(Run)]
    for key in values:
        if key not in known:
            raise BadRecipe(f"{config}: unknown key {key!r} in [run]; known are {', '.join(known)}")
    try:
        return msgspec.convert(values, Run)
    except msgspec.ValidationError as error:
        raise BadRecipe(f"{Path(config).name if config else 'run'}: in [run]: {error}") from error
