"""The EXIF orientation, beside what Pillow makes of it."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageOps

from fastload import exif
from fastload.decode.header import read_header
from fastload.decode.image import decode_image, upright_size
from fastload.decode.libraries import get_decoder
from fastload.files import DecodeSettings
from tests.images import jpeg, photo

PHOTO = photo(31, 47)
ORIENTATIONS = range(1, 9)


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_what_is_written_is_read_and_undone_as_by_pillow(orientation: int) -> None:
    plain = jpeg(PHOTO)
    data = exif.with_orientation(plain, orientation)
    assert (data == plain) == (orientation == exif.UPRIGHT)
    assert exif.orientation_of(opened(data)) == orientation
    wanted = np.asarray(ImageOps.exif_transpose(opened(data)))
    turned = exif.upright(np.asarray(opened(data)), orientation)
    assert np.array_equal(turned, wanted)
    assert turned.flags.c_contiguous
    assert exif.turned_size((31, 47), orientation) == wanted.shape[:2]


@pytest.mark.parametrize("turned", [False, True])
def test_a_tiff_is_turned_once(turned: bool) -> None:
    """By Pillow, with or without our option."""
    for orientation in ORIENTATIONS:
        tags, file = Image.Exif(), io.BytesIO()
        tags[0x0112] = orientation
        Image.fromarray(PHOTO).save(file, "TIFF", exif=tags)
        data, settings = file.getvalue(), DecodeSettings(exif_orientation=turned)
        wanted = np.asarray(opened(data))
        found = decode_image(data, name="a.tif", decoder=get_decoder("pillow"), settings=settings)
        assert np.array_equal(found, wanted)
        assert upright_size(read_header(data, "a.tif"), settings) == wanted.shape[:2]


def test_sizes_of_many() -> None:
    sizes = np.array([[31, 47]] * 8)
    found = exif.turned_sizes(sizes, np.array(ORIENTATIONS))
    assert [tuple(row) for row in found.tolist()] == [
        exif.turned_size((31, 47), orientation) for orientation in ORIENTATIONS
    ]
    assert found.dtype == np.int64


def tiff(order: str, value: int, tag: int = 0x0112) -> bytes:
    entries = struct.pack(f"{order}HHIHH", 0x010F, 2, 0, 0, 0)
    entries += struct.pack(f"{order}HHIHH", tag, 3, 1, value, 0)
    mark = {"<": b"II*\0", ">": b"MM\0*"}[order]
    return mark + struct.pack(f"{order}IH", 8, 2) + entries


@pytest.mark.parametrize("order", ["<", ">"])
def test_of_a_tiff_structure(order: str) -> None:
    found = [exif.orientation_in(tiff(order, value)) for value in range(11)]
    assert found == [None, *ORIENTATIONS, None, None]
    assert exif.orientation_in(tiff(order, 6, tag=0x0113)) is None


@pytest.mark.parametrize("cut", range(len(tiff("<", 6)) - 2))
def test_what_is_cut_off_says_nothing(cut: int) -> None:
    assert exif.orientation_in(tiff("<", 6)[:cut]) is None


def test_another_value_of_pillows_counts_as_upright() -> None:
    picture = Image.fromarray(PHOTO)
    for value in (0, 9, 700):
        data, metadata = io.BytesIO(), Image.Exif()
        metadata[0x0112] = value
        picture.save(data, "JPEG", exif=metadata)
        assert exif.orientation_of(opened(data.getvalue())) == exif.UPRIGHT
    assert exif.orientation_of(opened(jpeg(PHOTO))) == exif.UPRIGHT
