"""Decoders: the same pixels from each, whatever the layout of the file."""

from __future__ import annotations

import io
import re
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms import v2
from torchvision.transforms.v2.functional import resized_crop, to_dtype

import fastload
from fastload import native
from fastload.decode import DecodeSettings, available_decoders, get_decoder
from fastload.decode.header import read_header
from fastload.decode.image import Scratch, decode_image
from fastload.errors import BackendUnavailableError, ConfigurationError, DecodeError
from fastload.render.host import decode_jpeg
from tests import images

DECODERS = [row.name for row in available_decoders() if row.available]
PHOTO = images.photo(75, 101, seed=1)

JPEGS: dict[str, Callable[[], bytes]] = {
    "4:4:4": lambda: images.jpeg(PHOTO, subsampling="4:4:4"),
    "4:2:2": lambda: images.jpeg(PHOTO, subsampling="4:2:2"),
    "4:2:0": lambda: images.jpeg(PHOTO, subsampling="4:2:0"),
    "low quality": lambda: images.jpeg(PHOTO, quality=20),
    "progressive": lambda: images.jpeg(PHOTO, progressive=True),
    "grey": lambda: images.jpeg(PHOTO[..., 0]),
    "grey progressive": lambda: images.jpeg(PHOTO[..., 0], progressive=True),
    "CMYK": lambda: images.cmyk_jpeg(PHOTO),
    "one pixel": lambda: images.jpeg(PHOTO[:1, :1]),
    "one row": lambda: images.jpeg(PHOTO[:1]),
    "extraneous bytes": lambda: images.with_extraneous_bytes(images.jpeg(PHOTO)),
    "bytes after the end": lambda: images.jpeg(PHOTO) + b"\0" * 100,
}


def decoded(data: bytes, decoder: str = "pillow", **options: object) -> np.ndarray:
    return decode_image(
        data, name="x", decoder=get_decoder(decoder), settings=DecodeSettings(), **options
    )  # type: ignore[arg-type]


