"""nnU-Net's augmentation of images and masks, each of its operations beside the same made here by
numpy and torch with the same random numbers."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional
from torchvision.transforms import v2

import fastload
from fastload import pipelines
from fastload.backends.cache import CacheOptions
from fastload.draws import Draws
from fastload.errors import ConfigurationError, DecodeError
from fastload.pipelines.of_nnunet import initial_patch_size
from fastload.recipe import intensities
from fastload.recipe.crop_with_foreground import CropWithForeground
from fastload.recipe.intensities import ChangedIntensities, ChangeIntensities
from fastload.recipe.turned_and_scaled import TurnAndScale, TurnedAndScaled
from fastload.render.noise import normals
from tests.images import photo, png, write_photos_with_masks
from tests.samples import assert_resumes_equal, by_label

SIZES = [(40, 60), (90, 50), (64, 64), (20, 100), (30, 30), (48, 48)]
SIZE, SHOWN = 36, 28
HALF_TURN = (-math.pi, math.pi)


def a_mask(size: tuple[int, int], number: int) -> Any:
    """Class 2 in a corner, 5 in a stripe; of number 4 no class at all."""
    mask = np.zeros(size, np.uint8)
    if number != 4:
        mask[: size[0] // 3, : size[1] // 4] = 2
        mask[:, -6:] = 5
    return mask


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("patches")
    return write_photos_with_masks(root, [a_mask(size, n) for n, size in enumerate(SIZES)])


def start_of(mask: Any, uniforms: Any, p: float) -> list[int]:
    """As nnU-Net's `get_bbox` finds it."""
    starts, classes = [], sorted(set(mask[mask > 0].tolist()))
    pixel = None
    if uniforms[0] < p and classes:
        places = np.argwhere(mask == classes[math.floor(uniforms[1] * len(classes))])
        pixel = places[math.floor(uniforms[2] * len(places))]
    for axis, side in enumerate(mask.shape):
        padding = SIZE - SHOWN
        if padding + side < SIZE:
            padding = SIZE - side
        low = -padding // 2
        high = side + padding // 2 + padding % 2 - SIZE
        if pixel is None:
            starts.append(low + math.floor(uniforms[3 + axis] * (high - low + 1)))
        else:
            starts.append(max(low, int(pixel[axis]) - SIZE // 2))
    return starts


@pytest.mark.parametrize("backend", ["turbojpeg", "torch", "cache"])
def test_crops_are_about_pixels_of_classes(folder: Path, backend: str, tmp_path: Path) -> None:
    crop = CropWithForeground(SIZE, shown=SHOWN, p=0.5)
    how: dict[str, Any] = {"backend": backend}
    if backend == "cache":
        how["options"] = CacheOptions(directory=tmp_path)
    transform, outside, about = v2.Compose([crop, v2.ToImage()]), 0, 0
    with fastload.create_loader(folder, 3, transform=transform, seed=2, **how) as loader:
        for epoch in range(4):
            found = [pair for batch in loader for pair in zip(*batch, strict=True)]
            for number, (image, mask) in enumerate(found):
                size = SIZES[number]
                uniforms = Draws(2, epoch, np.array([number])).uniform(0, 5)[0]
                top, left = start_of(a_mask(size, number), uniforms, 0.5)
                wide = [(100, 100), (100, 100)]
                cut = slice(100 + top, 100 + top + SIZE), slice(100 + left, 100 + left + SIZE)
                np.testing.assert_array_equal(mask, np.pad(a_mask(size, number), wide)[cut])
                pixels = np.pad(photo(*size, seed=number), [*wide, (0, 0)])[cut]
                np.testing.assert_array_equal(image.permute(1, 2, 0), pixels)
                outside += int(top + SIZE > size[0] + (SIZE - SHOWN + 1) // 2)
                about += int(uniforms[0] < 0.5)
    assert outside > 2
    assert about > 5


def test_crops_about_pixels_follow_what_comes_before() -> None:
    """The place is one of the mask as it is by then; the picture is its mask."""
    masks = np.stack([a_mask((60, 70), n) for n in (0, 1, 2, 3) * 4])
    arrays = {"image": np.repeat(masks[..., None], 3, axis=3), "mask": masks}
    resize = v2.Resize((50, 80), interpolation=v2.InterpolationMode.NEAREST)
    before = (v2.ToImage(), resize, v2.RandomHorizontalFlip(), v2.RandomVerticalFlip())
    transform = v2.Compose([*before, CropWithForeground(9, shown=9, p=1)])
    with fastload.create_loader(arrays, 16, transform=transform) as loader:
        (batch,) = loader
    assert torch.equal(batch["image"][:, 0], batch["mask"])
    assert set(batch["mask"][:, 4, 4].tolist()) == {2, 5}


def bilinear(plane: Any, y: float, x: float) -> float:
    """Between pixels, zeros outside."""
    top, left, total = math.floor(y), math.floor(x), 0.0
    for row in (top, top + 1):
        for column in (left, left + 1):
            if 0 <= row < plane.shape[0] and 0 <= column < plane.shape[1]:
                share = (1 - abs(y - row)) * (1 - abs(x - column))
                total += share * float(plane[row, column])
    return total


def test_turned_and_scaled_pixels_are_those_of_their_places() -> None:
    """Beside loops over pixels, with a matrix made here."""
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.random((12, 2, 21, 26), dtype=np.float32))
    masks = torch.from_numpy(rng.choice([0, 3, 7], (12, 1, 21, 26)).astype(np.uint8))
    op = TurnAndScale((16, 20), 0.4, HALF_TURN, 0.4, (0.7, 1.4))
    draws = Draws(5, 1, np.arange(12))
    made, classes = op.apply(images, draws, 3), op.apply_to_masks(masks, draws, 3)
    kept = 0
    for row, (turned, scaled, angle, scale) in enumerate(draws.uniform(3, 4)):
        angle = -math.pi + 2 * math.pi * angle if turned < 0.4 else 0.0
        scale = 0.7 + 0.7 * scale if scaled < 0.4 else 1.0
        if turned >= 0.4 <= scaled:
            kept += 1
            assert torch.equal(made[row], images[row, :, 2:18, 3:23])
            assert torch.equal(classes[row], masks[row, :, 2:18, 3:23])
            continue
        for y, x in ((0, 0), (5, 17), (15, 19), (8, 10), (15, 0)):
            down, across = y - 7.5, x - 9.5
            source_y = scale * (math.cos(angle) * down - math.sin(angle) * across) + 10
            source_x = scale * (math.sin(angle) * down + math.cos(angle) * across) + 12.5
            for channel in range(2):
                wanted = bilinear(images[row, channel].numpy(), source_y, source_x)
                assert made[row, channel, y, x].item() == pytest.approx(wanted, abs=1e-5)
            shares = {
                kind: bilinear(masks[row, 0].numpy() == kind, source_y, source_x)
                for kind in (0, 3, 7)
            }
            inside = 0 <= source_y <= 20 and 0 <= source_x <= 25
            best = max(shares, key=lambda kind: shares[kind]) if inside else 0
            clear = sorted(shares.values())[-1] - sorted(shares.values())[-2] > 1e-3
            assert not clear or classes[row, 0, y, x] == best
    assert 0 < kept < 12


def only(kind: int) -> Any:
    """One change alone, of every sample."""
    chosen = [0.0] * len(intensities.PROBABILITIES)
    chosen[kind] = 1.0
    return mock.patch.object(intensities, "PROBABILITIES", tuple(chosen))


def changed(kind: int, images: torch.Tensor, draws: Draws) -> torch.Tensor:
    before = images.clone()
    with only(kind):
        made = ChangeIntensities().apply(images, draws, 4)
    assert torch.equal(images, before)
    return made


IMAGES = torch.from_numpy(np.random.default_rng(1).random((6, 3, 20, 25), dtype=np.float32)) - 0.3
DRAWS = Draws(1, 2, np.arange(6))


def of_channels(kind: int) -> Any:
    """(6, 3, 4) uniform numbers."""
    return DRAWS.within(4).uniform(kind, 13)[:, 1:].reshape(6, 3, 4)


def factor_of(low: float, high: float, drawn: Any) -> float:
    below = low + drawn[1] * (1 - low)
    return float(below if drawn[0] < 0.5 else 1 + drawn[1] * (high - 1))


def test_noise_is_of_one_deviation_a_sample() -> None:
    found = changed(intensities.NOISE, IMAGES, DRAWS) - IMAGES
    keys = DRAWS.within(4).integers(len(intensities.PROBABILITIES))
    numbers = normals(keys, 3 * 20 * 25, torch.device("cpu")).view(IMAGES.shape)
    deviations = 0.1 * of_channels(intensities.NOISE)[:, 0, 0]
    wanted = numbers * torch.from_numpy(deviations).float()[:, None, None, None]
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


def test_blur_has_as_many_taps_as_its_deviation_asks_for() -> None:
    made, blurred, lengths = changed(intensities.BLUR, IMAGES, DRAWS), 0, set()
    for row, channels in enumerate(of_channels(intensities.BLUR)):
        for channel, drawn in enumerate(channels):
            wanted = IMAGES[row, channel].numpy()
            if drawn[0] < 0.5:
                blurred += 1
                for axis, uniform in enumerate(drawn[1:3]):
                    sigma = 0.5 + 0.5 * uniform
                    # The odd number next to 6 sigma + 0.5; above, where two are as near.
                    length = 2 * math.floor((6 * sigma + 0.5) / 2) + 1
                    lengths.add(length)
                    away = np.arange(length) - length // 2
                    curve = np.exp(-0.5 * (away / sigma) ** 2)
                    padding = [(0, 0), (0, 0)]
                    padding[axis] = (length // 2, length // 2)
                    wanted = np.apply_along_axis(
                        np.convolve,
                        axis,
                        np.pad(wanted, padding, "reflect"),
                        curve / curve.sum(),
                        "valid",
                    )
            np.testing.assert_allclose(made[row, channel], wanted, atol=1e-6)
    assert 0 < blurred < 18
    assert lengths == {3, 5, 7}


@pytest.mark.parametrize("kind", [intensities.BRIGHTNESS, intensities.CONTRAST])
def test_factors_are_of_channels(kind: int) -> None:
    made, below = changed(kind, IMAGES, DRAWS), 0
    for row, channels in enumerate(of_channels(kind)):
        for channel, drawn in enumerate(channels):
            given, factor = IMAGES[row, channel], factor_of(0.75, 1.25, drawn)
            below += factor < 1
            wanted = given * factor
            if kind == intensities.CONTRAST:
                wanted = (given - given.mean()) * factor + given.mean()
                wanted = wanted.clamp(given.min(), given.max())
            torch.testing.assert_close(made[row, channel], wanted, atol=1e-6, rtol=0)
    assert 0 < below < 18


def test_lower_resolutions_are_those_of_torchs_interpolation() -> None:
    made, lowered = changed(intensities.LOW_RESOLUTION, IMAGES, DRAWS), 0
    for row, channels in enumerate(of_channels(intensities.LOW_RESOLUTION)):
        for channel, drawn in enumerate(channels):
            wanted = IMAGES[row, channel][None, None]
            if drawn[0] < 0.5:
                lowered += 1
                size = [round(side * (0.5 + 0.5 * drawn[1])) for side in (20, 25)]
                wanted = functional.interpolate(wanted, size, mode="nearest-exact")
                wanted = functional.interpolate(wanted, (20, 25), mode="bilinear")
            torch.testing.assert_close(made[row, channel], wanted[0, 0], atol=1e-6, rtol=0)
    assert 0 < lowered < 18


@pytest.mark.parametrize("kind", [intensities.GAMMA, intensities.INVERTED_GAMMA])
def test_gamma_keeps_mean_and_deviation(kind: int) -> None:
    images = IMAGES.clone()
    images[2, 1] = 0.25  # of one colour, which has no range
    made, sign = changed(kind, images, DRAWS), -1 if kind == intensities.INVERTED_GAMMA else 1
    for row, channels in enumerate(of_channels(kind)):
        for channel, drawn in enumerate(channels):
            given = sign * images[row, channel].double().numpy()
            extent = given.max() - given.min()
            wanted = (given - given.min()) / max(extent, 1e-7)
            wanted = wanted ** factor_of(0.7, 1.5, drawn) * extent + given.min()
            wanted = (wanted - wanted.mean()) * given.std(ddof=1) / max(wanted.std(ddof=1), 1e-7)
            wanted = sign * (wanted + given.mean())
            np.testing.assert_allclose(made[row, channel], wanted, atol=2e-6)


def test_changes_are_as_frequent_as_the_trainers() -> None:
    images, draws = torch.rand(1, 1, 8, 8).expand(6_000, 1, 8, 8), Draws(3, 0, np.arange(6_000))
    for kind, p in enumerate(intensities.PROBABILITIES):
        chosen = [0.0] * len(intensities.PROBABILITIES)
        chosen[kind] = p
        with mock.patch.object(intensities, "PROBABILITIES", tuple(chosen)):
            made = ChangeIntensities().apply(images, draws, 0)
        of_a_channel = 0.5 if kind in (intensities.BLUR, intensities.LOW_RESOLUTION) else 1.0
        share = (made != images).flatten(1).any(dim=1).double().mean().item()
        assert share == pytest.approx(p * of_a_channel, abs=0.02)


def test_the_samples_of_a_loader_depend_on_nothing_else(folder: Path) -> None:
    """Of one batch and of several."""
    transform, made = pipelines.nnunet_2d((24, 20)), []
    for batch_size in (6, 2, 1):
        with fastload.create_loader(folder, batch_size, transform=transform, seed=4) as loader:
            assert "ChangeIntensities() -> device" in str(loader.explain())
            parts = [batch for _ in range(3) for batch in loader]
        made.append([torch.cat(column) for column in zip(*parts, strict=True)])
    for images, masks in made:
        assert (images.shape, images.dtype) == ((18, 3, 24, 20), torch.float32)
        assert (masks.shape, masks.dtype) == ((18, 24, 20), torch.uint8)
        torch.testing.assert_close(images, made[0][0], atol=1e-6, rtol=0)
        assert torch.equal(masks, made[0][1])
    assert set(made[0][1].unique().tolist()) == {0, 2, 5}


def test_images_are_mirrored_with_their_masks() -> None:
    """Where nothing else changes a picture that is its mask, it stays that."""
    masks = np.stack([a_mask((60, 70), n) for n in range(4)]).repeat(16, axis=0)
    arrays = {"image": masks, "mask": masks}
    nothing = mock.patch.object(intensities, "PROBABILITIES", (0.0,) * 7)
    nowhere = mock.patch.object(
        TurnAndScale, "matrices", return_value=(np.zeros((64, 2, 2)), np.zeros(64, bool))
    )
    crops = []
    with nowhere, nothing:
        for axes in ((0, 1), ()):
            transform = pipelines.nnunet_2d((24, 20), mirror_axes=axes, normalization="nonorm")
            with fastload.create_loader(arrays, 64, transform=transform, seed=4) as loader:
                (batch,) = loader
            assert torch.equal(batch["image"][:, 0], batch["mask"].float())
            crops.append(batch["mask"])
    mirrored, plain = crops
    ways: set[tuple[int, ...]] = set()
    for one, other in zip(mirrored, plain, strict=True):
        fits = [a for a in ((), (0,), (1,), (0, 1)) if torch.equal(one, other.flip(a))]
        assert fits
        ways |= set(fits) if len(fits) == 1 else set()
    assert len(ways) == 4


@pytest.mark.parametrize(
    ("patch", "degrees", "size"),
    [
        ((224, 224), 180, (263, 263)),
        ((512, 512), 180, (602, 602)),
        ((128, 512), 15, (301, 602)),
        ((320, 256), 180, (376, 376)),
        ((100, 160), 15, (162, 188)),
        ((64, 64), 30, (102, 75)),
    ],
)
def test_first_crops_are_as_large_as_the_trainers(patch: Any, degrees: int, size: Any) -> None:
    """The numbers are what nnunetv2 2.8.1's get_patch_size has returned."""
    most = math.radians(degrees)
    assert initial_patch_size(patch, (-most, most)) == size
    angles = None if degrees != 30 else (-most, most)
    first = pipelines.nnunet_2d(patch, rotation_for_DA=angles).transforms[0]
    assert (first.size, first.shown) == (size, patch)


def test_batches_have_targets_of_several_sizes(folder: Path) -> None:
    scales = [[1.0, 1.0], [0.5, 0.5], 0.25]
    batches = pickle.loads(
        pickle.dumps(pipelines.nnunet_2d_batches(deep_supervision_scales=scales))
    )
    transform = pipelines.nnunet_2d((24, 20))
    with fastload.create_loader(folder, 3, transform=transform, batch_transform=batches) as loader:
        batch = next(iter(loader))
    assert sorted(batch) == ["data", "target"]
    assert batch["data"].shape == (3, 3, 24, 20)
    whole, half, quarter = batch["target"]
    assert {whole.dtype, half.dtype, quarter.dtype} == {torch.int16}
    assert [tuple(one.shape) for one in (whole, half, quarter)] == [
        (3, 1, 24, 20),
        (3, 1, 12, 10),
        (3, 1, 6, 5),
    ]
    assert torch.equal(half, whole[:, :, 1::2, 1::2])
    plain = pipelines.nnunet_2d_batches()(batch["data"], whole[:, 0].to(torch.uint8))
    assert torch.equal(plain["target"], whole)
    with pytest.raises(ConfigurationError, match="images and masks, and got 1 parts"):
        pipelines.nnunet_2d_batches()(batch["data"])  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="images and masks, and got 2 parts"):
        pipelines.nnunet_2d_batches()(batch["data"], torch.zeros(3))
    with pytest.raises(ConfigurationError, match="images and masks, and got 2 parts"):
        pipelines.nnunet_2d_batches()([batch["data"]], [batch["data"]])  # type: ignore[arg-type]


def test_an_interrupted_epoch_goes_on_with_the_same_samples() -> None:
    """Labels say which samples they are."""
    pixels = np.random.default_rng(0).integers(0, 256, (12, 40, 50), dtype=np.uint8)
    arrays = {
        "image": pixels,
        "mask": np.stack([a_mask((40, 50), n) for n in range(12)]),
        "label": np.arange(12),
    }

    def create() -> Any:
        transform = pipelines.nnunet_2d((24, 20))
        return fastload.create_loader(arrays, 3, transform=transform, shuffle=True, seed=1)

    assert_resumes_equal(create, by_label(create()))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pipelines.nnunet_2d(512), r"patch_size: must be \(height, width\)"),
        (lambda: pipelines.nnunet_2d((3, 64)), "patch_size: must be at least 4 pixels"),
        (lambda: pipelines.nnunet_2d(rotation_for_DA=(1, 0)), "rotation_for_DA: must be"),
        (lambda: pipelines.nnunet_2d(mirror_axes=(0, 2)), "mirror_axes: must be of 0 and 1"),
        (lambda: pipelines.nnunet_2d(mirror_axes=1), "mirror_axes: must be"),
        (lambda: pipelines.nnunet_2d(oversample_foreground_percent=33), "must be a probability"),
        (lambda: pipelines.nnunet_2d(normalization="ct"), "must be one of 'rgb_to_0_1', 'nonorm'"),
        (lambda: pipelines.nnunet_2d(normalization="zscore"), "deviation of whole images"),
        (lambda: pipelines.nnunet_2d(ignore_label=3), "no argument 'ignore_label'"),
        (lambda: pipelines.nnunet_2d_batches(deep_supervision_scales=[]), "must be factors"),
        (lambda: pipelines.nnunet_2d_batches(deep_supervision_scales=[2]), "must be factors"),
        (lambda: pipelines.nnunet_2d_batches(deep_supervision_scales=0.5), "must be factors"),
        (lambda: CropWithForeground(9, shown=10, p=0.1), "shown: must be at most"),
        (lambda: CropWithForeground(9, shown=9, p=2), "p: must be a probability"),
        (lambda: CropWithForeground(9, shown=9, p=1)(1), "create_loader"),
        (lambda: turned(p_rotation=1.5), "p_rotation: must be a probability"),
        (lambda: turned(rotation=(1, 0)), "rotation: must be"),
        (lambda: turned(scaling=(0, 1)), "scaling: must be"),
        (lambda: turned()(1), "create_loader"),
        (lambda: ChangedIntensities()(1), "create_loader"),
    ],
)
def test_what_is_none_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()


