"""The chunks of a PNG (W3C, Portable Network Graphics, third edition): which bytes decide about its pixels.

Readers differ in what they make of broken metadata and of wrong checksums: Pillow refuses the first and does not look
at the second, libpng the reverse. Here, as in the native core (`fastload/native/png/frame.cpp`), metadata do not count,
and what carries pixels must be as it was written.
"""

from __future__ import annotations

import struct
import zlib

__all__ = ["pixel_chunks"]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_PIXELS = (b"IHDR", b"PLTE", b"IDAT")


def pixel_chunks(data: bytes) -> bytes:
    """The same PNG without metadata.

    Raises:
        ValueError: it is cut off, or a chunk that pixels need is damaged, out of place or unknown.
    """
    view = memoryview(data)
    kept: list[memoryview] = [view[: len(_SIGNATURE)]]
    kinds: list[bytes] = []
    compressed, position = 0, len(_SIGNATURE)
    while True:
        if position + 12 > len(data):
            raise ValueError(f"truncated: the end of the image is missing ({len(data)} bytes)")
        length, kind = struct.unpack_from(">I4s", data, position)
        stop = position + 12 + length
        if kind == b"IEND":
            break
        if not kind.isalpha() or not kind.isascii():
            raise ValueError(f"damaged: a chunk of the impossible kind {kind!r}")
        if stop > len(data):
            raise ValueError(f"truncated: the end of the image is missing ({len(data)} bytes)")
        if kind in _PIXELS:
            if int.from_bytes(view[stop - 4 : stop], "big") != zlib.crc32(view[position + 4 : stop - 4]):
                raise ValueError(f"damaged: the checksum of its chunk {kind.decode()} is wrong")
            _check_place(kind, length, kinds)
            if not kinds:
                _check_header(*struct.unpack_from(">IIBBBBB", data, position + 8))
            kept.append(view[position:stop])
            compressed += length if kind == b"IDAT" else 0
        elif kind[:1].isupper():
            raise ValueError(f"damaged: an unknown chunk {kind.decode()} that cannot be left out")
        kinds.append(kind)
        position = stop
    if b"IDAT" not in kinds or (data[25] == 3 and b"PLTE" not in kinds):
        raise ValueError("damaged: it has no pixels, or no palette for them")
    _check_work(data, compressed)
    return b"".join([*kept, b"\0\0\0\0IEND\xaeB`\x82"])


def _check_header(width: int, height: int, depth: int, colour: int, *methods: int) -> None:
    if not (width and height and depth in _DEPTHS.get(colour, ()) and methods in ((0, 0, 0), (0, 0, 1))):
        raise ValueError("a PNG with a damaged header")


def _check_place(kind: bytes, length: int, before: list[bytes]) -> None:
    if (kind == b"IHDR") != (not before) or (kind == b"IHDR" and length != 13):
        raise ValueError(f"damaged: its chunk {kind.decode()} is out of place")
    if kind == b"PLTE" and (b"PLTE" in before or b"IDAT" in before or length % 3 or not 0 < length <= 768):
        raise ValueError("damaged: a palette that is odd or out of place")
    if kind == b"IDAT" and b"IDAT" in before and before[-1] != b"IDAT":
        raise ValueError("damaged: its pixels are in pieces with others between")


def _check_work(data: bytes, compressed: int) -> None:
    """Data that take more room than the pixels are made to keep a decoder busy: one block of them may cost a thousand
    times what its bytes would otherwise."""
    width, height, depth, colour = struct.unpack_from(">IIBB", data, 16)
    raw = ((width * _CHANNELS[colour] * depth + 7) // 8 + 1) * height
    if compressed > 4 * raw + (64 << 10):  # interlaced, it is up to twice as much
        raise ValueError(f"{compressed:,} bytes of data for {width} x {height} pixels: made to keep a decoder busy")
