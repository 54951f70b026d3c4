"""Files made to do harm, by code: nothing of it is copied from a collection."""

from __future__ import annotations

import struct

__all__ = ["grey_jpeg_of_sampling", "grey_jpeg_of_scans", "with_bytes_before", "with_segment"]


def _segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def _stuffed(bits: str) -> bytes:
    """Entropy-coded bytes: filled up with ones, and a zero after each 0xff."""
    bits += "1" * (-len(bits) % 8)
    return (
        int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\x00") if bits else b""
    )


def grey_jpeg_of_scans(height: int, width: int, scans: int) -> bytes:
    """A valid progressive JPEG, all grey, of 1 to 883 scans, each a dozen bytes and a pass over the
    whole image.

    The first scan is of the DC coefficients; the others send each bit of each AC coefficient by
    itself, all zero.
    """
    blocks = -(-height // 8) * -(-width // 8)
    runs = ""
    left = blocks
    # "the next 2^n + ... blocks have nothing": the symbols of end-of-band runs (T.81, G.1.2.2).
    while left:
        n = min(left.bit_length() - 1, 14)
        run = min(left, 2 ** (n + 1) - 1)
        runs += f"{n:04b}" + (f"{run - 2**n:0{n}b}" if n else "")
        left -= run
    nothing = _stuffed(runs)
    parts = [
        b"\xff\xd8",
        _segment(0xDB, bytes([0] + [1] * 64)),
        _segment(0xC2, struct.pack(">BHHBBBB", 8, height, width, 1, 1, 0x11, 0)),
        _segment(0xC4, bytes([0x00, 1, *[0] * 15, 0])),  # DC: one code, "0", for no difference
        _segment(
            0xC4, bytes([0x10, 0, 0, 0, 15, *[0] * 12, *(n << 4 for n in range(15))])
        ),  # AC: four bits each
        _segment(0xDA, bytes([1, 1, 0x00, 0, 0, 0x00])) + _stuffed("0" * blocks),
    ]
    bands = [(k, bit) for bit in range(13, -1, -1) for k in range(1, 64)]
    for k, bit in bands[: scans - 1]:
        before = 0 if bit == 13 else bit + 1
        parts.append(_segment(0xDA, bytes([1, 1, 0x00, k, k, before << 4 | bit])) + nothing)
    return b"".join(parts) + b"\xff\xd9"


def grey_jpeg_of_sampling(height: int, width: int, factors: tuple[int, int, int]) -> bytes:
    """A valid baseline JPEG of three components, all grey; `factors` as in the frame header, 0x22
    for 2 x 2."""
    most = [max(factor >> shift & 15 for factor in factors) for shift in (4, 0)]
    blocks = sum((factor >> 4) * (factor & 15) for factor in factors)
    units = -(-height // (8 * most[1])) * -(-width // (8 * most[0]))
    components = b"".join(bytes([number + 1, factor, 0]) for number, factor in enumerate(factors))
    return b"".join(
        [
            b"\xff\xd8",
            _segment(0xDB, bytes([0] + [1] * 64)),
            _segment(0xC0, struct.pack(">BHHB", 8, height, width, 3) + components),
            _segment(0xC4, bytes([0x00, 1, *[0] * 15, 0])),  # DC: "0" for no difference
            _segment(0xC4, bytes([0x10, 1, *[0] * 15, 0])),  # AC: "0" for the end of the block
            _segment(0xDA, bytes([3, 1, 0, 2, 0, 3, 0, 0, 63, 0])),
            _stuffed("00" * blocks * units),
            b"\xff\xd9",
        ]
    )


def with_segment(jpeg: bytes, marker: int, body: bytes) -> bytes:
    """The JPEG with a segment of metadata after its first marker."""
    return jpeg[:2] + _segment(marker, body) + jpeg[2:]


def with_bytes_before(jpeg: bytes, marker: int, stray: bytes) -> bytes:
    """The JPEG with bytes that belong to nothing before the first such marker."""
    place = jpeg.index(bytes([0xFF, marker]))
    return jpeg[:place] + stray + jpeg[place:]
