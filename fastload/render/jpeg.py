"""Images compressed as JPEGs and decompressed, by the native core or by Pillow. The pixels are the
same."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from fastload import native
from fastload.decode.libraries import core_pool
from fastload.render.steps import JpegSteps

Pixels = npt.NDArray[np.uint8]


def recompressed(images: torch.Tensor, steps: JpegSteps) -> torch.Tensor:
    """(B, C, H, W) uint8 images, C = 1 or 3, in host memory or brought there, and back."""
    pixels = np.array(images.permute(0, 2, 3, 1).cpu().numpy(), order="C")
    if pixels.size and native.available():
        done = core_pool().recompress(
            pixels, steps.qualities, blue_first=steps.blue_first, here=True
        )
        if failures := done.wait():
            raise MemoryError(f"JPEG on the host: {failures[0].message}")
    elif pixels.size:
        for image, quality in zip(pixels, steps.qualities.tolist(), strict=True):
            if quality:
                image[...] = _by_pillow(image, quality, steps.blue_first)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).to(images.device)


def _by_pillow(image: Pixels, quality: int, blue_first: bool) -> Pixels:
    file = io.BytesIO()
    order = slice(None, None, -1 if blue_first else 1)
    given = image[..., 0] if image.shape[2] == 1 else np.ascontiguousarray(image[..., order])
    Image.fromarray(given).save(file, "JPEG", quality=quality, subsampling=2)
    file.seek(0)
    with Image.open(file) as opened:
        return np.asarray(opened).reshape(image.shape)[..., order]
