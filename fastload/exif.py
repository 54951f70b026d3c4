"""The EXIF orientation of an image: how it is read and written, and what it turns.

It is the tag 0x0112, a SHORT from 1 to 8, of the first directory of a TIFF structure (Exif 2.32,
section 4.6; TIFF 6.0, section 2). 1 is upright; 2 to 4 mirror the image or turn it upside down; 5
to 8 exchange its sides as well. Anything else counts as 1. The native core has the same rules in
`native/decoder.cpp` and `native/decode_job.cpp`, tested equal.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Int64Array = npt.NDArray[np.int64]

UPRIGHT = 1
_ORIENTATION = 0x0112
_SHORT = 3
_SIDES = 5
"""From this orientation on, height and width are exchanged."""


def orientation_of(image: Image.Image) -> int:
    """1 to 8, of an image that Pillow has opened. Raises what Pillow raises at damaged metadata."""
    return _checked(image.getexif().get(_ORIENTATION)) or UPRIGHT


def orientation_in(tiff: bytes) -> int | None:
    """1 to 8, of a TIFF structure; None if it has none or is damaged: no reason to refuse the
    pixels."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return None
    try:
        (directory,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, directory)
        for entry in range(directory + 2, directory + 2 + 12 * count, 12):
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", tiff, entry)
            if tag == _ORIENTATION:
                return _checked(value)
    except struct.error:
        return None
    return None


def with_orientation(jpeg: bytes, orientation: int) -> bytes:
    """A JPEG without EXIF data, with a segment that says how it is to be turned; upright: as it
    is."""
    if orientation == UPRIGHT:
        return jpeg
    directory = struct.pack(">HHHIHHI", 1, _ORIENTATION, _SHORT, 1, orientation, 0, 0)
    exif = b"Exif\0\0" + b"MM\0\x2a" + struct.pack(">I", 8) + directory
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + jpeg[2:]


def turned_size(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """(height, width) of an image once it is upright, from those as stored."""
    return (size[1], size[0]) if orientation >= _SIDES else size


def turned_sizes(sizes: Int64Array, orientations: npt.NDArray[Any]) -> Int64Array:
    """`turned_size` of (N, 2) sizes and (N,) orientations."""
    return np.where((orientations >= _SIDES)[:, None], sizes[:, ::-1], sizes)


def upright(pixels: npt.NDArray[np.uint8], orientation: int) -> npt.NDArray[np.uint8]:
    """(H, W, C) uint8 turned upright, as `PIL.ImageOps.exif_transpose` does it."""
    if orientation == UPRIGHT:
        return pixels
    if orientation >= _SIDES:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def _checked(value: object) -> int | None:
    """An int from 1 to 8 as it is; None for anything else."""
    return value if isinstance(value, int) and 1 <= value <= 8 else None
