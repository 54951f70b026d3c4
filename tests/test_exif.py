"""The EXIF orientation, beside what Pillow makes of it."""

from __future__ import annotations

import functools
import io
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import PIL
import pytest
from PIL import Image, ImageOps, features
from torchvision.transforms import v2

import fastload
from fastload import exif, native
from fastload.backends.turbojpeg import TurboJpegOptions
from fastload.decode.header import read_header
from fastload.decode.image import decode_image, upright_size
from fastload.decode.libraries import core_formats, core_pool, get_decoder
from fastload.files import DecodeSettings
from fastload.geometry import Geometry
from tests import exif_cases
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


@dataclass(frozen=True)
class Judged:
    """An image, and what Pillow makes of it."""

    name: str
    data: bytes
    turned: npt.NDArray[np.uint8]
    """By `ImageOps.exif_transpose`; where that cannot read the metadata, as it is stored."""
    orientation: int


def judged(name: str, data: bytes) -> Judged:
    stored = np.asarray(opened(data).convert("RGB"))
    try:
        turned = np.asarray(ImageOps.exif_transpose(opened(data)).convert("RGB"))
    except Exception:  # of many kinds
        turned = stored
    found = [n for n in ORIENTATIONS if np.array_equal(exif.upright(stored, n), turned)]
    assert len(found) == 1
    return Judged(name, data, turned, found[0])


@functools.cache
def cases(format: str) -> list[Judged]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of metadata that are cut off
        return [judged(name, data) for name, data in getattr(exif_cases, f"{format.lower()}s")()]


def is_left_to_python(name: str) -> bool:
    """Of the cases of PNGs: whether the core does not read the texts that decide."""
    return (name.startswith("profile") and not name.endswith("and eXIf")) or any(
        word in name for word in ("compress", "two XMP", "as text", "in a text", "name alone")
    )


FORMATS = ["JPEG", "PNG", "WEBP", "TIFF"] + ["AVIF"] * features.check("avif")


@pytest.mark.whole
@pytest.mark.skipif(int(PIL.__version__.split(".")[0]) < 13, reason="the rules of Pillow 13")
@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, of metadata that are cut off
@pytest.mark.parametrize("format", FORMATS)
def test_all_metadata_turn_an_image_as_pillow_does(format: str) -> None:
    """Those of `exif_cases`, by the header, the pixels, and the core."""
    settings, wrong = DecodeSettings(exif_orientation=True), list[str]()
    for case in cases(format):
        name, data = case.name, case.data
        header, size = read_header(data, name), case.turned.shape[:2]
        if upright_size(header, settings) != size:
            wrong.append(f"{name}: a size of {upright_size(header, settings)}, {size} by Pillow")
            continue
        if format != "TIFF" and header.orientation != case.orientation:
            wrong.append(f"{name}: {header.orientation}, {case.orientation} by Pillow")
            continue
        pixels = decode_image(data, name=name, decoder=get_decoder("pillow"), settings=settings)
        if not np.array_equal(pixels, case.turned):
            wrong.append(f"{name}: other pixels")
        if native.available() and format in ("JPEG", *core_formats()):
            found = by_core(data, size)
            left = format == "PNG" and is_left_to_python(name)
            if found != (None if left else case.orientation):
                wrong.append(f"{name}: {found} by the core, {case.orientation} by Pillow")
    assert not wrong, "\n".join(wrong)
    assert {case.turned.shape for case in cases(format)} == {(18, 26, 3), (26, 18, 3)}


def by_core(data: bytes, size: tuple[int, int]) -> int | None:
    """The orientation by which the core turns an image of this upright size; None: it leaves the
    image to Python."""
    pool = core_pool()
    headers, failures = pool.read_headers([data], here=True)
    assert not failures
    whole = np.array([[0, 0, *size]], dtype=np.int32)
    geometry = Geometry(whole, whole[:, 2:], whole, np.zeros((1, 2), dtype=np.bool_))
    out = np.empty((1, *size, 3), dtype=np.uint8)
    settings, orientation = DecodeSettings(exif_orientation=True), int(headers[0, 3])
    failed = pool.decode_batch(
        [data], geometry=geometry, out=out, settings=settings, here=True
    ).wait()
    if orientation == 0:
        assert failed
        return None
    stored = np.empty((1, *headers[0, :2].tolist(), 3), dtype=np.uint8)
    box = np.array([[0, 0, *stored.shape[1:3]]], dtype=np.int32)
    plain = Geometry(box, box[:, 2:], box, np.zeros((1, 2), dtype=np.bool_))
    assert not pool.decode_batch([data], geometry=plain, out=stored, here=True).wait()
    if failed or not np.array_equal(exif.upright(stored[0], orientation), out[0]):
        return -orientation
    return orientation


def test_metadata_that_the_core_does_not_read_turn_images_in_a_loader(tmp_path: Path) -> None:
    """A text of a PNG that is compressed goes to Python, one image of a batch."""
    names = ("profile six", "XMP tiff", "XMP <tiff")
    chosen = [c for c in cases("PNG") if c.name.startswith(names) and c.orientation >= 5]
    assert {is_left_to_python(case.name) for case in chosen} == {False, True}
    (tmp_path / "class").mkdir()
    for number, case in enumerate(chosen):
        (tmp_path / "class" / f"{number:02}.png").write_bytes(case.data)
    options = TurboJpegOptions(exif_orientation=True)
    transform = v2.Resize(chosen[0].turned.shape[:2], antialias=True)
    with fastload.create_loader(
        tmp_path, len(chosen), transform=transform, backend="turbojpeg", options=options
    ) as loader:
        ((images, _),) = list(loader)
    for image, case in zip(images, chosen, strict=True):
        assert np.array_equal(image.permute(1, 2, 0).numpy(), case.turned)


def test_another_value_of_pillows_counts_as_upright() -> None:
    picture = Image.fromarray(PHOTO)
    for value in (0, 9, 700):
        data, metadata = io.BytesIO(), Image.Exif()
        metadata[0x0112] = value
        picture.save(data, "JPEG", exif=metadata)
        assert exif.orientation_of(opened(data.getvalue())) == exif.UPRIGHT
    assert exif.orientation_of(opened(jpeg(PHOTO))) == exif.UPRIGHT
