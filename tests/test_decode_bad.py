"""Bad image files: the same verdict from every decoder, in words that name the file and what to
do."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torchvision.transforms import v2

import fastload
from fastload import native
from fastload.decode import DecodeSettings, available_decoders, get_decoder
from fastload.decode.header import read_header
from fastload.decode.image import EncodedReader, decode_image
from fastload.decode.libraries import is_harmless
from fastload.errors import DecodeError
from fastload.sources import open_source
from tests import images

DECODERS = [row.name for row in available_decoders() if row.available]
STRICT = [name for name in DECODERS if get_decoder(name).strict]
PHOTO = images.photo(75, 101, seed=2)
GOOD = images.jpeg(PHOTO)


def decoded(data: bytes, decoder: str, settings: DecodeSettings | None = None) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return decode_image(
            data,
            name="cats/1.jpg",
            decoder=get_decoder(decoder),
            settings=settings or DecodeSettings(),
        )


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "zero bytes": (lambda: b"", r"empty \(0 bytes\)"),
    "HTML": (lambda: images.HTML, "look like HTML.*<!DOCTYPE html>"),
    "zeros": (lambda: bytes(1000), "begins with zeros"),
    "text": (lambda: b"not an image at all", "no known image format"),
    "JPEG, three bytes of it": (lambda: GOOD[:3], "truncated"),
    "JPEG cut in its header": (lambda: GOOD[:100], "truncated"),
    "JPEG cut in its data": (lambda: images.truncated(GOOD), "truncated"),
    "JPEG without its last byte": (lambda: GOOD[:-1], "truncated"),
    "progressive JPEG cut": (
        lambda: images.truncated(images.jpeg(PHOTO, progressive=True)),
        "truncated",
    ),
    "CMYK JPEG cut": (lambda: images.truncated(images.cmyk_jpeg(PHOTO)), "truncated"),
    "JPEG without data": (lambda: b"\xff\xd8\xff\xd9", "frame header"),
    "JPEG of 12 bits": (
        lambda: GOOD.replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x11\x0c"),
        ".",
    ),
    "PNG cut in its header": (lambda: images.png(PHOTO)[:20], "truncated"),
    "PNG cut in its data": (lambda: images.truncated(images.png(PHOTO)), "truncated"),
    "PNG with damaged data": (lambda: _damaged_png(), "."),
    "WebP cut": (lambda: b"RIFF\x00\x10\x00\x00WEBPVP8 ", "."),
}


def _damaged_png() -> bytes:
    data = bytearray(images.png(PHOTO))
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(64)
    return bytes(data)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("kind", BAD)
def test_refused_with_name_cause_and_remedy(kind: str, decoder: str) -> None:
    make, words = BAD[kind]
    with pytest.raises(DecodeError, match=words) as caught:
        decoded(make(), decoder)
    message = str(caught.value)
    assert message.startswith("cats/1.jpg: ")
    assert "Delete or re-encode the file" in message
    assert 'on_error="substitute"' in message


@pytest.mark.parametrize("decoder", STRICT)
@pytest.mark.parametrize("progressive", [False, True], ids=["baseline", "progressive"])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:0"])
def test_damage_inside_a_complete_file(subsampling: str, progressive: bool, decoder: str) -> None:
    data = images.torn(images.jpeg(PHOTO, subsampling=subsampling, progressive=progressive))
    with pytest.raises(
        DecodeError, match=r"cats/1\.jpg: Corrupt JPEG data: premature end of data segment"
    ):
        decoded(data, decoder)


@pytest.mark.parametrize("decoder", STRICT)
def test_bad_huffman_code(decoder: str) -> None:
    with pytest.raises(DecodeError, match="bad Huffman code"):
        decoded(images.corrupt(images.jpeg(PHOTO)), decoder)


@pytest.mark.parametrize("decoder", DECODERS)
def test_decoders_say_whether_they_are_strict(decoder: str) -> None:
    torn = images.torn(GOOD)
    if get_decoder(decoder).strict:
        with pytest.raises(DecodeError):
            decoded(torn, decoder)
    else:
        assert decoded(torn, decoder).shape == PHOTO.shape


def test_harmless_warnings() -> None:
    assert is_harmless("Corrupt JPEG data: 4 extraneous bytes before marker 0xd9")
    assert is_harmless("Invalid SOS parameters for sequential JPEG")
    # Lost its place.
    assert not is_harmless("Corrupt JPEG data: 4 extraneous bytes before marker 0xd3")
    assert not is_harmless("Corrupt JPEG data: premature end of data segment")
    assert not is_harmless("a message of the future")


@pytest.mark.parametrize("decoder", DECODERS)
def test_pixel_limit_before_decoding(decoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Calling it would fail otherwise.
    monkeypatch.setattr(type(get_decoder(decoder)), "decode", None)
    limit = DecodeSettings(max_pixels=75 * 101 - 1)
    for data in (GOOD, images.png(PHOTO), images.cmyk_jpeg(PHOTO)):
        with pytest.raises(
            DecodeError, match=r"101 x 75 = 7,575 pixels, above the limit of 7,574.*max_pixels"
        ):
            decoded(data, decoder, limit)


@pytest.mark.whole
def test_pixel_limit_is_inclusive_and_can_be_raised_beyond_pillows() -> None:
    assert decoded(GOOD, "pillow", DecodeSettings(max_pixels=75 * 101)).shape == PHOTO.shape
    bomb = images.huge_png_header(20_000, 20_000)
    with pytest.raises(DecodeError, match="decompression bombs"):
        decoded(bomb, "pillow")
    from PIL import Image

    limit = Image.MAX_IMAGE_PIXELS
    assert limit is not None
    tall = images.png(np.zeros((2 * limit // 40000 + 1, 40000), np.uint8))
    with pytest.raises(DecodeError, match="above the limit"):
        decoded(tall, "pillow")


def test_header_that_contradicts_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    header = read_header(images.jpeg(PHOTO[:40]), "x")
    with pytest.raises(DecodeError, match="header says 101 x 40 pixels, the data has 101 x 75"):
        decode_image(
            GOOD, name="x", decoder=get_decoder("pillow"), settings=DecodeSettings(), header=header
        )


@pytest.mark.parametrize("backend", ["turbojpeg", "torch"])
def test_of_a_file_that_is_gone_the_remedy_is_another(backend: str, tmp_path: Path) -> None:
    folder = images.write_photo_folder(tmp_path / "train", classes=2, per_class=2)
    with fastload.create_loader(
        folder, batch_size=4, backend=backend, transform=v2.RandomResizedCrop(8), num_workers=0
    ) as loader:
        (folder / "class_0" / "1.jpg").unlink()
        with pytest.raises(DecodeError, match=r"1\.jpg: cannot be read: No such file") as caught:
            next(iter(loader))
    assert 'Put the file back or make it readable, or skip such samples with on_error="' in str(
        caught.value
    )


@pytest.mark.parametrize("decoder", ["auto", "native"][: 1 + native.available()])
def test_a_large_file_that_is_no_image_is_not_read(
    decoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gigabyte of zeros, as a full disk leaves it, without taking any space."""
    folder = images.write_photo_folder(tmp_path / "train", classes=1, per_class=2)
    images.zeros_in_place_of(folder / "class_0" / "1.jpg", 1 << 30)
    monkeypatch.setattr(native, "available", lambda: decoder == "native")
    before = images.bytes_read()
    with (
        fastload.create_loader(
            folder, batch_size=2, transform=v2.RandomResizedCrop(8), backend="turbojpeg"
        ) as loader,
        pytest.raises(DecodeError, match=r"1\.jpg: .*begins with zeros \(1073741824 bytes"),
    ):
        next(iter(loader))
    with pytest.raises(DecodeError, match=r"begins with zeros \(1073741824 bytes"):
        fastload.decode_jpeg(folder / "class_0" / "1.jpg")
    column = next(iter(open_source(folder).source.encoded.values()))
    with pytest.raises(DecodeError, match=r"begins with zeros \(1073741824 bytes"):
        EncodedReader(column, DecodeSettings()).size(1)
    assert images.bytes_read() - before < 100 << 20


def test_of_a_large_image_the_header_is_judged_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those within the limits are read as others are."""
    monkeypatch.setattr("fastload.decode.image.LARGE", 1000)
    folder = images.write_photo_folder(tmp_path / "train", classes=1, per_class=2)
    column = next(iter(open_source(folder).source.encoded.values()))
    good, small = (EncodedReader(column, DecodeSettings(max_pixels=n)) for n in (1 << 20, 10))
    assert good.fetch(1)[0] == (folder / "class_0" / "1.jpg").read_bytes()
    monkeypatch.setattr(type(column), "read", lambda *_: pytest.fail("it was read"))
    with pytest.raises(DecodeError, match="above the limit of 10"):
        small.fetch(1)
    (refused,) = small.fetch_many(np.array([0]))
    assert isinstance(refused, DecodeError)