def reference(data: bytes) -> np.ndarray:
    """What torchvision's datasets give: Pillow, converted to RGB."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("kind", JPEGS)
def test_pixels_are_those_of_pillow(kind: str, decoder: str) -> None:
    data = JPEGS[kind]()
    pixels = decoded(data, decoder)
    assert pixels.dtype == np.uint8
    assert pixels.flags.writeable
    assert np.array_equal(pixels, reference(data))


@pytest.mark.parametrize("decoder", DECODERS)
def test_decodes_into_scratch_again_and_again(decoder: str) -> None:
    scratch = Scratch()
    for number, (height, width) in enumerate([(40, 60), (90, 70), (8, 8)]):
        data = images.jpeg(images.photo(height, width, seed=number))
        assert np.array_equal(decoded(data, decoder, scratch=scratch), reference(data))


@pytest.mark.parametrize("decoder", DECODERS)
def test_threads_share_a_decoder(decoder: str) -> None:
    files = [images.jpeg(images.photo(60, 50 + n, seed=n)) for n in range(8)]
    bad = images.torn(files[0])
    expected = [reference(data) for data in files]
    wrong: list[int] = []

    def work(first: int) -> None:
        for number in range(first, first + 40):
            which = number % len(files)
            if not np.array_equal(decoded(files[which], decoder), expected[which]):
                wrong.append(which)
            if get_decoder(decoder).strict and number % 5 == 0:
                try:
                    decoded(bad, decoder)
                except DecodeError:
                    continue
                wrong.append(-1)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    with warnings.catch_warnings(record=True) as leaked:
        warnings.simplefilter("always")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert not leaked


PNGS: dict[str, Callable[[], bytes]] = {
    "RGB": lambda: images.png(PHOTO),
    "RGBA": lambda: images.png(PHOTO, mode="RGBA"),
    "palette": lambda: images.png(PHOTO, mode="P"),
    "grey": lambda: images.png(PHOTO[..., 0]),
    "grey and alpha": lambda: images.png(PHOTO[..., 0], mode="LA"),
    "one bit": lambda: images.png(PHOTO[..., 0], mode="1"),
}


@pytest.mark.parametrize("kind", PNGS)
def test_png_as_pillow_converts_it(kind: str) -> None:
    data = PNGS[kind]()
    assert np.array_equal(decoded(data), reference(data))


def test_palette_with_transparency_does_not_warn() -> None:
    buffer = io.BytesIO()
    picture = Image.fromarray(PHOTO).convert("P", palette=Image.Palette.ADAPTIVE)
    picture.save(buffer, format="PNG", transparency=bytes(range(256)))
    assert np.array_equal(decoded(buffer.getvalue()), np.asarray(picture.convert("RGB")))


def test_grey_png_of_16_bits_is_scaled_not_clipped() -> None:
    values = (np.arange(40 * 50, dtype=np.uint32) * 65535 // 1999).astype(np.uint16).reshape(40, 50)
    data = images.png(values)
    pixels = decoded(data)
    assert np.array_equal(pixels, np.repeat((values >> 8).astype(np.uint8)[..., None], 3, axis=2))
    # As torchvision converts uint16 to uint8.
    scaled = to_dtype(torch.from_numpy(values), torch.uint8, scale=True)
    assert np.array_equal(pixels[..., 0], scaled.numpy())


def test_grey_pgm_of_16_bits_is_that_png() -> None:
    values = np.arange(40 * 50, dtype=np.uint16).reshape(40, 50) * 32
    assert np.array_equal(decoded(images.pgm(values)), decoded(images.png(values)))


@pytest.mark.parametrize("decoder", DECODERS)
def test_lossless_grey_jpegs(decoder: str) -> None:
    grey = images.photo(20, 31, seed=2)[..., 0]
    data = images.lossless_jpeg(grey)
    try:
        reference(data)
    except OSError:
        pytest.skip("the libjpeg of this Pillow reads no lossless JPEGs")
    assert np.array_equal(decoded(data, decoder), np.repeat(grey[..., None], 3, axis=2))
    assert np.array_equal(decoded(data, decoder, as_stored=True)[..., 0], grey)


def test_mpo_is_its_first_picture() -> None:
    buffer = io.BytesIO()
    other = Image.fromarray(PHOTO[::-1].copy())
    Image.fromarray(PHOTO).save(buffer, "MPO", save_all=True, append_images=[other])
    assert np.array_equal(decoded(buffer.getvalue()), reference(buffer.getvalue()))


@pytest.mark.parametrize("format", ["BMP", "GIF", "TIFF", "WEBP", "PPM"])
def test_other_formats_go_through_pillow(format: str) -> None:
    buffer = io.BytesIO()
    try:
        Image.fromarray(PHOTO).save(buffer, format=format)
    except (KeyError, OSError):
        pytest.skip(f"this Pillow cannot write {format}")
    data = buffer.getvalue()
    header = read_header(data, "x")
    assert (header.format, header.height, header.width) == (format, 75, 101)
    assert np.array_equal(decoded(data), reference(data))


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(orientation: int, decoder: str) -> None:
    for data in (
        images.jpeg(PHOTO, orientation=orientation),
        images.jpeg(PHOTO, orientation=orientation, progressive=True),
        images.png(PHOTO, orientation=orientation),
    ):
        picture = Image.open(io.BytesIO(data))
        stored = decoded(data, decoder)
        assert np.array_equal(stored, np.asarray(picture.convert("RGB")))
        upright = decode_image(
            data,
            name="x",
            decoder=get_decoder(decoder),
            settings=DecodeSettings(exif_orientation=True),
        )
        assert np.array_equal(upright, np.asarray(ImageOps.exif_transpose(picture).convert("RGB")))


def test_masks_keep_their_numbers() -> None:
    classes = images.labels(40, 60)
    for data in (
        images.png(classes),
        images.palette_mask_png(classes),
        images.png(np.repeat(classes[..., None], 3, axis=2)),
        images.png(classes, mode="LA"),
        images.png(classes, mode="RGBA"),
        images.png(classes.astype(np.uint16)),
        images.tiff(classes.astype(np.int32)),
        images.pgm(classes),
        images.pgm(classes, most=int(classes.max())),
        images.pgm(classes.astype(np.uint16), most=1000),
        images.pgm(classes.astype(np.uint16)),
        images.pgm(classes, most=int(classes.max()), comment="# 8 9 10"),
    ):
        mask = decoded(data, as_stored=True)
        assert mask.shape == (40, 60, 1)
        assert mask.flags.writeable
        assert np.array_equal(mask[..., 0], classes)


def test_one_bit_masks_become_0_and_255() -> None:
    black_and_white = (images.labels(40, 60) > 2) * np.uint8(255)
    assert np.array_equal(
        decoded(images.png(black_and_white, mode="1"), as_stored=True)[..., 0], black_and_white
    )


def test_grey_jpeg_as_a_mask() -> None:
    data = images.jpeg(PHOTO[..., 0])
    assert np.array_equal(
        decoded(data, as_stored=True)[..., 0], np.asarray(Image.open(io.BytesIO(data)))
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (images.png(PHOTO), "in colour"),
        (images.jpeg(PHOTO), "in colour"),
        (images.cmyk_jpeg(PHOTO), "CMYK"),
        (images.png(np.full((4, 4), 256, np.uint16)), "256"),
        (images.pgm(np.full((4, 4), 256, np.uint16), most=300), "256"),
        (images.tiff(np.full((4, 4), 70_000, np.int32)), "70000"),
        (images.tiff(np.full((4, 4), -1, np.int32)), "-1"),
    ],
    ids=["colour PNG", "colour JPEG", "CMYK", "16 bits above 255", "PGM", "32 bits", "negative"],
)
def test_masks_that_have_no_numbers(data: bytes, words: str) -> None:
    with pytest.raises(DecodeError, match=words):
        decoded(data, as_stored=True)


# The registry


def test_every_decoder_is_listed() -> None:
    rows = available_decoders()
    fastest_first = [
        "simplejpeg",
        "pyturbojpeg",
        "torchvision",
        "torchcodec",
        "opencv",
        "pillow",
    ]
    assert [row.name for row in rows if row.name in fastest_first] == fastest_first
    for row in rows:
        assert row.available == bool(row.version) == (not row.hint)
    first = next(row for row in rows if row.available)
    core = native.available() and not first.strict
    assert get_decoder("auto").name == ("native" if core else first.name)


def test_unknown_decoder() -> None:
    with pytest.raises(ConfigurationError, match=r"'libjpg'.*'simplejpeg'"):
        get_decoder("libjpg")


@pytest.mark.parametrize(
    ("decoder", "package"),
    [
        ("simplejpeg", "simplejpeg"),
        ("pyturbojpeg", "turbojpeg"),
        ("torchcodec", "torchcodec.decoders"),
        ("opencv", "cv2"),
    ],
)
def test_missing_package_names_the_install_command(
    decoder: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    get_decoder.cache_clear()
    try:
        with pytest.raises(BackendUnavailableError, match="pip install"):
            get_decoder(decoder)
        row = next(row for row in available_decoders() if row.name == decoder)
        assert not row.available
        assert "pip install" in row.hint
        assert get_decoder("auto").name != decoder
    finally:
        get_decoder.cache_clear()


@pytest.mark.skipif(not native.available(), reason="the native core is not built")
def test_where_no_library_reports_damage_the_native_core_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a wheel is installed from Python 3.14 on, where the system has no libturbojpeg."""
    for package in ("simplejpeg", "turbojpeg"):
        monkeypatch.setitem(sys.modules, package, None)
    get_decoder.cache_clear()
    try:
        assert get_decoder("auto").strict
        folder = images.write_photo_folder(tmp_path / "data", classes=1, per_class=2)
        path = folder / "class_0" / "1.jpg"
        path.write_bytes(images.corrupt(path.read_bytes()))
        for backend in ("torch", "turbojpeg"):
            options = {"num_workers": 0, "transform": v2.RandomResizedCrop(8)}
            with fastload.create_loader(folder, batch_size=2, backend=backend, **options) as loader:
                with pytest.raises(DecodeError, match=re.escape(str(path))):
                    list(loader)
    finally:
        get_decoder.cache_clear()


