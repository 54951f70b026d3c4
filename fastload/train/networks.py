"""Networks for small images that the libraries do not have: `fastload:vgg19`."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from fastload.errors import ConfigurationError


def mlp(in_channels: int, num_classes: int, image_size: tuple[int, int]) -> nn.Module:
    """Two hidden layers of 512, as in PyTorch's quickstart tutorial."""
    height, width = image_size
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(in_channels * height * width, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, num_classes),
    )


def small(in_channels: int, num_classes: int) -> nn.Module:
    """Six convolutions in three stages, 0.3 million weights: for trying things out on 32x32 pixels."""
    return _convolutional(in_channels, num_classes, (32, 2), (64, 2), (128, 2))


def vgg19(in_channels: int, num_classes: int) -> nn.Module:
    """VGG-19's convolutions (Simonyan and Zisserman, 2015, column E) with batch normalisation, and one linear layer in
    place of its three."""
    return _convolutional(in_channels, num_classes, (64, 2), (128, 2), (256, 4), (512, 4), (512, 4))


def _convolutional(in_channels: int, num_classes: int, *stages: tuple[int, int]) -> nn.Module:
    """Stages of (channels, number of convolutions), each halving the image, and a linear layer on the mean."""
    layers: list[nn.Module] = []
    before = in_channels
    for channels, number in stages:
        for _ in range(number):
            layers += [
                nn.Conv2d(before, channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(inplace=True),
            ]
            before = channels
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, num_classes))


_STAGES = 3
_FIRST_WIDTH = 16


class PyramidNet(nn.Module):
    """A residual network that widens a little at every block, for images of about 32x32 pixels.

    Han, Kim and Kim, "Deep pyramidal residual networks" (CVPR 2017, arXiv:1610.02915): the additive form with basic
    blocks (figure 6d: normalisation first and last, one ReLU) and shortcuts padded with zeros.

    Args:
        depth: layers with weights; 6n + 2.
        alpha: channels added from the first block to the last, evenly.
        num_classes: outputs.
        in_channels: of the images.

    Raises:
        ConfigurationError: a depth that no number of blocks makes up.
    """

    def __init__(self, depth: int, alpha: int, *, num_classes: int, in_channels: int = 3) -> None:
        super().__init__()
        blocks = (depth - 2) // (2 * _STAGES)
        if blocks < 1 or blocks * 2 * _STAGES + 2 != depth:
            raise ConfigurationError(f"depth of a PyramidNet: must be 6n + 2, such as 110, got {depth}.")
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, _FIRST_WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(_FIRST_WIDTH)
        )
        total = _STAGES * blocks
        # Exact thirds and the like are rounded block by block, so that their sum is alpha.
        widths = [_FIRST_WIDTH + math.floor(alpha * k / total + 0.5) for k in range(total + 1)]
        self.blocks = nn.Sequential(
            *(_Block(widths[k], widths[k + 1], stride=2 if k and k % blocks == 0 else 1) for k in range(total))
        )
        self.head = nn.Sequential(
            nn.BatchNorm2d(widths[-1]),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(widths[-1], num_classes),
        )
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.blocks(self.stem(images)))
        return logits


class _Block(nn.Module):
    def __init__(self, before: int, channels: int, *, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.BatchNorm2d(before),
            nn.Conv2d(before, channels, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.shortcut = nn.AvgPool2d(stride, ceil_mode=True) if stride > 1 else nn.Identity()
        self.added = channels - before

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        residual: torch.Tensor = self.residual(images)
        return residual + F.pad(self.shortcut(images), (0, 0, 0, 0, 0, self.added))
