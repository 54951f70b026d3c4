"""MixUp whose partner goes through transforms of its own, and what they are made of, against OpenCV
and formulas of YOLOX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torchvision.transforms import v2

import fastload
from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.recipe import Recipe
from fastload.recipe.transforms import (
    BGR,
    CanvasAffine,
    CanvasJitter,
    CopyPaste,
    DropObjects,
    Letterbox,
    MixUp,
    Mosaic,
)
from fastload.recipe.warps import CanvasAffine as AffineOperation
from fastload.sources import EncodedFiles, Ragged, RaggedArray, Source
from fastload.sources.buffers import PathTable
from tests.images import photo, png

SIZE = (48, 56)
IMAGES = [photo(*size, seed=n) for n, size in enumerate([(40, 60), (90, 50), (64, 64), (30, 100)])]
BOXES = [
    np.array([[2.0, 3, 30, 38], [20, 5, 58, 25]]),
    np.array([[4.0, 10, 20, 85]]),
    np.zeros((0, 4)),
    np.array([[5.0, 5, 25, 25], [60, 1, 99, 29]]),
]
FITTED = Letterbox(SIZE, rounding="down", corner=True, antialias=False)
PARTNER = v2.Compose([FITTED, CanvasJitter(SIZE, fill=7)])
MOSAIC = Mosaic(SIZE, rounding="down", antialias=False)


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("partners")
    files = [folder / f"{number}.png" for number in range(len(IMAGES))]
    for file, image in zip(files, IMAGES, strict=True):
        file.write_bytes(png(image))
    columns = {
        "image": EncodedFiles(PathTable.of([str(file) for file in files])),
        "boxes": RaggedArray(Ragged.of(BOXES), role="boxes"),
    }
    return Source(columns, "objects", "objects", "dict")


def fitted(image: Any) -> tuple[torch.Tensor, float]:
    """(1, 3, H, W) in the upper left corner of grey; by how much each side is longer."""
    height, width = image.shape[:2]
    ratio = min(SIZE[0] / height, SIZE[1] / width)
    size = int(height * ratio), int(width * ratio)
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    canvas = torch.full((1, 3, *SIZE), 114.0)
    canvas[..., : size[0], : size[1]] = F.interpolate(pixels, size, mode="bilinear").round()
    return canvas, (size[1] / width, size[0] / height)


def jittered(canvas: torch.Tensor, u: Any) -> tuple[torch.Tensor, Any]:
    """As YOLOX's `mixup` makes it: resized, mirrored, on a colour, cut."""
    tall, wide = (int(side * (0.5 + u[0])) for side in SIZE)
    resized = F.interpolate(canvas, (tall, wide), mode="bilinear")
    resized = resized.flip(3) if u[1] < 0.5 else resized
    spare = max(tall - SIZE[0], 0), max(wide - SIZE[1], 0)
    top, left = (int(part * max(most, 1)) for part, most in zip(u[2:], spare, strict=True))
    below, right = max(SIZE[0] - tall, 0), max(SIZE[1] - wide, 0)
    shown = F.pad(resized[..., top : top + SIZE[0], left : left + SIZE[1]], (0, right, 0, below))
    if below:
        shown[..., tall:, :] = 7
    if right:
        shown[..., wide:] = 7

    def move(boxes: Any) -> Any:
        ends = boxes * np.array([wide / SIZE[1], tall / SIZE[0]] * 2)
        if u[1] < 0.5:
            ends[:, 0::2] = wide - ends[:, [2, 0]]
        ends -= [left, top, left, top]
        return ends.clip(0, [SIZE[1], SIZE[0]] * 2)

    return shown, move


@pytest.mark.parametrize("backend", ["turbojpeg", "torch"])
def test_the_partner_is_that_of_yolox(objects: Source, backend: str) -> None:
    """With a weight of 0 nothing else is seen."""
    transform = v2.Compose(
        [MOSAIC, CanvasAffine(SIZE, corner=True), MixUp(weight=0.0, partner=PARTNER)]
    )
    arguments: dict[str, Any] = {"batch_size": 4, "backend": backend}
    seen = set()
    for seed in range(4):
        with fastload.create_loader(
            objects, transform=transform, seed=seed, num_workers=1, **arguments
        ) as loader:
            batch, explained = next(iter(loader)), loader.explain()
        assert "up to 5 images" in explained
        draws = Draws(seed, 0, np.arange(4))
        for row in range(4):
            partner = int(draws.uniform(2, 2)[row, 1] * 4)
            u = draws.within(2).uniform(0, 4)[row]
            canvas, ratio = fitted(IMAGES[partner])
            wanted, move = jittered(canvas, u)
            apart = (batch["image"][row].float() - wanted[0]).abs()
            assert apart.max() <= 2
            assert apart.mean() <= 0.7  # warps cut to whole numbers, and blends round
            boxes = move(BOXES[partner] * np.array([*ratio, *ratio]))
            found = batch["boxes"][row].numpy()
            np.testing.assert_allclose(found[len(found) - len(boxes) :], boxes, atol=1e-3)
            seen |= {("mirrored", u[1] < 0.5), ("larger", u[0] > 0.5)}
    assert len(seen) == 4


