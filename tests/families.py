"""Small but faithful members of the families that users bring: each a fresh module for 3x32x32 and 10 classes.

They are here for what they have in their graphs that the zoo's networks have not. They are written the way such
networks are usually written: in-place activations, reused modules, permutations and all.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 10


def _conv_norm_relu(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class RegNetBlock(nn.Module):
    """1x1, grouped 3x3, 1x1, and a shortcut added in place."""

    def __init__(self, inputs: int, outputs: int, stride: int, group_channels: int = 8) -> None:
        super().__init__()
        self.f = nn.Sequential(
            _conv_norm_relu(inputs, outputs, 1),
            _conv_norm_relu(outputs, outputs, 3, stride, groups=outputs // group_channels),
            nn.Conv2d(outputs, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.proj: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.proj = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.f(x)
        out += self.proj(x)
        result: Tensor = self.activation(out)
        return result


def regnet() -> nn.Module:
    """Grouped convolutions of eight channels per group."""
    return nn.Sequential(
        _conv_norm_relu(3, 16, 3, stride=2),
        RegNetBlock(16, 16, stride=1),
        RegNetBlock(16, 32, stride=2),
        RegNetBlock(32, 32, stride=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


class DenseLayer(nn.Module):
    """Norm, activation, convolution, twice: the norms stand before the convolutions."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(inputs, 2 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(2 * growth)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(self.relu1(self.norm1(x)))
        out = self.conv2(self.relu2(self.norm2(out)))
        return torch.cat([x, out], 1)


class DenseNet(nn.Module):
    """Two dense blocks with a transition between them."""

    def __init__(self, growth: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False)
        self.block1 = nn.Sequential(DenseLayer(16, growth), DenseLayer(16 + growth, growth))
        joined = 16 + 2 * growth
        self.transition = nn.Sequential(
            nn.BatchNorm2d(joined), nn.ReLU(inplace=True), nn.Conv2d(joined, 16, 1, bias=False), nn.AvgPool2d(2)
        )
        self.block2 = nn.Sequential(DenseLayer(16, growth), DenseLayer(16 + growth, growth))
        self.norm = nn.BatchNorm2d(joined)
        self.classifier = nn.Linear(joined, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out = self.block2(self.transition(self.block1(self.stem(x))))
        out = functional.relu(self.norm(out), inplace=True)
        out = torch.flatten(functional.adaptive_avg_pool2d(out, (1, 1)), 1)
        logits: Tensor = self.classifier(out)
        return logits


def densenet() -> nn.Module:
    """Concatenations, and batch norms that do not follow a convolution."""
    return DenseNet()


class SqueezeExcite(nn.Module):
    """Every channel multiplied by a factor computed from all channel means."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.activation = nn.SiLU(inplace=True)
        self.scale_activation = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        scale = self.fc2(self.activation(self.fc1(self.avgpool(x))))
        result: Tensor = self.scale_activation(scale) * x
        return result


class MBConv(nn.Module):
    """Expand, depthwise, squeeze and excite, project."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int = 4) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.block = nn.Sequential(
            nn.Conv2d(inputs, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.SiLU(inplace=True),
            nn.Conv2d(hidden, hidden, kernel, stride=stride, padding=kernel // 2, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.SiLU(inplace=True),
            SqueezeExcite(hidden, max(1, inputs // 4)),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block(x)
        if self.has_shortcut:
            out += x
        return out


def efficientnet() -> nn.Module:
    """SiLU (negative inputs to quantised layers), squeeze-excite, depthwise 3x3 and 5x5, dropout before the end."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.SiLU(inplace=True),
        MBConv(8, 8, kernel=3, stride=1),
        MBConv(8, 16, kernel=5, stride=2),
        MBConv(16, 16, kernel=3, stride=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(16, CLASSES),
    )


class LayerNorm2d(nn.LayerNorm):
    """Layer norm over the channels of an image."""

    def forward(self, x: Tensor) -> Tensor:
        out = functional.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return out.permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """Depthwise 7x7, then a two-layer perceptron on channels-last data, scaled per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.act = nn.GELU()
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(0.1 * torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        out = self.dwconv(x).permute(0, 2, 3, 1)
        out = self.pwconv2(self.act(self.pwconv1(self.norm(out))))
        out = (self.gamma * out).permute(0, 3, 1, 2)
        result: Tensor = x + out
        return result


class ConvNeXt(nn.Module):
    """A patchified stem, two stages, and layer norms between and after them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 4, stride=4), LayerNorm2d(16, eps=1e-6))
        self.stage1 = nn.Sequential(ConvNeXtBlock(16), ConvNeXtBlock(16))
        self.downsample = nn.Sequential(LayerNorm2d(16, eps=1e-6), nn.Conv2d(16, 32, 2, stride=2))
        self.stage2 = ConvNeXtBlock(32)
        self.norm = nn.LayerNorm(32, eps=1e-6)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out = self.stage2(self.downsample(self.stage1(self.stem(x))))
        logits: Tensor = self.head(self.norm(out.mean([-2, -1])))
        return logits


def convnext() -> nn.Module:
    """Layer norm, GELU, linear layers on 4-d inputs, and not one batch norm."""
    return ConvNeXt()


class LinearAttention(nn.Module):
    """Ordinary softmax attention, written with linear layers and matrix products."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (size // heads) ** -0.5
        self.qkv = nn.Linear(size, 3 * size)
        self.proj = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, size = x.shape
        split = self.qkv(x).reshape(batch, tokens, 3, self.heads, size // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        weights = ((query * self.scale) @ key.transpose(-2, -1)).softmax(dim=-1)
        out: Tensor = self.proj((weights @ value).transpose(1, 2).reshape(batch, tokens, size))
        return out


class MultiheadAttention(nn.Module):
    """The same by torch's own module, which reads its projection weights without calling the layers."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(size, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return out


class EncoderBlock(nn.Module):
    """Attention and perceptron, each after a layer norm and added to its input."""

    def __init__(self, size: int, attention: nn.Module) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(size)
        self.attn = attention
        self.norm2 = nn.LayerNorm(size)
        self.mlp = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class VisionTransformer(nn.Module):
    """4x4 grid of patches, a class token, two encoder blocks."""

    def __init__(self, attention: Callable[[int, int], nn.Module], size: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, size, 8, stride=8)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, size))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 17, size))
        self.blocks = nn.Sequential(*(EncoderBlock(size, attention(size, heads)) for _ in range(2)))
        self.norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch_embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), tokens), dim=1) + self.pos_embed
        logits: Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return logits


def vision_transformer() -> nn.Module:
    """Attention by linear layers: everything with weights is called through."""
    return VisionTransformer(LinearAttention)


def attention_by_multihead() -> nn.Module:
    """Attention by `nn.MultiheadAttention`: not in FAMILIES, because some of its layers are never called."""
    return VisionTransformer(MultiheadAttention)


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "regnet": regnet,
    "densenet": densenet,
    "efficientnet": efficientnet,
    "convnext": convnext,
    "vision_transformer": vision_transformer,
}
