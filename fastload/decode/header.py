"""What the bytes of an image say without decoding: format, size, components, orientation, scans,
sound chunks.

JPEG (ITU-T T.81, annex B) and PNG (W3C, third edition) are read here, as this runs for every
sample; other formats are left to Pillow.
"""

from __future__ import annotations

import contextlib
import re
import struct
import zlib
from collections.abc import Iterator

import msgspec
from PIL import Image, UnidentifiedImageError

from fastload.decode.libraries import core_formats, core_pool, open_lazily
from fastload.distribution import install_command
from fastload.errors import DecodeError
from fastload.exif import UPRIGHT, orientation_in, orientation_of, size_of_tiff
from fastload.files import DecodeSettings
from fastload.sources.image_files import heif_brand, may_be_image

REMEDY = 'Delete or re-encode the file, or skip such samples with on_error="substitute".'
REMEDY_UNREADABLE = (
    'Put the file back or make it readable, or skip such samples with on_error="substitute".'
)
SKIP = 'on_error="substitute" skips such samples.'

_JPEG = b"\xff\xd8\xff"
_PNG = b"\x89PNG\r\n\x1a\n"
_SOS, _EOI, _APP1 = 0xDA, 0xD9, 0xE1
# C4, C8 and CC are DHT, JPG and DAC.
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_LOSSLESS = 0xC3
_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
_ARITHMETIC = frozenset({0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})  # markers without a length: TEM, RST0 to RST7, SOI
# A marker that ends entropy-coded data: neither a stuffed zero, nor a restart, nor padding.
_SCAN_END = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
_EXIF, _XMP = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"
_PNG_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_PROFILE, _PACKET = b"Raw profile type exif", b"XML:com.adobe.xmp"
_MOST_TEXT = 1 << 20
"""Bytes that are unpacked of a text of a PNG."""
_PNG_COMPONENTS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_PNG_PIXELS = (b"IHDR", b"PLTE", b"IDAT")
# The most bytes that a byte of deflated data unpacks to.
_DEFLATED = 258 * 4


class ImageHeader(msgspec.Struct, frozen=True):
    """What the first bytes of a compressed image say."""

    format: str
    """"JPEG", "PNG", or whatever Pillow calls it."""
    height: int
    width: int
    """Pixels as stored, before any EXIF rotation."""
    components: int
    """Colour components as stored: 1 grey, 3 colour, 4 CMYK/YCCK or alpha."""
    orientation: int = UPRIGHT
    """By its EXIF data or XMP, 1 to 8."""
    progressive: bool = False
    arithmetic: bool = False
    """A JPEG whose entropy coding is arithmetic, not Huffman's."""
    lossless: bool = False
    """A JPEG of differences between pixels (SOF3), not of frequencies."""


def read_header(data: bytes, name: str, *, whole: bool = True) -> ImageHeader:
    """Read the header of a compressed image.

    Args:
        name: what to call it in messages.
        whole: the data are all of the image; False: its first bytes, of a JPEG.

    Raises:
        DecodeError: it is empty, no image, or ends before its size is known; or, where that is not
            the whole, within its header.
    """
    if not data:
        raise DecodeError(f"{name}: the file is empty (0 bytes). {REMEDY}")
    try:
        if data.startswith(_JPEG):
            return _jpeg(data, whole)
        if data.startswith(_PNG):
            return _png(data)
    except (struct.error, IndexError) as error:
        raise DecodeError(
            f"{name}: truncated: the file ends within its header ({len(data)} bytes). {REMEDY}"
        ) from error
    except ValueError as error:
        raise DecodeError(f"{name}: {error}. {REMEDY}") from error
    return _webp_by_core(data) or _other(data, name)


def check_start(start: bytes, size: int, name: str) -> None:
    """Refuse a file of `size` bytes that does not begin as an image, before the rest of it is read.
    Raises DecodeError."""
    if not may_be_image(start):
        raise _no_image(start, size, name)


