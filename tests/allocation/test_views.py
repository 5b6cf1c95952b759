"""A mixed network on the device: the same numbers from the artifact's planes, and only the planes that it needs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from allocation.test_mixed import spread
from capture.parity import prepared
from device.server import Server, serving
from families import densenet
from torch import nn

import bitstrata as bs
from bitstrata.allocation import add_mixed_view, allocate, mixed_network
from bitstrata.device.store import Store
from bitstrata.errors import BadName, OtherNetwork
from bitstrata.format import Artifact, verify_artifact
from bitstrata.publish.destinations import FolderDestination
from bitstrata.publish.push import push
from bitstrata.zoo import nets

BATCH = (12, 3, 32, 32)


def model(name: str) -> nn.Module:
    return densenet() if name == "densenet" else nets.build(name, classes=10)


@pytest.mark.parametrize(
    ("name", "options", "store"),
    [
        ("resnet8", {}, "float32"),
        ("resnet8", {"ends": "own", "per_channel": True}, "float16"),
        ("densenet", {"norms": "shared"}, "float32"),
        ("densenet", {}, "float32"),
    ],
    ids=["plain", "own ends", "shared norms", "concatenations"],
)
def test_the_view_computes_what_torch_computes(name: str, options: dict[str, Any], store: str, tmp_path: Path) -> None:
    net = prepared(model(name), BATCH, **options)
    if store == "float16":
        with torch.no_grad():  # weights that lose nothing by it
            for module in net.model.modules():
                if isinstance(module, (nn.Conv2d, nn.Linear)):
                    module.weight.copy_(module.weight.half().float())
    path = tmp_path / "net.strata"
    x = torch.randn(BATCH)
    bs.pack(net, path, example=x, float_store=store)  # type: ignore[arg-type]
    strata = {file.name: file.read_bytes() for file in path.glob("*.safetensors")}
    mixed = mixed_network(net, spread(net), [torch.randn(BATCH) for _ in range(2)])
    add_mixed_view(path, net, mixed, "mixed-a")
    assert {file.name: file.read_bytes() for file in path.glob("*.safetensors")}.items() >= strata.items()
    assert verify_artifact(path).views == ("2", "3", "4", "mixed-a")
    entry = Artifact.open(path).manifest.view("mixed-a")
    assert set(entry.bits) == {2, 3, 4}
    with torch.no_grad():
        expected = mixed(x).numpy()
    for runtime in ("native", "reference"):
        found = bs.load(path, view="mixed-a", runtime=runtime)(x.numpy())  # type: ignore[arg-type]
        assert isinstance(found, np.ndarray)
        errors = np.abs(found - expected).max(1) / np.abs(expected).max()
        assert np.median(errors) < 1e-4, errors
        assert (found.argmax(1) == expected.argmax(1)).mean() > 0.9
        uniform = bs.load(path, 3, runtime=runtime)(x.numpy())  # type: ignore[arg-type]
        assert np.median(np.abs(np.asarray(uniform) - expected).max(1) / np.abs(expected).max()) > 1e-3


def test_a_uniform_allocation_has_the_tables_of_the_uniform_view(tmp_path: Path) -> None:
    net = prepared(model("resnet8"), BATCH)
    x = torch.randn(BATCH)
    bs.pack(net, tmp_path / "net.strata", example=x)
    mixed = mixed_network(net, allocate(net, bits_per_weight=2.6).widths, [x], keep_statistics=True)
    three = mixed_network(net, dict.fromkeys((n for n, _ in net.stratified_layers()), 3), [x], keep_statistics=True)
    add_mixed_view(tmp_path / "net.strata", net, three, "three")
    add_mixed_view(tmp_path / "net.strata", net, mixed, "best")
    files = {
        name: (tmp_path / "net.strata" / f"view-{name}.safetensors").read_bytes() for name in ("3", "three", "best")
    }
    assert files["three"] == files["3"]
    assert files["best"] != files["3"]


def test_another_checkpoint_is_refused(tmp_path: Path) -> None:
    net = prepared(model("resnet8"), BATCH)
    x = torch.randn(BATCH)
    bs.pack(net, tmp_path / "net.strata", example=x)
    with torch.no_grad():
        name, layer = list(net.stratified_layers())[2]
        layer.weight.mul_(-1)
    mixed = mixed_network(net, spread(net), [x])
    with pytest.raises(OtherNetwork, match=f"the weight '{name}' differs"):
        add_mixed_view(tmp_path / "net.strata", net, mixed, "mixed-a")
    with pytest.raises(BadName, match="uniform widths"):
        add_mixed_view(tmp_path / "net.strata", net, mixed, "3")
    assert Artifact.open(tmp_path / "net.strata").views == ("2", "3", "4")


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def test_a_device_fetches_the_planes_of_the_view_and_no_others(tmp_path: Path, server: Server) -> None:
    net = prepared(model("resnet8"), BATCH)
    x = torch.randn(BATCH)
    path = tmp_path / "net.strata"
    bs.pack(net, path, example=x)
    widths = spread(net)
    mixed = mixed_network(net, widths, [x])
    manifest = add_mixed_view(path, net, mixed, "mixed-a")
    push(path, FolderDestination(tmp_path / "published"))
    for file in (tmp_path / "published").rglob("*"):
        if file.is_file():
            server.files[file.relative_to(tmp_path / "published").as_posix()] = file.read_bytes()
    store = Store(tmp_path / "home")
    store.pull(server.address, "2")
    before = server.body_bytes
    store.upgrade("net", "mixed-a")
    needed = sum(
        segment.size
        for index, stratum in enumerate(manifest.strata[1:], 1)
        for segment in manifest.segments_of(index)
        if widths[segment.weight] >= stratum.bits
    )
    assert needed < sum(stratum.size for stratum in manifest.strata[1:])
    assert needed + manifest.view("mixed-a").size <= server.body_bytes - before < needed + 30_000
    with torch.no_grad():
        expected = mixed(x).numpy()
    found = bs.load("net", view="mixed-a", home=tmp_path / "home")(x.numpy())
    assert (np.asarray(found).argmax(1) == expected.argmax(1)).mean() > 0.9
