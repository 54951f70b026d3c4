"""Images after a JPEG, by the core: the pixels of torchvision, Pillow and OpenCV, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

import fastload
from fastload import native
from fastload.draws import Draws
from fastload.recipe import Recipe
from fastload.recipe.jpeg import JPEG
from fastload.render import jpeg
from fastload.render.jpeg import recompressed
from fastload.render.steps import JpegSteps
from tests.images import photo
from tests.samples import assert_resumes_equal, by_label

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")
needs_core = pytest.mark.skipif(not native.available(), reason="needs the native core")

SIZES = [(1, 1), (1, 2), (2, 1), (3, 4), (4, 3), (5, 5), (2, 17), (7, 8), (16, 16), (17, 33)]
SIZES += [(31, 6), (9, 800), (64, 47)]


def picture(kind: str, height: int, width: int, channels: int) -> np.ndarray:
    rng = np.random.default_rng(height + width)
    if kind == "photo":
        return photo(height, width, seed=height, channels=channels).reshape(height, width, channels)
    shape = (height, width, channels)
    if kind == "black and white":
        return (rng.integers(0, 2, shape) * 255).astype(np.uint8)
    if kind == "dim":
        return rng.integers(90, 94, shape).astype(np.uint8)
    return rng.integers(0, 256, shape, dtype=np.uint8)


def by_torchvision(image: np.ndarray, quality: int) -> np.ndarray:
    planes = torch.from_numpy(image).permute(2, 0, 1).contiguous()
    return F.jpeg(planes, quality).permute(1, 2, 0).numpy()


@needs_core
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", ["photo", "noise", "black and white", "dim"])
def test_as_torchvision_at_every_quality(kind: str, channels: int) -> None:
    pools = [native.NativePool(1, simd=simd) for simd in ("plain", "auto")]
    every = np.arange(1, 101, dtype=np.int32)
    for height, width in SIZES:
        image = picture(kind, height, width, channels)
        qualities = every if height * width <= 300 else every[height % 7 :: 7]
        wanted = [by_torchvision(image, quality) for quality in qualities.tolist()]
        for pool in pools:
            found = np.repeat(image[None], len(qualities), axis=0)
            assert pool.recompress(found, qualities).wait() == []
            for ours, theirs, quality in zip(found, wanted, qualities, strict=True):
                np.testing.assert_array_equal(ours, theirs, f"{quality}")
    for pool in pools:
        pool.close()


@needs_core
def test_images_of_many_sizes() -> None:
    pool, rng = native.NativePool(1), np.random.default_rng(0)
    for height, width, quality in rng.integers(1, [70, 70, 101], (150, 3)).tolist():
        image = picture("photo" if quality % 2 else "noise", height, width, 3)
        found = image[None].copy()
        assert pool.recompress(found, np.array([quality], np.int32)).wait() == []
        np.testing.assert_array_equal(found[0], by_torchvision(image, quality))
    pool.close()


@pytest.mark.parametrize("blue_first", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_by_the_core_as_by_pillow(
    channels: int, blue_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.stack([picture("photo", 21, 40, channels) for _ in range(6)])
    planes = torch.from_numpy(images).permute(0, 3, 1, 2)
    steps = JpegSteps(np.array([1, 20, 0, 55, 80, 100], np.int32), blue_first)
    made = recompressed(planes, steps)
    monkeypatch.setattr(jpeg.native, "available", lambda: False)
    assert torch.equal(recompressed(planes, steps), made)
    assert torch.equal(made[2], planes[2])
    assert not torch.equal(made[0], planes[0])
    assert torch.equal(planes.permute(0, 2, 3, 1), torch.from_numpy(images)), "not changed"
    nothing = JpegSteps(np.zeros(0, np.int32))
    assert len(recompressed(planes[:0], nothing)) == 0


def test_as_opencv_which_takes_the_first_channel_for_blue() -> None:
    cv2 = pytest.importorskip("cv2")
    for quality, (height, width) in zip((1, 30, 75, 90, 95, 100), SIZES[-6:], strict=True):
        image = picture("photo", height, width, 3)
        _, file = cv2.imencode(".jpg", image, (cv2.IMWRITE_JPEG_QUALITY, quality))
        planes = torch.from_numpy(image).permute(2, 0, 1)[None]
        made = recompressed(planes, JpegSteps(np.array([quality], np.int32), blue_first=True))
        wanted = cv2.imdecode(file, cv2.IMREAD_UNCHANGED)
        np.testing.assert_array_equal(made[0].permute(1, 2, 0).numpy(), wanted)


def loader_of(images: np.ndarray, transform: Any, **given: Any) -> Any:
    arrays = {"image": images, "label": np.arange(len(images))}
    return fastload.create_loader(
        arrays, batch_size=3, shuffle=True, transform=transform, seed=9, **given
    )


@needs_core
def test_a_loader_has_it_in_the_core_and_resumes() -> None:
    images = np.stack([picture("photo", 30, 41, 3) for _ in range(12)])
    transform = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomApply([v2.JPEG((5, 90))], p=0.7)])
    loader = loader_of(images, transform)
    reported = str(loader.explain())
    assert "JPEG" in reported
    assert "on the host, by rule" in reported
    everything = by_label(loader)
    for place in ("device", "host"):
        again = by_label(loader_of(images, transform, options=fastload.BackendOptions(place=place)))
        assert all(np.array_equal(again[label], everything[label]) for label in everything)
    assert_resumes_equal(lambda: loader_of(images, transform), everything)
    (flip, op) = Recipe.from_transform(transform).ops
    assert op.has_steps, flip


def test_qualities_are_functions_of_the_sample() -> None:
    op = JPEG((5, 60))
    whole = op.qualities(Draws(1, 2, np.arange(40)), 3)
    assert np.array_equal(op.qualities(Draws(1, 2, np.arange(20, 40)), 3), whole[20:])
    assert not np.array_equal(op.qualities(Draws(1, 3, np.arange(40)), 3), whole)


@needs_core
@pytest.mark.parametrize(
    "given",
    [
        {"qualities": np.ones(3, np.int32)},
        {"qualities": np.array([1, 101], np.int32)},
        {"qualities": np.array([-1, 50], np.int32)},
        {"images": np.zeros((2, 4, 4, 2), np.uint8)},
        {"images": np.zeros((2, 0, 4, 3), np.uint8)},
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Any]) -> None:
    pool = native.NativePool(1)
    sound = {"images": np.zeros((2, 4, 4, 3), np.uint8), "qualities": np.ones(2, np.int32)}
    assert pool.recompress(**sound).wait() == []
    with pytest.raises(ValueError, match="needed"):
        pool.recompress(**(sound | given))
    pool.close()
