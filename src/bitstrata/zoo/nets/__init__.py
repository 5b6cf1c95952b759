"""The networks of the zoo: plain torch modules, built by name, loaded from float checkpoints."""

from bitstrata.zoo.nets.cifar_resnet import CifarResNet, cifar_resnet, resnet8, resnet20
from bitstrata.zoo.nets.mobilenet import MobileNetV2, MobileNetV2Cifar, mobilenet_v2, mobilenetv2_cifar
from bitstrata.zoo.nets.registry import build, names
from bitstrata.zoo.nets.resnet import ResNet, resnet18, resnet34, resnet50
from bitstrata.zoo.nets.vgg import VGG, vgg16_bn
from bitstrata.zoo.nets.weights import load_float_weights

__all__ = [
    "VGG",
    "CifarResNet",
    "MobileNetV2",
    "MobileNetV2Cifar",
    "ResNet",
    "build",
    "cifar_resnet",
    "load_float_weights",
    "mobilenet_v2",
    "mobilenetv2_cifar",
    "names",
    "resnet8",
    "resnet18",
    "resnet20",
    "resnet34",
    "resnet50",
    "vgg16_bn",
]
