"""PNGs of every kind that the format has, written from the samples themselves: encoders write only
some."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from itertools import product

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.uint16]

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Samples a pixel by colour type: grey, RGB, palette, grey and alpha, RGB and alpha."""
DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
KINDS = [
    (colour, depth, interlaced)
    for colour in DEPTHS
    for depth in DEPTHS[colour]
    for interlaced in (False, True)
]
PASSES = [
    (0, 0, 8, 8),
    (0, 4, 8, 8),
    (4, 0, 8, 4),
    (0, 2, 4, 4),
    (2, 0, 4, 2),
    (0, 1, 2, 2),
    (1, 0, 2, 1),
]


def chunk(kind: bytes, body: bytes = b"", checksum: int | None = None) -> bytes:
    return (
        struct.pack(">I", len(body))
        + kind
        + body
        + struct.pack(">I", zlib.crc32(kind + body) if checksum is None else checksum)
    )


def chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(kind, body) of each."""
    position = len(SIGNATURE)
    while position < len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        yield kind, data[position + 8 : position + 8 + length]
        position += 12 + length


def joined(parts: list[tuple[bytes, bytes]]) -> bytes:
    return SIGNATURE + b"".join(chunk(kind, body) for kind, body in parts)


def samples_of(pixels: npt.NDArray[np.uint8], colour: int, depth: int) -> Samples:
    """(H, W, C) numbers of `depth` bits, from (H, W, 3) pixels; the low bits and alpha are
    noise."""
    rng = np.random.default_rng([colour, depth])
    noise = rng.integers(0, 256, (*pixels.shape[:2], CHANNELS[colour]), dtype=np.uint16)
    values = noise.copy()
    shown = min(CHANNELS[colour], 3) if colour & 2 and colour != 3 else 1
    values[..., :shown] = pixels[..., :shown]
    return values << 8 | noise if depth == 16 else values >> (8 - depth)


def palette_of(depth: int) -> npt.NDArray[np.uint8]:
    """(2**depth, 3) colours."""
    return np.random.default_rng(depth).integers(0, 256, (1 << depth, 3), dtype=np.uint8)


def shown(samples: Samples, colour: int, depth: int) -> npt.NDArray[np.uint8]:
    """(H, W, 3) uint8: what the samples look like, alpha left out; the upper half of 16 bits."""
    if colour == 3:
        return palette_of(depth)[samples[..., 0]]
    values = samples >> 8 if depth == 16 else samples * (255 // ((1 << depth) - 1))
    rgb = values[..., :3] if colour in (2, 6) else np.repeat(values[..., :1], 3, axis=2)
    return rgb.astype(np.uint8)


def png(
    samples: Samples,
    colour: int,
    depth: int,
    *,
    interlaced: bool = False,
    filters: tuple[int, ...] = (0, 1, 2, 3, 4, 4, 4),
    piece: int = 1 << 30,
    level: int = 6,
    before: bytes = b"",
    after: bytes = b"",
) -> bytes:
    """A PNG of (H, W, C) samples; rows have the `filters` in turn, the data come in chunks of
    `piece` bytes."""
    height, width = samples.shape[:2]
    raw = b""
    for top, left, down, right in PASSES if interlaced else [(0, 0, 1, 1)]:
        part = samples[top::down, left::right]
        if part.size:
            raw += _filtered(_packed(part, depth), max(samples.shape[2] * depth // 8, 1), filters)
    data = zlib.compress(raw, level)
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    palette = chunk(b"PLTE", palette_of(depth).tobytes()) if colour == 3 else b""
    pieces = [chunk(b"IDAT", data[at : at + piece]) for at in range(0, len(data), piece)]
    return b"".join(
        [SIGNATURE, chunk(b"IHDR", header), before, palette, *pieces, after, chunk(b"IEND")]
    )


def _packed(samples: Samples, depth: int) -> npt.NDArray[np.uint8]:
    """(H, bytes a row)."""
    rows = samples.reshape(len(samples), -1)
    if depth == 16:
        return rows.astype(">u2").view(np.uint8)
    if depth == 8:
        return rows.astype(np.uint8)
    bits = rows[..., None] >> np.arange(depth - 1, -1, -1) & 1
    return np.packbits(bits.reshape(len(rows), -1).astype(np.uint8), axis=1)


def _filtered(rows: npt.NDArray[np.uint8], bytes_a_pixel: int, filters: tuple[int, ...]) -> bytes:
    """Each row minus its prediction, after the number of its filter (W3C, section 9)."""
    above = np.zeros_like(rows)
    above[1:] = rows[:-1]
    left, corner = np.zeros_like(rows), np.zeros_like(rows)
    left[:, bytes_a_pixel:] = rows[:, :-bytes_a_pixel]
    corner[:, bytes_a_pixel:] = above[:, :-bytes_a_pixel]
    a, b, c = (part.astype(np.int16) for part in (left, above, corner))
    distances = np.abs([b - c, a - c, a + b - c - c])
    nearest = np.choose(distances.argmin(axis=0), [a, b, c])
    predictions = [np.zeros_like(a), a, b, (a + b) // 2, nearest]
    found = bytearray()
    for y, row in enumerate(rows):
        kind = filters[y % len(filters)]
        found += bytes([kind]) + (row - predictions[kind][y]).astype(np.uint8).tobytes()
    return bytes(found)


def every_kind(pixels: npt.NDArray[np.uint8]) -> Iterator[tuple[str, bytes, npt.NDArray[np.uint8]]]:
    """Name, file and (H, W, 3) uint8 pixels of each kind."""
    for (colour, depth, interlaced), piece in product(KINDS, (1 << 30, 57)):
        samples = samples_of(pixels, colour, depth)
        name = (
            f"colour {colour}, {depth} bits{', interlaced' if interlaced else ''}, pieces of "
            f"{piece}"
        )
        yield (
            name,
            png(samples, colour, depth, interlaced=interlaced, piece=piece),
            shown(samples, colour, depth),
        )
