"""Crops, paddings, flips and resizes of decoded images by the native core, against torchvision and
numpy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from fastload import native
from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.geometry import Geometry, GeometryPlan, Resampling
from fastload.recipe.crops import (
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
)
from fastload.sources.columns import PixelArray, PixelImages
from tests import images

pytestmark = pytest.mark.skipif(not native.available(), reason="the native core is not built")


@pytest.fixture(scope="module", params=["auto", "avx2", "sse4.1", "plain"])
def pool(request: Any) -> Iterator[Any]:
    try:
        pool = native.NativePool(2, simd=request.param)
    except ConfigurationError as error:
        pytest.skip(str(error))
    yield pool
    pool.close()


def by_torchvision(
    image: npt.NDArray[np.uint8], placed: Geometry, row: int, sampling: Any = None
) -> npt.NDArray[np.uint8]:
    """One row of the geometry, step by step."""
    sampling = sampling or Resampling()
    top, left, height, width = placed.box[row].tolist()
    pixels = torch.from_numpy(image).permute(2, 0, 1)[:, top : top + height, left : left + width]
    size = placed.size[row].tolist()
    if size != [height, width]:
        pixels = F.resize(
            pixels, size, InterpolationMode(sampling.interpolation), antialias=sampling.antialias
        )
    top, left, height, width = placed.window[row].tolist()
    edges = [
        max(-left, 0),
        max(-top, 0),
        max(left + width - size[1], 0),
        max(top + height - size[0], 0),
    ]
    if any(edges):
        constant = sampling.padding_mode == "constant"
        fill = list(sampling.fill) if constant else 0
        pixels = F.pad(pixels, edges, fill=fill, padding_mode=sampling.padding_mode)
    top, left = max(top, 0), max(left, 0)
    result = pixels[:, top : top + height, left : left + width].permute(1, 2, 0).numpy()
    mirror, upside_down = placed.flip[row].tolist()
    return result[:: -1 if upside_down else 1, :: -1 if mirror else 1]


def gather(
    pool: Any, source: PixelImages, indices: Any, placed: Geometry, **options: Any
) -> npt.NDArray[np.uint8]:
    height, width = placed.window[0, 2:].tolist()
    out = np.empty((len(placed), height, width, source.channels), np.uint8)
    assert (
        pool.gather_batch(source, np.asarray(indices), geometry=placed, out=out, **options).wait()
        == []
    )
    here = np.empty_like(out)
    pending = pool.gather_batch(
        source, np.asarray(indices), geometry=placed, out=here, here=True, **options
    )
    assert pending.done() or source.sizes is not None
    assert pending.wait() == []
    assert np.array_equal(here, out), "in the calling thread"
    return out


@pytest.mark.parametrize("channels", [1, 3])
def test_mirrored_rows_of_every_width(pool: Any, channels: int) -> None:
    rng = np.random.default_rng(1)
    for width in range(1, 70):
        array = rng.integers(0, 256, (3, 2, width, channels), dtype=np.uint8)
        whole = np.tile(np.array([0, 0, 2, width], np.int32), (3, 1))
        placed = Geometry(
            whole, whole[:, 2:].copy(), whole, np.tile(np.array([True, False]), (3, 1))
        )
        assert np.array_equal(
            gather(pool, PixelArray(array, channels=channels), [2, 0, 1], placed),
            array[[2, 0, 1], :, ::-1],
        )


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("shape", [(32, 32), (7, 5), (28, 29)])
def test_random_crop_with_padding(
    pool: Any, shape: tuple[int, int], mode: Any, channels: int
) -> None:
    rng = np.random.default_rng(0)
    array = rng.integers(0, 256, (20, *shape, channels), dtype=np.uint8)
    plan = GeometryPlan(
        (
            (0, RandomCrop(shape, padding=(4, 3, 2, 4), padding_mode=mode)),
            (1, RandomHorizontalFlip()),
            (2, RandomVerticalFlip()),
        ),
        out_size=shape,
        padding_mode=mode,
    )
    indices = rng.permutation(20)
    placed = plan.resolve(Draws(5, 0, indices), np.broadcast_to(np.array(shape), (20, 2)))
    assert placed.errors == {}
    sampling = Resampling(padding_mode=mode, fill=tuple(float(9 * c + 3) for c in range(channels)))
    out = gather(pool, PixelArray(array, channels=channels), indices, placed, sampling=sampling)
    for row, index in enumerate(indices):
        # The box may be a cut-out; reflections are about its edges, as in the reference.
        np.testing.assert_array_equal(
            out[row], by_torchvision(array[index], placed, row, sampling), err_msg=str(row)
        )


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("channels", [1, 3])
def test_resized_crops_from_a_flat_buffer(pool: Any, channels: int, interpolation: Any) -> None:
    sizes = np.array([(40, 60), (33, 17), (90, 71), (8, 8)], np.int32)
    pictures = [images.photo(h, w, seed=h, channels=channels) for h, w in sizes.tolist()]
    offsets = 5 + np.concatenate([[0], np.cumsum([p.size for p in pictures])[:-1]])
    flat = np.concatenate([np.zeros(5, np.uint8), *(p.reshape(-1) for p in pictures)])
    source = PixelArray(flat, sizes=sizes, offsets=offsets, channels=channels)
    plan = GeometryPlan(
        ((0, RandomResizedCrop((24, 31))), (1, RandomHorizontalFlip())), out_size=(24, 31)
    )
    indices = np.arange(40) % 4
    draws = Draws(1, 0, np.arange(40))
    placed = plan.resolve(draws, source.sizes_of(indices))
    sampling = Resampling(interpolation)
    out = gather(pool, source, indices, placed, sampling=sampling)
    for row, index in enumerate(indices):
        wanted = by_torchvision(pictures[index], placed, row, sampling).astype(np.int64)
        assert np.abs(out[row] - wanted).max() <= (0 if interpolation == "nearest" else 1)

    fused = native.fuse(plan, draws)
    again = np.empty_like(out)
    assert (
        pool.gather_batch(source, indices, geometry=fused, out=again, sampling=sampling).wait()
        == []
    )
    np.testing.assert_array_equal(again, out)


@pytest.mark.parametrize(
    "ops",
    [
        [],
        [RandomHorizontalFlip(), RandomVerticalFlip(0.3)],
        [RandomCrop((9, 14))],
        [RandomCrop((15, 16), padding=(1, 4, 3, 2)), RandomHorizontalFlip()],
        [RandomCrop((15, 16), padding=(1, 4, 3, 2), padding_mode="edge"), RandomVerticalFlip()],
        [RandomCrop((3, 2), padding=(5, 4, 3, 20))],  # windows of nothing but padding
    ],
)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_crops_that_the_core_draws_itself(pool: Any, ops: list[Any], channels: int) -> None:
    array = np.random.default_rng(0).integers(1, 256, (30, 12, 15, channels), dtype=np.uint8)
    source = PixelArray(array, channels=channels)
    plan = GeometryPlan(tuple(enumerate(ops)))
    draws = Draws(3, 1, np.arange(300))
    indices = np.arange(300) % 30
    placed = plan.resolve(draws, source.sizes_of(indices))
    assert placed.errors == {}
    mode = ops[0].padding_mode if ops and isinstance(ops[0], RandomCrop) else "constant"
    sampling = Resampling(padding_mode=mode, fill=(7.0,))
    wanted = gather(pool, source, indices, placed, sampling=sampling)
    fused = native.fuse(plan, draws)
    assert fused is not None
    assert not fused.resamples
    out = np.zeros_like(wanted)
    assert (
        pool.gather_batch(source, indices, geometry=fused, out=out, sampling=sampling).wait() == []
    )
    np.testing.assert_array_equal(out, wanted)


def test_a_crop_larger_than_the_image_is_a_failure(pool: Any) -> None:
    source = PixelArray(np.ones((2, 8, 9, 3), np.uint8))
    fused = native.fuse(
        GeometryPlan(((0, RandomCrop((12, 9), padding=(0, 1, 0, 2))),)), Draws(0, 0, np.arange(2))
    )
    out = np.ones((2, 12, 9, 3), np.uint8)
    failures = pool.gather_batch(source, np.arange(2), geometry=fused, out=out).wait()
    assert [failure.status for failure in failures] == [native.Status.BAD_GEOMETRY] * 2
    assert "12x9 is larger than the image of 8x9" in failures[0].message
    assert not out.any()


def test_memory_map_and_subset(pool: Any, tmp_path: Any) -> None:
    array = np.random.default_rng(0).integers(0, 256, (9, 6, 6, 3), dtype=np.uint8)
    np.save(tmp_path / "a.npy", array)
    source = PixelArray(np.load(tmp_path / "a.npy", mmap_mode="r"), rows=np.array([8, 2, 4]))
    placed = GeometryPlan().resolve(Draws(0, 0, np.arange(2)), np.full((2, 2), 6))
    np.testing.assert_array_equal(gather(pool, source, [1, 0], placed), array[[2, 8]])


def test_what_does_not_fit_is_refused(pool: Any) -> None:
    array = np.zeros((4, 8, 8, 3), np.uint8)
    placed = GeometryPlan().resolve(Draws(0, 0, np.arange(2)), np.full((2, 2), 8))
    out = np.empty((2, 8, 8, 3), np.uint8)
    with pytest.raises(ValueError, match="rows: beyond the number of images"):
        pool.gather_batch(PixelArray(array), np.array([0, 4]), geometry=placed, out=out)
    with pytest.raises(ConfigurationError, match="indices has 3 rows and out has 2"):
        pool.gather_batch(PixelArray(array), np.arange(3), geometry=placed, out=out)
    with pytest.raises(ConfigurationError, match="C-contiguous"):
        pool.gather_batch(PixelArray(array), np.arange(2), geometry=placed, out=out[:, ::-1])
    flat = PixelArray(
        array.reshape(-1),
        sizes=np.array([(8, 8)], np.int32),
        offsets=np.array([array.size - 191], np.int64),
    )
    with pytest.raises(ValueError, match="reaches outside of the array"):
        pool.gather_batch(flat, np.zeros(2, np.int64), geometry=placed, out=out)
    outside = Geometry(
        placed.box + np.array([0, 0, 1, 0], np.int32), placed.size, placed.window, placed.flip
    )
    out[:] = 1
    failures = pool.gather_batch(PixelArray(array), np.arange(2), geometry=outside, out=out).wait()
    assert [f.status for f in failures] == [native.Status.BAD_GEOMETRY] * 2
    assert "does not lie inside the image of 8x8 pixels" in failures[0].message
    assert (out == 0).all()


def test_sides_whose_rows_no_int_counts_are_refused() -> None:
    """Rows of 2^29 pixels of 4 bytes. Nothing is written to the arrays, so that they take no
    memory."""
    core, longest = native.load(), 2**29 - 1
    long = np.zeros((1, 1, longest + 1, 1), np.uint8)
    small, rows = np.zeros((1, 2, 2, 1), np.uint8), np.zeros(1, np.int64)
    geometries = core.Geometries.whole(np.zeros((1, 2), np.bool_))
    resampling = core.Resampling(0, False, 0, [0, 0, 0, 0])
    with pytest.raises(ValueError, match="536,870,911 pixels a side"):
        core.View(geometries, long, resampling)
    view, pool = core.View(geometries, small, resampling), core.Pool(1, "auto")
    with pytest.raises(ValueError, match="536,870,911 pixels a side"):
        pool.gather(long, None, None, rows, view, True)
    offsets, sizes = np.zeros(1, np.int64), np.array([[1, longest + 1]], np.int32)
    with pytest.raises(ValueError, match="536,870,911 pixels a side"):
        pool.gather(long.reshape(-1), offsets, sizes, rows, view, True)
