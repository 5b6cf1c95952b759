"""ResNet-18, 34 and 50 with torchvision's names, so that its checkpoints load as they are.

The stride of a bottleneck sits on its 3x3 convolution, as in torchvision (the "v1.5" form), not on the first 1x1.
"""

import torch
from torch import Tensor, nn

STAGE_CHANNELS = (64, 128, 256, 512)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = _downsample(inputs, channels * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        result: Tensor = self.relu(out + identity)
        return result


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up to four times the channels, and a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        outputs = channels * self.expansion
        self.conv1 = nn.Conv2d(inputs, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.downsample = _downsample(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        result: Tensor = self.relu(out + identity)
        return result


class ResNet(nn.Module):
    """A stem, four stages of residual blocks, and a linear classifier."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, int, int, int],
        classes: int = 1000,
        channels: int = 3,
        small_input: bool = False,
    ) -> None:
        super().__init__()
        stem = STAGE_CHANNELS[0]
        if small_input:
            self.conv1 = nn.Conv2d(channels, stem, 3, padding=1, bias=False)
        else:
            self.conv1 = nn.Conv2d(channels, stem, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(stem)
        self.relu = nn.ReLU()
        self.maxpool: nn.Module = nn.Identity() if small_input else nn.MaxPool2d(3, stride=2, padding=1)
        inputs = stem
        stages = []
        for stage, (stage_channels, depth) in enumerate(zip(STAGE_CHANNELS, depths, strict=True)):
            blocks: list[nn.Module] = []
            for index in range(depth):
                blocks.append(block(inputs, stage_channels, stride=2 if stage > 0 and index == 0 else 1))
                inputs = stage_channels * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        out = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        out = self.layer1(out)
        out = self.layer2(out)
        out = self.layer3(out)
        out = self.layer4(out)
        out = torch.flatten(self.avgpool(out), 1)
        logits: Tensor = self.fc(out)
        return logits


def _downsample(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))


def resnet18(classes: int = 1000, channels: int = 3, small_input: bool = False) -> ResNet:
    """ResNet-18. `small_input` is the usual CIFAR-100 form: a 3x3 stride-1 stem and no max pooling."""
    return ResNet(BasicBlock, (2, 2, 2, 2), classes, channels, small_input)


def resnet34(classes: int = 1000, channels: int = 3, small_input: bool = False) -> ResNet:
    """ResNet-34; `small_input` as for `resnet18`."""
    return ResNet(BasicBlock, (3, 4, 6, 3), classes, channels, small_input)


def resnet50(classes: int = 1000, channels: int = 3, small_input: bool = False) -> ResNet:
    """ResNet-50; `small_input` as for `resnet18`."""
    return ResNet(Bottleneck, (3, 4, 6, 3), classes, channels, small_input)
