"""Headers read without decoding, against Pillow."""

from __future__ import annotations

import io
import struct

import pytest
from PIL import Image

from fastload.decode.header import read_header, scan_offset
from fastload.errors import DecodeError
from tests import images

PHOTO = images.photo(31, 47)


@pytest.mark.parametrize("orientation", [None, *range(1, 9)])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg(orientation: int | None, progressive: bool) -> None:
    data = images.jpeg(PHOTO, orientation=orientation, progressive=progressive)
    header = read_header(data, "x")
    picture = Image.open(io.BytesIO(data))
    assert (header.format, header.width, header.height) == ("JPEG", *picture.size)
    assert header.components == 3
    assert header.orientation == picture.getexif().get(0x0112, 1)
    assert header.progressive == progressive


@pytest.mark.parametrize(
    ("data", "components"),
    [
        (images.jpeg(PHOTO[..., 0]), 1),
        (images.cmyk_jpeg(PHOTO), 4),
        (images.png(PHOTO), 3),
        (images.png(PHOTO, mode="RGBA"), 4),
        (images.png(PHOTO[..., 0]), 1),
        (images.png(PHOTO, mode="P"), 1),
    ],
    ids=["grey JPEG", "CMYK JPEG", "PNG", "RGBA PNG", "grey PNG", "palette PNG"],
)
def test_components(data: bytes, components: int) -> None:
    header = read_header(data, "x")
    assert (header.height, header.width, header.components) == (31, 47, components)


@pytest.mark.parametrize("byte_order", ["<", ">"])
def test_orientation_in_either_byte_order(byte_order: str) -> None:
    mark = b"II*\0" if byte_order == "<" else b"MM\0*"
    tiff = mark + struct.pack(f"{byte_order}IHHHIHHI", 8, 1, 0x0112, 3, 1, 6, 0, 0)
    assert read_header(_with_app1(tiff), "x").orientation == 6


@pytest.mark.parametrize(
    "tiff",
    [
        b"",
        b"II*\0",
        b"XX*\0" + bytes(20),
        b"II*\0" + struct.pack("<IH", 8, 500),
        b"II*\0" + b"\xff" * 30,
    ],
)
def test_damaged_exif_is_no_reason_to_refuse(tiff: bytes) -> None:
    assert read_header(_with_app1(tiff), "x").orientation == 1


def test_orientation_out_of_range_counts_as_upright() -> None:
    tiff = b"II*\0" + struct.pack("<IHHHIHHI", 8, 1, 0x0112, 3, 1, 9, 0, 0)
    assert read_header(_with_app1(tiff), "x").orientation == 1


def test_stray_bytes_between_markers_are_skipped() -> None:
    data = images.jpeg(PHOTO)
    # Padding, as the standard allows.
    header = read_header(data[:2] + b"\xff\xff\xff" + data[3:], "x")
    assert (header.height, header.width) == (31, 47)
    header = read_header(data[:20] + b"\0\0" + data[20:], "x")  # after the JFIF segment
    assert (header.height, header.width) == (31, 47)


def test_a_prefix_is_enough() -> None:
    data = images.jpeg(PHOTO)
    assert read_header(data[: scan_offset(data)], "x") == read_header(data, "x")


def test_every_prefix_gives_a_header_or_a_decode_error() -> None:
    for data in (images.jpeg(PHOTO, orientation=6), images.png(PHOTO)):
        whole = read_header(data, "x")
        for length in range(700):
            try:
                assert read_header(data[:length], "x").height == whole.height
            except DecodeError:
                continue


def test_scan_offset_skips_the_thumbnail() -> None:
    data = images.jpeg(PHOTO)
    with_thumbnail = _with_app1(b"II*\0" + images.jpeg(PHOTO[:8, :8]), data)
    assert scan_offset(with_thumbnail) - scan_offset(data) == len(with_thumbnail) - len(data)
    assert scan_offset(data[:60]) == -1


def _with_app1(tiff: bytes, data: bytes | None = None) -> bytes:
    jpeg = images.jpeg(PHOTO) if data is None else data
    return jpeg[:2] + struct.pack(">HH", 0xFFE1, 8 + len(tiff)) + b"Exif\0\0" + tiff + jpeg[2:]
