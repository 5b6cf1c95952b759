"""The residual networks for small images: three stages of 16, 32 and 64 channels, 6n + 2 layers deep.

Where the shape changes, the shortcut is a 1x1 convolution (the original's "option B"), because a padded
identity has no weights and would leave nothing to quantise there. Any input size works: the last map is averaged.
"""

from torch import Tensor, nn
from torch.nn import functional

STAGE_CHANNELS = (16, 32, 64)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        # An empty Sequential is the identity, and adds no name to the state dict.
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False),
                nn.BatchNorm2d(outputs),
            )

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return functional.relu(out + self.shortcut(x))


class CifarResNet(nn.Module):
    """A stem, three stages of `blocks` basic blocks each, and a linear classifier."""

    def __init__(self, blocks: int, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        first, second, third = STAGE_CHANNELS
        self.conv1 = nn.Conv2d(channels, first, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(first)
        self.layer1 = _stage(first, first, blocks, stride=1)
        self.layer2 = _stage(first, second, blocks, stride=2)
        self.layer3 = _stage(second, third, blocks, stride=2)
        self.linear = nn.Linear(third, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.layer1(out)
        out = self.layer2(out)
        out = self.layer3(out)
        out = functional.adaptive_avg_pool2d(out, 1).flatten(1)
        logits: Tensor = self.linear(out)
        return logits


def _stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    rest = [BasicBlock(outputs, outputs, 1) for _ in range(blocks - 1)]
    return nn.Sequential(BasicBlock(inputs, outputs, stride), *rest)


def cifar_resnet(blocks: int = 3, classes: int = 10, channels: int = 3) -> CifarResNet:
    """The network with `blocks` blocks per stage: 6 * blocks + 2 layers (3: ResNet-20, 9: ResNet-56)."""
    if blocks < 1:
        raise ValueError(f"blocks must be at least 1 per stage, not {blocks}")
    return CifarResNet(blocks, classes, channels)


def resnet8(classes: int = 10, channels: int = 3) -> CifarResNet:
    """The smallest of the family, one block per stage: for tests, demos and 8x8 digits."""
    return cifar_resnet(1, classes, channels)


def resnet20(classes: int = 10, channels: int = 3) -> CifarResNet:
    """ResNet-20, three blocks per stage: the usual measure for CIFAR-10."""
    return cifar_resnet(3, classes, channels)
