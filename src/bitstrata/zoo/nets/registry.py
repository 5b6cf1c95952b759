"""Networks by name: the zoo's own, and those of timm and torchvision where these are installed.

The two packages are never needed and are imported only when a name asks for them.
"""

import difflib
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import nn

from bitstrata.errors import UnknownNet
from bitstrata.zoo.nets.cifar_resnet import cifar_resnet, resnet8, resnet20
from bitstrata.zoo.nets.mobilenet import mobilenet_v2, mobilenetv2_cifar
from bitstrata.zoo.nets.resnet import resnet18, resnet34, resnet50
from bitstrata.zoo.nets.vgg import vgg16_bn

_BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "cifar_resnet": cifar_resnet,
    "mobilenet_v2": mobilenet_v2,
    "mobilenetv2_cifar": mobilenetv2_cifar,
    "resnet8": resnet8,
    "resnet18": resnet18,
    "resnet20": resnet20,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "vgg16_bn": vgg16_bn,
}

# In the order in which a bare name is looked up.
_PACKAGES = ("timm", "torchvision")


class _PackageUnavailable(Exception):
    """A package cannot be imported; the text says why and what to do."""


def names() -> tuple[str, ...]:
    """The networks that need nothing but torch."""
    return tuple(_BUILDERS)


def build(name: str, classes: int | None = None, channels: int = 3, **options: Any) -> nn.Module:
    """A fresh network, with random weights.

    `name` is one of `names()`, or `timm:NAME` or `torchvision:NAME`; another bare name is looked up in timm, then in
    torchvision. `classes=None` keeps the network's own default. `options` go to the network's builder.
    """
    if name in _BUILDERS:
        if classes is not None:
            options["classes"] = classes
        return _BUILDERS[name](channels=channels, **options)
    package, colon, bare = name.partition(":")
    if colon and package not in _PACKAGES:
        raise UnknownNet(_unknown(name, [f"{package!r} is no source of networks"]))
    reasons = []
    for candidate in (package,) if colon else _PACKAGES:
        try:
            module = _load(candidate)
        except _PackageUnavailable as unavailable:
            reasons.append(str(unavailable))
            continue
        if _has(module, candidate, bare if colon else name):
            return _build_from(module, candidate, bare if colon else name, classes, channels, options)
        reasons.append(f"{candidate} has no network of this name")
    raise UnknownNet(_unknown(name, reasons))


def _load(package: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name == package:
            raise _PackageUnavailable(f"{package} is not installed (pip install {package})") from error
        raise _PackageUnavailable(f"{package} needs {error.name}, which is not installed") from error
    except Exception as error:
        # Builds of torchvision that do not match torch fail while registering operators, with a RuntimeError.
        raise _PackageUnavailable(f"{package} is installed but cannot be imported: {error}") from error


def _has(module: ModuleType, package: str, name: str) -> bool:
    if package == "timm":
        return bool(module.is_model(name))
    # Restricted to the classification networks: detectors and the like have other outputs than logits.
    return name in module.models.list_models(module=module.models)


def _build_from(
    module: ModuleType, package: str, name: str, classes: int | None, channels: int, options: dict[str, Any]
) -> nn.Module:
    if classes is not None:
        options["num_classes"] = classes
    model: nn.Module
    if package == "timm":
        model = module.create_model(name, in_chans=channels, **options)
        return model
    if channels != 3:
        raise UnknownNet(
            f"torchvision:{name} exists for 3 input channels only, not {channels}; "
            f"timm:{name} or one of the zoo's own networks ({', '.join(names())}) takes any number"
        )
    model = module.models.get_model(name, **options)
    return model


def _unknown(name: str, reasons: list[str]) -> str:
    close = difflib.get_close_matches(name, names(), n=1)
    guess = f" Did you mean {close[0]}?" if close else ""
    return (
        f"no network {name!r}: {'; '.join(reasons)}.{guess} The zoo has {', '.join(names())}. With the package "
        "installed, names such as torchvision:resnet18 and timm:regnety_004 are accepted too."
    )
