"""A folder of photographs of which a device can decode some, and whether two loaders give the same
samples of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests import images

GOOD = 6
"""Those of the ten that a device can decode; with `exif_orientation=True` one less."""


def write(root: Path) -> Path:
    """Classes of photographs, and of all that is left to the CPU."""
    photo = images.photo
    files = {
        "a/0.jpg": images.jpeg(photo(150, 210, seed=1)),
        "a/1.jpg": images.jpeg(photo(180, 160, seed=2), subsampling="4:4:4"),
        "a/2.jpg": images.jpeg(photo(170, 220, seed=3), subsampling="4:2:2", quality=95),
        "a/3.jpg": images.jpeg(photo(160, 200, seed=4), restart_marker_rows=1),
        "b/0.jpg": images.jpeg(photo(200, 150, seed=5, channels=1)),
        "b/1.jpg": images.jpeg(photo(150, 190, seed=6), progressive=True),
        "b/2.jpg": images.jpeg(photo(40, 56, seed=7)),
        "b/3.jpg": images.cmyk_jpeg(photo(150, 190, seed=8)),
        "b/4.jpg": images.jpeg(photo(200, 260, seed=10), orientation=6),
        "b/5.png": images.png(photo(60, 70, seed=9)),
    }
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def batches(loader: Any, epochs: int = 1) -> list[list[torch.Tensor]]:
    return [[part.clone() for part in batch] for _ in range(epochs) for batch in loader]


def assert_same(found: Any, wanted: Any) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        for a, b in zip(one, other, strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)
