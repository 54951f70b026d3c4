"""Crops, resizes, paddings and flips of batches against torchvision's functional operations, sample
by sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from fastload.geometry import Geometry, GeometryPlan, Interpolation, PaddingMode
from fastload.recipe import GeometryOperation, Operation
from fastload.recipe.crops import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from fastload.recipe.split import BatchProgram
from fastload.sources.kinds import IMAGE, MASK
from tests.test_recipe_batch import HEIGHT, WIDTH, draws_of, images_of, masks_of

COUNT = 12
STREAM = 2
PADDING_MODES: tuple[PaddingMode, ...] = ("constant", "edge", "reflect", "symmetric")


def run(
    op: Operation, images: torch.Tensor, masks: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    program = BatchProgram(((STREAM, op),))
    result = program({"i": images, "m": masks}, {"i": IMAGE, "m": MASK}, draws_of(len(images)))
    return result["i"], result["m"]


def resolved(op: GeometryOperation) -> Geometry:
    return GeometryPlan(((STREAM, op),)).resolve(
        draws_of(COUNT), np.full((COUNT, 2), (HEIGHT, WIDTH))
    )


def boxes_of(op: GeometryOperation) -> list[list[int]]:
    return resolved(op).box.tolist()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("interpolation", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_random_resized_crop(
    channels: int, dtype: torch.dtype, interpolation: Interpolation
) -> None:
    op = RandomResizedCrop((21, 58), interpolation=interpolation)
    images, masks = images_of(COUNT, channels=channels).to(dtype), masks_of(COUNT)
    resized, resized_masks = run(op, images, masks)
    assert resized.dtype == dtype
    for row, box in enumerate(boxes_of(op)):
        mode = v2.InterpolationMode(interpolation)
        expected = F.resized_crop(
            images[row], *box, size=[21, 58], interpolation=mode, antialias=True
        )
        torch.testing.assert_close(
            resized[row], expected, rtol=0, atol=0 if dtype == torch.uint8 else 1e-3
        )
        nearest = F.resized_crop(
            masks[row, None], *box, size=[21, 58], interpolation=v2.InterpolationMode.NEAREST
        )
        assert torch.equal(resized_masks[row], nearest)


@pytest.mark.parametrize("interpolation", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [True, False])
def test_resize(interpolation: Interpolation, antialias: bool) -> None:
    op = Resize(shorter=23, max_size=27, interpolation=interpolation, antialias=antialias)
    images, masks = images_of(COUNT), masks_of(COUNT)
    resized, resized_masks = run(op, images, masks)
    mode = v2.InterpolationMode(interpolation)
    for row in range(COUNT):
        expected = F.resize(images[row], [23], max_size=27, interpolation=mode, antialias=antialias)
        assert torch.equal(resized[row], expected)
        nearest = F.resize(
            masks[row, None], [23], max_size=27, interpolation=v2.InterpolationMode.NEAREST
        )
        assert torch.equal(resized_masks[row], nearest)


@pytest.mark.parametrize("size", [(20, 20), (37, 45), (21, 60), (50, 20), (64, 63)])
def test_center_crop(size: tuple[int, int]) -> None:
    images, masks = images_of(COUNT), masks_of(COUNT)
    cropped, cropped_masks = run(CenterCrop(size), images, masks)
    assert torch.equal(cropped, F.center_crop(images, list(size)))
    assert torch.equal(cropped_masks, F.center_crop(masks[:, None], list(size)))


@pytest.mark.parametrize("mode", PADDING_MODES)
@pytest.mark.parametrize("channels", [1, 3])
def test_pad(mode: PaddingMode, channels: int) -> None:
    padding = (3, 0, 12, 7)
    fill = (
        tuple(float(9 * channel) for channel in range(channels)) if mode == "constant" else (0.0,)
    )
    images, masks = images_of(COUNT, channels=channels), masks_of(COUNT)
    op = Pad(padding, fill=fill, mask_fill=(255.0,), padding_mode=mode)
    padded, padded_masks = run(op, images, masks)
    assert torch.equal(padded, F.pad(images, list(padding), fill=list(fill), padding_mode=mode))
    assert torch.equal(
        padded_masks, F.pad(masks[:, None], list(padding), fill=255.0, padding_mode=mode)
    )


@pytest.mark.parametrize("mode", PADDING_MODES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_random_crop(mode: PaddingMode, dtype: torch.dtype) -> None:
    """Each sample is one of torchvision's crops of the padded image, and they are not all at one
    place."""
    padding, size = (5, 6, 7, 8), (36, 39)
    images, masks = images_of(COUNT).to(dtype), masks_of(COUNT)
    op = RandomCrop(size, padding=padding, fill=(11.0,), mask_fill=(12.0,), padding_mode=mode)
    cropped, cropped_masks = run(op, images, masks)
    padded = F.pad(images, list(padding), fill=11.0, padding_mode=mode)
    padded_masks = F.pad(masks[:, None], list(padding), fill=12.0, padding_mode=mode)
    geometry = resolved(op)
    # The window is about the part of the image that is seen, which starts at the box.
    starts = (geometry.box[:, :2] + geometry.window[:, :2] + [padding[1], padding[0]]).tolist()
    assert len({tuple(start) for start in starts}) > COUNT // 2
    for row, (top, left) in enumerate(starts):
        assert torch.equal(cropped[row], F.crop(padded[row], top, left, *size))
        assert torch.equal(cropped_masks[row], F.crop(padded_masks[row], top, left, *size))


def test_random_crop_pads_if_needed() -> None:
    images, masks = images_of(COUNT), masks_of(COUNT)
    cropped, cropped_masks = run(RandomCrop((50, 30), pad_if_needed=True), images, masks)
    assert cropped.shape == (COUNT, 3, 50, 30)
    assert cropped_masks.shape == (COUNT, 1, 50, 30)
    assert torch.equal((cropped.amax((1, 3)) > 0).sum(1), torch.full((COUNT,), HEIGHT))


@pytest.mark.parametrize("p", [0.0, 0.4, 1.0])
def test_flips(p: float) -> None:
    images, masks = images_of(COUNT), masks_of(COUNT)
    for op, axis, reference in (
        (RandomHorizontalFlip(p), 0, F.horizontal_flip),
        (RandomVerticalFlip(p), 1, F.vertical_flip),
    ):
        flipped, flipped_masks = run(op, images, masks)
        chosen = resolved(op).flip[:, axis]
        assert chosen.any() == (p > 0)
        assert chosen.all() == (p == 1)
        for row in range(COUNT):
            image, mask = images[row], tv_tensors.Mask(masks[row, None])
            assert torch.equal(flipped[row], reference(image) if chosen[row] else image)
            assert torch.equal(flipped_masks[row], reference(mask) if chosen[row] else mask)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_random_resized_crop_on_a_gpu(dtype: torch.dtype) -> None:
    images, masks = images_of(COUNT).to(dtype), masks_of(COUNT)
    here, masks_here = run(RandomResizedCrop((21, 58)), images, masks)
    there, masks_there = run(RandomResizedCrop((21, 58)), images.cuda(), masks.cuda())
    assert (here.double() - there.cpu().double()).abs().max() <= (
        1.0 if dtype == torch.uint8 else 0.3
    )
    assert torch.equal(masks_here, masks_there.cpu())