def turned(**given: Any) -> TurnedAndScaled:
    settings = {"p_rotation": 0.2, "rotation": (0, 1), "p_scaling": 0.2, "scaling": (0.7, 1.4)}
    return TurnedAndScaled(9, **{**settings, **given})


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([v2.Resize((12, 12)), turned()], "needs floating-point images"),
        ([v2.Resize((12, 12)), ChangedIntensities()], "needs floating-point images"),
        ([v2.CenterCrop(8), v2.ToDtype(torch.float32), turned()], "these have 8x8 pixels"),
        ([v2.Resize(9), CropWithForeground(9, shown=9, p=1), v2.Resize((4, 4))], None),
        (
            [v2.Resize(9), v2.Resize(8), CropWithForeground(9, shown=9, p=1)],
            "CropWithForeground after two resizes",
        ),
    ],
)
def test_what_does_not_fit_is_refused_at_construction(
    folder: Path, steps: Any, words: str | None
) -> None:
    transform = v2.Compose([v2.ToImage(), *steps])
    if words is None:
        with fastload.create_loader(folder, 3, transform=transform) as loader:
            assert next(iter(loader))[1].shape == (3, 4, 4)
        return
    with pytest.raises(ConfigurationError, match=words):
        fastload.create_loader(folder, 3, transform=transform)


