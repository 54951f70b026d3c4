"""What a cache's images cost as they are, and as JPEG."""

from __future__ import annotations

import importlib
import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fastload.cache import build_cache
from fastload.tools.measure.stored import measure_stored
from tests.images import photo


def test_bytes_are_those_of_pixels_and_of_jpegs_as_pillow_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without simplejpeg, too, which newer Pythons do not have."""
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    monkeypatch.delitem(sys.modules, "fastload.tools.measure.stored", raising=False)
    again = importlib.import_module("fastload.tools.measure.stored")
    images = np.stack([photo(96, 120, seed=seed) for seed in range(5)])
    found = again.measure_stored(str(build_cache((images,), tmp_path / "cache", progress=False)))
    assert found is not None
    assert (found.images, found.pixel_bytes) == (5, images.nbytes)
    written = 0
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "jpeg", quality=90)
        written += len(file.getvalue())
    assert found.jpeg_bytes == written
    assert found.pixel_seconds > 0
    assert found.jpeg_seconds > 0


def test_images_of_one_channel_are_not_measured(tmp_path: Path) -> None:
    grey = np.zeros((3, 8, 8, 1), np.uint8)
    assert measure_stored(str(build_cache((grey,), tmp_path / "cache", progress=False))) is None
