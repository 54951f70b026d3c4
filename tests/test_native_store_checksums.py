"""CRC-32C and CRC-64/NVME of the core are those of their standards, by instructions and tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

core: Any = pytest.importorskip("fastload.native._core")

UP = bytes(range(256)) * 16
KNOWN: dict[str, list[tuple[bytes, int]]] = {
    # RFC 3720, appendix B.4; the last is the check value of the catalogue of CRCs (CRC-32/ISCSI).
    "crc32c": [
        (b"", 0),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
    ],
    # NVM Command Set Specification, "64b CRC"; the last as above (CRC-64/NVME).
    "crc64nvme": [
        (b"", 0),
        (bytes(4096), 0x6482D367EB22B64E),
        (b"\xff" * 4096, 0xC0DDBA7302ECA3AC),
        (UP, 0x3E729F5F6750449C),
        (UP[::-1], 0x9A2DF64B8E9E517E),
        (b"123456789", 0xAE8B14860A799888),
    ],
}
POLYNOMIALS = {"crc32c": (32, 0x82F63B78), "crc64nvme": (64, 0x9A6C9329AC4BC9B5)}


def bit_by_bit(name: str, data: bytes) -> int:
    bits, polynomial = POLYNOMIALS[name]
    value = ones = (1 << bits) - 1
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (polynomial if value & 1 else 0)
    return value ^ ones


def of(name: str, data: bytes, *, plain: bool) -> int:
    return int(getattr(core, name)(np.frombuffer(data, np.uint8), plain))


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("name", KNOWN)
def test_published_values(name: str, plain: bool) -> None:
    assert [of(name, data, plain=plain) for data, _ in KNOWN[name]] == [
        value for _, value in KNOWN[name]
    ]


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("name", KNOWN)
def test_any_length_from_any_byte(name: str, plain: bool) -> None:
    data = np.random.default_rng(0).integers(0, 256, 400, np.uint8).tobytes()
    for start in range(9):
        for length in [*range(50), 127, 128, 300]:
            part = data[start : start + length]
            view = np.frombuffer(data, np.uint8)[start : start + length]
            assert getattr(core, name)(view, plain) == bit_by_bit(name, part), (start, length)


def test_as_googles_own_package_says() -> None:
    theirs: Callable[[bytes], int] = pytest.importorskip("google_crc32c").value
    data = np.random.default_rng(1).integers(0, 256, 100_001, np.uint8).tobytes()
    for length in (0, 1, 15, 16, 17, 4095, 100_001):
        assert of("crc32c", data[:length], plain=False) == theirs(data[:length])