def scan_offset(data: bytes) -> int:
    """Where the first scan header (SOS) of a JPEG begins, or -1 if there is none."""
    for marker, position in _markers(data):
        if marker in (_SOS, _EOI):
            return position if marker == _SOS else -1
    return -1


def count_scans(data: bytes) -> int:
    """How many scans a JPEG has: scan headers (SOS), those of thumbnails in its metadata apart."""
    count = 0
    for marker, _ in _markers(data):
        if marker == _EOI:
            break
        count += marker == _SOS
    return count


def _markers(data: bytes) -> Iterator[tuple[int, int]]:
    """(marker, offset after it) of a JPEG, as far as the data go."""
    position = 2
    with contextlib.suppress(IndexError):
        while True:
            marker, position = _next_marker(data, position)
            yield marker, position
            if marker not in _BARE:
                position += max(int.from_bytes(data[position : position + 2], "big"), 2)
            if marker == _SOS:
                match = _SCAN_END.search(data, position)
                position = match.start() if match else len(data)


def _next_marker(data: bytes, position: int) -> tuple[int, int]:
    """(marker, offset after it). Skips padding and stray bytes, as libjpeg does; IndexError at the
    end."""
    if data[position] == 0xFF and 0 < data[position + 1] < 0xFF:  # mostly
        return data[position + 1], position + 2
    while True:
        if data[position] != 0xFF:
            position = data.find(b"\xff", position)
            if position < 0:
                raise IndexError("no marker")
        while data[position] == 0xFF:
            position += 1
        if data[position]:
            return data[position], position + 1


def _jpeg(data: bytes, whole: bool) -> ImageHeader:
    header, position = None, 2
    exif: bytes | None = None
    xmp: bytes | None = None
    while True:
        try:
            marker, position = _next_marker(data, position)
        except IndexError:
            if header is None or not whole:
                raise
            marker = _EOI  # cut off between the frame and its scan
        if marker in (_SOS, _EOI):
            if header is None:
                raise ValueError("a JPEG without a frame header before its data")
            return msgspec.structs.replace(header, orientation=orientation_in(exif, xmp))
        if marker in _SOF:
            _, height, width, components = struct.unpack_from(">BHHB", data, position + 2)
            if not (height and width and components):
                raise ValueError(f"a JPEG of {width} x {height} pixels and {components} components")
            progressive, arithmetic = marker in _PROGRESSIVE, marker in _ARITHMETIC
            header = ImageHeader(
                "JPEG",
                height,
                width,
                components,
                UPRIGHT,
                progressive,
                arithmetic,
                marker == _LOSSLESS,
            )
        if marker in _BARE:
            continue
        length = int.from_bytes(data[position : position + 2], "big")
        if marker == _APP1:
            segment = data[position + 2 : position + length]
            if segment.startswith(_EXIF):
                exif = segment if exif is None else exif + segment[len(_EXIF) :]
            elif segment.startswith(_XMP):
                xmp = segment[len(_XMP) :]
        position += max(length, 2)


def _png(data: bytes) -> ImageHeader:
    chunk_type, width, height, _, colour = struct.unpack_from(">4sIIBB", data, 12)
    if chunk_type != b"IHDR" or colour not in _PNG_COMPONENTS or not (height and width):
        raise ValueError("a PNG with a damaged header")
    exif: bytes | None = None
    texts: dict[bytes, bytes] = {}
    position = 8
    while position + 8 <= len(data):
        length, chunk_type = struct.unpack_from(">I4s", data, position)
        if chunk_type == b"eXIf":
            exif = _EXIF + data[position + 8 : position + 8 + length]
            texts.pop(b"exif", None)
        elif chunk_type in _PNG_TEXTS:
            texts |= _png_text(chunk_type, data[position + 8 : position + 8 + length])
        elif chunk_type == b"IEND":
            break
        position += 12 + length
    orientation = orientation_in(*_png_metadata(exif, texts)) if texts or exif else UPRIGHT
    return ImageHeader("PNG", height, width, _PNG_COMPONENTS[colour], orientation)


