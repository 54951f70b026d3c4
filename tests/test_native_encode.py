"""JPEGs by the core's encoder: the bytes that Pillow writes, which are libjpeg-turbo's."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, features

from fastload import native
from fastload.tools.pack import contents
from tests.images import photo

Pixels = npt.NDArray[np.uint8]
pytestmark = pytest.mark.skipif(not native.available(), reason="needs the native core")

SIZES = [(1, 1), (1, 2), (2, 1), (3, 4), (8, 9), (9, 8), (15, 17), (16, 16), (17, 15), (17, 33)]
SIZES += [(24, 40), (31, 6), (9, 800), (800, 9), (64, 47), (65, 129)]


def pictures(height: int, width: int) -> dict[str, Pixels]:
    rng = np.random.default_rng(height + 1000 * width)
    shape = (height, width, 3)
    photograph = photo(height, width, seed=height, channels=3)
    one = np.zeros(shape, np.uint8)
    one[height // 2, width // 2] = 255
    return {
        "photo": photograph,
        "noise": rng.integers(0, 256, shape, dtype=np.uint8),
        "black and white": (rng.integers(0, 2, shape) * 255).astype(np.uint8),
        "red, green and blue": np.eye(3, dtype=np.uint8)[rng.integers(0, 3, shape[:2])] * 255,
        "dim": rng.integers(90, 94, shape).astype(np.uint8),
        "one pixel": one,  # long runs of zeros
        "part of a photo": photo(2 * height, 2 * width, seed=width, channels=3)[:height, :width],
    }


def by_pillow(image: Pixels, quality: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality, subsampling=2)
    return buffer.getvalue()


@pytest.mark.whole
@pytest.mark.skipif(
    not features.check_feature("libjpeg_turbo"), reason="Pillow has another libjpeg"
)
@pytest.mark.parametrize("simd", ["plain", "sse4.1", "avx2", "avx512", "neon"])
def test_the_bytes_are_those_of_libjpeg_turbo(simd: Any) -> None:
    try:
        pool = native.NativePool(1, simd=simd)
    except ValueError:
        pytest.skip(f"{simd}: not of this processor")
    for height, width in SIZES:
        qualities = range(1, 101) if height * width < 300 else range(1 + width % 7, 101, 13)
        for what, image in pictures(height, width).items():
            for quality in (*qualities, 90, 100):
                made = pool.encode_jpeg(np.ascontiguousarray(image), quality)
                assert made == by_pillow(image, quality), f"{what} {height}x{width} at {quality}"
    pool.close()


def test_the_longest_sides() -> None:
    pool = native.NativePool(1)
    for shape in ((1, 65_500, 3), (65_500, 2, 3)):
        image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        assert pool.encode_jpeg(image, 75) == by_pillow(image, 75)
    for shape in ((1, 65_501, 3), (65_501, 1, 3), (0, 4, 3), (4, 0, 3), (4, 4, 1), (4, 4, 4)):
        with pytest.raises(ValueError, match="an image .* is needed"):
            pool.encode_jpeg(np.zeros(shape, np.uint8), 75)
    for quality in (0, 101, -1):
        with pytest.raises(ValueError, match="quality: 1 to 100"):
            pool.encode_jpeg(np.zeros((4, 4, 3), np.uint8), quality)
    pool.close()


def test_packing_writes_the_same_without_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    images = pictures(50, 70)
    by_core = [contents.jpeg(image, 90) for image in images.values()]
    monkeypatch.setattr(native, "available", lambda: False)
    assert [contents.jpeg(image, 90) for image in images.values()] == by_core
