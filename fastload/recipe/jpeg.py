"""Images after a JPEG of some quality."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torchvision.transforms import v2

from fastload.draws import Draws, Int64Array
from fastload.errors import ConfigurationError
from fastload.recipe.attributes import check
from fastload.recipe.colour import require_grey_or_rgb
from fastload.recipe.operation import ImageState, PixelOperation, register


@register
@dataclass(frozen=True)
class JPEG(PixelOperation):
    """Compressed (colour at half the resolution) and decompressed by Pillow, as by
    torchvision's transform, on the CPU, an image at a time; images on a GPU go there and back."""

    transforms = (v2.JPEG,)

    quality: tuple[int, int]
    """From 1 to 100; uniform, both ends included."""

    def __post_init__(self) -> None:
        low, high = self.quality
        check(self, "quality", 1 <= low <= high <= 100, "(low, high) with 1 <= low <= high <= 100")

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> JPEG:
        return cls((int(transform.quality[0]), int(transform.quality[1])))

    def check_dtype(self, dtype: torch.dtype) -> None:
        if dtype != torch.uint8:
            raise ConfigurationError(
                f"{self.describe()} needs uint8 images, got {dtype}; put it before the ToDtype "
                "that converts them."
            )

    def qualities(self, draws: Draws, stream: int) -> Int64Array:
        """(B,)."""
        low, high = self.quality
        uniform = draws.uniform(stream, 1)[:, 0]
        found: Int64Array = low + (uniform * (high - low + 1)).astype(np.int64)
        return found

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        require_grey_or_rgb(self, images)
        self.check_dtype(images.dtype)
        pixels = images.permute(0, 2, 3, 1).contiguous().cpu().numpy()
        made = np.empty_like(pixels)
        qualities = self.qualities(draws, stream).tolist()
        for image, quality, out in zip(pixels, qualities, made, strict=True):
            out[...] = _compressed(image, quality)
        return torch.from_numpy(made).permute(0, 3, 1, 2).to(images.device)


def _compressed(image: npt.NDArray[np.uint8], quality: int) -> npt.NDArray[np.uint8]:
    file = io.BytesIO()
    grey = image.shape[2] == 1
    Image.fromarray(image[..., 0] if grey else image).save(
        file, "JPEG", quality=quality, subsampling=2
    )
    file.seek(0)
    with Image.open(file) as opened:
        return np.asarray(opened).reshape(image.shape)
