"""One table of verdicts: which files are samples does not depend on the backend."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

import fastload
from tests import images, pngs
from tests.backends import Contestant, contestants
from tests.reliability.hostile import (
    grey_jpeg_of_sampling,
    grey_jpeg_of_scans,
    with_bytes_before,
    with_segment,
)

PHOTO = images.photo(64, 80)
JPEG = images.jpeg(PHOTO)
PROGRESSIVE = images.jpeg(PHOTO, progressive=True)
RESTARTS = images._save(Image.fromarray(PHOTO), format="JPEG", quality=90, restart_marker_blocks=2)
SIZE = (32, 32)
RESIZE = v2.Resize(SIZE)


def saved(format: str, mode: str = "RGB") -> bytes:
    return images._save(Image.fromarray(PHOTO).convert(mode), format=format)


def with_chunk(at: int, chunk: bytes) -> bytes:
    parts = [pngs.chunk(kind, body) for kind, body in pngs.chunks(images.png(PHOTO))]
    parts.insert(at, chunk)
    return pngs.SIGNATURE + b"".join(parts)


def claiming(height: int, width: int, *, progressive: bool = False) -> bytes:
    """A JPEG of one grey pixel that says it is larger."""
    data = images.jpeg(np.zeros((1, 1, 1), np.uint8), progressive=progressive)
    at = data.index(b"\xff\xc2" if progressive else b"\xff\xc0") + 5
    return data[:at] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + data[at + 4 :]


def flipped(data: bytes) -> bytes:
    """A bit of the pixels is wrong, as a disk leaves it."""
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


READ: dict[str, Callable[[], bytes]] = {
    "baseline.jpg": lambda: JPEG,
    "progressive.jpg": lambda: PROGRESSIVE,
    "grey.jpg": lambda: images.jpeg(PHOTO[..., :1]),
    "restarts.jpg": lambda: RESTARTS,
    "cmyk.jpg": lambda: images.cmyk_jpeg(PHOTO),
    "padding before the end.jpg": lambda: images.with_extraneous_bytes(JPEG),
    "padding before the scan.jpg": lambda: with_bytes_before(JPEG, 0xDA, b"\x00\x01\x02"),
    "padding before tables.jpg": lambda: with_bytes_before(JPEG, 0xC4, b"notes"),
    "padding before the frame.jpg": lambda: with_bytes_before(JPEG, 0xC0, b"\x00"),
    "after the end.jpg": lambda: JPEG + b"\x00\x00trailer\xff\xd8",
    "bad colour profile.jpg": lambda: with_segment(
        JPEG, 0xE2, b"ICC_PROFILE\0\x05\x02" + bytes(64)
    ),
    "broken metadata.jpg": lambda: with_segment(JPEG, 0xE1, b"Exif\0\0II*\0\xff\xff\xff\xff"),
    "chroma as large as luma.jpg": lambda: grey_jpeg_of_sampling(40, 56, (0x21, 0x21, 0x21)),
    "chroma of two sizes.jpg": lambda: grey_jpeg_of_sampling(40, 56, (0x22, 0x11, 0x21)),
    "three to one.jpg": lambda: grey_jpeg_of_sampling(40, 56, (0x31, 0x11, 0x11)),
    "chroma above luma.jpg": lambda: grey_jpeg_of_sampling(40, 56, (0x11, 0x12, 0x12)),
    "many scans.jpg": lambda: grey_jpeg_of_scans(64, 64, 40),
    "named otherwise.png": lambda: JPEG,
    "plain.png": lambda: images.png(PHOTO),
    "palette.png": lambda: images.png(PHOTO, mode="P"),
    "alpha.png": lambda: images.png(PHOTO, mode="RGBA"),
    "interlaced.png": lambda: pngs.png(pngs.samples_of(PHOTO, 2, 8), 2, 8, interlaced=True),
    "grey with alpha.png": lambda: images.png(PHOTO, mode="LA"),
    "one bit.png": lambda: images.png(PHOTO, mode="1"),
    "broken text.png": lambda: with_chunk(-1, pngs.chunk(b"tEXt", b"a\0b", 5)),
    "after the end.png": lambda: images.png(PHOTO) + b"trailer",
    "gif.png": lambda: saved("GIF", "P"),
    "webp.webp": lambda: saved("WEBP"),
    "tiff.tiff": lambda: saved("TIFF"),
}
AFTER_PIXELS: dict[str, Callable[[], bytes]] = {
    # What follows the last pixel is not looked at, except for the end marker. Pillow and djpeg
    # refuse these.
    "a second scan after its pixels.jpg": lambda: (
        JPEG[:-2] + JPEG[JPEG.index(b"\xff\xda") :][:14] + b"\x12\xff\xd9"
    ),
    "bogus tables after its pixels.jpg": lambda: JPEG[:-2] + b"\xff\xdb\x00\x04\x55\x55\xff\xd9",
}
REFUSED: dict[str, Callable[[], bytes]] = {
    "nothing.jpg": lambda: b"",
    "html.jpg": lambda: images.HTML,
    "zeros.jpg": lambda: bytes(3000),
    "a word before it.jpg": lambda: b"\xff\xd8\x00" + JPEG[2:],
    "cut.jpg": lambda: images.truncated(JPEG),
    "cut progressive.jpg": lambda: images.truncated(PROGRESSIVE),
    "no end.jpg": lambda: JPEG[:-2],
    "an end in its metadata.jpg": lambda: with_segment(
        JPEG[:-2], 0xE1, b"\xff\xd8thumbnail\xff\xd9"
    ),
    "torn.jpg": lambda: images.torn(JPEG),
    "torn progressive.jpg": lambda: images.torn(PROGRESSIVE),
    "corrupt.jpg": lambda: images.corrupt(JPEG),
    "lost before a restart.jpg": lambda: RESTARTS.replace(
        b"\xff\xd3", b"\x12\x34\x56\x78\xff\xd3", 1
    ),
    "low frequencies left out.jpg": lambda: with_bytes_before(
        grey_jpeg_of_scans(64, 64, 40), 0xDA, b"\0\0"
    ),
    "cut.png": lambda: images.truncated(images.png(PHOTO)),
    "corrupt.png": lambda: images.png(PHOTO).replace(b"IDAT\x78", b"IDAT\x00", 1),
    "claims to be large.jpg": lambda: claiming(13_000, 13_000),
    "claims to be large and progressive.jpg": lambda: claiming(13_000, 13_000, progressive=True),
    "an empty piece with a wrong checksum.png": lambda: with_chunk(-1, pngs.chunk(b"IDAT", b"", 5)),
    "wrong checksum.png": lambda: flipped(images.png(PHOTO)),
    "unknown chunk.png": lambda: with_chunk(1, pngs.chunk(b"ABCD")),
    "cut.webp": lambda: images.truncated(saved("WEBP")),
    "cut.tiff": lambda: images.truncated(saved("TIFF")),
}


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_the_references_agree() -> None:
    """What is to be read, Pillow reads; so that the table is not of our own taste."""
    for name, make in READ.items():
        with Image.open(io.BytesIO(make())) as image:
            assert image.convert("RGB").size, name


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@contestants()
def test_verdicts(contestant: Contestant, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "data" / "class"
    root.mkdir(parents=True)
    every = READ | AFTER_PIXELS | REFUSED
    for name, make in every.items():
        (root / name).write_bytes(make())
    names = sorted(every)
    with (
        caplog.at_level(logging.WARNING, "fastload"),
        contestant.create(
            root.parent,
            tmp_path,
            batch_size=8,
            transform=RESIZE,
            on_error="substitute",
            memory_format=torch.channels_last,
        ) as loader,
    ):
        pixels = torch.cat([batch.cpu() for batch, _ in loader])
    refused = {
        name
        for name in names
        if any(f"/{name}:" in record.getMessage() for record in caplog.records)
    }
    # DALI's decoder fills up with grey and does not say so; but where it fails for another file of
    # the batch, all of it is decoded elsewhere.
    dali = {"torn.jpg", "torn progressive.jpg", "corrupt.jpg", "lost before a restart.jpg"}
    unnoticed = dali if contestant.backend == "dali" else set()
    assert set(REFUSED) - unnoticed <= refused <= set(REFUSED)
    for row, name in enumerate(names):
        if name in REFUSED:
            continue
        with Image.open(io.BytesIO(JPEG) if name in AFTER_PIXELS else root / name) as image:
            wanted = RESIZE(torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1))
        # DALI resamples in its own way: 15 of 255 apart where pixels are black and white in turn.
        most = 16 if contestant.backend == "dali" else 12
        assert (pixels[row].int() - wanted.int()).abs().max() <= most, name


@pytest.mark.parametrize("name", sorted(READ | AFTER_PIXELS | REFUSED))
def test_decode_jpeg(name: str) -> None:
    data = (READ | AFTER_PIXELS | REFUSED)[name]()
    if name not in REFUSED:
        assert fastload.decode_jpeg(data, size=SIZE).shape == (*SIZE, 3)
    else:
        with pytest.raises(fastload.DecodeError):
            fastload.decode_jpeg(data)


def test_without_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not built, the messages of the other decoders have to do."""
    monkeypatch.setattr("fastload.native.available", lambda: False)
    for name, make in (READ | REFUSED).items():
        try:
            fastload.decode_jpeg(make())
        except fastload.DecodeError:
            assert name in REFUSED, name
        else:
            # Of these two, what other decoders say is the same as of harmless oddities.
            assert name in READ or name in (
                "lost before a restart.jpg",
                "low frequencies left out.jpg",
            ), name
