"""FixMatch's strong augmentation of bytes: RandAugment whose magnitudes are whole numbers, drawn
each time, and which moves the nearest pixels; and a grey rectangle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.v2 import functional

from fastload.arguments import integer, require
from fastload.draws import Draws, Float64Array
from fastload.recipe.attributes import check
from fastload.recipe.colour import require_grey_or_rgb, shape_of
from fastload.recipe.operation import (
    ImageState,
    Operation,
    PixelOperation,
    register_lowering,
)
from fastload.recipe.pillow_augment import Augmentation, PillowRandAugment
from fastload.render import fused
from fastload.render.device import column
from fastload.render.steps import KINDS, NUMBERS, ColourSteps, Steps
from fastload.render.transfer import on_device

OPERATIONS = (
    "AutoContrast",
    "BrightnessFainter",
    "ColorFainter",
    "ContrastFainter",
    "Equalize",
    "Identity",
    "PosterizeOriginal",
    "Rotate",
    "SharpnessFainter",
    "ShearX",
    "ShearY",
    "SolarizeIncreasing",
    "TranslateXWhole",
    "TranslateYWhole",
)
"""In the order of the original's `fixmatch_augment_pool`."""
_REACH = 0.3
"""How far images are shifted at full strength, a share of their sides."""


class FixMatchAugment:
    """`RandAugmentMC` of github.com/kekmodel/FixMatch-pytorch: `n` of 14 operations one after the
    other, each of them with probability 0.5, and of a magnitude that is a whole number from 1 to
    `m` - 1; then a grey rectangle of up to 17 x 17 pixels.

    It takes PIL images in RGB, or uint8 tensors (..., 3, height, width), and returns the same kind.
    Pixels that are moved are the nearest; what lies outside is black.
    """

    def __init__(self, n: int = 2, m: int = 10) -> None:
        """Raises ConfigurationError: `n` is below 1, or `m` not from 2 to 10."""
        self.n, self.m = integer("n", n, 1), integer("m", m, 2)
        require("m", self.m <= 10, "an int from 2 to 10", m)

    def __call__(self, image: Any) -> Any:
        tensor = image if isinstance(image, torch.Tensor) else functional.pil_to_tensor(image)
        batch = tensor.reshape(-1, *tensor.shape[-3:])
        seed = int(torch.randint(0, 2**62, ()))
        draws = Draws(seed, 0, np.arange(len(batch)))
        for stream, op in enumerate(_lowered(self, ImageState())):
            op.check_dtype(batch.dtype)
            batch = op.apply(batch, draws, stream)
        made = batch.reshape(tensor.shape)
        return functional.to_pil_image(made) if isinstance(image, Image.Image) else made

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n={self.n}, m={self.m})"


@dataclass(frozen=True)
class GreyRectangle(PixelOperation):
    """A rectangle of one value, whose left upper corner lies half of its side before a place that
    is drawn in the image, and not outside of it."""

    has_steps = True
    of_bytes = True

    side: int = 16
    """Pixels; one more is changed, as Pillow draws rectangles."""
    value: int = 127

    def __post_init__(self) -> None:
        check(self, "side", self.side >= 1, "at least 1")
        check(self, "value", 0 <= self.value <= 255, "from 0 to 255")

    def edges(self, draws: Draws, stream: int, height: int, width: int) -> Float64Array:
        """(B, 4) left, top, right, bottom; the last two are those of pixels that are changed, or
        lie outside."""
        sides = np.array([[width, height]])
        middles = draws.uniform(stream, 2) * sides
        first = np.trunc(np.maximum(0.0, middles - self.side / 2.0))
        return np.concatenate([first, np.minimum(sides, first + self.side)], axis=1)

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        require_grey_or_rgb(self, images)
        if fused.active(images):
            return fused.run(images, self.colour_steps(draws, stream, shape_of(images)))
        _, height, width = shape_of(images)
        edges = on_device(self.edges(draws, stream, height, width), images.device)
        return with_rectangles(images, edges, self.value)

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        numbers = np.zeros((len(draws), 1, NUMBERS), dtype=np.float32)
        numbers[:, 0, :4], numbers[:, 0, 4] = self.edges(draws, stream, *shape[1:]), self.value
        return [ColourSteps(np.full((len(draws), 1), KINDS.index("cut_out"), np.int32), numbers)]


def with_rectangles(images: torch.Tensor, edges: torch.Tensor, value: int) -> torch.Tensor:
    """(B, C, H, W) images in which (B, 4) rectangles, left, top, right and bottom, have a value,
    the last column and line in it."""
    left, top, right, bottom = (column(edges[:, k]) for k in range(4))
    y = torch.arange(images.shape[2], device=images.device).view(-1, 1)
    x = torch.arange(images.shape[3], device=images.device)
    inside = (x >= left) & (x <= right) & (y >= top) & (y <= bottom)
    return torch.where(
        inside, torch.tensor(value, dtype=images.dtype, device=images.device), images
    )


def _lowered(transform: FixMatchAugment, image: ImageState) -> tuple[Operation, ...]:
    drawn = tuple(
        Augmentation(name, magnitude=float(transform.m), reach=_REACH, whole=True)
        for name in OPERATIONS
    )
    black = (0.0, 0.0, 0.0)
    return (
        PillowRandAugment(drawn, transform.n, filters=("nearest",), fill=black),
        GreyRectangle(),
    )


register_lowering("two operations", (FixMatchAugment,), _lowered)