def test_images_of_few_pixels_are_not_blurred() -> None:
    with pytest.raises(ConfigurationError, match="at least 4 each way"):
        ChangeIntensities().apply(torch.zeros(1, 1, 3, 9), Draws(0, 0, np.arange(1)), 0)


def test_images_without_masks_are_refused() -> None:
    arrays = {"image": np.zeros((2, 40, 50, 3), np.uint8)}
    with pytest.raises(ConfigurationError, match="CropWithForeground depends on a mask of classes"):
        fastload.create_loader(arrays, 1, transform=pipelines.nnunet_2d((24, 24)))


def test_masks_of_another_size_are_named(tmp_path: Path) -> None:
    for part in ("images", "masks"):
        (tmp_path / part).mkdir()
        for number in range(2):
            size = (9, 9) if (part, number) == ("masks", 1) else (40, 60)
            (tmp_path / part / f"{number}.png").write_bytes(png(a_mask(size, number)))
    transform = pipelines.nnunet_2d((24, 24), oversample_foreground_percent=1)
    with (
        fastload.create_loader(tmp_path, 2, transform=transform, backend="turbojpeg") as loader,
        pytest.raises(DecodeError, match=r"1\.png"),
    ):
        next(iter(loader))


def test_masks_of_many_classes_keep_them(tmp_path: Path) -> None:
    """16 bits: 512 has no bit that a byte has."""
    mask = np.zeros((40, 50), np.uint16)
    mask[10:20, 10:20] = 512
    for part, pixels in (("images", photo(40, 50)), ("masks", mask)):
        (tmp_path / part).mkdir()
        Image.fromarray(pixels).save(tmp_path / part / "1.png")
    source = fastload.open_source(tmp_path, mode="unchanged")
    transform = v2.Compose([v2.ToImage(), CropWithForeground(9, shown=9, p=1)])
    with fastload.create_loader(source, 1, transform=transform) as loader:
        for _ in range(3):
            ((_, cut),) = loader
            assert cut[0, 4, 4] == 512
    whole = pipelines.nnunet_2d((24, 20), oversample_foreground_percent=1)
    batches = pipelines.nnunet_2d_batches()
    with fastload.create_loader(source, 1, transform=whole, batch_transform=batches) as loader:
        found = [set(batch["target"].unique().tolist()) for _ in range(12) for batch in loader]
    assert set.union(*found) == {0, 512}
