"""Crops that depend on masks of classes, beside crops cut here with the same random numbers;
and mmsegmentation's pipeline, which has them."""

from __future__ import annotations

import math
import pickle
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload import native, pipelines
from fastload.backends.cache import CacheOptions
from fastload.backends.looked import counted
from fastload.draws import Draws
from fastload.errors import ConfigurationError, DecodeError
from fastload.geometry import Geometry, Resampling, View
from fastload.geometry.boxes import rescaled_sizes
from fastload.recipe.crop_by_classes import CropByClasses
from fastload.recipe.photometric_bytes import DistortBytes, PhotometricDistortionOfBytes
from fastload.recipe.transforms import FixedSizeCrop, RandomRescale
from fastload.render.host import places_shown, render_row
from tests.images import png, write_photos_with_masks

SIZES = [(40, 60), (90, 50), (64, 64), (30, 100), (70, 80), (48, 48)]
CROP = 32


def a_mask(size: tuple[int, int], seed: int) -> Any:
    """Class 1 almost everywhere, 2 in a corner, 255 in a stripe."""
    mask = np.ones(size, np.uint8)
    mask[: size[0] // 2, : size[1] // 2] = 2 + seed % 2
    mask[:, -6:] = 255
    return mask


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("classes")
    return write_photos_with_masks(root, [a_mask(size, n) for n, size in enumerate(SIZES)])


def cut_by_hand(mask: Any, uniforms: Any, trials: int, most: float) -> tuple[Any, int]:
    """As mmsegmentation's RandomCrop does it; and how many crops were drawn."""
    kept = [min(side, CROP) for side in mask.shape]
    for trial in range(trials + 1):
        top, left = (
            int(u * (side - extent + 1))
            for u, side, extent in zip(uniforms[2 * trial :][:2], mask.shape, kept, strict=True)
        )
        cut = mask[top : top + kept[0], left : left + kept[1]]
        counts = np.bincount(cut[cut != 255], minlength=2)
        if trial == trials or ((counts > 0).sum() > 1 and counts.max() / counts.sum() < most):
            break
    return cut, trial + 1


@pytest.mark.parametrize("backend", ["turbojpeg", "torch", "cache"])
def test_crops_are_drawn_again_until_no_class_has_too_much(
    folder: Path, backend: str, tmp_path: Path
) -> None:
    crop = CropByClasses(CROP, max_ratio=0.6, trials=4)
    transform = v2.Compose([crop, FixedSizeCrop(CROP, mask_fill=9), v2.ToImage()])
    tries = []
    how: dict[str, Any] = {"backend": backend}
    if backend == "cache":
        how["options"] = CacheOptions(directory=tmp_path)
    with fastload.create_loader(folder, 3, transform=transform, seed=2, **how) as loader:
        for epoch in range(3):
            found = [mask for _, masks in loader for mask in masks.numpy()]
            for number, (mask, size) in enumerate(zip(found, SIZES, strict=True)):
                uniforms = Draws(2, epoch, np.array([number])).uniform(0, 10)[0]
                cut, tried = cut_by_hand(a_mask(size, number), uniforms, 4, 0.6)
                spare = [(0, CROP - side) for side in cut.shape]
                np.testing.assert_array_equal(mask, np.pad(cut, spare, constant_values=9))
                tries.append(tried)
    assert {1, 5} < set(tries)  # accepted at once, after some, and never


def test_masks_of_a_smaller_cache_are_looked_at(folder: Path, tmp_path: Path) -> None:
    """They are of other sizes than those of the files; stripes and corners stay as large a part."""
    options = CacheOptions(directory=tmp_path, short_side=28)
    most = []
    for trials in (0, 30):
        crop = CropByClasses(20, max_ratio=0.6, trials=trials)
        transform = v2.Compose([crop, FixedSizeCrop(20, mask_fill=255), v2.ToImage()])
        with fastload.create_loader(
            folder, 6, transform=transform, seed=2, backend="cache", options=options
        ) as loader:
            masks = [mask for _ in range(8) for _, batch in loader for mask in batch.numpy()]
        counts = [np.bincount(mask[mask != 255], minlength=2) for mask in masks]
        most.append(np.mean([one.max() / one.sum() >= 0.6 for one in counts]))
    assert most[1] < most[0] / 2


def test_images_are_cut_where_their_masks_are(tmp_path: Path) -> None:
    """The picture is its mask."""
    masks = np.stack([a_mask((60, 70), n) for n in range(4)])
    arrays = {"image": np.repeat(masks[..., None], 3, axis=3), "mask": masks}
    steps = [v2.Resize((50, 80)), CropByClasses((24, 40), max_ratio=0.7), v2.RandomVerticalFlip()]
    nearest = v2.InterpolationMode.NEAREST
    steps[0] = v2.Resize((50, 80), interpolation=nearest)
    with fastload.create_loader(arrays, 4, transform=v2.Compose([*steps, v2.ToImage()])) as loader:
        batch = next(iter(loader))
    assert batch["mask"].shape == (4, 24, 40)
    assert torch.equal(batch["image"][:, 0], batch["mask"])


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([v2.Resize(50), CropByClasses(9), v2.Resize((5, 5))], None),
        ([v2.Resize(40), v2.Resize(50), CropByClasses(9)], "after two resizes"),
        # The second is equal to the first, which may be there.
        ([v2.Resize(40), CropByClasses(9), v2.Resize(50), CropByClasses(9)], "after two resizes"),
    ],
)
def test_where_masks_are_looked_at(folder: Path, steps: Any, words: str | None) -> None:
    transform = v2.Compose([*steps, v2.ToImage()])
    if words is None:
        with fastload.create_loader(folder, 3, transform=transform) as loader:
            assert next(iter(loader))[1].shape == (3, 5, 5)
        return
    with pytest.raises(ConfigurationError, match=words):
        fastload.create_loader(folder, 3, transform=transform)


