"""Networks by name, LIBRARY:NAME. A library is imported when a name asks for it, and downloads nothing unless told to.

A new library is a file beside this with a `build` in it, and a line in `LIBRARIES`.
"""

from __future__ import annotations

import importlib
from typing import Any

from torch import nn

from fastload.errors import ConfigurationError
from fastload.train.config import ModelConfig
from fastload.train.fields import did_you_mean
from fastload.train.models.request import ModelRequest

__all__ = ["LIBRARIES", "create_model"]

LIBRARIES = {
    "torchvision": "fastload.train.models.torchvision",
    "timm": "fastload.train.models.timm",
    "smp": "fastload.train.models.smp",
    "transformers": "fastload.train.models.transformers",
    "fastload": "fastload.train.models.own",
}
"""Modules that have `TASKS`, what their networks can be trained for, and `build(request) -> nn.Module`."""


def create_model(
    config: ModelConfig, *, task: str, num_classes: int, in_channels: int, image_size: tuple[int, int]
) -> nn.Module:
    """A network, on the CPU, in float32, drawn from torch's global generator (or with the weights asked for).

    Args:
        config: `model` names it, `weights` its weights; the rest is the trainer's.
        task: "classification", "segmentation" or "masked-lm".
        num_classes: outputs; of a masked language model, the size of its vocabulary.
        in_channels: of the images.
        image_size: (height, width) [pixels]; for networks whose layers depend on it.

    Returns:
        A module from images (B, C, H, W) to logits (B, K); for segmentation (B, K, H, W); from token ids (B, L) to
        logits (B, L, K) for a masked language model.

    Raises:
        ConfigurationError: no such library, network or weights, or it is not one for this task or size.
        BackendUnavailableError: the library is not installed.
    """
    library, _, name = config.model.partition(":")
    if library not in LIBRARIES:
        raise ConfigurationError(
            f"model {config.model!r}: no library {library!r} is known{did_you_mean(library, LIBRARIES)}; "
            f"there are {', '.join(LIBRARIES)}."
        )
    module: Any = importlib.import_module(LIBRARIES[library])
    if task not in module.TASKS:
        fitting = [name for name in LIBRARIES if task in importlib.import_module(LIBRARIES[name]).TASKS]
        raise ConfigurationError(
            f"model {config.model!r}: is for {', '.join(module.TASKS)}, not for {task}; "
            f"take one of {', '.join(f'{name}:' for name in fitting)}"
        )
    model: nn.Module = module.build(
        ModelRequest(
            name=name,
            weights=config.weights,
            task=task,
            num_classes=num_classes,
            in_channels=in_channels,
            image_size=image_size,
        )
    )
    return model
