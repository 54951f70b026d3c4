"""Cached columns that live on a device, and batches made there."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastload.errors import CacheError
from fastload.geometry import Geometry, Resampling
from fastload.render.device import render_on_device
from fastload.sources.base import Source
from fastload.sources.columns import PixelArray, ValueArray

__all__ = ["ResidentPixels", "ResidentValues", "check_room", "upload"]

Int64Array = npt.NDArray[np.int64]

_UPLOADED_AT_ONCE = 256 << 20
"""Bytes copied from a memory map at a time."""


class ResidentPixels:
    """A column of images on a device: all pixels in one flat tensor, whether or not the images have one size."""

    def __init__(self, images: PixelArray, device: torch.device) -> None:
        flat = images.array.reshape(-1)
        self._images = images
        self._pixels = upload(flat, device).view(-1, images.channels)

    def render(
        self, indices: Int64Array, geometry: Geometry, resampling: Resampling, out_size: tuple[int, int]
    ) -> torch.Tensor:
        """(B, h, w, C) uint8 on the device."""
        images = self._images
        rows = images.rows_of(indices)
        sizes = images.sizes_of(indices).astype(np.int64)
        start = rows * sizes.prod(axis=1) if images.offsets is None else images.offsets[rows] // images.channels
        return render_on_device(
            self._pixels,
            start=start,
            width=sizes[:, 1],
            geometry=geometry,
            resampling=resampling,
            out_size=out_size,
        )


class ResidentValues:
    """A column of values on a device."""

    def __init__(self, values: ValueArray, device: torch.device) -> None:
        self._values = values
        self._tensor = upload(values.array, device)

    def at(self, indices: Int64Array) -> torch.Tensor:
        """(B, ...): these rows."""
        rows = indices if self._values.rows is None else self._values.rows[indices]
        return self._tensor[torch.from_numpy(rows).to(self._tensor.device)]


def upload(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """A copy on the device, part by part: the array may be a memory map larger than memory."""
    step = max(1, _UPLOADED_AT_ONCE * len(array) // max(1, array.nbytes))
    first = torch.from_numpy(np.array(array[:step]))
    result = torch.empty((len(array), *array.shape[1:]), dtype=first.dtype, device=device)
    for start in range(0, len(array), step):
        # np.array makes it writable, as torch asks, and native in byte order.
        part = array[start : start + step]
        result[start : start + step] = torch.from_numpy(np.array(part, dtype=part.dtype.newbyteorder("=")))
    return result


def check_room(source: Source, device: torch.device) -> None:
    """Raise CacheError if the columns of a source do not fit into the free memory of a GPU."""
    if device.type != "cuda":
        return
    needed = sum(c.array.nbytes for c in source.columns.values() if isinstance(c, PixelArray | ValueArray))
    free, total = torch.cuda.mem_get_info(device)
    if needed > free:
        raise CacheError(
            f"storage='device': {source.name} needs {needed:,} bytes ({needed / 1e9:.1f} GB) on {device}, which has "
            f"{free:,} ({free / 1e9:.1f} GB) free of {total / 1e9:.1f} GB. Use storage='ram' or 'disk', or a smaller "
            "short_side."
        )
