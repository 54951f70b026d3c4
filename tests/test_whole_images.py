"""Colour of whole images before their geometry: the native core, from files and from arrays, and
torch make the same pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from torchvision.transforms import v2

import fastload
from fastload import native
from fastload.decode import DecodeSettings, get_decoder
from fastload.decode.image import decode_image
from fastload.draws import Draws
from fastload.geometry import Geometry, GeometryPlan, Resampling, View
from fastload.native.pool import fuse
from fastload.recipe import Recipe
from fastload.recipe.whole_images import WholeImages
from fastload.render.host import render_row
from fastload.sources.columns import PixelArray
from tests import images

Pixels = npt.NDArray[np.uint8]
COUNT = 6
SIZES = [(40 + 3 * n, 57 - 2 * n) for n in range(COUNT)]
PHOTOS = [images.photo(*size, seed=n) for n, size in enumerate(SIZES)]
DISTORT = v2.RandomPhotometricDistort(hue=(-0.3, 0.3), p=0.6)
CHAINS: dict[str, list[Any]] = {
    "photometric": [DISTORT],
    "pointwise": [fastload.HSV(0.5, 0.5, 0.5), v2.RandomGrayscale(0.3)],
    "several": [v2.RandomApply([v2.ColorJitter(0.5, 0.5, 0.5, 0.2)], 0.6), DISTORT],
}

needs_core = pytest.mark.skipif(not native.available(), reason="the native core is not built")


def planned(chain: str, *geometry: Any, epoch: int = 0) -> tuple[GeometryPlan, Draws]:
    (plan,) = Recipe.from_transform(v2.Compose([*CHAINS[chain], *geometry])).split().geometries
    assert isinstance(plan.colour, WholeImages)
    return plan, Draws(3, epoch, np.arange(COUNT))


def expected(plan: GeometryPlan, placed: Geometry, photos: list[Pixels]) -> Pixels:
    """By torch, image after image."""
    assert plan.out_size is not None
    out = np.empty((COUNT, *plan.out_size, photos[0].shape[2]), np.uint8)
    for row, photo in enumerate(photos):
        render_row(photo, row, View(placed, plan.resampling, out))
    return out


@needs_core
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("channels", [1, 3])
def test_torch_where_there_is_no_core(
    chain: str, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, draws = planned(chain, v2.Resize((20, 30)))
    placed = plan.resolve(draws, np.array(SIZES))
    assert placed.colour is not None
    changed = False
    for row, photo in enumerate(PHOTOS):
        part = photo[..., :channels]
        before = part.copy()
        by_core = placed.colour.apply(part, row)
        with monkeypatch.context() as without:
            without.setattr("fastload.native.available", lambda: False)
            by_torch = placed.colour.apply(part, row)
        np.testing.assert_array_equal(by_core, by_torch)
        np.testing.assert_array_equal(part, before)
        changed |= bool((by_core != part).any())
    assert changed or (channels == 1 and chain == "pointwise")


@needs_core
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize(
    "geometry",
    [
        [v2.RandomResizedCrop((24, 31), antialias=True), v2.RandomHorizontalFlip()],
        [v2.RandomCrop((50, 60), padding=9, pad_if_needed=True, fill=7)],
        [v2.Resize((33, 29)), v2.RandomVerticalFlip()],
        [v2.RandomZoomOut(fill=(1, 2, 3), side_range=(1, 2)), v2.Resize((33, 29))],
        [v2.Pad(5, padding_mode="reflect"), v2.RandomHorizontalFlip(), v2.Resize((40, 29))],
        [v2.RandomResizedCrop(31), v2.Pad((9, 0, 0, 4), fill=8), v2.RandomResizedCrop((60, 20))],
    ],
    ids=["crop", "pad", "whole", "zoom", "reflect", "twice"],
)
def test_the_core_from_files_and_from_arrays(chain: str, geometry: list[Any]) -> None:
    pool = native.NativePool(2)
    files = [
        images.jpeg(photo, subsampling="4:2:0") if n % 2 else images.png(photo)
        for n, photo in enumerate(PHOTOS)
    ]
    decoded = [fastload.decode_jpeg(data) for data in files]
    flat = np.concatenate([photo.ravel() for photo in decoded])
    offsets = np.cumsum([0, *(photo.size for photo in decoded)])[:-1]
    stored = PixelArray(flat, offsets=offsets, sizes=np.array(SIZES, np.int32), channels=3)
    for epoch in range(3):
        plan, draws = planned(chain, *geometry, epoch=epoch)
        assert plan.out_size is not None
        placed: Any = fuse(plan, draws) or plan.resolve(draws, np.array(SIZES))
        wanted = expected(plan, plan.resolve(draws, np.array(SIZES)), decoded)
        out = np.empty_like(wanted)
        view = View(placed, plan.resampling, out)
        assert not pool.decode_views(files, [view], check_whole=True).wait()
        assert np.abs(out.astype(int) - wanted).max() <= 1
        if plan.later is not None:
            continue  # of arrays in Python's threads
        cached = np.empty_like(wanted)
        done = pool.gather_batch(
            stored, draws.indices, geometry=placed, out=cached, sampling=plan.resampling
        )
        assert not done.wait()
        np.testing.assert_array_equal(cached, out)
    pool.close()


@needs_core
def test_views_with_and_without_colour_and_turned_images() -> None:
    pool = native.NativePool(1)
    files = [images.jpeg(photo, orientation=n + 2, quality=95) for n, photo in enumerate(PHOTOS)]
    settings = DecodeSettings(exif_orientation=True)
    plans = [
        planned("photometric", v2.Resize((31, 20)))[0],
        planned("pointwise", v2.Resize((9, 9)))[0],
    ]
    plain = Recipe.from_transform(v2.Resize((14, 25))).split().geometry
    draws = Draws(3, 0, np.arange(COUNT))
    sizes = np.array([s if n + 2 < 5 else s[::-1] for n, s in enumerate(SIZES)])
    placed = [plan.resolve(draws, sizes) for plan in (*plans, plain)]
    alone: list[View] = []
    together: list[View] = []
    for plan, geometry in zip((*plans, plain), placed, strict=True):
        assert plan.out_size is not None
        for found in (alone, together):
            out = np.empty((COUNT, *plan.out_size, 3), np.uint8)
            found.append(View(geometry, plan.resampling, out))
        assert not pool.decode_views(files, [alone[-1]], settings=settings).wait()
    assert not pool.decode_views(files, together, settings=settings).wait()
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one.out, other.out)
    upright = [
        decode_image(data, name="x", decoder=get_decoder(), settings=settings) for data in files
    ]
    for plan, geometry, view in zip((*plans, plain), placed, together, strict=True):
        wanted = expected(plan, geometry, upright)
        assert np.abs(view.out.astype(int) - wanted).max() <= 2
    cut = [data[: len(data) // 2] for data in files]
    assert len(pool.decode_views(cut, together, settings=settings).wait()) == COUNT
    assert not any(view.out.any() for view in together)
    pool.close()


@needs_core
def test_steps_that_do_not_fit_are_refused() -> None:
    core = native.load()
    whole = core.Geometries.whole(np.zeros((2, 2), np.bool_))
    out = np.zeros((2, 4, 4, 3), np.uint8)
    sampling = core.Resampling(2, True, 0, (0, 0, 0, 0))
    kinds, numbers = np.zeros((2, 1), np.int32), np.zeros((2, 1, 6), np.float32)
    core.View(whole, out, sampling, kinds, numbers)
    for given in ((kinds[:1], numbers), (kinds, numbers[..., :5].copy()), (kinds + 99, numbers)):
        with pytest.raises(ValueError, match="needed|unknown"):
            core.View(whole, out, sampling, *given)
    with pytest.raises(ValueError, match="both or neither"):
        core.View(whole, out, sampling, kinds)
    with pytest.raises(ValueError, match="1 or 3 channels"):
        core.View(whole, np.zeros((2, 4, 4, 2), np.uint8), sampling, kinds, numbers)


def test_masks_are_left_alone() -> None:
    plan, _ = planned("photometric", v2.Resize((20, 30)))
    assert plan.resampling.coloured
    assert not plan.mask_resampling.coloured
    assert isinstance(plan.mask_resampling, Resampling)
