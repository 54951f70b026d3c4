"""Noise: its numbers are normal, and the same by the core, by torch and in any batch; what becomes
of pixels is what torchvision makes of the same noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

import fastload
from fastload import native
from fastload.draws import Draws, philox4x32
from fastload.recipe import Recipe
from fastload.recipe.gaussian_noise import GaussianNoise
from fastload.render import noise
from fastload.render.noise import add_noise, box_normals, counted_normals, normals
from fastload.render.steps import NoiseSteps
from fastload.sources import PixelArray, Source, ValueArray
from tests.samples import assert_resumes_equal, by_label

CPU = torch.device("cpu")
KEYS = np.random.default_rng(3).integers(0, 2**64, 7, dtype=np.uint64)
needs_core = pytest.mark.skipif(not native.available(), reason="needs the native core")


def without_core(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(noise.native, "available", lambda: False)


@needs_core
@pytest.mark.parametrize("count", [1, 16, 63, 64, 65, 100_003])
def test_the_core_and_torch_have_the_same_bits(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    by_core = normals(KEYS, count, CPU).numpy()
    without_core(monkeypatch)
    by_torch = normals(KEYS, count, CPU).numpy()
    assert by_core.shape == by_torch.shape == (7, count)
    np.testing.assert_array_equal(by_core.view(np.int32), by_torch.view(np.int32))
    np.testing.assert_array_equal(normals(KEYS[2:4], count, CPU).numpy(), by_torch[2:4])


@needs_core
def test_boxes_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    boxes = rng.integers(1, [2**62, 4, 2**40, 9, 300, 70], (len(KEYS), 6))
    boxes[0] = -(2**63), 3, 2**62, 2, -7, 16  # counters wrap
    by_core = box_normals(KEYS, boxes)
    without_core(monkeypatch)
    for made, wanted, sides in zip(by_core, box_normals(KEYS, boxes), boxes, strict=True):
        assert made.shape == tuple(sides[[1, 3, 5]])
        assert torch.equal(made.view(torch.int32), wanted.view(torch.int32))


def test_numbers_of_counters_are_box_and_mullers_of_splitmix64() -> None:
    """By numpy, in float64. The first words are those of a published run with the seed 1234567."""
    z = (np.arange(1, 3001, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) + np.uint64(1234567)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    assert z[:2].tolist() == [6457827717110365317, 3203168211198807973]
    share = (z >> np.uint64(32)).astype(np.int64) >> 1 | 1
    angle = (z & np.uint64(0xFFFFFFFF)).astype(np.float64) * (2 * math.pi * 2.0**-32)
    wanted = np.sqrt(-2 * np.log(share * 2.0**-31)) * np.cos(angle)
    made = counted_normals(torch.tensor(1234567), torch.arange(3000)).numpy()
    assert np.abs(made - wanted).max() < 2e-6


def test_they_are_box_and_mullers_of_philox() -> None:
    """By numpy, in float64."""
    made = normals(KEYS[:1], 640, CPU).numpy()[0].reshape(10, 4, 16)
    blocks = np.arange(160, dtype=np.uint64)
    zero = np.zeros_like(blocks)
    words = philox4x32((blocks, zero, zero, zero), int(KEYS[0]))
    for pair in (0, 1):
        of_radius, of_angle = (words[2 * pair + k].astype(np.int64).reshape(10, 16) for k in (0, 1))
        radius = np.sqrt(-2 * np.log((of_radius >> 1 | 1) * 2.0**-31))
        angle = of_angle * (2 * math.pi * 2.0**-32)
        assert np.abs(made[:, 2 * pair] - radius * np.cos(angle)).max() < 2e-6
        assert np.abs(made[:, 2 * pair + 1] - radius * np.sin(angle)).max() < 2e-6


def test_they_are_normal() -> None:
    numbers = normals(KEYS, 300_000, CPU).numpy().astype(np.float64)
    everything = np.sort(numbers.ravel())
    count = len(everything)
    # Kolmogorov and Smirnov: 1.95 / sqrt(n) is passed by 999 of 1,000 samples that are normal.
    cumulative = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in everything[::7]])
    ranks = np.arange(count)[::7] / count
    assert np.abs(cumulative - ranks).max() < 1.95 / math.sqrt(count)
    # Moments, within four of their standard deviations.
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        bound = 4 * math.sqrt(variance / count)
        assert abs((everything**power).mean() - moment) < bound, power
    # 6.3e-5 are beyond four, 5.7e-7 beyond five.
    assert 80 < (np.abs(everything) > 4).sum() < 190
    assert np.abs(everything).max() < 6.56
    # Neither neighbours nor keys depend on each other.
    for step in (1, 2, 16, 32, 48, 64, 192):
        assert abs((numbers[:, step:] * numbers[:, :-step]).mean()) < 4 / math.sqrt(count), step
        squares = numbers**2 - 1
        assert abs((squares[:, step:] * squares[:, :-step]).mean()) < 9 / math.sqrt(count), step
    between = np.corrcoef(numbers) - np.eye(len(KEYS))
    assert np.abs(between).max() < 4.5 / math.sqrt(numbers.shape[1])


def pictures(channels: int, size: tuple[int, int] = (19, 23), count: int = 7) -> Any:
    return np.random.default_rng(1).integers(0, 256, (count, *size, channels), dtype=np.uint8)


def planes(images: Any) -> torch.Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2)


@needs_core
@pytest.mark.parametrize("rows", [None, np.arange(7) % 3 > 0])
@pytest.mark.parametrize("clips", [True, False])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_the_cores_threads_make_the_pixels_of_torch(
    channels: int,
    shared: bool,
    clips: bool,
    rows: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fastload.render.host_colour import HostColour

    rng = np.random.default_rng(channels)
    scales, shifts = (rng.uniform(0, most, 7).astype(np.float32) for most in (90, 30))
    steps = NoiseSteps(KEYS, scales, shifts, clips, shared)
    if rows is not None:
        steps = steps.only(rows)
    colour = HostColour(2)
    for size in ((19, 23), (1, 1), (64, 3), (1, 64)):
        images = pictures(channels, size)
        found = images.copy()
        colour.run(found, [steps])
        with monkeypatch.context() as patch:
            without_core(patch)
            wanted = add_noise(planes(images), steps).permute(0, 2, 3, 1).numpy()
        np.testing.assert_array_equal(found, wanted)
        if rows is not None:
            np.testing.assert_array_equal(found[~rows], images[~rows])
    colour.close()
    changed = (found.astype(int) - images)[np.ones(7, bool) if rows is None else rows]
    assert (changed != 0).mean() > 0.5
    if channels > 1 and not shared:
        assert (changed[..., 0] != changed[..., 1]).any()


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_are_torchvisions_of_the_same_noise(
    channels: int, clip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    op, draws = GaussianNoise(-0.1, 0.4, clip), Draws(5, 2, np.arange(7))
    images = planes(pictures(channels))
    made = op.apply(images, draws, 4)
    numbers = op.noise(images, draws, 4)
    for image, number, found in zip(images, numbers, made, strict=True):
        monkeypatch.setattr(torch, "randn_like", lambda like, number=number, **_: number)
        assert torch.equal(found, F.gaussian_noise(image, -0.1, 0.4, clip))


def test_what_16_bits_do_not_hold_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert GaussianNoise(0.0, 1.0).has_steps
    assert not GaussianNoise(0.0, 40.0).has_steps
    op, images = GaussianNoise(0.0, 40.0), planes(pictures(3))
    draws = Draws(5, 2, np.arange(7))
    made, numbers = op.apply(images, draws, 4), op.noise(images, draws, 4)
    monkeypatch.setattr(torch, "randn_like", lambda like, **_: numbers)
    assert torch.equal(made, F.gaussian_noise(images, 0.0, 40.0))


def loader_of(images: Any, transform: Any, **given: Any) -> Any:
    columns = {
        "image": PixelArray(images, channels=images.shape[3]),
        "label": ValueArray(np.arange(len(images))),
    }
    source = Source(columns, "pictures", "pictures", "dict")
    return fastload.create_loader(
        source, batch_size=3, shuffle=True, transform=transform, seed=9, **given
    )


@needs_core
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_a_loader_makes_it_in_the_core_and_resumes(channels: int) -> None:
    images = pictures(channels, count=12)
    transform = v2.Compose([v2.RandomHorizontalFlip(), v2.GaussianNoise(0.1, 0.2)])
    loader = loader_of(images, transform)
    reported = str(loader.explain())
    assert "GaussianNoise" in reported
    assert "on the host, by rule" in reported
    with loader_of(images, transform, options=fastload.BackendOptions(place="device")) as other:
        assert "on the device, as asked" in str(other.explain())
    everything = by_label(loader)
    for place in ("device", "host"):
        again = by_label(loader_of(images, transform, options=fastload.BackendOptions(place=place)))
        assert all(np.array_equal(again[label], everything[label]) for label in everything)
    assert_resumes_equal(lambda: loader_of(images, transform), everything)


def test_noise_on_floating_point_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    images = pictures(3, count=6)
    steps = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.GaussianNoise(0.0, 0.2)]
    found = by_label(loader_of(images, v2.Compose(steps)))
    without_core(monkeypatch)
    again = by_label(loader_of(images, v2.Compose(steps)))
    assert all(np.array_equal(again[label], found[label]) for label in found)
    away = np.stack([found[n] for n in range(6)]) - images.transpose(0, 3, 1, 2) / 255
    inner = away[(images.transpose(0, 3, 1, 2) > 100)]
    assert abs(inner[inner < 0].std() - 0.2 * math.sqrt(1 - 2 / math.pi)) < 0.01


@needs_core
def test_images_of_floating_point_have_it_on_the_device() -> None:
    found = by_label(loader_of(pictures(3, count=6) / np.float32(255), v2.GaussianNoise(0.0, 0.2)))
    assert found[0].dtype == np.float32


def test_some_samples_have_it() -> None:
    images = pictures(3, count=40)
    draws = Draws(5, 2, np.arange(40))
    (op,) = Recipe.from_transform(v2.RandomApply([v2.GaussianNoise()], p=0.4)).ops
    made = op.apply(planes(images), draws, 1).permute(0, 2, 3, 1).numpy()
    changed = (made != images).any(axis=(1, 2, 3))
    assert np.array_equal(np.flatnonzero(changed), op.rows(draws, 1))
    if native.available():
        from fastload.render.host_colour import HostColour

        colour, again = HostColour(1), images.copy()
        colour.run(again, op.colour_steps(draws, 1, (3, 19, 23)))
        colour.close()
        np.testing.assert_array_equal(again, made)


@needs_core
@pytest.mark.parametrize(
    "given",
    [{"keys": KEYS[:1]}, {"scales": np.zeros(3, np.float32)}, {"rows": np.ones(3, bool)}],
    ids=lambda given: next(iter(given)),
)
def test_tables_that_do_not_fit_are_refused(given: dict[str, Any]) -> None:
    pool, zeros = native.NativePool(1), np.zeros(2, np.float32)
    sound = {"images": pictures(3, count=2), "keys": KEYS[:2], "scales": zeros, "shifts": zeros}
    assert pool.add_noise(**sound).wait() == []
    with pytest.raises(ValueError, match="needed"):
        pool.add_noise(**(sound | given))
    with pytest.raises(ValueError, match="needed"):
        pool.normals(KEYS, np.zeros((2, 4), np.float32))
    pool.close()
