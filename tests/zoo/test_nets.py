"""The zoo's networks: torchvision's sizes and names, any input size, checkpoints, and errors that help."""

import sys
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from families import FAMILIES, attention_by_multihead
from safetensors.torch import save_file
from torch import nn

from bitstrata.errors import CheckpointDamaged, CheckpointMismatch, UnknownNet
from bitstrata.zoo import nets


def built_on_meta(name: str, **options: Any) -> nn.Module:
    with torch.device("meta"):
        return nets.build(name, **options)


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture
def no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without timm and torchvision, whatever this one has."""

    def refuse(package: str) -> Any:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    for package in ("timm", "torchvision"):
        monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.setattr("bitstrata.zoo.nets.registry.importlib", SimpleNamespace(import_module=refuse))


# The networks


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("resnet18", {}, 11_689_512),
        ("resnet34", {}, 21_797_672),
        ("resnet50", {}, 25_557_032),
        ("mobilenet_v2", {}, 3_504_872),
        ("mobilenet_v2", {"width_multiplier": 0.5}, 1_968_680),
        ("vgg16_bn", {}, 138_365_992),
        ("resnet18", {"classes": 100, "small_input": True}, 11_220_132),
        ("vgg16_bn", {"classes": 10, "single_linear": True}, 14_728_266),
        ("resnet20", {}, 272_474),
        ("mobilenetv2_cifar", {}, 590_410),
        ("resnet8", {"channels": 1}, 77_754),
    ],
)
def test_parameter_counts_are_the_known_ones(name: str, options: dict[str, Any], count: int) -> None:
    assert parameter_count(built_on_meta(name, **options)) == count


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        (
            "resnet20",
            {
                "conv1.weight": (16, 3, 3, 3),
                "layer1.0.conv1.weight": (16, 16, 3, 3),
                "layer2.0.shortcut.0.weight": (32, 16, 1, 1),
                "layer3.0.shortcut.1.running_var": (64,),
                "layer3.2.bn2.bias": (64,),
                "linear.weight": (10, 64),
            },
        ),
        (
            "resnet18",
            {
                "conv1.weight": (64, 3, 7, 7),
                "layer2.0.downsample.0.weight": (128, 64, 1, 1),
                "layer4.1.bn2.weight": (512,),
                "fc.weight": (1000, 512),
            },
        ),
        (
            "resnet50",
            {
                "layer1.0.downsample.1.running_mean": (256,),
                "layer4.2.conv3.weight": (2048, 512, 1, 1),
                "fc.weight": (1000, 2048),
            },
        ),
        (
            "mobilenet_v2",
            {
                "features.0.0.weight": (32, 3, 3, 3),
                "features.1.conv.0.0.weight": (32, 1, 3, 3),
                "features.1.conv.1.weight": (16, 32, 1, 1),
                "features.2.conv.1.0.weight": (96, 1, 3, 3),
                "features.17.conv.3.running_var": (320,),
                "features.18.0.weight": (1280, 320, 1, 1),
                "classifier.1.weight": (1000, 1280),
            },
        ),
        (
            "mobilenetv2_cifar",
            {
                "stem.0.weight": (16, 3, 3, 3),
                "blocks.0.conv.3.weight": (8, 16, 1, 1),
                "blocks.16.conv.6.weight": (160, 480, 1, 1),
                "blocks.16.conv.7.bias": (160,),
                "head.0.weight": (640, 160, 1, 1),
                "linear.weight": (10, 640),
            },
        ),
        (
            "vgg16_bn",
            {
                "features.0.weight": (64, 3, 3, 3),
                "features.1.running_mean": (64,),
                "features.40.weight": (512, 512, 3, 3),
                "features.41.bias": (512,),
                "classifier.0.weight": (4096, 25088),
                "classifier.3.weight": (4096, 4096),
                "classifier.6.bias": (1000,),
            },
        ),
    ],
)
def test_tensor_names_are_those_of_known_checkpoints(name: str, shapes: dict[str, tuple[int, ...]]) -> None:
    state = built_on_meta(name).state_dict()
    assert {key: tuple(state[key].shape) for key in shapes} == shapes


@pytest.mark.parametrize(
    ("name", "options", "height", "width"),
    [
        ("resnet8", {"channels": 1}, 8, 8),
        ("resnet8", {"channels": 1}, 28, 28),
        ("resnet20", {}, 33, 31),
        ("cifar_resnet", {"blocks": 2, "classes": 3}, 7, 5),
        ("resnet18", {"small_input": True, "classes": 100}, 17, 9),
        ("resnet18", {}, 65, 40),
        ("resnet50", {"classes": 7}, 33, 33),
        ("mobilenet_v2", {"width_multiplier": 0.25}, 45, 33),
        ("mobilenetv2_cifar", {"channels": 1}, 28, 27),
        ("vgg16_bn", {"small_input": True, "classes": 10}, 35, 32),
        ("vgg16_bn", {"single_linear": True, "classes": 10, "channels": 4}, 32, 47),
    ],
)
def test_any_input_size_gives_logits(name: str, options: dict[str, Any], height: int, width: int) -> None:
    # On the meta device: shapes are checked, nothing is computed.
    model = built_on_meta(name, **options)
    image = torch.empty(2, options.get("channels", 3), height, width, device="meta")
    default_classes = 1000 if name in ("resnet18", "mobilenet_v2") else 10
    assert model(image).shape == (2, options.get("classes", default_classes))


@pytest.mark.parametrize("name", ["resnet8", "resnet20", "mobilenetv2_cifar"])
def test_small_networks_train(name: str) -> None:
    model = nets.build(name)
    logits = model(torch.randn(4, 3, 16, 16))
    nn.functional.cross_entropy(logits, torch.arange(4)).backward()
    assert torch.isfinite(logits).all()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


def test_a_stage_needs_a_block() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        nets.cifar_resnet(blocks=0)


# The registry


def test_every_name_builds_with_its_default_classes() -> None:
    for name in nets.names():
        assert isinstance(built_on_meta(name), nn.Module)
        assert built_on_meta(name, classes=5).state_dict()  # every builder takes classes and channels
        assert built_on_meta(name, channels=1).state_dict()


@pytest.mark.usefixtures("no_packages")
def test_unknown_name_says_what_exists_and_what_to_install() -> None:
    with pytest.raises(UnknownNet) as caught:
        nets.build("resnet_20")
    text = str(caught.value)
    assert "'resnet_20'" in text
    assert "Did you mean resnet20?" in text
    for name in nets.names():
        assert name in text
    for hint in ("torchvision:resnet18", "timm:regnety_004", "pip install timm", "pip install torchvision"):
        assert hint in text


@pytest.mark.usefixtures("no_packages")
def test_a_prefix_asks_for_its_own_package_only() -> None:
    with pytest.raises(UnknownNet) as caught:
        nets.build("timm:regnety_004")
    assert "timm is not installed (pip install timm)" in str(caught.value)
    assert "pip install torchvision" not in str(caught.value)
    with pytest.raises(UnknownNet, match="'hub' is no source of networks"):
        nets.build("hub:resnet18")


class FakePackages:
    """Just enough of timm and torchvision to see how they are called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.timm = SimpleNamespace(is_model=lambda name: name == "regnety_004", create_model=self.create_model)
        self.torchvision = SimpleNamespace(models=SimpleNamespace(get_model=self.get_model))
        self.torchvision.models.list_models = lambda module: ["resnet18", "squeezenet1_0"]

    def create_model(self, name: str, **options: Any) -> nn.Module:
        self.calls.append(("timm", name, options))
        return nn.Identity()

    def get_model(self, name: str, **options: Any) -> nn.Module:
        self.calls.append(("torchvision", name, options))
        return nn.Identity()


