"""The distortions of colour that mmsegmentation and mmdetection train with, on bytes: after each of
them pixels are cut to whole numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastload.arguments import integer, require
from fastload.draws import Draws
from fastload.recipe.colour import require_grey_or_rgb, shape_of
from fastload.recipe.operation import ImageState, PixelOperation, register
from fastload.recipe.transforms import ForLoaders
from fastload.render import fused
from fastload.render.hsv import adjust_hsv, tables_of
from fastload.render.steps import KINDS, NUMBERS, ColourSteps, Steps

_STEPS = ("linear", "linear", "hsv", "hsv", "linear")
"""Brightness, contrast, saturation, hue, and contrast where it comes last."""


class PhotometricDistortionOfBytes(ForLoaders):
    """Changes brightness, contrast, saturation and hue, each with probability 0.5, contrast second
    or last: mmsegmentation's PhotoMetricDistortion. Saturation and hue are OpenCV's, of bytes.

    For uint8 images of a loader; called by itself it raises.
    """

    works_on = "works on batches of a loader"

    def __init__(
        self,
        brightness_delta: float = 32,
        contrast_range: tuple[float, float] = (0.5, 1.5),
        saturation_range: tuple[float, float] = (0.5, 1.5),
        hue_delta: int = 18,
    ) -> None:
        """
        Args:
            brightness_delta: up to so much is added, or taken away; from 0 to 255.
            contrast_range: the least and the largest factor of pixels.
            saturation_range: the least and the largest factor of the saturation.
            hue_delta: up to so many steps of 2 degrees are added, or taken away.

        Raises:
            ConfigurationError: a number is out of its range, bounds are not two numbers from 0 on
                in order, or `hue_delta` is no int.
        """
        in_range = 0 <= brightness_delta <= 255
        require("brightness_delta", in_range, "a number from 0 to 255", brightness_delta)
        self.brightness_delta = brightness_delta
        self.contrast_range = _bounds("contrast_range", contrast_range)
        self.saturation_range = _bounds("saturation_range", saturation_range)
        self.hue_delta = integer("hue_delta", hue_delta, 0)


@register
@dataclass(frozen=True)
class DistortBytes(PixelOperation):
    """See `PhotometricDistortionOfBytes`."""

    transforms = (PhotometricDistortionOfBytes,)
    has_steps = True
    of_bytes = True
    of_any_size = True
    pointwise = True

    brightness_delta: float = 32
    contrast: tuple[float, float] = (0.5, 1.5)
    saturation: tuple[float, float] = (0.5, 1.5)
    hue_delta: int = 18

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> DistortBytes:
        return cls(
            transform.brightness_delta,
            transform.contrast_range,
            transform.saturation_range,
            transform.hue_delta,
        )

    def numbers(self, draws: Draws, stream: int) -> npt.NDArray[np.float64]:
        """(B, 5): what is added, the factor of contrast, that of saturation, the steps of the hue,
        and the factor of contrast again; NaN for what is left alone."""
        u = draws.uniform(stream, 9)
        drawn = np.stack(
            [
                self.brightness_delta * (2.0 * u[:, 1] - 1.0),
                self.contrast[0] + (self.contrast[1] - self.contrast[0]) * u[:, 4],
                self.saturation[0] + (self.saturation[1] - self.saturation[0]) * u[:, 6],
                np.floor(u[:, 8] * 2 * self.hue_delta) - self.hue_delta,
            ],
            axis=1,
        )
        drawn[u[:, [0, 3, 5, 7]] < 0.5] = np.nan
        last = np.where(u[:, 2] < 0.5, drawn[:, 1], np.nan)
        drawn[u[:, 2] < 0.5, 1] = np.nan
        return np.concatenate([drawn, last[:, None]], axis=1)

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        require_grey_or_rgb(self, images)
        if fused.active(images):
            return fused.run(images, self.colour_steps(draws, stream, shape_of(images)))
        found = self.numbers(draws, stream)
        made = []
        for image, numbers in zip(images.split(1), found.tolist(), strict=True):
            for kind, number in zip(
                ("add", "scale", "saturation", "hue", "scale"), numbers, strict=True
            ):
                if not np.isnan(number):
                    image = _adjusted(image, kind, number)
            made.append(image)
        return torch.cat(made) if made else images

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        found = self.numbers(draws, stream)
        there = ~np.isnan(found)
        if shape[0] == 1:
            there[:, 2:4] = False
        given = np.nan_to_num(found)
        kinds = np.where(there, [KINDS.index(one) for one in _STEPS], -1).astype(np.int32)
        numbers = np.zeros((*found.shape, NUMBERS), dtype=np.float32)
        numbers[:, 0, 0], numbers[:, 0, 1] = 1.0, np.floor(given[:, 0])
        numbers[:, [1, 4], 0] = given[:, [1, 4]]  # "linear" cuts to whole numbers
        numbers[:, 2:4, :3] = 1.0
        numbers[:, 2, 1], numbers[:, 3, 3] = given[:, 2], given[:, 3] % 180.0
        return [ColourSteps(kinds, numbers)]


def _bounds(name: str, given: Sequence[float]) -> tuple[float, float]:
    good = len(given) == 2 and 0 <= given[0] <= given[1] < math.inf
    require(name, good, "(low, high) with 0 <= low <= high", given)
    return float(given[0]), float(given[1])


def _adjusted(image: torch.Tensor, kind: str, number: float) -> torch.Tensor:
    """One (1, C, H, W) image after one of the distortions."""
    if kind in ("add", "scale"):
        pixels = image.float()
        pixels = pixels + number if kind == "add" else pixels * number
        return pixels.clamp_(0, 255).to(torch.uint8)
    if image.shape[1] == 1:
        return image
    gains, added = np.ones((1, 3), np.float32), np.zeros((1, 3), np.float32)
    if kind == "saturation":
        gains[0, 1] = number
    else:
        added[0, 0] = number % 180.0
    return adjust_hsv(image, tables_of(gains, added))
