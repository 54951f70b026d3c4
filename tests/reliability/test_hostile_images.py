"""Images that are made to keep a decoder busy: refused by every backend, in a time that is
bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

import fastload
from fastload.decode.header import count_scans
from tests import images
from tests.backends import Contestant, contestants
from tests.reliability.hostile import grey_jpeg_of_scans


def folder_of(root: Path, data: bytes) -> Path:
    (root / "data" / "class").mkdir(parents=True)
    (root / "data" / "class" / "image.jpg").write_bytes(data)
    return root / "data"


def first_of(
    contestant: Contestant, source: Path, directory: Path, **arguments: Any
) -> torch.Tensor:
    with contestant.create(source, directory, transform=v2.Resize((16, 16)), **arguments) as loader:
        pixels, _ = next(iter(loader))
        return pixels.cpu()


def test_scans_are_counted() -> None:
    pixels = images.photo(32, 32)
    assert count_scans(images.jpeg(pixels)) == 1
    assert count_scans(grey_jpeg_of_scans(64, 64, 40)) == 40
    assert count_scans(grey_jpeg_of_scans(64, 64, 40)[:-30]) < 40
    progressive = images.jpeg(pixels, progressive=True)
    assert 6 <= count_scans(progressive) <= 12
    thumbnail = images.jpeg(images.photo(16, 16), progressive=True)
    marked = (
        progressive[:2]
        + b"\xff\xe1"
        + (len(thumbnail) + 2).to_bytes(2, "big")
        + thumbnail
        + progressive[2:]
    )
    assert count_scans(marked) == count_scans(progressive), (
        "those of a thumbnail are not the image's"
    )


@contestants()
def test_as_many_scans_as_are_allowed(contestant: Contestant, tmp_path: Path) -> None:
    """Far more than real files have, of a small image: valid, and read by all."""
    data = grey_jpeg_of_scans(64, 64, 400)
    (tmp_path / "same.jpg").write_bytes(data)
    assert np.asarray(Image.open(tmp_path / "same.jpg")).std() == 0, "Pillow reads it"
    pixels = first_of(contestant, folder_of(tmp_path, data), tmp_path)
    assert (pixels == pixels[0, 0, 0, 0]).all()


@contestants()
def test_more_work_than_any_image_is_worth(contestant: Contestant, tmp_path: Path) -> None:
    """800 scans of 36 million pixels in some tens of kilobytes: half a minute of work, refused for
    the first part."""
    source = folder_of(tmp_path, grey_jpeg_of_scans(6000, 6000, 800))
    with pytest.raises(
        fastload.DecodeError, match="image.jpg: 800 scans of 6000 x 6000 pixels, where 119 are"
    ):
        first_of(contestant, source, tmp_path)


def test_decode_jpeg_refuses_the_same(tmp_path: Path) -> None:
    data = grey_jpeg_of_scans(6000, 6000, 800)
    for box in (None, (0, 0, 100, 100)):
        with pytest.raises(fastload.DecodeError, match="800 scans of 6000 x 6000 pixels"):
            fastload.decode_jpeg(data, box=box)