def _png_text(chunk_type: bytes, chunk: bytes) -> dict[bytes, bytes]:
    """The text of a chunk by its name, if that may say how the image is turned; {} also where it is
    damaged."""
    name, _, text = chunk.partition(b"\0")
    if name not in (b"exif", _PROFILE, _PACKET):
        return {}
    compressed = chunk_type == b"zTXt"
    if chunk_type == b"iTXt":
        parts = text[2:].split(b"\0", 2)
        if len(text) < 2 or len(parts) < 3 or (text[0] and text[1]):
            return {}
        compressed, text = bool(text[0]), parts[2]
    elif compressed:
        text = text[1:]
    if compressed:
        try:
            text = zlib.decompressobj().decompress(text, _MOST_TEXT)
        except zlib.error:
            return {}
    return {name: text}


def _png_metadata(
    exif: bytes | None, texts: dict[bytes, bytes]
) -> tuple[bytes | None, bytes | None]:
    """EXIF data and XMP, by eXIf or the texts of older programs: "exif" holds the data, and "Raw
    profile type exif" in its fourth line and those after it their hexadecimal digits."""
    exif = texts.get(b"exif", exif)  # the one that came last
    if exif is None and _PROFILE in texts:
        digits = b"".join(texts[_PROFILE].split(b"\n")[3:])
        try:
            exif = bytes.fromhex(digits.decode("ascii"))
        except ValueError:
            exif = b"\0"  # damaged: upright
    return exif, texts.get(_PACKET)


def pixel_chunks(data: bytes) -> bytes:
    """The same PNG without metadata.

    Readers differ in what they make of broken metadata and of wrong checksums: Pillow refuses the
    first and does not look at the second, libpng the reverse. Here, as in the native core
    (`fastload/native/png.cpp`), metadata do not count, and what carries pixels must be as it was
    written: ValueError.
    """
    view = memoryview(data)
    kept: list[memoryview] = [view[: len(_PNG)]]
    types: list[bytes] = []
    compressed, position = 0, len(_PNG)
    while True:
        if position + 12 > len(data):
            raise ValueError(f"truncated: the end of the image is missing ({len(data)} bytes)")
        length, chunk_type = struct.unpack_from(">I4s", data, position)
        stop = position + 12 + length
        if chunk_type == b"IEND":
            break
        if not chunk_type.isalpha() or not chunk_type.isascii():
            raise ValueError(f"damaged: a chunk of the impossible kind {chunk_type!r}")
        if stop > len(data):
            raise ValueError(f"truncated: the end of the image is missing ({len(data)} bytes)")
        if chunk_type in _PNG_PIXELS:
            if int.from_bytes(view[stop - 4 : stop], "big") != zlib.crc32(
                view[position + 4 : stop - 4]
            ):
                raise ValueError(
                    f"damaged: the checksum of its chunk {chunk_type.decode()} is wrong"
                )
            _check_place(chunk_type, length, types)
            if chunk_type == b"IHDR":
                width, height, depth, colour, *methods = struct.unpack_from(
                    ">IIBBBBB", data, position + 8
                )
                known = depth in _PNG_DEPTHS.get(colour, ()) and methods in ([0, 0, 0], [0, 0, 1])
                if not (width and height and known):
                    raise ValueError("a PNG with a damaged header")
            kept.append(view[position:stop])
            compressed += length if chunk_type == b"IDAT" else 0
        elif chunk_type[:1].isupper():
            raise ValueError(
                f"damaged: an unknown chunk {chunk_type.decode()} that cannot be left out"
            )
        types.append(chunk_type)
        position = stop
    if types[:1] != [b"IHDR"] or b"IDAT" not in types or (colour == 3 and b"PLTE" not in types):
        raise ValueError("damaged: it has no pixels, or no palette for them")
    # Data that take more room than the pixels are made to keep a decoder busy: one block of them
    # may cost a thousand times what its bytes would otherwise. The same are in
    # fastload/native/png.cpp, for images that are not interlaced: those have up to twice as many
    # bytes.
    row = (width * _PNG_COMPONENTS[colour] * depth + 7) // 8
    raw, interlaced = (row + 1) * height, methods[2]
    # Deflate makes at most 258 bytes of two bits (RFC 1951, 3.2.5). Interlaced rows have no fewer
    # bytes than `row`.
    if (row * height if interlaced else raw) > _DEFLATED * compressed:
        raise ValueError(
            f"truncated: {compressed:,} bytes of data cannot hold {width} x {height} pixels"
        )
    if compressed > (4 if interlaced else 2) * raw + (64 << 10):
        raise ValueError(
            f"{compressed:,} bytes of data for {width} x {height} pixels: made to keep a decoder "
            "busy"
        )
    return b"".join([*kept, b"\0\0\0\0IEND\xaeB`\x82"])