def test_a_flip_after_it_is_of_both(objects: Source) -> None:
    steps = [MOSAIC, v2.CenterCrop(SIZE), MixUp(weight=0.4, partner=PARTNER)]
    found = []
    for last in ([], [v2.RandomHorizontalFlip(1.0)]):
        with fastload.create_loader(
            objects, 4, transform=v2.Compose([*steps, *last]), seed=2
        ) as loader:
            found.append(next(iter(loader)))
    plain, mirrored = found
    assert torch.equal(plain["image"].flip(3), mirrored["image"])
    wanted = plain["boxes"].values[:, [2, 1, 0, 3]] * torch.tensor([-1.0, 1, -1, 1])
    wanted += torch.tensor([SIZE[1], 0.0, SIZE[1], 0.0])
    torch.testing.assert_close(mirrored["boxes"].values, wanted)


def test_settings_of_the_partner_are_part_of_its_identity() -> None:
    def identity(**settings: Any) -> str:
        made = v2.Compose([Letterbox(SIZE, **settings), CanvasJitter(SIZE)])
        return Recipe.from_transform(v2.Compose([MOSAIC, MixUp(partner=made)])).fingerprint

    assert len({identity(), identity(corner=True), identity(rounding="up")}) == 3


@pytest.mark.parametrize(
    ("steps", "match"),
    [
        ([Letterbox(SIZE), MixUp(partner=PARTNER)], "without a Mosaic"),
        ([MOSAIC, MixUp(partner=PARTNER)], "comes out in 48x56 pixels"),
        ([MOSAIC, DropObjects(), v2.CenterCrop(SIZE), MixUp(partner=PARTNER)], "after DropObjects"),
        ([MOSAIC, v2.CenterCrop(SIZE), MixUp(partner=PARTNER), CopyPaste()], "MixUp beside"),
    ],
)
def test_what_is_refused(objects: Source, steps: list[Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        fastload.create_loader(objects, transform=v2.Compose(steps))


def test_settings_that_are_none() -> None:
    for make, words in (
        (lambda: MixUp(weight=1.5), "weight=1.5"),
        (lambda: MixUp(partner=v2.RandomCrop(8)), "must be a Letterbox.* got RandomCrop"),
        (lambda: MixUp(partner=v2.Compose([FITTED] * 2)), "got Letterbox, Letterbox"),
        (lambda: CanvasJitter(8, scale=(1.5, 0.5)), "0 < low <= high"),
        (lambda: CanvasJitter(8, p_flip=2), "p_flip=2"),
        (lambda: CanvasAffine(8, scale=(0, 1)), "0 < low <= high"),
        (lambda: Letterbox(8, rounding="half"), "'nearest', 'up' or 'down'"),
        (lambda: BGR()(v2.functional.to_pil_image(torch.zeros(3, 4, 4))), "after ToImage"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            make()


def test_an_affine_map_about_the_corner_is_that_of_yolox() -> None:
    """Its `get_affine_matrix`, with the numbers of ours."""
    (op,) = Recipe.from_transform(
        CanvasAffine(SIZE, degrees=10, translate=0.1, scale=(0.1, 2.0), shear=2, corner=True)
    ).ops
    assert isinstance(op, AffineOperation)
    uniforms = np.random.default_rng(0).random((5, 6))
    warp = op.warp(np.tile(np.array([[96, 112]]), (5, 1)), uniforms)
    for u, found in zip(uniforms, warp.forward, strict=True):
        angle, scale = np.radians(20 * u[0] - 10), 0.1 + 1.9 * u[1]
        turn = scale * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        lean = np.tan(np.radians(4 * u[2:4] - 2))
        wanted = np.eye(3)
        wanted[0, :2], wanted[1, :2] = turn[0] + lean[0] * turn[1], turn[1] + lean[1] * turn[0]
        wanted[:2, 2] = (0.2 * u[4:] - 0.1) * np.array(SIZE[::-1])
        np.testing.assert_allclose(found, wanted, atol=1e-12)


@pytest.mark.parametrize("rounding", ["nearest", "up", "down"])
def test_a_letterbox_in_the_corner(rounding: str) -> None:
    """By itself and in a loader: 40 x 60 is 37.3 x 56."""
    transform = Letterbox(SIZE, rounding=rounding, corner=True, antialias=False)
    alone = transform(torch.from_numpy(IMAGES[0]).permute(2, 0, 1))
    rows = {"nearest": 37, "up": 38, "down": 37}[rounding]
    assert (alone[:, rows:] == 114).all()
    assert (alone[:, rows - 1] != 114).any()
    arrays = {"image": IMAGES[0][None]}
    steps = v2.Compose([v2.ToImage(), transform])
    with fastload.create_loader(arrays, 1, transform=steps) as loader:
        found = next(iter(loader))["image"][0]
    assert (found.float() - alone.float()).abs().max() <= 1


def test_channels_are_turned_round() -> None:
    arrays = {"image": np.stack([image[:30, :50] for image in IMAGES])}
    last = [v2.ToDtype(torch.float32)]
    for steps in (
        [v2.ToImage(), BGR()],
        [v2.ToImage(), BGR(), *last],
        [v2.ToImage(), *last, BGR()],
    ):
        with fastload.create_loader(arrays, 4, transform=v2.Compose(steps)) as loader:
            found = next(iter(loader))["image"]
        wanted = torch.from_numpy(arrays["image"]).permute(0, 3, 1, 2).flip(1)
        assert torch.equal(found, wanted.to(found.dtype))
    assert torch.equal(BGR()(wanted), wanted.flip(1))
    assert torch.equal(BGR()(wanted[:, :1]), wanted[:, :1])
