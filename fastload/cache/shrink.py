"""Images reduced to a short side: smaller caches, at the price of a second resampling."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from fastload.geometry import Resampling
from fastload.geometry.boxes import resized_sizes
from fastload.render.host import render_into

__all__ = ["shrink", "shrunk_sizes"]


def shrunk_sizes(sizes: npt.NDArray[np.int64], short_side: int | None) -> npt.NDArray[np.int64]:
    """(B, 2) int64: the sizes of images of these (B, 2) sizes in the cache. Smaller ones are not enlarged."""
    if short_side is None:
        return sizes
    small = sizes.min(axis=1, keepdims=True) <= short_side
    return np.where(small, sizes, resized_sizes(sizes, shorter=short_side))


def shrink(
    pixels: npt.NDArray[np.uint8], role: Literal["image", "mask"], short_side: int | None
) -> npt.NDArray[np.uint8]:
    """(H, W, C) uint8 reduced as torchvision's antialiased Resize(short_side) does; masks nearest."""
    height, width = pixels.shape[:2]
    new_height, new_width = (int(n) for n in shrunk_sizes(np.array([[height, width]]), short_side)[0])
    if (new_height, new_width) == (height, width):
        return pixels
    out = np.empty((new_height, new_width, pixels.shape[2]), dtype=np.uint8)
    render_into(
        pixels,
        box=(0, 0, height, width),
        size=(new_height, new_width),
        resampling=Resampling("nearest" if role == "mask" else "bilinear"),
        out=out,
    )
    return out