@pytest.fixture
def fake_packages(monkeypatch: pytest.MonkeyPatch) -> FakePackages:
    packages = FakePackages()
    monkeypatch.setitem(sys.modules, "timm", packages.timm)
    monkeypatch.setitem(sys.modules, "torchvision", packages.torchvision)
    return packages


def test_other_packages_are_used_when_installed(fake_packages: FakePackages) -> None:
    nets.build("timm:regnety_004", classes=10, channels=1, drop_rate=0.1)
    nets.build("torchvision:resnet18", classes=10)
    nets.build("regnety_004")
    nets.build("squeezenet1_0", progress=False)
    assert fake_packages.calls == [
        ("timm", "regnety_004", {"num_classes": 10, "in_chans": 1, "drop_rate": 0.1}),
        ("torchvision", "resnet18", {"num_classes": 10}),
        ("timm", "regnety_004", {"in_chans": 3}),
        ("torchvision", "squeezenet1_0", {"progress": False}),
    ]


def test_own_networks_come_first(fake_packages: FakePackages) -> None:
    assert isinstance(built_on_meta("resnet18"), nets.ResNet)
    assert fake_packages.calls == []


@pytest.mark.usefixtures("fake_packages")
def test_installed_packages_may_not_have_the_name() -> None:
    with pytest.raises(UnknownNet, match="timm has no network of this name; torchvision has no network"):
        nets.build("nothing")
    with pytest.raises(UnknownNet, match="3 input channels only, not 1"):
        nets.build("torchvision:resnet18", channels=1)


