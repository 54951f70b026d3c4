"""What the images of a cache cost as they are, and what they would cost as JPEG: bytes and
processor time, of some of them."""

from __future__ import annotations

import io
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image
from torchvision.transforms import v2

from fastload import Recipe
from fastload.cache import open_cache
from fastload.draws import Draws
from fastload.native import NativePool, available, fuse
from fastload.sources import PixelArray

QUALITY = 90
_IMAGES = 64
_CROP = 224  # [pixels]
_ROUNDS = 3


@dataclass(frozen=True)
class Stored:
    """Costs of a sample of images, and of their crops by RandomResizedCrop(224)."""

    images: int
    pixel_bytes: int
    jpeg_bytes: int
    """As JPEG of quality 90, 4:2:0."""
    pixel_seconds: float
    """Processor time of all crops, the best of three rounds, with the pixels in memory."""
    jpeg_seconds: float
    """The same from JPEGs, decoded by the native core."""


def _jpeg(pixels: npt.NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "jpeg", quality=QUALITY, subsampling="4:2:0")
    return file.getvalue()


def measure_stored(directory: str) -> Stored | None:
    """Look at 64 images of the first RGB column at most, evenly spaced. None where there is no such
    column, or no native core."""
    columns = open_cache(directory).columns.values()
    arrays = (c for c in columns if isinstance(c, PixelArray) and c.dtype == np.uint8)
    images = next((c for c in arrays if c.channels == 3), None)
    if images is None or not available():
        return None
    spaced = np.linspace(0, len(images) - 1, min(_IMAGES, len(images))).astype(np.int64)
    rows = [row for row in spaced.tolist() if images.row_of(row) not in images.failed]
    if not rows:
        return None
    pixels = [np.ascontiguousarray(images.pixels(row)) for row in rows]
    jpegs = [_jpeg(image) for image in pixels]
    lengths = [image.size for image in pixels]
    in_memory = PixelArray(
        np.concatenate([image.ravel() for image in pixels]),
        sizes=np.array([image.shape[:2] for image in pixels], np.int32),
        offsets=np.cumsum([0, *lengths[:-1]]),
    )
    (plan,) = Recipe.from_transform(v2.RandomResizedCrop(_CROP)).split().geometries
    indices = np.arange(len(rows))
    geometry = fuse(plan, Draws(seed=0, epoch=0, indices=indices))
    assert geometry is not None  # the core knows this crop
    out = np.empty((len(rows), _CROP, _CROP, 3), np.uint8)
    pool = NativePool(1)
    best = [float("inf")] * 2
    for _ in range(_ROUNDS):
        started = time.thread_time()
        pool.gather_batch(in_memory, indices, geometry=geometry, out=out, here=True).wait()
        gathered = time.thread_time()
        pool.decode_batch(jpegs, geometry=geometry, out=out, here=True).wait()
        best = [min(best[0], gathered - started), min(best[1], time.thread_time() - gathered)]
    pool.close()
    return Stored(len(rows), sum(lengths), sum(map(len, jpegs)), *best)