@pytest.mark.parametrize("size", [None, (9, 9)])
def test_masks_that_do_not_fit_are_named(size: Any, tmp_path: Path) -> None:
    """None: it is no image."""
    for part in ("images", "masks"):
        (tmp_path / part).mkdir()
        for number in range(2):
            data = png(a_mask((40, 60), number))
            (tmp_path / part / f"{number}.png").write_bytes(data)
    bad = b"broken" if size is None else png(a_mask(size, 0))
    (tmp_path / "masks" / "1.png").write_bytes(bad)
    transform = v2.Compose([CropByClasses(CROP), FixedSizeCrop(CROP), v2.ToImage()])
    with (
        fastload.create_loader(tmp_path, 2, transform=transform, backend="turbojpeg") as loader,
        pytest.raises(DecodeError, match=r"1\.png"),
    ):
        next(iter(loader))


@pytest.mark.parametrize("backend", ["turbojpeg", "torch"])
def test_crops_are_chosen_beside_masks_that_cannot_be_read(
    folder: Path, backend: Any, tmp_path: Path
) -> None:
    """A sample whose mask is broken is substituted; the others of its batch are as before."""
    broken = Path(shutil.copytree(folder, tmp_path / "broken"))
    (broken / "masks" / "3.png").write_bytes(png(a_mask(SIZES[3], 3))[:60])
    crop = CropByClasses(CROP, max_ratio=0.6, trials=4)
    transform = v2.Compose([crop, FixedSizeCrop(CROP, mask_fill=9), v2.ToImage()])
    how: dict[str, Any] = {"transform": transform, "seed": 2, "backend": backend}
    with fastload.create_loader(folder, 6, **how) as loader:
        ((images, masks),) = loader
    with fastload.create_loader(broken, 6, on_error="substitute", **how) as loader:
        ((others, their_masks),) = loader
        assert loader.stats().substituted == 1
    same = [number for number in range(6) if number != 3]
    assert torch.equal(images[same], others[same])
    assert torch.equal(masks[same], their_masks[same])
    assert not torch.equal(images[3], others[3])


@pytest.mark.parametrize("built", [True, False])
def test_classes_are_counted_in_what_a_crop_shows(built: bool) -> None:
    """Beside masks that are rendered."""
    rng = np.random.default_rng(3)
    mask = rng.integers(0, 256, (50, 70, 1), dtype=np.uint8)
    given = {
        "box": [[0, 0, 50, 70], [3, 5, 40, 61], [10, 0, 40, 70], [0, 0, 50, 70]],
        "size": [[50, 70], [97, 33], [20, 90], [50, 70]],
        "window": [[5, 6, 30, 41], [-4, 7, 90, 40], [0, -3, 25, 99], [60, 80, 5, 6]],
    }
    arrays = {name: np.array(rows, np.int32) for name, rows in given.items()}
    flips = rng.random((2, 4, 2)) < 0.5
    geometry = Geometry(**arrays, flip=flips[0], flipped_first=flips[1])
    sampling = Resampling("nearest", fill=(7.0,))
    with nullcontext() if built else mock.patch.object(native, "available", return_value=False):
        for row, (_, _, height, width) in enumerate(arrays["window"].tolist()):
            out = np.empty((4, height, width, 1), np.uint8)
            render_row(mask, row, View(geometry, sampling, out))
            found = counted(mask, *places_shown(geometry, row, sampling), 7)
            np.testing.assert_array_equal(found, np.bincount(out[row].ravel(), minlength=256))