def test_a_package_that_breaks_on_import_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(package: str) -> Any:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("bitstrata.zoo.nets.registry.importlib", SimpleNamespace(import_module=breaks))
    with pytest.raises(UnknownNet, match="torchvision is installed but cannot be imported: operator"):
        nets.build("torchvision:resnet18")


# Checkpoints


def same_state(first: nn.Module, second: nn.Module) -> bool:
    other = second.state_dict()
    return all(torch.equal(value, other[name]) for name, value in first.state_dict().items())


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth", ".pth.tar"])
def test_a_checkpoint_comes_back(tmp_path: Path, suffix: str) -> None:
    source, target = nets.resnet8(), nets.resnet8()
    path = tmp_path / f"net{suffix}"
    if suffix == ".safetensors":
        save_file(source.state_dict(), path)
    else:
        torch.save(source.state_dict(), path)
    assert not same_state(source, target)
    assert nets.load_float_weights(target, str(path)) == ()
    assert same_state(source, target)


@pytest.mark.parametrize("key", ["state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module.", "module._orig_mod.", "_orig_mod.module."])
def test_what_training_scripts_wrap_around_is_removed(tmp_path: Path, key: str, prefix: str) -> None:
    source, target = nets.resnet8(), nets.resnet8()
    state = OrderedDict((prefix + name, value) for name, value in source.state_dict().items())
    torch.save({"epoch": 3, key: state, "optimizer": {"state": {}}}, tmp_path / "net.pth")
    nets.load_float_weights(target, tmp_path / "net.pth")
    assert same_state(source, target)


def test_half_precision_and_old_checkpoints_load(tmp_path: Path) -> None:
    source, target = nets.resnet8(), nets.resnet8()
    state = {name: value.half() for name, value in source.state_dict().items() if value.is_floating_point()}
    save_file(state, tmp_path / "net.safetensors")
    left = nets.load_float_weights(target, tmp_path / "net.safetensors")
    assert left
    assert all(name.endswith("num_batches_tracked") for name in left)
    assert target.conv1.weight.dtype == torch.float32
    assert torch.equal(target.conv1.weight, source.conv1.weight.half().float())


def test_a_mismatch_names_the_tensors_and_changes_nothing(tmp_path: Path) -> None:
    state = nets.resnet8().state_dict()
    del state["layer1.0.conv2.weight"]
    state["extra.weight"] = torch.zeros(1)
    state["conv1.weight"] = torch.zeros(16, 1, 3, 3)
    state["bn1.weight"] = torch.ones(16, dtype=torch.int32)
    save_file(state, tmp_path / "net.safetensors")
    target = nets.resnet8()
    before = {name: value.clone() for name, value in target.state_dict().items()}
    with pytest.raises(CheckpointMismatch) as caught:
        nets.load_float_weights(target, tmp_path / "net.safetensors", allow_new_classifier=True)
    text = str(caught.value)
    assert "net.safetensors does not fit CifarResNet" in text
    assert "missing layer1.0.conv2.weight" in text
    assert "unexpected extra.weight" in text
    assert "mis-shaped conv1.weight (file 16x1x3x3, network 16x3x3x3)" in text
    assert "of another kind bn1.weight (file torch.int32, network torch.float32)" in text
    assert "the same name, classes, channels and options" in text
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())


