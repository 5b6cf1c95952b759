"""VGG-16 with batch normalisation, with torchvision's names.

Five poolings halve the image, so that it must be at least 32x32.
"""

import torch
from torch import Tensor, nn

# The output channels of each convolution, stage by stage; a 2x2 max pooling ends each stage.
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
LARGE_INPUT_POOLED = 7
LARGE_INPUT_HIDDEN = 4096


class VGG(nn.Module):
    """Thirteen 3x3 convolutions, an adaptive pooling, and a classifier of three linear layers or one."""

    def __init__(
        self,
        classes: int = 1000,
        channels: int = 3,
        small_input: bool = False,
        single_linear: bool = False,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = channels
        for stage in STAGES:
            for outputs in stage:
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
                inputs = outputs
            layers.append(nn.MaxPool2d(2, stride=2))
        self.features = nn.Sequential(*layers)
        pooled = 1 if small_input or single_linear else LARGE_INPUT_POOLED
        hidden = inputs if small_input else LARGE_INPUT_HIDDEN
        self.avgpool = nn.AdaptiveAvgPool2d((pooled, pooled))
        self.classifier: nn.Module
        if single_linear:
            self.classifier = nn.Linear(inputs, classes)
        else:
            self.classifier = nn.Sequential(
                nn.Linear(inputs * pooled * pooled, hidden),
                nn.ReLU(),
                nn.Dropout(dropout),
                nn.Linear(hidden, hidden),
                nn.ReLU(),
                nn.Dropout(dropout),
                nn.Linear(hidden, classes),
            )
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        out = self.avgpool(self.features(x))
        logits: Tensor = self.classifier(torch.flatten(out, 1))
        return logits


def _initialise(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, 0.01)
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def vgg16_bn(
    classes: int = 1000,
    channels: int = 3,
    small_input: bool = False,
    single_linear: bool = False,
    dropout: float = 0.5,
) -> VGG:
    """VGG-16-BN.

    - `small_input`: for 32x32. Pools to 1x1, and the three linear layers are 512 wide instead of 4096; the names stay.
    - `single_linear`: the classifier is one linear layer on the 512 averaged channels (`classifier.weight`), the
      commonest CIFAR form: most of VGG's parameters are in the two layers that this leaves out.
    """
    return VGG(classes, channels, small_input, single_linear, dropout)
