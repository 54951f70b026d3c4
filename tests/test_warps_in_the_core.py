"""Warps as a step of decoding in the native core, beside those that Python makes of the same draws:
all bits are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

import fastload
from fastload import native
from fastload.backends.torch_workers import TorchOptions
from fastload.backends.turbojpeg import TurboJpegOptions
from fastload.geometry import Geometry, Resampling, View
from fastload.geometry.plan import Later, LaterResampling, WarpSampling
from fastload.native.pool import NativePool, Status
from tests.images import jpeg, photo

pytestmark = pytest.mark.skipif(not native.available(), reason="the native core is not built")

SIZES = [(40, 60), (90, 50), (64, 64), (33, 101), (120, 80), (1, 7), (9, 1), (257, 401)]
BILINEAR = v2.InterpolationMode.BILINEAR
AFFINE = v2.RandomAffine(30, (0.2, 0.3), (0.5, 1.6), (10, 20, -10, 5), BILINEAR, fill=7)
ZOOM = v2.RandomAffine(10, (0.3, 0.3), (3, 6), interpolation=BILINEAR, fill=99)
NEAREST = v2.RandomAffine(30, (0.2, 0.3), (0.5, 1.6), fill=7)
SCALED = v2.RandomAffine(0, (0.1, 0.1), (0.5, 1.5), interpolation=BILINEAR, fill=7)
SHIFTED = v2.RandomAffine(0, (0.1, 0.1), (0.5, 1.5), fill=7)
MIRRORED = [v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()]
RECIPES: dict[str, list[Any]] = {
    "cut": [ZOOM, v2.CenterCrop(24), *MIRRORED],
    "resized": [AFFINE, v2.Resize((40, 56))],
    "nearest": [*MIRRORED, NEAREST, v2.RandomCrop(32, pad_if_needed=True, fill=3)],
    "after a resize": [v2.RandomResizedCrop((64, 72)), AFFINE, *MIRRORED],
    "of a cut": [v2.CenterCrop(30), AFFINE],
    "of padding": [v2.RandomCrop(64, pad_if_needed=True), ZOOM, v2.CenterCrop(50)],
    "sometimes": [v2.Resize((64, 72)), v2.RandomPerspective(0.8, 0.6, BILINEAR, fill=200)],
    "over the horizon": [v2.RandomPerspective(0.95, 0.9), v2.Resize((33, 21))],
    "of its own size": [v2.RandomRotation(90, BILINEAR, expand=True), v2.Resize((50, 50))],
    "padded after": [v2.RandomRotation(20, BILINEAR), v2.RandomCrop(20, 30, padding_mode="edge")],
    "scaled": [v2.RandomHorizontalFlip(), SCALED, v2.RandomCrop(24, pad_if_needed=True)],
    "scaled, nearest": [v2.RandomHorizontalFlip(), SHIFTED, v2.CenterCrop(20)],
    "of colours": [v2.ColorJitter(0.5, 0.5, 0.5), AFFINE, v2.Resize((30, 40))],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """JPEGs, with masks; and in other orientations, without."""
    root = tmp_path_factory.mktemp("warps")
    rng = np.random.default_rng(5)
    for part in ("pairs/images", "pairs/masks", "turned/a"):
        (root / part).mkdir(parents=True)
    for number, size in enumerate(SIZES):
        picture, exif = Image.fromarray(photo(*size, seed=number)), Image.Exif()
        picture.save(root / "pairs" / "images" / f"{number}.jpg", quality=90)
        mask = Image.fromarray(rng.integers(0, 9, size, dtype=np.uint8))
        mask.save(root / "pairs" / "masks" / f"{number}.png")
        exif[0x0112] = 1 + number
        picture.save(root / "turned" / "a" / f"{number}.jpg", quality=90, exif=exif)
    return {"pairs": root / "pairs", "turned": root / "turned"}


def tensors_of(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, list | tuple):
        return [tensor for one in batch for tensor in tensors_of(one)]
    return [batch]


@pytest.mark.parametrize("of_tensors", [True, False])
@pytest.mark.parametrize("what", ["pairs", "turned", "views"])
@pytest.mark.parametrize("name", RECIPES)
def test_pixels_are_those_of_python(
    name: str, what: str, of_tensors: bool, folders: dict[str, Path]
) -> None:
    """PIL's warps repeat the edge, those of tensors go over into the fill."""
    steps = [v2.ToImage(), *RECIPES[name]] if of_tensors else [*RECIPES[name], v2.ToImage()]
    transform: Any = v2.Compose(steps)
    if what == "views":
        transform = fastload.Views(transform, v2.Compose([v2.ToImage(), v2.Resize((20, 20))]))
    turned = what == "turned"
    found: list[list[torch.Tensor]] = []
    for backend, options in (
        ("turbojpeg", TurboJpegOptions(exif_orientation=turned)),
        ("torch", TorchOptions(exif_orientation=turned)),
    ):
        with fastload.create_loader(
            folders["turned" if turned else "pairs"],
            8,
            transform=transform,
            seed=5,
            backend=backend,
            options=options,
            num_workers=1 if backend == "turbojpeg" else 0,
        ) as loader:
            found.append([one for _ in range(2) for batch in loader for one in tensors_of(batch)])
            if backend == "turbojpeg":  # by the core, and nothing of it again by Python
                assert "python" not in loader.stats().decoded
                assert sum(loader.stats().decoded.values()) >= 16
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_no_more_is_decoded_than_the_warp_reads() -> None:
    """Damage below it is not noticed, as below a crop; damage in it is."""
    data = jpeg(photo(400, 60, seed=1))
    middle = len(data) * 3 // 4
    broken = data[:middle] + b"\xff\xd9" * ((len(data) - middle) // 2)
    whole = np.array([[0, 0, 400, 60]], np.int32)
    shown = np.array([[0, 0, 30, 40]], np.int32)
    sampling = Resampling(later=LaterResampling(WarpSampling("bilinear"), Resampling()))
    nothing = np.zeros((1, 2), np.bool_)
    last = Geometry(shown, shown[:, 2:], shown, nothing)
    for down, fine in ((20, True), (340, False)):
        inverse = np.array([[[0.9, 0.1, 3.5], [-0.1, 0.9, down], [0, 0, 1]]])
        later = Later(inverse, inverse, shown[:, 2:], last, 0.0)
        geometry = Geometry(whole, whole[:, 2:], whole, nothing, later=later)
        out = np.ones((1, 30, 40, 3), np.uint8)
        pool = NativePool(1)
        good = pool.decode_views([data], [View(geometry, sampling, out)], here=True)
        assert not good.wait()
        made = out.copy()
        failures = pool.decode_views([broken], [View(geometry, sampling, out)], here=True).wait()
        assert bool(failures) is not fine
        assert (out == (made if fine else 0)).all()
        pool.close()


@pytest.mark.parametrize("size", [(0, 0), (0, 5), (3, -1), (1 << 15, 1 << 15)])
def test_warps_that_make_no_image_are_given_back(size: tuple[int, int]) -> None:
    data = jpeg(photo(30, 40, seed=1))
    box, shown = np.array([[0, 0, 30, 40]], np.int32), np.array([[0, 0, 8, 9]], np.int32)
    nothing = np.zeros((1, 2), np.bool_)
    inverse = np.array([[[2.0, 0, 0], [0, 2, 0], [0, 0, 1]]])
    last = Geometry(shown, shown[:, 2:], shown, nothing)
    later = Later(inverse, inverse, np.array([size], np.int32), last, 0.0)
    geometry = Geometry(box, box[:, 2:], box, nothing, later=later)
    sampling = Resampling(later=LaterResampling(WarpSampling("nearest"), Resampling()))
    out = np.ones((1, 8, 9, 3), np.uint8)
    pool = NativePool(1)
    (failure,) = pool.decode_views([data], [View(geometry, sampling, out)], here=True).wait()
    assert failure.status is Status.BAD_GEOMETRY
    assert not out.any()
    pool.close()
