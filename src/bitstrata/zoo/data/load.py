"""One text names a data set and where it lies: `digits`, `cifar10:DIR`, `folder:DIR?size=64`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

from bitstrata.errors import BadData
from bitstrata.zoo.data.cifar import load_cifar10, load_cifar100
from bitstrata.zoo.data.description import Data
from bitstrata.zoo.data.digits import load_digits
from bitstrata.zoo.data.fashion_mnist import load_fashion_mnist
from bitstrata.zoo.data.image_folder import DEFAULT_SIZE, load_image_folder


@dataclass(frozen=True)
class _Request:
    """A specification, taken apart."""

    spec: str
    directory: Path | None
    options: dict[str, str]
    limit: int | None

    def needed_directory(self) -> Path:
        if self.directory is None:
            raise BadData(f"{self.spec}: say where the files are, as in {self.spec}:DIR")
        return self.directory

    def whole_number(self, key: str, default: int) -> int:
        text = self.options.get(key, str(default))
        # Bounded before it is converted; no option needs more digits.
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            raise BadData(f"{self.spec}: {key} must be a whole number, not {text!r}")
        return int(text)


@dataclass(frozen=True)
class _Kind:
    """One data set that can be asked for."""

    pattern: str
    example: str
    takes_directory: bool
    options: frozenset[str]
    load: Callable[[_Request], Data]


def _digits(request: _Request) -> Data:
    return load_digits(limit=request.limit)


def _cifar10(request: _Request) -> Data:
    return load_cifar10(request.needed_directory(), limit=request.limit)


def _cifar100(request: _Request) -> Data:
    return load_cifar100(request.needed_directory(), limit=request.limit)


def _fashion_mnist(request: _Request) -> Data:
    return load_fashion_mnist(request.directory, limit=request.limit)


def _folder(request: _Request) -> Data:
    size = request.whole_number("size", DEFAULT_SIZE)
    return load_image_folder(request.needed_directory(), size=size, limit=request.limit)


_NONE: frozenset[str] = frozenset()
_KINDS = {
    "digits": _Kind("digits", "digits", False, _NONE, _digits),
    "fashion-mnist": _Kind("fashion-mnist[:DIR]", "fashion-mnist", True, _NONE, _fashion_mnist),
    "cifar10": _Kind("cifar10:DIR", "cifar10:data/cifar-10-batches-py", True, _NONE, _cifar10),
    "cifar100": _Kind("cifar100:DIR", "cifar100:data/cifar-100-python", True, _NONE, _cifar100),
    "folder": _Kind("folder:DIR[?size=N]", "folder:data/flowers?size=64", True, frozenset({"size"}), _folder),
}


def known_data() -> tuple[str, ...]:
    """The specifications that `load_data` understands."""
    return tuple(kind.pattern for kind in _KINDS.values())


def load_data(spec: str, *, limit: int | None = None) -> Data:
    """The data set that `spec` names, with only the first `limit` training samples if given."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    name, _, rest = spec.partition(":")
    if "?" in name:
        name, _, query = name.partition("?")
        directory_text = ""
    else:
        directory_text, _, query = rest.partition("?")
    kind = _KINDS.get(name)
    if kind is None:
        known = "; ".join(f"{kind.pattern}, for example {kind.example}" for kind in _KINDS.values())
        raise BadData(f"{spec!r} is not a known data set. Known are: {known}")
    if directory_text and not kind.takes_directory:
        raise BadData(f"{spec}: {name} comes without a folder; write just {kind.pattern}")
    options = _parse_options(spec, query, kind)
    directory = Path(directory_text).expanduser() if directory_text else None
    return kind.load(_Request(spec, directory, options, limit))


def _parse_options(spec: str, query: str, kind: _Kind) -> dict[str, str]:
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True)) if query else {}
    except ValueError as error:
        raise BadData(f"{spec}: options are written as key=value, with & between them") from error
    for key in options:
        if key not in kind.options:
            raise BadData(f"{spec}: there is no option {key}; the form is {kind.pattern}")
    return options
