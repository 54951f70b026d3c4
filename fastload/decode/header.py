"""What the first bytes of an image say, without decoding: format, size, components, orientation.

JPEG (ITU-T T.81, annex B) and PNG (W3C, section 5) are read here, as this runs for every sample; other formats are
left to Pillow.
"""

from __future__ import annotations

import re
import struct

from PIL import Image, UnidentifiedImageError

from fastload.decode.base import ImageHeader
from fastload.decode.libraries import open_lazily
from fastload.errors import DecodeError

REMEDY = 'Delete or re-encode the file, or skip such samples with on_error="substitute".'

_JPEG = b"\xff\xd8\xff"
_PNG = b"\x89PNG\r\n\x1a\n"
_SOS, _EOI, _APP1 = 0xDA, 0xD9, 0xE1
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # those three are tables: DHT, JPG, DAC
_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})  # markers without a length: TEM, RST0 to RST7, SOI
_SCAN_END = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
"""A marker that ends entropy-coded data: neither a stuffed zero, nor a restart, nor padding."""
_ORIENTATION = 0x0112
_PNG_COMPONENTS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def read_header(data: bytes, name: str) -> ImageHeader:
    """Read the header of a whole compressed image.

    Args:
        data: the bytes of the file.
        name: what to call it in messages.

    Raises:
        DecodeError: it is empty, no image, or ends before its size is known.
    """
    if not data:
        raise DecodeError(f"{name}: the file is empty (0 bytes). {REMEDY}")
    try:
        if data.startswith(_JPEG):
            return _jpeg(data)
        if data.startswith(_PNG):
            return _png(data)
    except (struct.error, IndexError) as error:
        raise DecodeError(
            f"{name}: truncated: the file ends within its header ({len(data)} bytes). {REMEDY}"
        ) from error
    except ValueError as error:
        raise DecodeError(f"{name}: {error}. {REMEDY}") from error
    return _other(data, name)


def scan_offset(data: bytes) -> int:
    """Where the first scan header (SOS) of a JPEG begins, or -1 if there is none."""
    position = 2
    try:
        while True:
            marker, position = _next_marker(data, position)
            if marker == _SOS:
                return position
            if marker == _EOI:
                return -1
            if marker not in _BARE:
                position += int.from_bytes(data[position : position + 2], "big")
    except IndexError:
        return -1


def count_scans(data: bytes) -> int:
    """How many scans a JPEG has: scan headers (SOS), those of thumbnails in its metadata apart."""
    count, position = 0, 2
    try:
        while True:
            marker, position = _next_marker(data, position)
            if marker == _EOI:
                return count
            count += marker == _SOS
            if marker not in _BARE:
                position += max(int.from_bytes(data[position : position + 2], "big"), 2)
            if marker == _SOS:
                found = _SCAN_END.search(data, position)
                position = found.start() if found else len(data)
    except IndexError:
        return count


def _next_marker(data: bytes, position: int) -> tuple[int, int]:
    """(marker, offset behind it). Skips padding and stray bytes, as libjpeg does; IndexError at the end."""
    while True:
        if data[position] != 0xFF:
            position = data.find(b"\xff", position)
            if position < 0:
                raise IndexError("no marker")
        while data[position] == 0xFF:
            position += 1
        if data[position]:
            return data[position], position + 1


def _jpeg(data: bytes) -> ImageHeader:
    orientation = 1
    position = 2
    while True:
        marker, position = _next_marker(data, position)
        if marker in _BARE:
            continue
        if marker in (_SOS, _EOI):
            raise ValueError("a JPEG without a frame header before its data")
        (length,) = struct.unpack_from(">H", data, position)
        if marker in _SOF:
            _, height, width, components = struct.unpack_from(">BHHB", data, position + 2)
            if not (height and width and components):
                raise ValueError(f"a JPEG of {width} x {height} pixels and {components} components")
            return ImageHeader("JPEG", height, width, components, orientation, marker in _PROGRESSIVE)
        if marker == _APP1 and data.startswith(b"Exif\0\0", position + 2):
            orientation = _exif_orientation(data[position + 8 : position + length]) or orientation
        position += max(length, 2)


def _png(data: bytes) -> ImageHeader:
    kind, width, height, _, colour = struct.unpack_from(">4sIIBB", data, 12)
    if kind != b"IHDR" or colour not in _PNG_COMPONENTS or not (height and width):
        raise ValueError("a PNG with a damaged header")
    orientation = 1
    position = 8
    while position + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        if kind == b"eXIf":
            orientation = _exif_orientation(data[position + 8 : position + 8 + length]) or 1
            break
        position += 12 + length
    return ImageHeader("PNG", height, width, _PNG_COMPONENTS[colour], orientation)


def _exif_orientation(tiff: bytes) -> int | None:
    """Orientation of a TIFF structure, or None if it is absent or damaged: no reason to refuse the pixels."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return None
    try:
        (directory,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, directory)
        for entry in range(directory + 2, directory + 2 + 12 * count, 12):
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", tiff, entry)
            if tag == _ORIENTATION:
                return value if 1 <= value <= 8 else None
    except struct.error:
        return None
    return None


def _other(data: bytes, name: str) -> ImageHeader:
    try:
        with open_lazily(data, "") as image:
            orientation = image.getexif().get(_ORIENTATION, 1)
            upright = orientation if orientation in range(1, 9) else 1
            return ImageHeader(str(image.format), image.height, image.width, len(image.getbands()), upright)
    except UnidentifiedImageError as error:
        raise DecodeError(f"{name}: not an image: {_looks_like(data)}. {REMEDY}") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DecodeError(f"{name}: refused by Pillow: {error} {REMEDY}") from error
    except (OSError, SyntaxError, ValueError, struct.error, EOFError) as error:
        raise DecodeError(f"{name}: damaged header: {error}. {REMEDY}") from error


def _looks_like(data: bytes) -> str:
    start = data[:256].lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<")):
        return f"its first bytes look like HTML or XML: {data[:40]!r}, as a failed download leaves them"
    if not any(data[:256]):
        return f"it begins with zeros ({len(data)} bytes in all), as a broken copy or a full disk leaves them"
    return f"its first bytes are {data[:16]!r}, no known image format"
