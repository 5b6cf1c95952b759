"""MobileNetV2, twice: with torchvision's names for large images, and the flat form for 32x32 images.

Both are made of the same inverted residuals; they differ in strides, in the width of the head, and in how the
layers of a block are nested, hence in the names of their tensors.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

CHANNEL_DIVISOR = 8

# (expansion, output channels at multiplier 1, repeats, stride of the first)
Stage = tuple[int, int, int, int]

LARGE_INPUT_STAGES: tuple[Stage, ...] = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
SMALL_INPUT_STAGES: tuple[Stage, ...] = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
STEM_CHANNELS = 32
HEAD_CHANNELS = 1280


def rounded_channels(channels: float) -> int:
    """The nearest multiple of eight, but never more than a tenth below what was asked for."""
    rounded = max(CHANNEL_DIVISOR, int(channels + CHANNEL_DIVISOR / 2) // CHANNEL_DIVISOR * CHANNEL_DIVISOR)
    return rounded if rounded >= 0.9 * channels else rounded + CHANNEL_DIVISOR


class InvertedResidual(nn.Module):
    """1x1 up, depthwise 3x3, linear 1x1 down; added to its input where the shapes agree."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int, nested: bool) -> None:
        super().__init__()
        hidden = inputs * expansion
        units = [] if expansion == 1 else [_unit(inputs, hidden, 1)]
        units.append(_unit(hidden, hidden, 3, stride=stride, groups=hidden))
        projection = [nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        if nested:
            self.conv = nn.Sequential(*(nn.Sequential(*unit) for unit in units), *projection)
        else:
            self.conv = nn.Sequential(*(layer for unit in units for layer in unit), *projection)
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.has_shortcut else out


class MobileNetV2(nn.Module):
    """The network for large images, named as torchvision's: `features.N`, `classifier.1`."""

    def __init__(self, classes: int = 1000, channels: int = 3, width_multiplier: float = 1.0) -> None:
        super().__init__()
        stem = rounded_channels(STEM_CHANNELS * width_multiplier)
        blocks, last = _blocks(LARGE_INPUT_STAGES, stem, width_multiplier, nested=True)
        # A narrow network keeps the full head: that is where its accuracy comes from.
        head = rounded_channels(HEAD_CHANNELS * max(1.0, width_multiplier))
        self.features = nn.Sequential(
            nn.Sequential(*_unit(channels, stem, 3, stride=2)),
            *blocks,
            nn.Sequential(*_unit(last, head, 1)),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(head, classes))
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        out = self.features(x)
        out = torch.flatten(functional.adaptive_avg_pool2d(out, (1, 1)), 1)
        logits: Tensor = self.classifier(out)
        return logits


class MobileNetV2Cifar(nn.Module):
    """The network for 32x32 images: stride-1 stem, three strides of two, head narrowed with the rest."""

    def __init__(self, classes: int = 10, channels: int = 3, width_multiplier: float = 0.5) -> None:
        super().__init__()
        stem = rounded_channels(STEM_CHANNELS * width_multiplier)
        blocks, last = _blocks(SMALL_INPUT_STAGES, stem, width_multiplier, nested=False)
        head = rounded_channels(HEAD_CHANNELS * width_multiplier)
        self.stem = nn.Sequential(*_unit(channels, stem, 3))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(*_unit(last, head, 1))
        self.linear = nn.Linear(head, classes)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        out = self.head(self.blocks(self.stem(x)))
        out = functional.adaptive_avg_pool2d(out, 1).flatten(1)
        logits: Tensor = self.linear(out)
        return logits


def _unit(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU6()]


def _blocks(
    stages: tuple[Stage, ...], inputs: int, width_multiplier: float, nested: bool
) -> tuple[list[InvertedResidual], int]:
    blocks = []
    for expansion, channels, repeats, first_stride in stages:
        outputs = rounded_channels(channels * width_multiplier)
        for index in range(repeats):
            stride = first_stride if index == 0 else 1
            blocks.append(InvertedResidual(inputs, outputs, stride, expansion, nested))
            inputs = outputs
    return blocks, inputs


def _initialise(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, 0.01)
            nn.init.zeros_(module.bias)


def mobilenet_v2(classes: int = 1000, channels: int = 3, width_multiplier: float = 1.0) -> MobileNetV2:
    """MobileNetV2 for large images; `width_multiplier` scales the channels, not the bits."""
    return MobileNetV2(classes, channels, width_multiplier)


def mobilenetv2_cifar(classes: int = 10, channels: int = 3, width_multiplier: float = 0.5) -> MobileNetV2Cifar:
    """MobileNetV2 for 32x32 images, half the channels unless told otherwise."""
    return MobileNetV2Cifar(classes, channels, width_multiplier)
