"""Albumentations' transforms of pixels and of those around them, against albumentations itself,
which is given our random numbers; the native core against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fastload
from fastload import native
from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.recipe import Recipe
from fastload.recipe.operation import Operation
from fastload.render import clahe
from fastload.render.host_colour import HostColour
from fastload.render.steps import ClaheSteps, ColourSteps
from tests.images import photo
from tests.test_recipe_albumentations import Scripted, far, only_op

A = pytest.importorskip("albumentations", reason="pip install .[albumentations]")

COUNT = 24
PHOTOS = np.stack([photo(41, 53, seed=n) for n in range(COUNT)])
PHOTOS[1] = np.random.default_rng(2).integers(0, 256, PHOTOS[1].shape)
PHOTOS[2] = PHOTOS[2, ..., :1]
PHOTOS[3, :9] = 250
DRAWS = Draws(1, 0, np.arange(COUNT))
CASES: dict[str, tuple[Any, int, int]] = {
    # What is made, how many random numbers it takes, how far its pixels may be away.
    "hsv": (lambda: A.HueSaturationValue(p=1), 3, 1),
    "hsv-far": (lambda: A.HueSaturationValue((-400, 300), (-300, 270), (-90, 280), p=1), 3, 1),
    "hue": (lambda: A.HueSaturationValue(30, 0, 0, p=1), 3, 1),
    "box": (lambda: A.Blur((3, 11), p=1), 1, 1),
    "median": (lambda: A.MedianBlur((3, 7), p=1), 1, 0),
    "median-large": (lambda: A.MedianBlur((9, 11), p=1), 1, 0),
    "motion": (lambda: A.MotionBlur((3, 11), p=1), 5, 1),
    "motion-still": (
        lambda: A.MotionBlur(
            (5, 9), allow_shifted=False, angle_range=(0, 90), direction_range=(0, 0), p=1
        ),
        5,
        1,
    ),
    "sharpen": (lambda: A.Sharpen(p=1), 2, 1),
    "sharpen-much": (lambda: A.Sharpen((0.5, 1.0), (0, 3), p=1), 2, 1),
    "gaussian": (lambda: A.GaussianBlur(p=1), 2, 1),
    "gaussian-sides": (lambda: A.GaussianBlur((0, 7), (0.3, 2.0), p=1), 2, 1),
    "clahe": (lambda: A.CLAHE(p=1), 1, 2),
    "clahe-tiles": (lambda: A.CLAHE((1, 9), (5, 3), p=1), 1, 2),
}


def by_torch(op: Operation, images: Any, draws: Draws = DRAWS) -> Any:
    made = op.apply(torch.from_numpy(images).permute(0, 3, 1, 2), draws, 0)
    return made.permute(0, 2, 3, 1).numpy()


def by_core(op: Operation, images: Any, draws: Draws = DRAWS) -> Any:
    height, width, channels = images.shape[1:]
    colour, made = HostColour(1), images.copy()
    colour.run(made, op.colour_steps(draws, 0, (channels, height, width)))
    colour.close()
    return made


def by_albumentations(transform: Any, images: Any, numbers: Any) -> Any:
    made = []
    for image, own in zip(images, numbers, strict=True):
        transform.py_random = Scripted(own)
        params = transform.get_params() | transform.get_params_dependent_on_data({}, {})
        made.append(transform.apply(image, **params))
    return np.stack(made)


@pytest.mark.filterwarnings("ignore:HueSaturationValue")
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_as_albumentations(name: str, channels: int) -> None:
    make, count, most = CASES[name]
    transform, images = make(), np.ascontiguousarray(PHOTOS[..., :channels])
    op = only_op(transform)
    wanted = by_albumentations(transform, images, DRAWS.uniform(0, count).tolist())
    found = by_torch(op, images)
    away = far(found, wanted.reshape(images.shape))
    assert away.max() <= (0 if name.startswith("clahe") and channels == 1 else most)
    assert away.mean() < 0.2
    assert (away > 2).mean() < 1e-4
    assert (found != images).any() or (name == "hue" and channels == 1)
    if native.available():
        np.testing.assert_array_equal(by_core(op, images), found)


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (9, 2), (3, 4), (17, 130)])
@pytest.mark.parametrize("name", ["median", "clahe", "clahe-tiles", "sharpen", "hsv-far"])
def test_images_of_few_pixels(name: str, size: tuple[int, int]) -> None:
    make, count, most = CASES[name]
    transform = make()
    op = only_op(transform)
    images = np.random.default_rng(3).integers(0, 256, (COUNT, *size, 3), dtype=np.uint8)
    if min(size) == 1 and name == "sharpen":
        with pytest.raises(ConfigurationError, match="choose a smaller blur_limit"):
            by_torch(op, images)
        return
    wanted = by_albumentations(transform, images, DRAWS.uniform(0, count).tolist())
    assert far(by_torch(op, images), wanted).max() <= most
    if native.available():
        np.testing.assert_array_equal(by_core(op, images), by_torch(op, images))


@pytest.mark.skipif(not native.available(), reason="needs the native core")
def test_clahe_without_the_native_core(monkeypatch: pytest.MonkeyPatch) -> None:
    op = only_op(A.CLAHE(p=0.6))
    found = by_torch(op, PHOTOS)
    monkeypatch.setattr(native, "available", lambda: False)
    other = by_torch(op, PHOTOS)
    assert far(found, other).max() <= 2
    rows = (found != PHOTOS).any(axis=(1, 2, 3))
    assert 5 < rows.sum() < COUNT
    assert np.array_equal(found[~rows], other[~rows])
    images = torch.zeros(1, 1, 4, 4, dtype=torch.uint8)
    assert not clahe.equalized(images, ClaheSteps(np.zeros(1), (8, 8))).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_some_samples_and_one_of_several(name: str) -> None:
    """Those that it is not done to stay as they are, in the core and by torch."""
    transform = CASES[name][0]()
    transform.p = 0.5
    one_of = A.OneOf([transform, A.HorizontalFlip(p=1)], p=0.7)
    for op in (only_op(transform), only_op(one_of)):
        found = by_torch(op, PHOTOS)
        left = (found == PHOTOS).all(axis=(1, 2, 3))
        assert 3 < left.sum() < COUNT - 3
        if native.available() and op.has_steps:
            np.testing.assert_array_equal(by_core(op, PHOTOS), found)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_brightness_and_contrast_in_the_core(channels: int) -> None:
    images = np.random.default_rng(4).integers(0, 256, (COUNT, 9, 11, channels), dtype=np.uint8)
    op = only_op(A.RandomBrightnessContrast(0.4, 0.5, p=1))
    (step,) = op.colour_steps(DRAWS, 0, (channels, 9, 11))
    assert isinstance(step, ColourSteps)
    if native.available():
        np.testing.assert_array_equal(by_core(op, images), by_torch(op, images))
    assert not only_op(A.RandomBrightnessContrast(brightness_by_max=False, p=1)).has_steps


@pytest.mark.skipif(not native.available(), reason="needs the native core")
@pytest.mark.parametrize(
    ("method", "given", "words"),
    [
        ("median", [np.full(2, 17, np.int32)], "1 to 15"),
        ("median", [np.full(2, 4, np.int32)], "odd numbers"),
        ("median", [np.full(3, 3, np.int32)], r"sides \(B,\)"),
        ("clahe", [np.full(2, np.nan), (8, 8)], "limits: from 0"),
        ("clahe", [np.ones(2), (0, 8)], "tiles"),
        ("clahe", [np.ones(2), (8, 257)], "tiles"),
        ("clahe", [np.ones(1), (8, 8)], r"limits \(B,\)"),
        ("convolve", [np.ones((2, 2, 2), np.float32)], "odd side"),
        ("convolve", [np.ones((2, 3, 5), np.float32)], "odd side"),
        ("convolve", [np.ones((2, 9, 9), np.float32)], "half of the kernels"),
    ],
)
def test_tables_that_do_not_fit_are_refused(method: str, given: list[Any], words: str) -> None:
    pool, images = native.NativePool(1), np.zeros((2, 4, 4, 3), np.uint8)
    with pytest.raises(ValueError, match=words):
        getattr(pool, method)(images, *given)
    pool.close()


@pytest.mark.skipif(not native.available(), reason="needs the native core")
def test_numbers_that_no_operation_makes_stay_within_the_image() -> None:
    """For the sanitizers."""
    pool, images = native.NativePool(1), PHOTOS[:4].copy()
    for number in (np.nan, np.inf, -np.inf, 3e38, 0.5):
        kernels = np.full((4, 5, 5), number, np.float32)
        assert pool.convolve(images, kernels).wait() == []
    for limit in (1e-9, 1e6):
        assert pool.clahe(images, np.full(4, limit), (64, 256)).wait() == []
    pool.close()


@pytest.mark.parametrize(
    ("transform", "why"),
    [
        (A.Sharpen(method="gaussian"), "wrap around"),
        (A.MedianBlur((3, 17)), "up to 15 pixels"),
        (A.GaussianBlur(sigma_limit=(0, 1)), "may be 0"),
        (A.CLAHE(tile_grid_size=(300, 8)), "above 256"),
        (A.Compose([A.ToFloat(), A.Blur()]), "after Normalize"),
    ],
)
def test_what_is_not_the_same_stays_as_it_is(transform: Any, why: str) -> None:
    (op,) = Recipe.from_transform(transform).ops
    assert op.is_opaque
    assert why in op.reason_not_placed(None)


@pytest.mark.parametrize("name", ["motion", "median", "hsv", "clahe"])
def test_tensors_of_other_numbers_are_refused(name: str) -> None:
    """Of which only the samples tell: they would be taken for bytes."""
    data = [(torch.rand(3, 20, 30), n) for n in range(2)]
    with (
        pytest.raises(ConfigurationError, match=r"needs uint8 images, got torch\.float32"),
        fastload.create_loader(data, transform=CASES[name][0](), num_workers=0) as loader,
    ):
        next(iter(loader))


def test_images_smaller_than_half_a_kernel_are_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"BoxBlur.*8x9 pixels.*smaller blur_limit"):
        fastload.create_loader(
            {"image": np.zeros((3, 8, 9, 3), np.uint8)}, transform=A.Blur((3, 17), p=1)
        )


@pytest.mark.slow
def test_a_loader_does_them_in_the_core_and_says_so() -> None:
    chain = [A.HueSaturationValue(), A.RandomBrightnessContrast(), A.CLAHE(p=0.3)]
    chain.append(A.OneOf([A.MotionBlur(), A.MedianBlur(), A.Blur(), A.Sharpen()], p=0.8))
    transform = A.Compose(chain)
    made = []
    for place in ("host", "device"):
        if place == "host" and not native.available():
            continue
        with fastload.create_loader(
            {"image": PHOTOS},
            batch_size=COUNT,
            transform=transform,
            options=fastload.BackendOptions(place=place),  # type: ignore[arg-type]
        ) as loader:
            reported = str(loader.explain())
            for name in ("HueSaturationValue", "CLAHE", "MotionBlur", "MedianBlur", "Sharpen"):
                assert name in reported
            made.append(next(iter(loader))["image"])
    assert (made[0] != torch.from_numpy(PHOTOS).permute(0, 3, 1, 2)).any()
    assert torch.equal(made[0], made[-1])