def test_a_long_list_is_cut(tmp_path: Path) -> None:
    save_file({"only": torch.zeros(1)}, tmp_path / "net.safetensors")
    with pytest.raises(CheckpointMismatch, match=r"missing conv1\.weight, bn1\.weight, bn1\.bias and \d+ more"):
        nets.load_float_weights(nets.resnet8(), tmp_path / "net.safetensors")


def test_another_number_of_classes_must_be_allowed(tmp_path: Path) -> None:
    source, target = nets.resnet8(classes=10), nets.resnet8(classes=7)
    save_file(source.state_dict(), tmp_path / "net.safetensors")
    with pytest.raises(CheckpointMismatch, match="allow_new_classifier=True"):
        nets.load_float_weights(target, tmp_path / "net.safetensors")
    fresh = target.linear.weight.clone()
    left = nets.load_float_weights(target, tmp_path / "net.safetensors", allow_new_classifier=True)
    assert left == ("linear.weight", "linear.bias")
    assert torch.equal(target.linear.weight, fresh)
    assert torch.equal(target.conv1.weight, source.conv1.weight)


def test_a_fitting_classifier_is_loaded_even_if_a_new_one_is_allowed(tmp_path: Path) -> None:
    source, target = nets.resnet8(), nets.resnet8()
    save_file(source.state_dict(), tmp_path / "net.safetensors")
    assert nets.load_float_weights(target, tmp_path / "net.safetensors", allow_new_classifier=True) == ()
    assert same_state(source, target)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("damage", ["cut", "noise", "empty", "text"])
def test_a_damaged_file_is_refused(tmp_path: Path, suffix: str, damage: str) -> None:
    path = tmp_path / f"net{suffix}"
    state = nets.resnet8().state_dict()
    if suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    whole = path.read_bytes()
    path.write_bytes(
        {"cut": whole[: len(whole) // 2], "noise": bytes(range(1, 250)) * 9, "empty": b"", "text": b"<html>"}[damage]
    )
    with pytest.raises(CheckpointDamaged, match=f"net{suffix} cannot be read"):
        nets.load_float_weights(nets.resnet8(), path)


def test_files_that_are_no_state_dict_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    torch.save(nn.Linear(2, 2), path)
    with pytest.raises(CheckpointDamaged, match="other Python objects than tensors"):
        nets.load_float_weights(nets.resnet8(), path)
    torch.save([torch.zeros(1)], path)
    with pytest.raises(CheckpointMismatch, match="holds a list, not a state dict"):
        nets.load_float_weights(nets.resnet8(), path)
    torch.save({"epoch": 3, "weights": {"conv1.weight": torch.zeros(1)}}, path)
    with pytest.raises(CheckpointMismatch, match="no tensors: epoch, weights"):
        nets.load_float_weights(nets.resnet8(), path)
    torch.save({}, path)
    with pytest.raises(CheckpointMismatch, match="but nothing"):
        nets.load_float_weights(nets.resnet8(), path)
    with pytest.raises(CheckpointDamaged, match=r"net\.onnx is no known kind"):
        nets.load_float_weights(nets.resnet8(), tmp_path / "net.onnx")
    for name in ("absent.pt", "absent.safetensors"):
        with pytest.raises(FileNotFoundError):
            nets.load_float_weights(nets.resnet8(), tmp_path / name)


# The families that other tests use


@pytest.mark.parametrize("builder", [*FAMILIES.values(), attention_by_multihead], ids=lambda builder: builder.__name__)
def test_families_run_both_ways_and_are_small(builder: Any) -> None:
    model = builder()
    assert parameter_count(model) < 50_000
    image = torch.randn(2, 3, 32, 32)
    model(image).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    with torch.no_grad():
        assert model.eval()(image).shape == (2, 10)
    assert builder() is not model