def test_classes_of_16_bits_are_counted() -> None:
    """-1 is padding, here of class 5."""
    mask = np.full((4, 3, 1), 300, np.uint16)
    mask[1, 2] = 44  # as a byte, 300 would be that
    counts = counted(mask, np.array([-1, 0, 1]), np.array([1, 2]), 5)
    assert (counts[300], counts[44], counts[5], counts.sum()) == (3, 1, 2, 6)


def test_crops_by_classes_are_refused_without_masks() -> None:
    arrays = {"image": np.zeros((2, 40, 50, 3), np.uint8)}
    with pytest.raises(ConfigurationError, match="CropByClasses depends on a mask of classes"):
        fastload.create_loader(arrays, 1, transform=CropByClasses(9))
    with pytest.raises(ConfigurationError, match="create_loader"):
        CropByClasses(9)(1)
    wrong: list[dict[str, Any]] = [
        {"max_ratio": 0},
        {"ignored": (300,)},
        {"ignored": (1.5,)},
        {"trials": 5_000},
        *({"size": size} for size in (0, True, 9.5, (9, 8.5), (9, 9, 9))),
    ]
    for given in wrong:
        with pytest.raises(ConfigurationError, match="must be"):
            CropByClasses(**{"size": 9, **given})
    assert CropByClasses((9, 8)).size == (9, 8)


def test_sizes_are_those_of_mmcv() -> None:
    rng = np.random.default_rng(0)
    sizes, ratio = rng.integers(20, 900, (300, 2)), rng.uniform(0.5, 2, 300)
    sizes[0], ratio[0] = (400, 600), 451 / 512 + 1e-9  # 676.5 is rounded up
    for (height, width), part, found in zip(
        sizes, ratio, rescaled_sizes(sizes, (2048, 512), ratio), strict=True
    ):
        longer, shorter = int(2048 * part), int(512 * part)
        factor = min(longer / max(height, width), shorter / min(height, width))
        assert found.tolist() == [math.floor(side * factor + 0.5) for side in (height, width)]
    assert rescaled_sizes(sizes[:1], (2048, 512), ratio[:1]).tolist() == [[451, 677]]
    transform = RandomRescale((64, 32), ratio=(1.0, 1.0))
    assert transform(torch.zeros(3, 20, 80)).shape == (3, 16, 64)


@pytest.mark.parametrize("fused", [True, False])
def test_colours_are_opencvs(fused: bool) -> None:
    """Brightness and contrast exactly, saturation and hue within 2 of 255."""
    cv2 = pytest.importorskip("cv2")
    image = np.random.default_rng(1).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    nan = math.nan

    def changed(pixels: Any, factor: float = 1, added: float = 0) -> Any:
        return np.clip(pixels.astype(np.float32) * factor + added, 0, 255).astype(np.uint8)

    def of_hsv(pixels: Any, channel: int, change: Any) -> Any:
        hsv = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV)
        hsv[..., channel] = change(hsv[..., channel])
        return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)

    hue = of_hsv(image, 0, lambda values: (values.astype(int) - 13) % 180)
    cases = [
        ((10.7, nan, nan, nan, nan), changed(image, added=10.7), 0),
        ((-10.7, 1.3, nan, nan, nan), changed(changed(image, added=-10.7), 1.3), 0),
        ((nan, nan, nan, nan, 0.7), changed(image, 0.7), 0),
        ((nan, nan, 1.4, nan, nan), of_hsv(image, 1, lambda values: changed(values, 1.4)), 2),
        ((nan, nan, nan, -13.0, nan), hue, 2),
    ]
    images = torch.from_numpy(image).permute(2, 0, 1)[None]
    for numbers, wanted, most in cases:
        given = mock.patch.object(DistortBytes, "numbers", lambda *_, n=numbers: np.array([n]))
        by_torch = mock.patch("fastload.render.fused.active", return_value=False)
        with given, nullcontext() if fused else by_torch:
            made = DistortBytes().apply(images, Draws(0, 0, np.zeros(1, np.int64)), 0)
        apart = np.abs(made[0].permute(1, 2, 0).numpy().astype(int) - wanted)
        assert apart.max() <= most
    with pytest.raises(ConfigurationError, match="create_loader"):
        PhotometricDistortionOfBytes()(1)


