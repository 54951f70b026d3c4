"""AVIF by Pillow, HEIC by pillow-heif: pixels and verdicts on all backends."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, features
from torchvision.transforms import v2

import fastload
from fastload.decode import DecodeSettings, get_decoder
from fastload.decode import libraries as decoders
from fastload.decode.header import read_header
from fastload.decode.image import decode_image
from fastload.errors import DecodeError, FastloadError
from fastload.sources import image_files
from tests import images
from tests.backends import Contestant, contestants

THREE = ("torch-0", "turbojpeg", "cache-disk")


def avif(seed: int) -> bytes:
    if not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    buffer = io.BytesIO()
    Image.fromarray(images.photo(40, 48, seed=seed)).save(buffer, "AVIF", quality=90)
    return buffer.getvalue()


def heic(seed: int) -> bytes:
    heif = pytest.importorskip("pillow_heif", reason="HEIC is read by pillow-heif")
    if "HEIF" not in Image.SAVE and not heif.libheif_info()["HEIF"]:
        pytest.skip("this pillow-heif writes no HEIC")
    buffer = io.BytesIO()
    made = heif.from_pillow(Image.fromarray(images.photo(40, 48, seed=seed)))
    made.save(buffer, quality=90)
    return buffer.getvalue()


WRITERS = {".avif": avif, ".heic": heic}


def pixels_of(data: bytes) -> np.ndarray[Any, Any]:
    """By the library itself."""
    if image_files.heif_brand(data) == "HEIF":
        return np.asarray(pytest.importorskip("pillow_heif").read_heif(io.BytesIO(data)))
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def folder(root: Path, files: list[bytes], ending: str) -> str:
    for row, data in enumerate(files):
        path = root / "data" / "one" / f"{row}{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return str(root / "data")


@pytest.mark.parametrize("ending", WRITERS)
@contestants(*THREE)
def test_pixels_are_those_of_the_library(
    contestant: Contestant, ending: str, tmp_path: Path
) -> None:
    files = [WRITERS[ending](seed) for seed in range(3)]
    data = folder(tmp_path, files, ending)
    with contestant.create(data, tmp_path, batch_size=3, transform=v2.CenterCrop(32)) as loader:
        found = next(iter(loader))[0].cpu()
    wanted = [torch.from_numpy(pixels_of(file).copy()).permute(2, 0, 1) for file in files]
    assert torch.equal(found, torch.stack([v2.CenterCrop(32)(one) for one in wanted]))


@pytest.mark.parametrize("ending", WRITERS)
def test_a_file_that_is_cut_off_is_refused_wherever_it_ends(ending: str) -> None:
    data = WRITERS[ending](0)
    for length in range(0, len(data), len(data) // 40):
        with pytest.raises(DecodeError, match="one.x"):
            header = read_header(data[:length], "one.x")
            decode_image(
                data[:length],
                name="one.x",
                decoder=get_decoder(),
                settings=DecodeSettings(),
                header=header,
            )


@pytest.mark.slow
@pytest.mark.parametrize("ending", WRITERS)
def test_whatever_is_in_a_damaged_file_it_is_an_image_or_a_decode_error(ending: str) -> None:
    data, rng = WRITERS[ending](0), np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        bad = bytearray(data)
        bad[int(rng.integers(0, 400))] = int(rng.integers(0, 256))
        try:
            header = read_header(bytes(bad), "x")
            pixels = decode_image(
                bytes(bad), name="x", decoder=get_decoder(), settings=DecodeSettings()
            )
            assert pixels.shape == (header.height, header.width, 3)
        except DecodeError:
            refused += 1
    assert 30 < refused < 300


@pytest.mark.parametrize("ending", WRITERS)
@contestants(*THREE)
def test_verdicts_are_the_same(contestant: Contestant, ending: str, tmp_path: Path) -> None:
    good = WRITERS[ending](0)
    data = folder(tmp_path, [good[: len(good) // 2]], ending)
    with (
        contestant.create(data, tmp_path, batch_size=1, transform=v2.CenterCrop(32)) as loader,
        pytest.raises(DecodeError, match=rf"0\{ending}"),
    ):
        next(iter(loader))


@pytest.mark.parametrize("ending", WRITERS)
def test_they_are_known_without_a_name(ending: str) -> None:
    data = WRITERS[ending](0)
    assert image_files.begins_as_image(data)
    assert image_files.heif_brand(data) == {".avif": "AVIF", ".heic": "HEIF"}[ending]
    assert image_files.heif_brand(b"\0\0\0\x18ftypisom\0\0\0\0mp41avc1") == ""
    assert image_files.heif_brand(data[:11]) in ("", "AVIF", "HEIF")


def test_without_the_library_the_messages_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    box = b"\0\0\0\x1cftypheic\0\0\0\0mif1heicmiaf" + bytes(100)
    for module in (image_files, decoders):
        monkeypatch.setattr(module, "reads_heif", lambda: False)
    monkeypatch.delitem(Image.EXTENSION, ".heic", raising=False)
    with pytest.raises(DecodeError, match=r"pip install .*\[heic\]"):
        read_header(box, "1.heic")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "1.heic").write_bytes(box)
    (tmp_path / "one" / "1.png").write_bytes(images.png(images.photo(8, 8)))
    try:
        fastload.create_loader(str(tmp_path)).close()
    except FastloadError as error:
        pytest.fail(str(error))
    assert "[heic]" in caplog.text
