"""What "auto" chooses by rule: the backend, and where operations of colour run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from fastload import native
from fastload.backends import available_backends, backend_class
from fastload.backends.base import Workload, fit_of
from fastload.errors import ConfigurationError
from fastload.recipe import SplitRecipe
from fastload.sources.base import Source
from fastload.sources.kinds import pixel_kinds

Place: TypeAlias = Literal["auto", "device", "host"]


def backend_by_rule(workload: Workload) -> tuple[str, str]:
    """(backend, reason): the one whose `fit` has the highest score."""
    names = [status.name for status in available_backends() if status.available]
    fits = {name: fit_of(backend_class(name), workload) for name in names}
    best = max(names, key=lambda name: fits[name].score)  # of equals the first
    if fits[best].score <= 0:
        raise ConfigurationError(
            f"backend: 'auto' finds none that can do this ({workload.needs_python or 'no fit'})."
        )
    return best, fits[best].reason


@dataclass(frozen=True)
class Placed:
    """A split recipe whose operations of colour have a place."""

    split: SplitRecipe
    why: str = ""
    """For `explain()`: the place and the reason; empty where there is no choice."""
    other: SplitRecipe | None = None
    """The same in the other place, where that is to be measured."""

    @property
    def explanation(self) -> dict[str, str]:
        return {"colour": self.why} if self.why else {}


def place_by_rule(place: Place, split: SplitRecipe, source: Source, device: torch.device) -> Placed:
    """By what was asked, or by rule.

    Raises:
        ConfigurationError: the host was asked for and cannot.
    """
    masks = any(
        not kind.coloured
        for kind in pixel_kinds({n: column.role for n, column in source.columns.items()}).values()
    )
    hosted = split.with_colour_on_host(masks=masks)
    if not hosted.hosted or split.opaque is not None or source.objects:
        if place == "host":
            raise ConfigurationError(
                "place: 'host' is for operations of colour that a batch of uint8 images begins "
                "with (ColorJitter, RandomGrayscale, GaussianBlur, RandAugment, "
                "TrivialAugmentWide, AugMix, RandomApply of these), and there is none that "
                "fastload runs on batches. Put them before the conversion to floating point, "
                "or leave place out."
            )
        return Placed(split)
    if not native.available():
        if place == "host":
            native.load()  # which says how to build it
        return Placed(split, "on the device: the native core is not built")
    if place == "host":
        return Placed(hosted, "on the host, as asked")
    if place == "device":
        return Placed(split, "on the device, as asked")
    if device.type == "cpu":
        return Placed(hosted, "on the host, by rule: batches stay there", split)
    return Placed(
        split,
        f"on {device}, by rule; place='host' has the native core do it before the copy, "
        "tune=True measures both",
        hosted,
    )
