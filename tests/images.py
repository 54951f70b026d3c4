"""Small test images, made on the spot: photograph-like pixels, and JPEG and PNG bytes of every kind
there is."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from tests import jpegs

Pixels = npt.NDArray[np.uint8]

HTML = (
    b"<!DOCTYPE html>\n<html><head><title>404 Not Found</title></head><body>Not "
    b"Found</body></html>\n"
)
"""What a broken download leaves behind under the name of an image."""


def photo(height: int, width: int, *, seed: int = 0, channels: int = 3) -> Pixels:
    """(H, W, C) uint8 with the 1/f amplitude spectrum of natural images; C = 1 or 3, the three
    being correlated."""
    rng = np.random.default_rng([seed, height, width])
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    amplitude = 1.0 / np.maximum(frequency, 1.0 / max(height, width))
    amplitude[0, 0] = 0.0
    spectrum = np.fft.rfft2(rng.standard_normal((3, height, width)))
    planes = np.fft.irfft2(spectrum * amplitude, s=(height, width))
    planes /= planes.std(axis=(1, 2), keepdims=True) + 1e-9
    # Mostly luminance, as in photographs.
    mix = np.array([[1.0, 0.35, 0.1], [1.0, 0.0, 0.0], [1.0, -0.2, 0.35]])
    image = 120.0 + 48.0 * np.einsum("ck,khw->hwc", mix, planes)
    return np.ascontiguousarray(np.clip(image, 0, 255).astype(np.uint8)[..., :channels])


def labels(height: int, width: int, *, classes: int = 5, seed: int = 0) -> Pixels:
    """(H, W) uint8 of class numbers 0 to classes - 1 in smooth regions: a segmentation mask."""
    smooth = photo(height, width, seed=seed, channels=1)[..., 0].astype(np.int64)
    return np.ascontiguousarray((smooth * classes // 256).astype(np.uint8))


def _save(image: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, **options)
    return buffer.getvalue()


def _exif(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def _jpeg_411(pixels: Pixels, quality: int) -> bytes:
    """Pillow writes none, and other encoders have no wheel for the newest Pythons."""
    height, width = pixels.shape[:2]
    # ITU-T T.871, section 7; less 128, as the discrete cosine transform takes it.
    to_ycc = np.array(
        [[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]]
    )
    around = ((0, -height % 8), (0, -width % 32), (0, 0))
    planes = np.moveaxis(np.pad(pixels, around, mode="edge") @ to_ycc.T, 2, 0)
    planes[0] -= 128
    narrow = planes[1:].reshape(2, planes.shape[1], -1, 4).mean(axis=3)
    quantiser = max(1, (100 - quality) // 2)
    coefficients = [jpegs.transformed(plane, quantiser) for plane in (planes[0], *narrow)]
    picture = jpegs.Picture(height, width, jpegs.SAMPLINGS["4:1:1"], coefficients)
    return jpegs.write(picture, quantiser=quantiser)


def jpeg(
    pixels: Pixels,
    *,
    quality: int = 90,
    subsampling: str = "4:2:0",
    progressive: bool = False,
    orientation: int | None = None,
    **options: Any,
) -> bytes:
    """A JPEG of (H, W, 3), (H, W, 1) or (H, W) pixels; `options` are Pillow's.

    `subsampling` is "4:4:4", "4:2:2", "4:2:0", "4:1:1" without other options, or "4:4:0", whose
    picture is a jumble: no encoder here writes it, but a 4:2:2 file with height and width exchanged
    has as many blocks as it needs.
    """
    grey = pixels.ndim == 2 or pixels.shape[2] == 1
    if not grey and subsampling == "4:1:1":
        assert not options
        assert not progressive
        return _jpeg_411(np.ascontiguousarray(pixels), quality)
    upended = not grey and subsampling == "4:4:0"
    if not grey and not options.get("keep_rgb"):
        options["subsampling"] = "4:2:2" if upended else subsampling
    if orientation is not None:
        options["exif"] = _exif(orientation)
    image = Image.fromarray(pixels.reshape(pixels.shape[:2]) if grey else pixels)
    if upended:
        image = image.transpose(Image.Transpose.TRANSPOSE)
    data = _save(image, format="JPEG", quality=quality, progressive=progressive, **options)
    if not upended:
        return data
    at = data.index(b"\xff\xc2" if progressive else b"\xff\xc0") + 5
    return (
        data[:at]
        + data[at + 2 : at + 4]
        + data[at : at + 2]
        + data[at + 4 :].replace(b"\x01\x21", b"\x01\x12", 1)
    )


def cmyk_jpeg(pixels: Pixels, *, quality: int = 90) -> bytes:
    """A four-component JPEG with an Adobe marker, as printing software writes them."""
    return _save(Image.fromarray(pixels).convert("CMYK"), format="JPEG", quality=quality)


_ADOBE = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00"
"""The marker of Adobe's programs, up to its last byte, which says what the components are."""


