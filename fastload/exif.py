"""The orientation of an image by its metadata: how it is read and written, and what it turns.

It is the tag 0x0112, a number from 1 to 8, of the first directory of the EXIF data, which are a
TIFF structure (Exif 2.32, section 4.6; TIFF 6.0, section 2); where those have none, XMP may have
it. 1 is upright; 2 to 4 mirror the image or turn it upside down; 5 to 8 exchange its sides as well.
Anything else counts as 1. What is damaged or odd is read as Pillow 13 reads it (`Image.getexif`,
`ImageOps.exif_transpose`). The native core has the same rules in `native/exif.cpp`, tested equal.
"""

from __future__ import annotations

import re
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
_KNOWN = {number: number for number in range(1, 9)}

_MARK = b"Exif\0\0"
_IN_XMP = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
_ORDERS = {
    b"MM\0\x2a": ">",
    b"II\x2a\0": "<",
    b"MM\x2a\0": ">",
    b"II\0\x2a": "<",
    b"MM\0\x2b": ">",
}
"""Of bytes, by how a TIFF structure begins: also with 42 the wrong way round, or 43, of BigTIFF."""
_NUMBERS = dict(
    zip(
        (3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 16),
        ("H", "I", "II", "b", "h", "i", "ii", "f", "d", "I", "Q"),
        strict=True,
    )
)
"""By type of a tag, how struct reads a value: a number, or two that are a ratio."""
_BYTES = {kind: struct.calcsize(f"<{format}") for kind, format in _NUMBERS.items()} | dict.fromkeys(
    (1, 2, 7), 1
)
"""Of a value; 1, 2 and 7 are bytes and text."""


def orientation_of(image: Image.Image) -> int:
    """1 to 8, of an image that Pillow has opened. Damaged metadata turn nothing: no reason to
    refuse the pixels."""
    try:
        value = image.getexif().get(_ORIENTATION, UPRIGHT)
    except MemoryError:
        raise
    except Exception:  # what Pillow raises at damaged metadata is in no list
        return UPRIGHT
    return _KNOWN.get(value, UPRIGHT)


def size_of_tiff(image: Image.Image) -> tuple[int, int]:
    """(height, width) of a TIFF that Pillow has opened, once its pixels are read: it then turns
    them. It has exchanged the sides by now where a tag asks for that, and not where XMP does."""
    tags: Any = image.tag_v2  # type: ignore[attr-defined]
    late = UPRIGHT if _ORIENTATION in tags else orientation_of(image)
    return turned_size((image.height, image.width), late)


def orientation_in(exif: bytes | None, xmp: bytes | None) -> int:
    """1 to 8, by the EXIF data and the XMP packet of an image, as far as it has them. EXIF data
    that do not begin as a TIFF structure are upright, whatever the XMP says."""
    in_exif = None if exif is None else _in_exif(exif)
    if in_exif is not None:
        return in_exif
    match = None if xmp is None else _IN_XMP.search(xmp)
    return UPRIGHT if match is None else _KNOWN.get(int(match[1]), UPRIGHT)


def _in_exif(exif: bytes) -> int | None:
    """1 to 8; None: they have no such tag."""
    tiff = exif.removeprefix(_MARK).removeprefix(_MARK)
    if not tiff:
        return None
    order = _ORDERS.get(tiff[:4])
    if order is None or len(tiff) < 8:
        return UPRIGHT
    seen, outside = set(), 0
    try:
        (directory,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, directory)
        for entry in range(directory + 2, directory + 2 + 12 * count, 12):
            tag, type_, values = struct.unpack_from(f"{order}HHI", tiff, entry)
            at, size = entry + 8, values * _BYTES.get(type_, 0)
            (value,) = struct.unpack_from(f"{order}I", tiff, at)
            if tag in seen or not size:  # of several, the first that has a value
                continue
            if size > 4:
                outside += size
                if outside > len(tiff):
                    continue
                at = value
                if at + size > len(tiff):
                    return None
            if tag == _ORIENTATION:
                return _number(order, type_, tiff, at)
            seen.add(tag)
    except struct.error:  # it is cut off
        return None
    return None


def _number(order: str, type_: int, tiff: bytes, at: int) -> int:
    """The first number of a tag, if it is one from 1 to 8; else 1."""
    if type_ not in _NUMBERS:
        return UPRIGHT
    first, *below = struct.unpack_from(order + _NUMBERS[type_], tiff, at)
    if below:
        first = first / below[0] if below[0] else 0
    return _KNOWN.get(first, UPRIGHT)


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
