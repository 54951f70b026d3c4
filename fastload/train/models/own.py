"""Networks for small images that the libraries do not have: `fastload:vgg19`."""

from __future__ import annotations

import re

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
    return _convolutional(request, (32, 2), (64, 2), (128, 2))


def _vgg19(request: ModelRequest) -> nn.Module:
    """VGG-19's convolutions (Simonyan and Zisserman, 2015, column E) with batch normalisation, and one linear layer in
    place of its three."""
    return _convolutional(request, (64, 2), (128, 2), (256, 4), (512, 4), (512, 4))


def _convolutional(request: ModelRequest, *stages: tuple[int, int]) -> nn.Module:
    """Stages of (channels, number of convolutions), each halving the image, and a linear layer on the mean."""
    layers: list[nn.Module] = []
    before = request.in_channels
    for channels, number in stages:
        for _ in range(number):
            layers += [
                nn.Conv2d(before, channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(inplace=True),
            ]
            before = channels
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, request.num_classes))


_NETWORKS = {"mlp": _mlp, "small": _small, "vgg19": _vgg19}
