"""Networks for small images that the libraries do not have: `fastload:vgg19`."""

from __future__ import annotations

import re

import torchvision
from torch import nn

from fastload.errors import ConfigurationError
from fastload.train.models.pyramidnet import PyramidNet
from fastload.train.models.request import ModelRequest, unknown

__all__ = ["TASKS", "build"]

TASKS = ("classification",)


def build(request: ModelRequest) -> nn.Module:
    """One of mlp, small, vgg19 and pyramidnet-DEPTH-ALPHA."""
    what = f"model 'fastload:{request.name}'"
    if request.weights is not None:
        raise ConfigurationError(f"weights: there are none for fastload:{request.name}; leave them out.")
    pyramid = re.fullmatch(r"pyramidnet-(\d+)-(\d+)", request.name)
    if pyramid:
        depth, alpha = int(pyramid[1]), int(pyramid[2])
        return PyramidNet(depth, alpha, num_classes=request.num_classes, in_channels=request.in_channels)
    if request.name not in _NETWORKS:
        raise unknown(what, request.name, [*_NETWORKS, "pyramidnet-110-48"])
    return _NETWORKS[request.name](request)


def _mlp(request: ModelRequest) -> nn.Module:
    """Two hidden layers of 512, as in PyTorch's quickstart tutorial."""
    height, width = request.image_size
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(request.in_channels * height * width, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, request.num_classes),
    )


def _small(request: ModelRequest) -> nn.Module:
    """Six convolutions in three stages, 0.3 million weights: for trying things out on 32x32 pixels."""
    layers: list[nn.Module] = []
    before = request.in_channels
    for channels in (32, 64, 128):
        for _ in range(2):
            layers += [
                nn.Conv2d(before, channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(inplace=True),
            ]
            before = channels
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, *_head(before, request.num_classes))


def _vgg19(request: ModelRequest) -> nn.Module:
    """VGG-19's convolutions with batch normalisation, and one linear layer in place of its three."""
    features = torchvision.models.vgg19_bn().features
    if request.in_channels != 3:
        features[0] = nn.Conv2d(request.in_channels, 64, 3, padding=1)
    return nn.Sequential(features, *_head(512, request.num_classes))


def _head(channels: int, num_classes: int) -> tuple[nn.Module, ...]:
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)


_NETWORKS = {"mlp": _mlp, "small": _small, "vgg19": _vgg19}