def _check_place(chunk_type: bytes, length: int, before: list[bytes]) -> None:
    if (chunk_type == b"IHDR") != (not before) or (chunk_type == b"IHDR" and length != 13):
        raise ValueError(f"damaged: its chunk {chunk_type.decode()} is out of place")
    if chunk_type == b"PLTE" and (
        b"PLTE" in before or b"IDAT" in before or length % 3 or not 0 < length <= 768
    ):
        raise ValueError("damaged: a palette that is odd or out of place")
    if chunk_type == b"IDAT" and b"IDAT" in before and before[-1] != b"IDAT":
        raise ValueError("damaged: its pixels are in pieces with others between")


def _webp_by_core(data: bytes) -> ImageHeader | None:
    """The header of a WebP that the native core accepts, so that what decodes it also says its
    size. Others go to Pillow. The two tolerate different faults: a RIFF container of another length
    than it says, odd flags in VP8X.
    """
    if not (data.startswith(b"RIFF") and data[8:12] == b"WEBP" and "WEBP" in core_formats()):
        return None
    headers, failures = core_pool().read_headers(
        [data], settings=DecodeSettings(max_pixels=1 << 60), here=True
    )
    height, width, components, orientation = headers[0, :4].tolist()
    return None if failures else ImageHeader("WEBP", height, width, components, orientation)


def _other(data: bytes, name: str) -> ImageHeader:
    try:
        with open_lazily(data, "") as image:
            bands, size = len(image.getbands()), (image.height, image.width)
            if image.format == "TIFF":
                return ImageHeader("TIFF", *size_of_tiff(image), bands)
            return ImageHeader(str(image.format), *size, bands, orientation_of(image))
    except UnidentifiedImageError as error:
        raise _no_image(data, len(data), name) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DecodeError(f"{name}: refused by Pillow: {error} {REMEDY}") from error
    except MemoryError:
        raise
    except Exception as error:  # of AVIF RuntimeError; what plugins raise is in no list
        raise DecodeError(f"{name}: damaged header: {error}. {REMEDY}") from error


def _no_image(start: bytes, size: int, name: str) -> DecodeError:
    return DecodeError(f"{name}: not an image: {_looks_like(start, size)}. {REMEDY}")


def _looks_like(data: bytes, size: int) -> str:
    brand = heif_brand(data)
    if brand:
        extra = "heic" if brand == "HEIF" else "avif"
        return f"of {brand}, which is damaged or not read here: {install_command(extra)}"
    start = data[:256].lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<")):
        return (
            f"its first bytes look like HTML or XML: {data[:40]!r}, as a failed download leaves "
            "them"
        )
    if not any(data[:256]):
        return (
            f"it begins with zeros ({size} bytes in all), as a broken copy or a full disk "
            "leaves them"
        )
    return f"its first bytes are {data[:16]!r}, no known image format"
