"""Crop, resize, window, padding and flip against torchvision's tensor functions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from fastload.geometry import Resampling
from fastload.geometry.plan import Warp, WarpSampling
from fastload.render.host import render_into
from fastload.render.warp import warp_batch, warp_into
from tests import images

PHOTO = images.photo(90, 120, seed=3)
WHOLE = (0, 0, 90, 120)


def rendered(pixels: np.ndarray = PHOTO, **changes: object) -> np.ndarray:
    options: dict[str, object] = {
        "box": (0, 0, *pixels.shape[:2]),
        "flip": (False, False),
        "interpolation": "bilinear",
        "antialias": True,
        "padding_mode": "constant",
        "fill": (0.0,),
    } | changes
    options.setdefault("size", options["box"][2:])  # type: ignore[index]
    options.setdefault("window", (0, 0, *options["size"]))  # type: ignore[misc]
    height, width = options["window"][2:]  # type: ignore[index]
    out = np.full((height, width, pixels.shape[2]), 77, np.uint8)
    fields = ("interpolation", "antialias", "padding_mode", "fill")
    resampling = Resampling(**{name: options.pop(name) for name in fields})  # type: ignore[arg-type]
    render_into(pixels, **options, resampling=resampling, out=out)  # type: ignore[arg-type]
    return out


def planes(pixels: np.ndarray) -> torch.Tensor:
    return torch.tensor(pixels).permute(2, 0, 1).contiguous()


def image(tensor: torch.Tensor) -> np.ndarray:
    return tensor.permute(1, 2, 0).numpy()


def difference(a: np.ndarray, b: np.ndarray) -> int:
    return int(np.abs(a.astype(int) - b.astype(int)).max())


@pytest.mark.parametrize("antialias", [True, False], ids=["antialias", "plain"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest", "nearest-exact"])
@pytest.mark.parametrize("size", [(32, 32), (150, 150), (11, 200), (200, 11), (61, 83), (2, 1)])
@pytest.mark.parametrize("box", [WHOLE, (13, 17, 61, 83), (89, 0, 1, 120), (40, 50, 1, 1)])
def test_resized_crop(
    box: tuple[int, int, int, int], size: tuple[int, int], interpolation: str, antialias: bool
) -> None:
    expected = image(
        functional.resized_crop(
            planes(PHOTO),
            *box,
            size=list(size),
            interpolation=InterpolationMode(interpolation),
            antialias=antialias,
        )
    )
    if antialias and interpolation.startswith("bi") and 1 in size:
        # torch 2.5 repeats the first row in a result that is one pixel wide; Pillow does not.
        top, left, height, width = box
        cropped = Image.fromarray(PHOTO[top : top + height, left : left + width])
        resample = (
            Image.Resampling.BILINEAR if interpolation == "bilinear" else Image.Resampling.BICUBIC
        )
        expected = np.asarray(cropped.resize(size[::-1], resample))
    result = rendered(box=box, size=size, interpolation=interpolation, antialias=antialias)
    assert difference(result, expected) <= (0 if interpolation.startswith("nearest") else 1)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_channels(channels: int) -> None:
    pixels = np.concatenate([PHOTO, PHOTO[..., :1]], axis=2)[..., :channels]
    expected = functional.resize(planes(pixels), [40, 50], antialias=True)
    assert difference(rendered(pixels, size=(40, 50)), image(expected)) <= 1


@pytest.mark.parametrize("flip", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(90, 120), (64, 85)], ids=["as is", "resized"])
@pytest.mark.parametrize(
    "window", [None, (10, 20, 30, 41), (-5, -6, 80, 100)], ids=["whole", "inside", "padded"]
)
def test_flip_comes_last(
    window: tuple[int, int, int, int] | None,
    size: tuple[int, int],
    interpolation: str,
    flip: tuple[bool, bool],
) -> None:
    options = {
        "size": size,
        "window": window or (0, 0, *size),
        "interpolation": interpolation,
        "fill": (9.0,),
    }
    expected = rendered(**options)
    if flip[0]:
        expected = expected[:, ::-1]
    if flip[1]:
        expected = expected[::-1]
    assert np.array_equal(rendered(**options, flip=flip), expected)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
def test_resize_and_center_crop(interpolation: str) -> None:
    resized = functional.resize(
        planes(PHOTO), [60, 80], InterpolationMode(interpolation), antialias=True
    )
    expected = functional.center_crop(resized, [48, 48])
    result = rendered(size=(60, 80), window=(6, 16, 48, 48), interpolation=interpolation)
    assert difference(result, image(expected)) <= 1


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("size", [(90, 120), (32, 40)], ids=["as is", "resized"])
@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
def test_padding(interpolation: str, size: tuple[int, int], mode: str) -> None:
    left, top, right, bottom = 3, 5, 7, 11
    fill = (10.0, 20.0, 30.0) if mode == "constant" else (0.0,)
    grid = functional.resize(
        planes(PHOTO), list(size), InterpolationMode(interpolation), antialias=True
    )
    expected = functional.pad(grid, [left, top, right, bottom], fill=list(fill), padding_mode=mode)
    window = (-top, -left, size[0] + top + bottom, size[1] + left + right)
    result = rendered(
        size=size,
        window=window,
        interpolation=interpolation,
        padding_mode=mode,
        fill=(10.0, 20.0, 30.0),
    )
    assert difference(result, image(expected)) <= 1
    # A part of the padded image, as RandomCrop with padding takes it.
    part = rendered(
        size=size,
        window=(-2, -3, 17, 19),
        interpolation=interpolation,
        padding_mode=mode,
        fill=fill,
    )
    assert np.array_equal(part, result[top - 2 : top + 15, left - 3 : left + 16])


def test_window_far_outside() -> None:
    assert (rendered(window=(-500, -500, 10, 10), fill=(7.0,)) == 7).all()
    assert (rendered(window=(-500, -500, 10, 10), padding_mode="edge") == PHOTO[0, 0]).all()
    assert (
        rendered(PHOTO[:1, :1], window=(-3, -3, 7, 7), padding_mode="reflect") == PHOTO[0, 0]
    ).all()


def test_the_filter_does_not_look_outside_the_box() -> None:
    surrounded = np.full_like(PHOTO, 255)
    surrounded[20:60, 30:70] = 5
    assert (rendered(surrounded, box=(20, 30, 40, 40), size=(13, 17)) == 5).all()


@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
def test_writes_into_a_strided_view(interpolation: str) -> None:
    batch = np.full((2, 32, 40, 6), 77, np.uint8)
    options = {"size": (32, 40), "interpolation": interpolation}
    expected = rendered(**options)
    render_into(
        PHOTO,
        box=np.array(WHOLE, np.int32),
        size=np.array([32, 40], np.int32),
        window=np.array([0, 0, 32, 40], np.int32),
        flip=np.array([False, False]),
        resampling=Resampling(interpolation),  # type: ignore[arg-type]
        out=batch[1, :, :, 2:5],
    )
    assert np.array_equal(batch[1, :, :, 2:5], expected)
    assert (batch[0] == 77).all()
    assert (batch[1, :, :, [0, 1, 5]] == 77).all()


def test_read_only_pixels_are_left_alone() -> None:
    pixels = PHOTO.copy()
    pixels.setflags(write=False)
    for size in [(90, 120), (20, 30)]:
        rendered(pixels, size=size, flip=(True, True))
    assert np.array_equal(pixels, PHOTO)


def check_without_simd() -> None:
    """On processors for which torch has no uint8 kernel the pixels are the same. Called where torch
    has none: test_colour_on_host.py has a process for that."""
    assert torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512")
    for c in (1, 3):
        for size in [(32, 32), (150, 150), (11, 200)]:
            expected = functional.resize(planes(PHOTO[..., :c]), list(size), antialias=True)
            found = rendered(PHOTO[..., :c], size=size)
            assert difference(found, image(expected)) <= 1, (c, size)


def test_what_a_resampling_does_not_say_is_as_in_torchvision() -> None:
    pixels, out = PHOTO[:30, :41], np.empty((21, 26, 3), np.uint8)
    made = {"box": (0, 0, 30, 41), "size": (15, 20), "window": (-2, -1, 21, 26)}
    render_into(pixels, **made, flip=(False, False), resampling=Resampling(), out=out)  # type: ignore[arg-type]
    wanted = functional.pad(functional.resize(planes(pixels), [15, 20]), [1, 2, 5, 4])
    assert difference(out, image(wanted)) <= 1
    outside = image(functional.pad(torch.ones((3, 15, 20)), [1, 2, 5, 4])) == 0
    assert not out[outside].any()


def test_what_a_warp_does_not_say_is_as_in_torchvision() -> None:
    pixels, out = PHOTO[:30, :41], np.empty((30, 41, 3), np.uint8)
    inverse = np.array([[1, 0, -2.375], [0, 1, 1.25], [0, 0, 1]])
    for bilinear in (False, True):
        mode = InterpolationMode.BILINEAR if bilinear else InterpolationMode.NEAREST
        sampling = WarpSampling("bilinear") if bilinear else WarpSampling()
        warp_into(pixels, inverse, sampling, out)
        moved = functional.affine(
            planes(pixels), 0, [2.375, -1.25], 1, [0, 0], interpolation=mode, fill=[0]
        )  # the fill of RandomAffine
        assert difference(out, image(moved)) <= bilinear


@pytest.mark.parametrize("channels", [1, 3])
def test_batches_in_host_memory_are_warped_by_the_core_as_by_torch(
    channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = torch.stack(
        [planes(PHOTO[:30, :41, :channels]), planes(PHOTO[20:50, 9:50, :channels])]
    )
    inverse = np.array([[[0.9, 0.2, -2.3], [-0.1, 1.1, 1.7], [0.001, 0.002, 1.0]], np.eye(3)])
    warp = Warp(inverse, np.linalg.inv(inverse), np.array([[25, 37]] * 2, np.int32))
    ways = [{}, {"fades": False}, {"mixes": True}]
    for interpolation in ("bilinear", "nearest"):
        for way in ways:
            sampling = WarpSampling(interpolation, (40.6,), **way)  # type: ignore[arg-type]
            made = warp_batch(pixels, warp, sampling)
            with monkeypatch.context() as patch:
                patch.setattr("fastload.native.available", lambda: False)
                by_torch = warp_batch(pixels, warp, sampling)
            assert made.shape == by_torch.shape == (2, channels, 25, 37)
            most = 1 if interpolation == "bilinear" else 0
            assert difference(made.numpy(), by_torch.numpy()) <= most, (interpolation, way)
            assert torch.equal(made[1], pixels[1, :, :25, :37])


@pytest.mark.parametrize(
    "window",
    [
        (-5, -7, 40, 55),
        (3, -4, 20, 60),
        (25, 30, 30, 11),
        (40, 0, 6, 9),
        (-9, 50, 9, 4),
        (0, 0, 30, 42),
    ],
)
@pytest.mark.parametrize("flip", [(False, False), (True, False), (False, True), (True, True)])
def test_a_window_that_reaches_out_of_an_image_shows_the_fill(
    window: tuple[int, int, int, int], flip: tuple[bool, bool]
) -> None:
    pixels, around = PHOTO[:30, :41], 100
    whole = np.empty((30 + 2 * around, 41 + 2 * around, 3), np.uint8)
    whole[:] = 123, 117, 104
    whole[around:-around, around:-around] = pixels
    top, left, height, width = window
    wanted = whole[top + around :, left + around :][:height, :width]
    wanted = wanted[:: -1 if flip[1] else 1, :: -1 if flip[0] else 1]
    found = rendered(pixels, window=window, flip=flip, fill=(123.0, 117.0, 104.0))
    assert np.array_equal(found, wanted)