def test_missing_libturbojpeg_names_the_system_package(monkeypatch: pytest.MonkeyPatch) -> None:
    turbojpeg = pytest.importorskip("turbojpeg")

    def not_found(self: object, lib_path: str | None = None) -> None:
        raise RuntimeError("Unable to locate turbojpeg library automatically.")

    monkeypatch.setattr(turbojpeg.TurboJPEG, "__init__", not_found)
    get_decoder.cache_clear()
    try:
        with pytest.raises(BackendUnavailableError, match="apt install libturbojpeg"):
            get_decoder("pyturbojpeg")
    finally:
        get_decoder.cache_clear()


# decode_jpeg


def test_decode_jpeg_takes_bytes_and_paths(tmp_path: Path) -> None:
    data = images.jpeg(PHOTO)
    path = tmp_path / "a.jpg"
    path.write_bytes(data)
    for what in (data, path, str(path)):
        assert np.array_equal(fastload.decode_jpeg(what), reference(data))


def test_decode_jpeg_crops_and_resizes_as_torchvision() -> None:
    data = images.jpeg(PHOTO)
    box = (5, 8, 61, 83)
    assert np.array_equal(decode_jpeg(data, box=box), reference(data)[5:66, 8:91])
    planes = torch.tensor(reference(data)).permute(2, 0, 1)
    expected = resized_crop(planes, *box, size=[32, 48], antialias=True).permute(1, 2, 0).numpy()
    result = decode_jpeg(data, box=box, size=(32, 48))
    assert np.abs(result.astype(int) - expected.astype(int)).max() <= 1


@pytest.mark.parametrize("core", [True, False])
def test_decode_jpeg_is_the_same_with_and_without_the_core(
    core: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if core and not native.available():
        pytest.skip("the native core is not built")
    monkeypatch.setattr(native, "available", lambda: core)
    box = (5, 8, 61, 83)
    for data in (images.jpeg(PHOTO, progressive=True), images.cmyk_jpeg(PHOTO), images.png(PHOTO)):
        assert np.array_equal(decode_jpeg(data, box=box), decode_jpeg(data)[5:66, 8:91])
    with pytest.raises(DecodeError, match="truncated"):
        decode_jpeg(images.truncated(images.jpeg(PHOTO)), box=box)


def test_decode_jpeg_refuses_what_does_not_fit(tmp_path: Path) -> None:
    data = images.jpeg(PHOTO)
    with pytest.raises(ConfigurationError, match="does not lie in the image of 75 x 101"):
        decode_jpeg(data, box=(0, 0, 76, 10))
    with pytest.raises(ConfigurationError, match="size="):
        decode_jpeg(data, size=(0, 10))
    with pytest.raises(DecodeError, match=r"gone\.jpg.*No such file"):
        decode_jpeg(tmp_path / "gone.jpg")
