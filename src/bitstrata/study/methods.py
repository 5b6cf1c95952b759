"""The methods that a study can name: those built in, and a Python file of your own."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from bitstrata import baselines
from bitstrata.baselines import Method
from bitstrata.errors import BadStudy

#: The method that trains nothing, and measures mixed-precision networks over the planes of another.
MIXED = "mixed"

BUILT_IN: dict[str, Method] = {
    "joint": baselines.joint,
    "dedicated": baselines.dedicated,
    "ascending": baselines.ascending,
    "co-training": baselines.co_training,
    "qat-finetune": baselines.qat_finetune,
}


def find_method(use: str, folder: Path) -> Method:
    """The function that `use` names; a file is looked up beside the study, in `folder`."""
    if use in BUILT_IN:
        return BUILT_IN[use]
    if not use.endswith(".py"):
        raise BadStudy(f"there is no method {use!r}; built in are {', '.join((*BUILT_IN, MIXED))}, or name a .py file")
    path = folder / use
    if not path.is_file():
        raise BadStudy(f"{path}: there is no such file, with a method in it")
    spec = importlib.util.spec_from_file_location(f"bitstrata_study_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    method = getattr(module, "train", None)
    if not callable(method):
        raise BadStudy(f"{path}: a method is a function `train(job)` that returns a Trained; there is none in it")
    return method  # type: ignore[no-any-return]