def test_a_loader_distorts_by_the_same_arithmetic() -> None:
    """The native core does it there, before batches are copied."""
    pixels = np.random.default_rng(1).integers(0, 256, (64, 20, 30, 3), dtype=np.uint8)
    transform = v2.Compose([v2.ToImage(), PhotometricDistortionOfBytes()])
    with fastload.create_loader({"image": pixels}, 64, transform=transform, seed=3) as loader:
        (batch,) = loader
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    with mock.patch("fastload.render.fused.active", return_value=False):
        wanted = DistortBytes().apply(images, Draws(3, 0, np.arange(64)), 0)
    assert torch.equal(batch["image"], wanted)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"brightness_delta": -1}, "brightness_delta: must be a number from 0 to 255"),
        ({"brightness_delta": math.nan}, "brightness_delta: must be"),
        ({"contrast_range": (1.5, 0.5)}, r"contrast_range: must be \(low, high\)"),
        ({"contrast_range": (0.5, 1.0, 1.5)}, "contrast_range: must be"),
        ({"saturation_range": (-0.5, 1.5)}, "saturation_range: must be"),
        ({"saturation_range": (0.5, math.inf)}, "saturation_range: must be"),
        ({"hue_delta": 18.5}, "hue_delta: must be an int"),
        ({"hue_delta": -1}, "hue_delta: must be an int"),
    ],
)
def test_distortions_that_are_none_are_refused(given: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        PhotometricDistortionOfBytes(**given)


def test_brightness_is_not_cut_to_whole_numbers() -> None:
    transform = v2.Compose([v2.ToImage(), PhotometricDistortionOfBytes(0.5, hue_delta=0)])
    pixels = np.full((1, 4, 4, 3), 100, np.uint8)
    with fastload.create_loader({"image": pixels}, 1, transform=transform) as loader:
        assert "brightness_delta=0.5" in str(loader.explain())
    most = PhotometricDistortionOfBytes(32.5).brightness_delta
    drawn = DistortBytes(most).numbers(Draws(0, 0, np.arange(4_000)), 0)[:, 0]
    assert 32 < np.nanmax(drawn) <= 32.5


def test_half_of_the_distortions_are_left_out() -> None:
    numbers = DistortBytes().numbers(Draws(0, 0, np.arange(4_000)), 0)
    there = ~np.isnan(numbers)
    np.testing.assert_allclose(there.mean(axis=0), [0.5, 0.25, 0.5, 0.5, 0.25], atol=0.04)
    assert not (there[:, 1] & there[:, 4]).any()
    assert set(numbers[there[:, 3], 3]) == set(range(-18, 18))
    assert np.nanmin(numbers[:, 0]) >= -32
    assert np.nanmax(numbers[:, 0]) <= 32


def test_batches_of_mmsegmentation(folder: Path) -> None:
    batches = pickle.loads(pickle.dumps(pipelines.mmsegmentation_batches(reduce_zero_label=True)))
    transform = pipelines.mmsegmentation((40, 64), scale=(96, 40), reduce_zero_label=True)
    padded = 0
    with fastload.create_loader(
        folder, 3, transform=transform, batch_transform=batches, seed=3
    ) as loader:
        for _ in range(3):
            for images, masks in loader:
                assert (images.dtype, images.shape) == (torch.float32, (3, 3, 40, 64))
                assert (masks.dtype, masks.shape) == (torch.int64, (3, 40, 64))
                assert set(masks.unique().tolist()) <= {0, 1, 2, 255}
                nothing = (images == 0).all(dim=1)
                assert (masks[nothing] == 255).all()
                padded += int(nothing.any())
    assert padded > 2
    kept = pipelines.mmsegmentation_batches()(
        torch.ones(1, 3, 1, 2), torch.tensor([[[0, 7]]]), torch.tensor([[[True, False]]])
    )
    assert kept[0][0, 0].tolist() == [[0, 1]]
    assert kept[1].tolist() == [[[0, 7]]]
    mapped = batches(
        torch.ones(1, 3, 1, 3),
        torch.tensor([[[0, 255, 7]]], dtype=torch.uint8),
        torch.zeros(1, 1, 3, dtype=torch.bool),
    )
    assert mapped[1].tolist() == [[[255, 255, 6]]]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pipelines.mmsegmentation(512), "crop_size: must be two whole numbers"),
        (lambda: pipelines.mmsegmentation(scale=(0, 5)), "scale: must be an int of at least 1"),
        (lambda: pipelines.mmsegmentation(ratio_range=(2, 1)), "ratio_range: must be"),
        (lambda: pipelines.mmsegmentation(cat_max_ratio=0), "cat_max_ratio: must be"),
        (lambda: pipelines.mmsegmentation(prob=2), "prob: must be a probability"),
        (lambda: pipelines.mmsegmentation(std=(1, 2, 0)), "std: must be three numbers above 0"),
        (lambda: pipelines.mmsegmentation(reduce_zero_label=3), "reduce_zero_label"),
        (lambda: pipelines.mmsegmentation(pad_val=3), "no argument 'pad_val'"),
    ],
)
def test_arguments_that_are_none_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()
