"""The import rules: the device side stands alone, and `import bitstrata` is light."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src"

DEVICE_SIDE = ("codes", "limits", "errors", "atomic", "format", "graph", "runtime", "device")
# All that the device side may import besides itself and the standard library.
# PIL comes with the extra `images`; the module that uses it works without.
# obstore comes with the extra `s3`, for buckets that ask for credentials.
SMALL_LIBRARIES = {"cryptography", "filelock", "msgspec", "numpy", "obstore", "PIL", "platformdirs", "urllib3"}
# Loading any of these from bytes that somebody else wrote can run code.
UNSAFE = {"pickle", "_pickle", "cPickle", "pickletools", "copyreg", "marshal", "shelve", "dbm"}

LAZY_NAMES = ("stratify", "StratifiedNet", "JointLoss", "MinimumNorm", "parameter_groups", "fit", "Recipe")


def device_files() -> list[Path]:
    package = SOURCE / "bitstrata"
    files = [package / f"{room}.py" for room in DEVICE_SIDE]
    folders = [package / room for room in DEVICE_SIDE]
    return [*filter(Path.exists, files), *(file for folder in folders for file in sorted(folder.rglob("*.py")))]


def imported(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything that a module imports, wherever in it, by statement or by string."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                parents = parents[: len(parents) - node.level + is_package]
                base = ".".join([*parents, base] if base else parents)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def defect(name: str) -> str | None:
    """Why the device side may not import this, or None when it may."""
    top, _, rest = name.partition(".")
    if top in UNSAFE:
        return "unsafe to load data with"
    if top == "bitstrata":
        room = rest.partition(".")[0]
        return None if room in {*DEVICE_SIDE, "_native", "__version__"} else "not part of the device side"
    if top in SMALL_LIBRARIES or top in sys.stdlib_module_names:
        return None
    return "not among the small libraries"


@pytest.mark.parametrize("file", device_files(), ids=lambda file: str(file.relative_to(SOURCE)))
def test_device_side_stands_alone(file: Path) -> None:
    parts = file.relative_to(SOURCE).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    module = ".".join(parts[:-1] if is_package else parts)
    found = [
        f"line {line}: {name} is {reason}"
        for line, name in imported(file.read_text(encoding="utf-8"), module, is_package)
        if (reason := defect(name))
    ]
    assert not found, f"{module} imports what the device side must not: {found}"


@pytest.mark.parametrize(
    "source",
    [
        "import torch",
        "import torch.nn as nn",
        "import pickle",
        "from torch import nn",
        "from bitstrata.training import stratify",
        "from bitstrata import zoo",
        "from bitstrata import stratify",
        "from ..training import layers",
        "from .. import cli",
        "def later():\n    import torch",
        "import importlib\nimportlib.import_module('torch')",
        "__import__('pickle')",
    ],
)
def test_the_rule_sees_every_spelling(source: str) -> None:
    assert any(defect(name) for _, name in imported(source, "bitstrata.runtime.session", is_package=False))


def test_the_rule_lets_the_device_side_be() -> None:
    source = "import json, numpy\nfrom .. import codes, _native\nfrom ..errors import BadCodes\nfrom . import reference"
    assert not any(defect(name) for _, name in imported(source, "bitstrata.runtime.session", is_package=False))


def python(program: str) -> str:
    run = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_import_bitstrata_is_light() -> None:
    program = "import sys, bitstrata; print(sorted({'numpy', 'torch', 'pickle', 'msgspec'} & set(sys.modules)))"
    assert python(program) == "[]"


def test_import_of_codes_needs_neither_torch_nor_pickle() -> None:
    # NumPy loads pickle for itself, so only what comes after NumPy is ours.
    program = """
import sys, numpy
before = {name for name in sys.modules if name != 'torch'}
import bitstrata.codes
print(sorted({'torch', 'pickle', '_pickle'} & (set(sys.modules) - before)))
"""
    assert python(program) == "[]"


@pytest.mark.parametrize("name", LAZY_NAMES)
def test_without_torch_the_error_names_the_extra(name: str) -> None:
    program = f"""
import sys
sys.modules['torch'] = None
import bitstrata
from bitstrata.errors import MissingExtra
try:
    bitstrata.{name}
except MissingExtra as error:
    print(error)
"""
    message = python(program)
    assert "bitstrata[train]" in message
    assert f"bitstrata.{name} needs torch" in message


def test_without_torch_codes_work() -> None:
    assert python("import sys; sys.modules['torch'] = None; import bitstrata.codes; print('fine')") == "fine"


@pytest.mark.parametrize("name", LAZY_NAMES)
def test_lazy_names_are_what_training_exports(name: str) -> None:
    import bitstrata
    from bitstrata import training

    assert name in bitstrata.__all__
    assert name in dir(bitstrata)
    assert getattr(bitstrata, name) is getattr(training, name)


def test_unknown_names_are_attribute_errors() -> None:
    import bitstrata

    with pytest.raises(AttributeError, match="no_such_name"):
        _ = bitstrata.no_such_name
