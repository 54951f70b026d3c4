"""FixMatch's augmentation and views. The reference is Pillow, called as the original calls it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

import fastload
from fastload import pipelines
from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.recipe.fixmatch import OPERATIONS, FixMatchAugment, GreyRectangle
from fastload.recipe.pillow_augment import (
    Augmentation,
    drawn_step,
    numbers_of_pillow_steps,
    run_pillow_steps,
)
from fastload.render.host_colour import HostColour

SIZES = ((32, 32), (17, 90), (64, 33))


def pictures(count: int, size: tuple[int, int]) -> Any:
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (count, *size, 3), dtype=np.uint8)
    images[::2] = images[::2] // 3 + 40
    return images


def by_pillow(name: str, image: Any, v: int, sign: int) -> Any:
    """The operation as the original calls Pillow; magnitudes of 10 are full strength."""
    width, height = image.size
    factor = v * 0.9 / 10 + 0.05
    affine = Image.Transform.AFFINE
    shear, shift = sign * (v * 0.3 / 10), sign * (v * 0.3 / 10)
    made: dict[str, Any] = {
        "AutoContrast": lambda: ImageOps.autocontrast(image),
        "BrightnessFainter": lambda: ImageEnhance.Brightness(image).enhance(factor),
        "ColorFainter": lambda: ImageEnhance.Color(image).enhance(factor),
        "ContrastFainter": lambda: ImageEnhance.Contrast(image).enhance(factor),
        "Equalize": lambda: ImageOps.equalize(image),
        "Identity": lambda: image,
        "PosterizeOriginal": lambda: ImageOps.posterize(image, int(v * 4 / 10) + 4),
        "Rotate": lambda: image.rotate(sign * int(v * 30 / 10)),
        "SharpnessFainter": lambda: ImageEnhance.Sharpness(image).enhance(factor),
        "ShearX": lambda: image.transform(image.size, affine, (1, shear, 0, 0, 1, 0)),
        "ShearY": lambda: image.transform(image.size, affine, (1, 0, 0, shear, 1, 0)),
        "SolarizeIncreasing": lambda: ImageOps.solarize(image, 256 - int(v * 256 / 10)),
        "TranslateXWhole": lambda: image.transform(
            image.size, affine, (1, 0, int(shift * width), 0, 1, 0)
        ),
        "TranslateYWhole": lambda: image.transform(
            image.size, affine, (1, 0, 0, 0, 1, int(shift * height))
        ),
    }
    return np.asarray(made[name]())


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_those_of_pillow(name: str) -> None:
    """At all magnitudes, both ways. Where no colour is computed, the very pixels."""
    most = {"AutoContrast": 1}.get(name, 2 if name.endswith("Fainter") else 0)
    one = (Augmentation(name, magnitude=10.0, reach=0.3, whole=True),)
    every = [(v, sign) for v in range(1, 10) for sign in (1, -1)]
    uniform = np.array([[0.3, (v - 0.5) / 9, 0.5, 0.5 - 0.4 * s, 0.5, 0.5] for v, s in every])
    colour = HostColour(1)
    for size in SIZES:
        images = pictures(len(every), size)
        steps = [drawn_step(np.zeros(len(every), np.int64), uniform, one, ("nearest",), size)]
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
        made = run_pillow_steps(pixels, steps, (0.0,)).permute(0, 2, 3, 1).numpy()
        for image, found, (v, sign) in zip(images, made, every, strict=True):
            wanted = by_pillow(name, Image.fromarray(image), v, sign)
            assert np.abs(wanted.astype(int) - found).max() <= most, (v, sign, size)
        by_core = images.copy()
        colour.run(by_core, numbers_of_pillow_steps(steps, (0.0, 0.0, 0.0)))
        np.testing.assert_array_equal(by_core, made)
    colour.close()


def test_magnitudes_are_whole_numbers_below_m() -> None:
    uniform = np.random.default_rng(0).random((9000, 2))
    drawn = Augmentation("Rotate", magnitude=10.0, whole=True).magnitudes(uniform)
    numbers, counts = np.unique(drawn, return_counts=True)
    assert numbers.tolist() == list(range(1, 10))
    np.testing.assert_allclose(counts, 1000, atol=150)
    assert set(Augmentation("Rotate", magnitude=2.0, whole=True).magnitudes(uniform)) == {1.0}


@pytest.mark.parametrize("size", [(32, 32), (9, 40), (5, 3)])
def test_the_rectangle_is_that_of_pillow(size: tuple[int, int]) -> None:
    height, width = size
    op, draws, images = GreyRectangle(), Draws(1, 0, np.arange(50)), pictures(50, size)
    u = draws.uniform(2, 2)
    wanted = []
    for image, (across, down) in zip(images, u, strict=True):
        left, top = (int(max(0, place - 16 / 2.0)) for place in (across * width, down * height))
        edges = (left, top, int(min(width, left + 16)), int(min(height, top + 16)))
        picture = Image.fromarray(image)
        ImageDraw.Draw(picture).rectangle(edges, (127, 127, 127))
        wanted.append(np.asarray(picture))
    by_torch = op.apply(torch.from_numpy(images).permute(0, 3, 1, 2), draws, 2)
    np.testing.assert_array_equal(by_torch.permute(0, 2, 3, 1).numpy(), np.stack(wanted))
    colour, made = HostColour(1), images.copy()
    colour.run(made, op.colour_steps(draws, 2, (3, *size)))
    np.testing.assert_array_equal(made, np.stack(wanted))
    colour.close()


def test_by_itself_it_takes_pictures_and_tensors() -> None:
    image = pictures(1, (32, 32))[0]
    torch.manual_seed(0)
    found = FixMatchAugment()(Image.fromarray(image))
    assert isinstance(found, Image.Image)
    torch.manual_seed(0)
    tensor = FixMatchAugment()(torch.from_numpy(image).permute(2, 0, 1))
    np.testing.assert_array_equal(tensor.permute(1, 2, 0).numpy(), np.asarray(found))
    assert (np.asarray(found) == 127).all(axis=2).sum() >= 8 * 8  # a corner of the rectangle
    with pytest.raises(ConfigurationError, match="needs uint8 images"):
        FixMatchAugment()(torch.zeros(3, 32, 32))


def test_views_have_numbers_of_their_own() -> None:
    images = pictures(64, (32, 32))
    with fastload.create_loader(
        (images, np.arange(64)), 64, transform=pipelines.fixmatch(), seed=1
    ) as loader:
        ((weak, strong), _) = next(iter(loader))
        assert "GreyRectangle(side=16)" in str(loader.explain())  # not run as it is written
    assert weak.shape == strong.shape == (64, 3, 32, 32)
    assert weak.dtype == torch.float32
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (MEAN, STD))
    grey = ((strong * std + mean) * 255 - 127).abs().amax(1) < 0.01
    counts = grey.sum((1, 2))
    assert int(counts.min()) >= 9 * 9 - 8
    assert int(counts.max()) >= 17 * 17
    with fastload.create_loader(
        (images, np.arange(64)), 64, transform=pipelines.fixmatch_labeled(), seed=1
    ) as loader:
        (labeled, _) = next(iter(loader))
    assert torch.equal(labeled, weak)


MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pipelines.fixmatch(m=1), "m: must be an int of at least 2"),
        (lambda: pipelines.fixmatch(m=11), "m: must be an int from 2 to 10"),
        (lambda: pipelines.fixmatch(n=0), "n: must be an int of at least 1"),
        (lambda: pipelines.fixmatch(size=8), "size: must be an int of at least 9"),
        (lambda: pipelines.fixmatch(std=(0.2, 0.2, 0)), "three numbers above 0"),
        (lambda: pipelines.fixmatch_labeled(mean=(0.5,)), "three numbers"),
        (lambda: pipelines.fixmatch(magnitude=9), "there is no argument 'magnitude'"),
        (lambda: GreyRectangle(0), "at least 1"),
    ],
)
def test_what_the_original_could_not_do_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()


def test_images_too_small_to_cut_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="RandomCrop.* is larger than the image"):
        fastload.create_loader(
            (pictures(4, (20, 20)), np.arange(4)), 4, transform=pipelines.fixmatch()
        )