def ycck_jpeg(pixels: Pixels) -> bytes:
    """As Photoshop writes them: three of the four components are a YCbCr of the inks."""
    return cmyk_jpeg(pixels).replace(_ADOBE + b"\x00", _ADOBE + b"\x02")


def cmyk_jpeg_of_no_program(pixels: Pixels) -> bytes:
    """Four components, and nothing that says what they are."""
    return cmyk_jpeg(pixels).replace(_ADOBE + b"\x00", b"")


def png(
    pixels: npt.NDArray[Any], *, mode: str | None = None, orientation: int | None = None
) -> bytes:
    """A PNG of (H, W), (H, W, 1), (H, W, 3) or (H, W, 4) pixels; uint16 makes a 16-bit grey PNG.

    `mode` converts first as Pillow does: "P" (adaptive palette), "1", "L", "LA", "RGBA".
    """
    image = Image.fromarray(
        pixels.reshape(pixels.shape[:2]) if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
    )
    if mode is not None:
        image = (
            image.convert(mode, palette=Image.Palette.ADAPTIVE)
            if mode == "P"
            else image.convert(mode)
        )
    return _save(
        image, format="PNG", **({} if orientation is None else {"exif": _exif(orientation)})
    )


def palette_mask_png(classes: Pixels) -> bytes:
    """A palette PNG whose indices are the (H, W) class numbers, coloured as the VOC masks are."""
    image = Image.fromarray(classes).convert("L")
    image.putpalette(bytes((37 * n * k) % 256 for n in range(256) for k in (1, 3, 7)))
    return _save(image, format="PNG")


def truncated(data: bytes, *, keep: float = 0.6) -> bytes:
    """The first part of a file, as a broken copy leaves it."""
    return data[: int(len(data) * keep)]


def scan_start(jpeg_data: bytes) -> int:
    """Offset of the first entropy-coded byte."""
    position = 2
    while True:
        marker, length = struct.unpack_from(">HH", jpeg_data, position)
        position += 2 + length
        if marker == 0xFFDA:
            return position


def torn(jpeg_data: bytes, *, keep: float = 0.5) -> bytes:
    """A JPEG whose entropy-coded data stops early although the end marker is there: only a decoder
    can tell."""
    start = scan_start(jpeg_data)
    cut = start + int((len(jpeg_data) - start) * keep)
    while jpeg_data[cut - 1] == 0xFF:
        cut -= 1
    return jpeg_data[:cut] + b"\xff\xd9"


def corrupt(jpeg_data: bytes, where: float = 0.5) -> bytes:
    """A JPEG with a run of one bits, which is no Huffman code, at a place in its entropy-coded data
    (0 to 1)."""
    start = scan_start(jpeg_data)
    place = start + int((len(jpeg_data) - start) * where)
    run = b"\xff\x00" * 16
    while jpeg_data[place - 1] == 0xFF:
        place -= 1
    return jpeg_data[:place] + run + jpeg_data[place + len(run) :]


def with_extraneous_bytes(jpeg_data: bytes) -> bytes:
    """A good JPEG with padding before its end marker, as real data sets have: libjpeg warns, the
    pixels are whole."""
    assert jpeg_data.endswith(b"\xff\xd9")
    return jpeg_data[:-2] + b"\x00" * 8 + b"\xff\xd9"


def huge_png_header(height: int, width: int) -> bytes:
    """A PNG that claims to be huge: a decompression bomb's first bytes."""
    return png(np.zeros((1, 1, 3), np.uint8)).replace(
        struct.pack(">II", 1, 1), struct.pack(">II", width, height), 1
    )


