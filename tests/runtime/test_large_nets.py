"""The networks that people use, at the size at which they use them: packed, verified, and run at every width."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bitstrata.capture import pack
from bitstrata.format import Artifact, InputDescription, describe, verify_artifact
from bitstrata.runtime import load
from bitstrata.training import stratify
from bitstrata.zoo.nets import build

INPUT = InputDescription((3, 224, 224), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

CASES = [
    ("resnet18", (2, 3, 4)),
    ("resnet18", (2, 4, 8)),
    ("resnet34", (2, 3, 4)),
    ("resnet50", (2, 3, 4)),
    ("mobilenet_v2", (2, 3, 4)),
    ("mobilenet_v2", (2, 4, 8)),
    ("vgg16_bn", (2, 3, 4)),
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "widths"), CASES, ids=str)
def test_packs_verifies_and_runs_at_224(name: str, widths: tuple[int, ...], tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = stratify(build(name), widths)
    net.calibrate([torch.randn(2, 3, 224, 224)]).eval()
    path = tmp_path / "net.strata"
    pack(net, path, input=INPUT)
    verify_artifact(path)
    x = torch.randn(1, 3, 224, 224)
    model = load(path)
    for bits in widths:
        with torch.no_grad():
            expected = net.at(bits)(x).numpy()
        found: Any = model.at(bits)(x.numpy())
        # A last-bit difference in the float stem flips a code, which deep random weights spread over all classes; that
        # layers are exact is tested in test_parity.py.
        cosine = float((found * expected).sum() / np.linalg.norm(found) / np.linalg.norm(expected))
        assert cosine > 0.9, f"{bits} bits: {cosine}"


@pytest.mark.parametrize(("store", "times"), [("float32", 5.9), ("float16", 6.7)])
def test_resnet18_holds_its_information_and_little_more(store: Any, times: float, tmp_path: Path) -> None:
    model = build("resnet18")
    float_bytes = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    net = stratify(model).calibrate([torch.randn(1, 3, 64, 64)]).eval()
    pack(net, tmp_path / "net.strata", input=INPUT, float_store=store)
    report = describe(Artifact.open(tmp_path / "net.strata"))
    assert report["overhead_percent"] < 1.0
    size = sum(file.stat().st_size for file in (tmp_path / "net.strata").iterdir())
    assert size == report["total_bytes"]
    assert float_bytes / size >= times


def test_resnet20_at_two_bits_is_fetched_in_90_kilobytes(tmp_path: Path) -> None:
    net = stratify(build("resnet20")).calibrate([torch.randn(4, 3, 32, 32)]).eval()
    labels = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    description = InputDescription((3, 32, 32), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), labels)
    pack(net, tmp_path / "net.strata", name="cifar10-resnet20", input=description)
    needed = ("manifest.json", "base.safetensors", "view-2.safetensors")
    assert sum((tmp_path / "net.strata" / name).stat().st_size for name in needed) < 90_000
