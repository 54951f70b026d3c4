"""AutoAugment, RandAugment and AugMix as timm has them: what they draw, and that Pillow, torch and
the native core make the same pixels. `clients/test_timm_transforms` has timm beside them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.recipe.pillow_augment import (
    NAMES,
    Augmentation,
    PillowAugMix,
    PillowAutoAugment,
    PillowRandAugment,
    drawn_step,
    moved,
    run_pillow_steps,
)
from fastload.render.host_colour import HostColour
from fastload.render.steps import KINDS, ColourSteps

EVERY = tuple(Augmentation(name, 0.8, 9.0, 3.0, most=14.0) for name in NAMES)
SHARP = tuple(one for one in EVERY if not one.blurs)
BLUR = Augmentation("GaussianBlurRand", 1.0)
OPERATIONS: dict[str, Any] = {
    "rand": PillowRandAugment(EVERY, 3),
    "rand, weights": PillowRandAugment(SHARP, 3, tuple(map(float, range(len(SHARP))))),
    "auto": PillowAutoAugment((EVERY[:2], (EVERY[-1], EVERY[3]), (EVERY[18],)), ("bicubic",)),
    "blurs alone": PillowAutoAugment(((BLUR,),)),
    "augmix": PillowAugMix(SHARP),
    "augmix, deep": PillowAugMix(SHARP, 0.5, 2, 4, ("bilinear",)),
}


def pictures(count: int, size: tuple[int, int], channels: int = 3) -> Any:
    """(B, H, W, C) uint8: smooth, noisy and even ones."""
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (count, *size, channels), dtype=np.uint8)
    images[0], images[1] = 7, images[1] // 3
    return images


def drawn(count: int, seed: int = 1) -> Draws:
    return Draws(seed, 0, np.arange(count))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_core_makes_the_pixels_that_torch_makes(name: str, channels: int) -> None:
    op = replace(OPERATIONS[name], fill=(124.0, 116.0, 104.0)[:channels])
    colour = HostColour(1)
    for size in ((19, 70), (7, 8)):
        images, draws = pictures(40, size, channels), drawn(40)
        made = images.copy()
        colour.run(made, op.colour_steps(draws, 2, (channels, *size)))
        wanted = op.apply(torch.from_numpy(images).permute(0, 3, 1, 2), draws, 2)
        np.testing.assert_array_equal(made, wanted.permute(0, 2, 3, 1).numpy())
        assert (made != images).any()
    colour.close()


@pytest.mark.parametrize("cubic", [False, True])
def test_moves_are_those_of_pillow(cubic: bool) -> None:
    """Coordinates of eighths have no rounding, in float32 and in float64."""
    height, width = 21, 90
    images = pictures(5, (height, width))
    matrices = np.array(
        [
            [1, 0.25, 0, 0, 1, 0],
            [1, 0, 0, -0.125, 1, 0],
            [1, 0, -12.375, 0, 1, 0],
            [1, 0, 30, 0, 1, 4.5],
            [0.5, -1.25, 30.25, 0.75, 0.5, -9.5],
        ]
    )
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
    given = torch.from_numpy(matrices).float()
    made = moved(pixels, given, (124.0, 116.0, 104.0), cubic=cubic).permute(0, 2, 3, 1).numpy()
    for image, matrix, found in zip(images, matrices, made, strict=True):
        wanted = Image.fromarray(image).transform(
            (width, height),
            Image.Transform.AFFINE,
            tuple(matrix),
            Image.Resampling.BICUBIC if cubic else Image.Resampling.BILINEAR,
            fillcolor=(124, 116, 104),
        )
        apart = np.abs(np.asarray(wanted).astype(int) - found)
        assert apart.max() <= 1  # a value that is whole is cut, or not
        assert (apart > 0).mean() < 1e-3


@pytest.mark.parametrize("width", [1, 31, 33, 100])
@pytest.mark.parametrize("cubic", [False, True])
def test_the_core_moves_as_torch_along_lines_and_across_them(cubic: bool, width: int) -> None:
    """Turns, mirrors, images that are larger or smaller; and maps along whose lines, or columns,
    no place lies between two pixels."""
    rng = np.random.default_rng(5)
    angles = rng.uniform(-4, 4, 20)
    cos, sin, shifts = np.cos(angles), np.sin(angles), rng.uniform(-20, 20, (2, 20))
    matrices = np.array(
        [
            *zip(cos, sin, shifts[0] + 20, -sin, cos, shifts[1] + 10, strict=True),
            [1, 0, 0, 0, 1, 0],
            [1, 0.3, -4.7, 0, 1, 0],
            [1, 0, 0, 0.3, 1, -3.2],
            [1, 0, 7.3, 0, 1, 0],
            [1, 0, -8, 0, 1, 5],
            [1, 0, 0, 0, 1, 2.6],
            [-1, 0, width, 0, 1, 0],
            [0.1, 0, 0.5, 0, 0.1, 0.5],
            [3.7, 0, -60, 0, 2.2, -3],
            [1e30, 0, -1e30, 0, 1, 0],
            [np.nan, 0, 0, 0, 1, 0],
            [1, 0, 0, 0, 1, np.inf],
        ],
        dtype=np.float32,
    )
    images, fill = pictures(len(matrices), (21, width)), (124.0, 116.0, 104.0)
    images[:] = rng.integers(0, 256, images.shape)
    given = torch.from_numpy(images).permute(0, 3, 1, 2)
    wanted = moved(given, torch.from_numpy(matrices), fill, cubic=cubic).permute(0, 2, 3, 1)
    kinds = np.full((len(matrices), 1), KINDS.index("move_bicubic" if cubic else "move_bilinear"))
    colour, made = HostColour(1), images.copy()
    colour.run(made, [ColourSteps(kinds.astype(np.int32), matrices[:, None], fill=fill)])
    colour.close()
    np.testing.assert_array_equal(made, wanted.numpy())


def test_magnitudes_are_normal_or_uniform_and_cut() -> None:
    uniform = np.random.default_rng(0).random((20_000, 2))
    normal = Augmentation("Rotate", magnitude=9.0, deviation=0.5).magnitudes(uniform)
    assert normal.max() == 10.0
    assert (normal == 10.0).mean() == pytest.approx(0.0228, abs=0.004)  # 2 deviations
    assert np.median(normal) == pytest.approx(9.0, abs=0.02)
    assert (normal < 8.5).mean() == pytest.approx(0.1587, abs=0.01)
    even = Augmentation("Rotate", magnitude=6.0, deviation=math.inf).magnitudes(uniform)
    assert [even.min(), even.max()] == pytest.approx([0.0, 6.0], abs=0.01)
    assert even.mean() == pytest.approx(3.0, abs=0.05)
    assert set(Augmentation("Rotate", magnitude=12.0).magnitudes(uniform)) == {10.0}


def test_no_operation_is_chosen_twice_where_they_have_weights() -> None:
    """The second is drawn among the others, by their weights."""
    weights = (0.5, 0.25, 0.25, 0.0)
    places = PillowRandAugment(SHARP[:4], 2, weights).places(drawn(20_000), 0)
    (first, _), (second, _) = places
    assert (first != second).all()
    shares = [[(chosen == k).mean() for k in range(4)] for chosen in (first, second)]
    np.testing.assert_allclose(shares[0], weights, atol=0.015)
    # Of 0 after 1 or 2; of 1 after 0 or 2.
    np.testing.assert_allclose(shares[1], [1 / 3, 1 / 3, 1 / 3, 0.0], atol=0.015)


def test_half_of_the_steps_are_done_and_both_filters_are_drawn() -> None:
    (_, uniform) = PillowRandAugment(SHARP, 1).places(drawn(4000), 0)[0]
    shear = (Augmentation("ShearX"),)
    chosen = np.zeros(4000, dtype=np.int64)
    kinds = drawn_step(chosen, uniform, shear, ("bilinear", "bicubic"), (8, 8)).kinds
    assert (kinds < 0).mean() == pytest.approx(0.5, abs=0.03)
    assert len(set(kinds[kinds >= 0].tolist())) == 2
    matrices = drawn_step(chosen, uniform, shear, ("bicubic",), (8, 8)).matrices
    assert set(matrices[kinds >= 0][:, 1].round(6)) == {0.3, -0.3}


def test_no_bits_are_black_and_eight_are_the_image() -> None:
    images = torch.from_numpy(pictures(2, (5, 6))).permute(0, 3, 1, 2)
    for magnitude, name, wanted in (
        (0.0, "Posterize", torch.zeros_like(images)),
        (10.0, "PosterizeIncreasing", torch.zeros_like(images)),
        (10.0, "PosterizeOriginal", images),
        (10.0, "Solarize", images),
        (10.0, "SolarizeIncreasing", 255 - images),
    ):
        one = (Augmentation(name, 1.0, magnitude),)
        step = drawn_step(np.zeros(2, np.int64), np.full((2, 6), 0.3), one, ("bicubic",), (5, 6))
        assert torch.equal(run_pillow_steps(images, [step], (0.0,)), wanted), name


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PillowRandAugment((Augmentation("Cutout"),)), "AutoContrast"),
        (lambda: PillowRandAugment((Augmentation("Rotate", 1.5),)), "probabilities"),
        (lambda: PillowRandAugment(SHARP, filters=("nearest", "bicubic")), "bicubic"),
        (lambda: PillowRandAugment((Augmentation("Rotate", 1, 1, whole=True),)), "2 or more"),
        (lambda: PillowRandAugment(SHARP[:2], 3, (0.5, 0.5)), "2 at most"),
        (lambda: PillowAugMix(EVERY), "without blurs"),
        (lambda: PillowAugMix(SHARP, width=0), "at least 1"),
        (lambda: OPERATIONS["rand"].size_after((6, 40)), "smaller kernel_size"),
        (lambda: OPERATIONS["auto"].colour_steps(drawn(1), 0, (1, 9, 9)), "1 value"),
        (lambda: OPERATIONS["rand"].check_dtype(torch.float32), "needs uint8 images"),
    ],
)
def test_what_cannot_be_done_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()
