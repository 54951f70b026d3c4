"""Jobs by name: the settings that a practitioner would use, and the command that runs the real thing.

A new one is a file beside this with a `PRESET` in it, and a line in `PRESETS`.
"""

from __future__ import annotations

from typing import Any

from fastload.errors import ConfigurationError
from fastload.train.config import TrainConfig
from fastload.train.fields import did_you_mean
from fastload.train.options import merged
from fastload.train.presets import (
    cifar10_pyramidnet,
    cifar10_vgg19,
    cracks_unet_resnet34,
    cracks_unet_vgg16,
    fashion_mnist_mlp,
    imagenet_resnet50,
    text_roberta,
)
from fastload.train.presets.base import Preset

__all__ = ["PRESETS", "Preset", "find_preset", "preset"]

PRESETS: tuple[Preset, ...] = (
    cifar10_pyramidnet.PRESET,
    cifar10_vgg19.PRESET,
    fashion_mnist_mlp.PRESET,
    cracks_unet_vgg16.PRESET,
    cracks_unet_resnet34.PRESET,
    imagenet_resnet50.PRESET,
    text_roberta.PRESET,
)


def find_preset(name: str) -> Preset:
    """The preset of this name. Raises ConfigurationError with the names there are."""
    found = {preset.name: preset for preset in PRESETS}
    if name not in found:
        rest = did_you_mean(name, found) or "; there are " + ", ".join(found)
        raise ConfigurationError(f"preset {name!r}: not known{rest}.")
    return found[name]


def preset(name: str, **changes: Any) -> TrainConfig:
    """The configuration of a preset, with changes by field name: `preset("cifar10-vgg19", data="cifar", lr=0.05)`.

    Raises:
        ConfigurationError: no such preset, no such setting, or a value that it cannot have.
    """
    return merged(find_preset(name).settings, given=changes)