def write_exif_folder(root: Path, count: int) -> str:
    """JPEGs of 20 rows and 30 columns in two classes, `000.jpg` to; every tenth one is stored on
    its side, as its EXIF tag says. Returns the folder's path."""
    for n in range(count):
        path = root / "ab"[n % 2] / f"{n:03}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(jpeg(photo(20, 30, seed=n), orientation=6 if n % 10 == 7 else None))
    return str(root)


def tiff(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "TIFF")
    return buffer.getvalue()


def pgm(values: np.ndarray, most: int | None = None, comment: str = "") -> bytes:
    """Grey of 8 or 16 bits; `most`: the maxval that its header says, else all bits."""
    most = most or int(np.iinfo(values.dtype).max)
    header = f"P5\n{comment}\n{values.shape[1]} {values.shape[0]}\n{most}\n"
    return header.encode() + values.astype(">u2" if most > 255 else "u1").tobytes()


def lossless_jpeg(grey: np.ndarray) -> bytes:
    """A lossless JPEG of 8 bits (ISO/IEC 10918-1, annex H): each pixel by its difference to
    the one on the left, in codes of five bits for how many bits the difference has."""
    before = np.empty(grey.shape, np.int64)
    before[:, 1:], before[1:, 0], before[0, 0] = grey[:, :-1], grey[:-1, 0], 128
    bits = ""
    for difference in (grey - before).ravel().tolist():
        size = abs(difference).bit_length()
        value = difference if difference > 0 else difference + (1 << size) - 1
        bits += f"{size:05b}" + (f"{value:0{size}b}" if size else "")
    bits += "1" * (-len(bits) % 8)
    coded = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")

    def segment(marker: int, content: bytes) -> bytes:
        return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content

    return (
        b"\xff\xd8"
        + segment(0xC3, struct.pack(">BHHB", 8, *grey.shape, 1) + b"\1\x11\0")
        + segment(0xC4, bytes([0, 0, 0, 0, 0, 17, *[0] * 11, *range(17)]))
        + segment(0xDA, b"\1\1\0\1\0\0")
        + coded
        + b"\xff\xd9"
    )


def shard_of(folder: Path) -> bytes:
    """A tar shard of the JPEGs in a folder, sorted by path, with labels 0, 1, 2, 0, ..."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for row, path in enumerate(sorted(folder.rglob("*.jpg"))):
            for ending, data in (("jpg", path.read_bytes()), ("cls", str(row % 3).encode())):
                info = tarfile.TarInfo(f"{row:04}.{ending}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def zeros_in_place_of(path: Path, size: int) -> None:
    """As a full disk leaves a file; takes no space."""
    path.unlink()
    with open(path, "wb") as file:
        file.truncate(size)


def bytes_read() -> int:
    """By system calls of this process so far (proc(5)). Skips the test where nobody counts them."""
    counts = Path("/proc/self/io")
    if not counts.exists():
        pytest.skip("the system does not count what is read")
    return int(counts.read_text().split()[1])


def write_photo_folder(
    root: Path,
    *,
    classes: int = 2,
    per_class: int = 3,
    size: tuple[int, int] = (40, 56),
    seed: int = 0,
) -> Path:
    """A folder of classes of JPEGs of slightly different sizes, `root/class_0/0.jpg` and so on;
    returns `root`."""
    for label in range(classes):
        folder = root / f"class_{label}"
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(per_class):
            height, width = size[0] + 3 * number, size[1] + 5 * label
            pixels = photo(height, width, seed=seed + 1000 * label + number)
            (folder / f"{number}.jpg").write_bytes(jpeg(pixels))
    return root


def write_photos_with_masks(root: Path, masks: Iterable[Pixels]) -> Path:
    """Folders `images` and `masks` of PNGs in `root`: a photograph of the size of each mask."""
    for part in ("images", "masks"):
        (root / part).mkdir()
    for number, mask in enumerate(masks):
        (root / "images" / f"{number}.png").write_bytes(png(photo(*mask.shape, seed=number)))
        Image.fromarray(mask).save(root / "masks" / f"{number}.png")
    return root
