"""Where the operations of colour run that batches begin with: on the host or on the device, by rule
or as asked; `tune` measures both."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fastload import native
from fastload.backends.base import Place
from fastload.errors import ConfigurationError
from fastload.recipe import SplitRecipe
from fastload.sources.base import Source


@dataclass(frozen=True)
class ColourPlace:
    """A split recipe whose operations of colour have a place."""

    split: SplitRecipe
    why: str = ""
    """For `explain()`: the place and the reason; empty where there is no choice."""
    other: SplitRecipe | None = None
    """The same in the other place, where that is to be measured."""


def place_by_rule(
    place: Place, split: SplitRecipe, source: Source, device: torch.device
) -> ColourPlace:
    """The place that was asked for, or by rule.

    Raises:
        ConfigurationError: the host was asked for and cannot.
    """
    masks = any(not column.kind.coloured for column in source.images.values())
    hosted = split.with_colour_on_host(masks=masks)
    if not hosted.host_programs or split.opaque is not None or source.objects or source.deep:
        if place == "host":
            raise ConfigurationError(
                "place: 'host' is for operations of colour that a batch of uint8 images begins "
                "with (ColorJitter, GaussianBlur, RandAugment, RandomApply of these, and others of "
                "their kind), and there is none that fastload runs on batches. Put them before the "
                "conversion to floating point, or leave place out."
            )
        return ColourPlace(split)
    if not native.available():
        if place == "host":
            native.load()  # Raises, and says how to build it.
        return ColourPlace(split, "on the device: the native core is not built")
    if place == "host":
        return ColourPlace(hosted, "on the host, as asked")
    if place == "device":
        return ColourPlace(split, "on the device, as asked")
    if device.type == "cpu":
        return ColourPlace(hosted, "on the host, by rule: batches stay there", split)
    return ColourPlace(
        split,
        f"on {device}, by rule; place='host' has the native core do it before the copy, "
        "tune=True of the options measures both",
        hosted,
    )
