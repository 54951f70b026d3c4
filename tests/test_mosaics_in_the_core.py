"""Samples of several images by the native core against those that Python makes of the same draws,
and how far images are looked at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload import native
from fastload.backends.turbojpeg import TurboJpegOptions
from fastload.draws import Draws
from fastload.errors import DecodeError
from fastload.files import DecodeSettings
from fastload.geometry import Geometry, Resampling, View
from fastload.geometry.plan import WarpSampling
from fastload.native.composites import CompositeCanvases, Composites
from fastload.native.pool import NativePool, Status
from fastload.recipe import Recipe
from fastload.recipe.transforms import CanvasAffine, CanvasJitter
from fastload.render.host import looked_at, render_row
from fastload.sources import EncodedFiles, Ragged, RaggedArray, Source
from fastload.sources.buffers import PathTable
from fastload.sources.masks import shapes_of
from tests.images import jpeg, photo, png

pytestmark = pytest.mark.skipif(not native.available(), reason="the native core is not built")

RNG = np.random.default_rng(3)
SIZES = [(90 + 31 * n % 67, 80 + 43 * n % 71) for n in range(10)]
BILINEAR = v2.InterpolationMode.BILINEAR
AFFINE = v2.RandomAffine(
    8, translate=(0.1, 0.1), scale=(0.5, 1.5), interpolation=BILINEAR, fill=(10, 114, 200)
)
MOSAIC = fastload.Mosaic((48, 56))
CROP, FLIPS = v2.CenterCrop((48, 56)), [v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()]
JITTER = v2.ColorJitter(brightness=0.4, saturation=0.7, hue=0.1)
PERSPECTIVE = v2.RandomPerspective(0.4, p=0.7, interpolation=BILINEAR)
LARGER = fastload.Letterbox((60, 70), rounding="down", corner=True, antialias=False)
RECIPES: dict[str, list[Any]] = {
    "yolo": [MOSAIC, AFFINE, CROP, fastload.MixUp(p=0.5), JITTER, *FLIPS],
    "flipped": [fastload.Mosaic((48, 56), p=0.5), AFFINE, CROP, *FLIPS, fastload.MixUp(p=0.5)],
    "fading": [v2.ToImage(), MOSAIC, PERSPECTIVE, v2.RandomCrop((48, 56))],
    "cut": [MOSAIC, v2.RandomCrop((48, 56)), *FLIPS],
    "nine": [fastload.Mosaic((48, 56), images=9, p=0.8), AFFINE, CROP, fastload.MixUp(p=0.5)],
    "four or nine": [
        fastload.Mosaic((48, 56), p=0.8, p_nine=0.4),
        AFFINE,
        CROP,
        fastload.MixUp(p=0.5),
    ],
    "whole": [fastload.Mosaic(40, antialias=False), AFFINE],
    "padded": [MOSAIC, AFFINE, v2.RandomCrop((90, 100), padding=9)],
    "covered": [MOSAIC, AFFINE, CROP, fastload.CutMix(p=0.7), *FLIPS],
    "of a partner's own": [
        fastload.Mosaic((48, 56), rounding="down", antialias=False),
        CanvasAffine((48, 56), degrees=10, scale=(0.1, 2.0), corner=True),
        fastload.MixUp(p=0.7, weight=0.5, partner=v2.Compose([LARGER, CanvasJitter((48, 56))])),
        JITTER,
        *FLIPS,
    ],
}
BOX, HALF = fastload.Letterbox((48, 56)), v2.RandomHorizontalFlip()
CUBIC = v2.InterpolationMode.BICUBIC
WITHOUT_MOSAICS: dict[str, list[Any]] = {
    "blended": [BOX, fastload.MixUp(p=0.5), JITTER, *FLIPS],
    "mirrored first": [HALF, BOX, fastload.MixUp(p=0.8), v2.RandomCrop((30, 40))],
    "cropped": [v2.RandomResizedCrop((48, 56), antialias=False), fastload.MixUp(p=0.5), *FLIPS],
    "cubic": [v2.RandomResizedCrop(40, interpolation=CUBIC), HALF, fastload.CutMix(p=0.7)],
    "covered": [BOX, fastload.CutMix(p=0.7), *FLIPS],
    "padded": [v2.RandomCrop(99, 4, True, fill=(1, 2, 3)), fastload.MixUp(p=0.5)],
}
PASTED: dict[str, list[Any]] = {
    "alone": [BOX, HALF, fastload.CopyPaste(p=0.7), *FLIPS],
    "cropped": [v2.RandomResizedCrop((48, 56)), fastload.CopyPaste(p=0.7)],
    "a partner's own": RECIPES["of a partner's own"],
    "of mosaics": [MOSAIC, AFFINE, CROP, fastload.CopyPaste(p=0.7, p_object=0.7), JITTER, *FLIPS],
}


def written(folder: Path, data: list[bytes], *, outlined: bool = False) -> Source:
    paths = [folder / f"{n}.jpg" for n in range(len(data))]
    for path, one in zip(paths, data, strict=True):
        path.write_bytes(one)
    boxes = [RNG.random((n % 4, 4)) * 20 + (0, 0, 21, 21) for n in range(len(data))]
    columns = {
        "image": EncodedFiles(PathTable.of([str(path) for path in paths])),
        "boxes": RaggedArray(Ragged.of(boxes), role="boxes"),
    }
    if outlined:
        outlines = [[[one[[0, 1, 2, 1, 2, 3, 0, 3]].tolist()] for one in row] for row in boxes]
        columns["masks"] = RaggedArray(shapes_of(outlines), role="instance_masks")
    return Source(columns, "written", "written", "dict")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return written(tmp_path_factory.mktemp("mosaics"), files())


@pytest.fixture(scope="module")
def outlined(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return written(tmp_path_factory.mktemp("outlined"), files(), outlined=True)


def files() -> list[bytes]:
    """JPEGs of several kinds, and a PNG."""
    images = [photo(*size, seed=n) for n, size in enumerate(SIZES)]
    kinds: list[dict[str, Any]] = [
        {},
        {"subsampling": "4:4:4"},
        {"orientation": 6},
        {"progressive": True},
    ]
    data = [jpeg(image, **kinds[n % 4]) for n, image in enumerate(images)]
    data[5] = png(images[5])
    return data


def batches(source: Source, transform: Any, **options: Any) -> tuple[list[Any], str]:
    with fastload.create_loader(
        source, batch_size=4, transform=v2.Compose(transform), shuffle=True, seed=1, **options
    ) as loader:
        return list(loader), str(loader.explain())


def assert_by_the_core(source: Source, transform: list[Any]) -> None:
    made, said = batches(source, transform, backend="turbojpeg", num_workers=2)
    wanted, _ = batches(source, transform, backend="torch", num_workers=0)
    assert "of the native core" in said
    assert len(made) == len(wanted) == 3
    for one, other in zip(made, wanted, strict=True):
        assert torch.equal(one["image"], other["image"])
        for name in {"boxes", "masks"} & one.keys():
            assert torch.equal(one[name].values, other[name].values)
            assert torch.equal(one[name].offsets, other[name].offsets)


@pytest.mark.parametrize("name", list(RECIPES))
def test_the_core_makes_what_python_makes(source: Source, name: str) -> None:
    assert_by_the_core(source, RECIPES[name])


@pytest.mark.parametrize("name", list(WITHOUT_MOSAICS))
def test_without_a_mosaic(source: Source, name: str) -> None:
    assert_by_the_core(source, WITHOUT_MOSAICS[name])


@pytest.mark.parametrize("name", list(PASTED))
def test_pasted_objects(outlined: Source, name: str) -> None:
    assert_by_the_core(outlined, PASTED[name])


@pytest.mark.parametrize("transform", [RECIPES["yolo"], WITHOUT_MOSAICS["blended"]])
def test_images_alone(source: Source, transform: list[Any]) -> None:
    alone = Source({"image": source.columns["image"]}, "alone", "alone", "dict")
    assert_by_the_core(alone, transform)


def test_what_the_core_does_not_know_python_makes(source: Source) -> None:
    nearest = v2.RandomAffine(8, interpolation=v2.InterpolationMode.NEAREST)
    for transform in (
        [MOSAIC, nearest, CROP],
        [MOSAIC, CROP, v2.Resize((20, 20))],
        [BOX, AFFINE, fastload.MixUp(p=0.5)],
    ):
        _, said = batches(source, transform, backend="turbojpeg", num_workers=1)
        assert "of Python" in said


def test_damage_is_looked_for_where_that_was_asked_for(tmp_path: Path) -> None:
    good = jpeg(photo(96, 96, seed=1), subsampling="4:4:4")
    bad = bytearray(good)
    bad[-40:-20] = b"\xff\xc4" * 10  # below what is seen; the end is there
    source = written(tmp_path, [bytes(bad)] * 3)
    transform = [fastload.Mosaic(48, p=0), v2.CenterCrop(8)]
    made, said = batches(source, transform, backend="turbojpeg")
    assert len(made) == 1
    assert "damage outside a crop is not looked for" in said
    whole = TurboJpegOptions(check_whole=True)
    with pytest.raises(DecodeError):
        batches(source, transform, backend="turbojpeg", options=whole)


@pytest.mark.parametrize("name", list(RECIPES))
def test_nothing_else_is_looked_at(name: str) -> None:
    split = Recipe.from_transform(v2.Compose(RECIPES[name])).split()
    (plan,) = split.geometries
    assert plan.out_size is not None
    size = (80, 80) if name == "whole" else (96, 112)
    draws = Draws(0, 0, np.arange(40))
    geometry = plan.resolve(draws, np.tile(np.array(size, dtype=np.int64), (40, 1)))
    out = np.empty((2, 40, *plan.out_size, 3), np.uint8)
    smaller = 0
    for row, (top, left, bottom, right) in enumerate(looked_at(geometry).tolist()):
        assert 0 <= top <= bottom <= size[0]
        assert 0 <= left <= right <= size[1]
        smaller += (bottom - top) * (right - left) < size[0] * size[1]
        seen = RNG.integers(0, 256, (bottom - top, right - left, 3), dtype=np.uint8)
        for number in range(2):
            canvas = np.full((*size, 3), 255 * number, np.uint8)
            canvas[top:bottom, left:right] = seen
            render_row(canvas, row, View(geometry, plan.resampling, out[number]))
    assert np.array_equal(out[0], out[1])
    assert name in ("padded", "fading", "whole") or smaller > 20


def test_places_outside_of_a_canvas_are_refused() -> None:
    still = np.zeros((1, 2), dtype=np.bool_)
    box = np.array([[0, 0, 8, 8]], dtype=np.int32)
    parts = Geometry(box, box[:, 2:], box, still)

    def composites(corner: tuple[int, int], seen: tuple[int, int, int, int]) -> Composites:
        numbers = np.array([corner], np.int32), np.array([seen], np.int32)
        warp = WarpSampling("bilinear")
        canvases = CompositeCanvases((16, 16), *numbers, np.eye(3)[None], still, warp)
        return Composites(parts, np.array([0, 1]), canvases, Resampling())

    pool, out = NativePool(1), np.empty((1, 16, 16, 3), np.uint8)
    data = [jpeg(photo(8, 8))]
    settings = DecodeSettings()
    whole = (0, 0, 16, 16)
    assert pool.join(data, composites((8, 8), whole), out=out, settings=settings).wait() == []
    assert (out[0, 8:, 8:] != 0).any()
    assert not out[0, :8].any()
    for wrong in (composites((9, 8), whole), composites((8, 8), (0, 1, 16, 16))):
        with pytest.raises(ValueError, match="outside of the canvas"):
            pool.join(data, wrong, out=out, settings=settings)
    # Without a canvas.
    small, bare = (
        np.empty((1, 8, 8, 3), np.uint8),
        Composites(parts, np.array([0, 1]), None, Resampling()),
    )
    assert pool.join(data, bare, out=small, settings=settings).wait() == []
    assert np.array_equal(small[0], out[0, 8:, 8:])
    two = replace(bare, parts=parts.take([0, 0]), offsets=np.array([0, 2]))
    with pytest.raises(ValueError, match="several members without a canvas"):
        pool.join(data * 2, two, out=small, settings=settings)
    (failure,) = pool.join(data, bare, out=out, settings=settings).wait()  # of another size
    assert failure.status is Status.BAD_GEOMETRY
    offsets, masks = np.array([0, 1, 1]), np.ones((1, 8, 9), np.bool_)
    with pytest.raises(ValueError, match=r"masks \(B, height, width\)"):
        pool.join(data, replace(bare, offsets=offsets, masks=masks), out=small, settings=settings)
