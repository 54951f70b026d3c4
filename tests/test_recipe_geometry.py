"""Geometry against torchvision itself: its transforms, fed with our random numbers, must give the
same pixels."""

from __future__ import annotations

import inspect
import math
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

from fastload.draws import Draws
from fastload.geometry import Geometry, GeometryPlan, Padding, Resampling
from fastload.geometry.boxes import _exp, random_resized_crop_boxes, resized_sizes
from fastload.geometry.plan import Composition, GeometryStep, WarpSampling
from fastload.recipe import GeometryOperation, Operation, Recipe
from fastload.recipe.crops import Pad, RandomCrop, RandomResizedCrop, Resize
from fastload.recipe.whole_images import WholeImages
from fastload.sources.kinds import IMAGE

ROWS = 60


def sizes_of_images(
    seed: int = 0, *, smallest: int = 1, largest: int = 40
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """(ROWS, 2): sides 1 to 40, odd and even, wide and tall, some one pixel wide."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(smallest, largest + 1, (ROWS, 2))
    sizes[0], sizes[1], sizes[2] = (smallest, largest), (largest, smallest), (smallest, smallest)
    return sizes


def image_of(size: np.ndarray[Any, np.dtype[np.int64]], row: int) -> torch.Tensor:
    """(3, H, W) uint8: smooth enough for resampling to be about the picture, noisy enough to see a
    shift."""
    height, width = int(size[0]), int(size[1])
    rng = np.random.default_rng(row)
    ramp = np.add.outer(np.arange(height) * 5.0, np.arange(width) * 3.0)
    return torch.from_numpy(
        (ramp + rng.integers(0, 40, (3, height, width))).clip(0, 255).astype(np.uint8)
    )


def apply_reference(
    image: torch.Tensor, geometry: Geometry, row: int, plan: GeometryPlan
) -> torch.Tensor:
    """What `Geometry` says, in torchvision's functional operations: (C, H, W) uint8 to (C, h, w)
    uint8."""
    image = F.crop(image, *geometry.box[row].tolist())
    size = geometry.size[row].tolist()
    if list(image.shape[-2:]) != size:
        mode = v2.InterpolationMode(plan.interpolation)
        image = F.resize(image, size, interpolation=mode, antialias=plan.antialias)
    top, left, height, width = geometry.window[row].tolist()
    padding = [
        max(-left, 0),
        max(-top, 0),
        max(left + width - size[1], 0),
        max(top + height - size[0], 0),
    ]
    if any(padding):
        image = F.pad(image, padding, fill=list(plan.fill), padding_mode=plan.padding_mode)
    image = image[:, top + padding[1] :, left + padding[0] :][:, :height, :width]
    if geometry.flip[row, 0]:
        image = F.horizontal_flip(image)
    image = F.vertical_flip(image) if geometry.flip[row, 1] else image
    if geometry.later is None or plan.later is None:
        return image
    assert geometry.later.inverse is None, "warps are tested elsewhere"
    return apply_reference(image, geometry.later.geometry, row, plan.later.plan)


@contextmanager
def torch_draws(
    op: Operation, draws: Draws, stream: int, row: int, size: tuple[int, int]
) -> Iterator[None]:
    """Lets torch's random functions return the numbers that this operation has for this row."""
    floats: list[float] = []
    picks: list[float] = []
    if isinstance(op, RandomResizedCrop):
        numbers = draws.uniform(stream, 22)[row].tolist()
        floats = [
            number for pair in zip(numbers[:10], numbers[10:20], strict=True) for number in pair
        ]
        picks = numbers[20:]
    elif isinstance(op, RandomCrop):
        picks = draws.uniform(stream, 2)[row].tolist()
        _, top, _, bottom = op.padding or (0, 0, 0, 0)
        if size[0] + top + bottom == op.size[0]:
            picks = picks[1:]  # torchvision draws no top where there is no choice
    else:
        floats = draws.uniform(stream, 1)[row].tolist()

    def uniform(self: torch.Tensor, low: Any = 0, high: Any = 1) -> torch.Tensor:
        return torch.tensor(
            [float(low) + floats.pop(0) * (float(high) - float(low))], dtype=torch.float64
        )

    def randint(low: int, high: int, size: Any = ()) -> torch.Tensor:
        return torch.tensor(low + math.floor(picks.pop(0) * (high - low))).reshape(size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "uniform_", uniform)
        patch.setattr(torch, "randint", randint)
        patch.setattr(torch, "rand", lambda *size: torch.tensor(floats.pop(0), dtype=torch.float64))
        yield


def run_torchvision(recipe: Recipe, image: torch.Tensor, draws: Draws, row: int) -> torch.Tensor:
    """The original transforms, one after the other, with our random numbers."""
    image = image if isinstance(image, tv_tensors.Mask) else tv_tensors.Image(image)
    stream = 0
    for origin in recipe.origins:
        if not origin.ops:
            image = origin.transform(image)
            continue
        (op,) = origin.ops
        with torch_draws(op, draws, stream, row, (image.shape[-2], image.shape[-1])):
            image = origin.transform(image)
        stream += 1
    return image.as_subclass(torch.Tensor)


def compare(
    transform: Callable[..., Any], sizes: Any, *, fixed_size: tuple[int, int] | None = None
) -> tuple[int, int]:
    """(largest difference, failing rows) between our geometry and torchvision, which must fail on
    the same rows."""
    recipe = Recipe.from_transform(transform)
    for origin in recipe.origins:
        if isinstance(origin.transform, v2.RandomResizedCrop):
            # torchvision keeps these logarithms in float32, which moves a box by a pixel now and
            # then.
            origin.transform._log_ratio = torch.log(
                torch.tensor(origin.transform.ratio, dtype=torch.float64)
            )
    split = recipe.split(fixed_size)
    assert split.opaque is None
    floating = any(placement.where == "device" for placement in split.placement)
    draws = Draws(seed=3, epoch=1, indices=np.arange(100, 100 + len(sizes)))
    geometry = split.geometry.resolve(draws, sizes)
    assert len(geometry) == len(sizes)
    worst = 0
    for row in range(len(sizes)):
        image = image_of(sizes[row], row)
        try:
            expected = run_torchvision(recipe, image, draws, row)
        except (ValueError, RuntimeError, IndexError):
            assert row in geometry.errors, f"torchvision fails on {sizes[row]}, we do not"
            continue
        assert row not in geometry.errors, f"{geometry.errors[row]}, but torchvision does it"
        ours = apply_reference(image, geometry, row, split.geometry)
        assert list(ours.shape[-2:]) == geometry.out_sizes[row].tolist()
        if split.geometry.out_size is not None:
            assert tuple(ours.shape[-2:]) == split.geometry.out_size
        if floating:
            expected = expected * 255
        assert ours.shape == expected.shape
        worst = max(worst, math.ceil(float((ours.double() - expected.double()).abs().max()) - 1e-3))
    return worst, len(geometry.errors)


EXACT = {
    "flips": [v2.RandomHorizontalFlip(), v2.RandomVerticalFlip(0.3)],
    "center crop": [v2.CenterCrop((17, 22))],
    "center crops": [v2.CenterCrop((27, 14)), v2.CenterCrop((9, 21))],
    "center crop of padding": [v2.Pad(3), v2.CenterCrop((30, 31))],
    "random crop": [v2.RandomCrop((1, 1))],
    "random crop, too large for some": [v2.RandomCrop((12, 17))],
    "random crop, padding": [v2.RandomCrop((12, 16), padding=4, fill=77)],
    "random crop, padding of two": [v2.RandomCrop(20, padding=(3, 9), fill=(1, 2, 3))],
    "random crop, padding of four": [
        v2.RandomCrop(15, padding=(1, 2, 3, 14), fill={tv_tensors.Mask: 1, "others": 9})
    ],
    "random crop, pad if needed": [v2.RandomCrop((25, 31), pad_if_needed=True, fill=200)],
    "random crop, both": [v2.RandomCrop((25, 31), padding=(0, 5, 2, 0), pad_if_needed=True)],
    "pad and crop twice": [
        v2.RandomCrop(22, padding=4),
        v2.RandomHorizontalFlip(),
        v2.RandomCrop(20, padding=7),
    ],
    "edge, crop and edge": [
        v2.RandomCrop(12, pad_if_needed=True, padding_mode="edge"),
        v2.RandomVerticalFlip(),
        v2.Pad((1, 2, 3, 4), padding_mode="edge"),
    ],
    "flip before crop": [
        v2.RandomHorizontalFlip(),
        v2.RandomVerticalFlip(),
        v2.RandomCrop(10, padding=(8, 1, 0, 3)),
    ],
    "crop, flip, crop": [
        v2.RandomCrop(9, padding=4),
        v2.RandomHorizontalFlip(),
        v2.RandomCrop((5, 4)),
    ],
    "far outside": [v2.Pad(50), v2.RandomCrop(9), v2.RandomHorizontalFlip(), v2.Pad(2)],
    "far outside, edge": [
        v2.Pad(50, padding_mode="edge"),
        v2.RandomCrop(9),
        v2.Pad(2, padding_mode="edge"),
    ],
}


@pytest.mark.parametrize("name", EXACT)
def test_crops_paddings_and_flips_are_exact(name: str) -> None:
    worst, _ = compare(v2.Compose(EXACT[name]), sizes_of_images())
    assert worst == 0


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize(
    "after",
    [[], [v2.RandomHorizontalFlip(1.0), v2.RandomCrop((3, 6))]],
    ids=["alone", "flip and crop"],
)
def test_every_padding_mode_is_exact(mode: str, after: list[Any]) -> None:
    crop = v2.RandomCrop((14, 11), padding=(7, 2, 5, 6), padding_mode=mode)
    worst, errors = compare(v2.Compose([v2.RandomVerticalFlip(), crop, *after]), sizes_of_images())
    assert worst == 0
    assert errors > 0


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_padding_after_a_crop_is_about_the_edges_of_what_was_cut_out(mode: str) -> None:
    """Also where the crop lies at an edge of the image."""
    transform = v2.Compose([v2.RandomCrop((12, 9)), v2.Pad((2, 3, 4, 5), padding_mode=mode)])
    assert compare(transform, sizes_of_images(smallest=12, largest=16)) == (0, 0)


@pytest.mark.parametrize("mode", ["reflect", "symmetric"])
def test_what_a_reflection_mirrors_is_inside_the_box_though_the_window_does_not_show_it(
    mode: str,
) -> None:
    transform = v2.Compose([v2.Pad(9, padding_mode=mode), v2.RandomCrop((3, 4))])
    assert compare(transform, sizes_of_images(smallest=10)) == (0, 0)


RESAMPLED = {
    "random resized crop": [v2.RandomResizedCrop((19, 23)), v2.RandomHorizontalFlip()],
    "mostly the fallback": [v2.RandomResizedCrop(12, scale=(0.9, 1.0), ratio=(1.0, 1.1))],
    "flip first": [v2.RandomHorizontalFlip(), v2.RandomVerticalFlip(), v2.RandomResizedCrop(15)],
    "resize, center crop": [v2.Resize(16), v2.CenterCrop(14), v2.RandomHorizontalFlip()],
    "resize, center crop that pads": [v2.Resize((9, 20)), v2.CenterCrop(14)],
    "resize of an exact size": [v2.Resize((13, 7), interpolation=InterpolationMode.BICUBIC)],
    "resize with max_size": [v2.Resize(10, max_size=17)],
    "resize to max_size": [v2.Resize(None, max_size=17)],
    "nearest": [
        v2.Resize((13, 7), interpolation=InterpolationMode.NEAREST),
        v2.RandomCrop(6),
        v2.RandomHorizontalFlip(),
    ],
    "nearest-exact": [
        v2.RandomCrop(3),
        v2.Resize((13, 9), interpolation=InterpolationMode.NEAREST_EXACT),
        v2.RandomVerticalFlip(),
    ],
    "no antialias": [v2.RandomVerticalFlip(), v2.Resize((8, 8), antialias=False)],
    "crop, resize": [v2.RandomCrop(1), v2.Resize((5, 4))],
    "flip, resize, crop with padding": [
        v2.RandomHorizontalFlip(),
        v2.Resize((16, 14)),
        v2.RandomVerticalFlip(),
        v2.RandomCrop((15, 13), padding=(4, 0, 1, 2), fill=50),
        v2.CenterCrop(10),
        v2.RandomCrop(7),
        v2.RandomHorizontalFlip(),
    ],
    "resize, reflect": [v2.Resize((9, 8)), v2.RandomCrop(9, padding=7, padding_mode="reflect")],
    "reflect that fits some, resize, crop that fits some": [
        v2.Pad(9, padding_mode="reflect"),
        v2.RandomVerticalFlip(),
        v2.Resize(20),
        v2.RandomCrop((20, 27)),
    ],
}


@pytest.mark.parametrize("name", RESAMPLED)
def test_with_a_resize_pixels_differ_by_one_at_most(name: str) -> None:
    transform = v2.Compose([v2.ToImage(), *RESAMPLED[name]])
    worst, _ = compare(transform, sizes_of_images())
    assert worst <= 1


@pytest.mark.parametrize(
    "tail",
    [
        [v2.RandomCrop(13, padding=3, fill=0.5)],
        [v2.RandomHorizontalFlip(), v2.RandomCrop(13, padding=3, fill=[0.1, 0.2, 1.0])],
        [v2.Resize(9, antialias=True), v2.CenterCrop(8)],
        [v2.RandomResizedCrop(11)],
    ],
    ids=["fill", "fills", "resize", "random resized crop"],
)
def test_geometry_after_a_scaling_conversion_keeps_its_meaning(tail: list[Any]) -> None:
    transform = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), *tail])
    worst, _ = compare(transform, sizes_of_images(smallest=8))
    assert worst <= 1


@pytest.mark.parametrize(
    "flips",
    [
        [v2.RandomHorizontalFlip()],
        [v2.RandomVerticalFlip()],
        [v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()],
    ],
    ids=["left-right", "upside-down", "both"],
)
def test_a_geometry_knows_what_was_mirrored_before_its_resize(flips: list[Any]) -> None:
    """The nearest pixels of masks are others then."""
    recipe = Recipe.from_transform(
        v2.Compose([*flips, v2.Resize((13, 7)), v2.RandomHorizontalFlip()])
    )
    sizes, draws = sizes_of_images(), Draws(seed=3, epoch=1, indices=np.arange(ROWS))
    geometry = recipe.split(None).geometry.resolve(draws, sizes)
    assert geometry.flipped_first is not None
    assert geometry.flipped_first.any()
    for row in range(ROWS):
        mask = tv_tensors.Mask(image_of(sizes[row], row)[0])
        expected = run_torchvision(recipe, mask, draws, row)
        found = F.crop(mask, *geometry.box[row].tolist())
        first, flip = geometry.flipped_first[row], geometry.flip[row]
        for turn in (first, flip ^ first):
            found = F.horizontal_flip(found) if turn[0] else found
            found = F.vertical_flip(found) if turn[1] else found
            if turn is first:
                found = F.resize(found, geometry.size[row].tolist())
        assert torch.equal(found.as_subclass(torch.Tensor), expected)


def test_a_fixed_size_lets_a_center_crop_shrink_the_box_before_a_resize() -> None:
    transform = v2.Compose([v2.ToImage(), v2.CenterCrop((20, 21)), v2.Resize((7, 9))])
    sizes = np.full((ROWS, 2), (24, 32))
    assert compare(transform, sizes, fixed_size=(24, 32))[0] <= 1


@pytest.mark.parametrize(
    "transform",
    [
        [v2.ToImage(), v2.Resize((20, 24)), v2.RandomResizedCrop(9), v2.RandomHorizontalFlip()],
        [v2.ToImage(), v2.CenterCrop(20), v2.RandomVerticalFlip(), v2.Resize((9, 12))],
        [v2.ToImage(), v2.RandomCrop(12, padding=3, fill=9), v2.Pad(2), v2.RandomCrop((13, 11))],
        [
            v2.ToImage(),
            v2.RandomHorizontalFlip(),
            v2.Resize((9, 7), interpolation=InterpolationMode.NEAREST),
        ],
        [
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.5,), (1.0,)),
            v2.RandomHorizontalFlip(),
            v2.RandomCrop(30, padding=4, fill=0.25),
        ],
    ],
    ids=[
        "second resize",
        "resize of padding",
        "different paddings",
        "nearest after a flip",
        "padding after normalize",
    ],
)
def test_geometry_and_batch_together_are_the_transform(transform: list[Any]) -> None:
    recipe = Recipe.from_transform(v2.Compose(transform))
    for origin in recipe.origins:
        if isinstance(origin.transform, v2.RandomResizedCrop):
            origin.transform._log_ratio = torch.log(
                torch.tensor(origin.transform.ratio, dtype=torch.float64)
            )
    sizes = np.full((ROWS, 2), (31, 33))
    split = recipe.split((31, 33))
    draws = Draws(seed=8, epoch=0, indices=np.arange(ROWS))
    geometry = split.geometry.resolve(draws, sizes)
    images = [image_of(sizes[row], row) for row in range(ROWS)]
    pixels = torch.stack(
        [apply_reference(image, geometry, row, split.geometry) for row, image in enumerate(images)]
    )
    (ours,) = split.batch({"image": pixels}, {"image": IMAGE}, draws).values()
    expected = torch.stack(
        [run_torchvision(recipe, image, draws, row) for row, image in enumerate(images)]
    )
    assert ours.dtype == expected.dtype
    difference = (ours.double() - expected.double()).abs().max()
    assert difference <= (1e-6 if ours.is_floating_point() else 1)


def resolve(transform: Any, sizes: Any) -> Geometry:
    draws = Draws(seed=0, epoch=0, indices=np.arange(len(sizes)))
    return Recipe.from_transform(transform).split(None).geometry.resolve(draws, np.asarray(sizes))


def test_a_row_with_an_error_says_what_to_do_and_leaves_the_others_alone() -> None:
    geometry = resolve(v2.RandomCrop(10), [[20, 20], [20, 9], [10, 10]])
    assert list(geometry.errors) == [1]
    assert "20x9" in geometry.errors[1]
    assert "pad_if_needed=True" in geometry.errors[1]
    assert geometry.window[1].tolist() == [0, 0, 1, 1]
    assert geometry.box[1].tolist() == [0, 0, 1, 1]
    assert geometry.size[2].tolist() == [10, 10]


def test_the_first_error_of_a_row_stays() -> None:
    geometry = resolve(
        v2.Compose([v2.Pad(10, padding_mode="reflect"), v2.RandomCrop(45)]), [[5, 5], [20, 20]]
    )
    assert "'reflect' padding" in geometry.errors[0]
    assert "RandomCrop(size=(45, 45))" in geometry.errors[1]


def test_an_extreme_shape_is_an_error_not_an_overflow() -> None:
    geometry = resolve(v2.Resize(2**20), [[1, 2**15], [4, 4]])
    assert list(geometry.errors) == [0]
    geometry = resolve(v2.Resize(None, max_size=10), [[1, 50], [4, 4]])
    assert list(geometry.errors) == [0]


def test_random_resized_crop_of_a_strip_keeps_a_pixel_where_torchvision_fails() -> None:
    geometry = resolve(v2.RandomResizedCrop(4, ratio=(3.0, 4.0)), [[40, 1], [1, 40]])
    assert not geometry.errors
    assert geometry.box[0, 2:].tolist() == [1, 1]
    assert geometry.box[1, 2] == 1


def test_boxes_are_no_larger_than_what_is_shown() -> None:
    geometry = resolve(v2.RandomCrop((5, 6), padding=2), np.full((ROWS, 2), (30, 40)))
    assert (geometry.box[:, 2:] <= (5, 6)).all()
    assert (geometry.size == geometry.box[:, 2:]).all()


def test_the_empty_plan_is_the_identity() -> None:
    plan = Recipe().split(None).geometry
    assert plan.is_identity
    assert not plan.resamples
    geometry = plan.resolve(Draws(0, 0, np.arange(2)), np.array([[3, 4], [5, 6]]))
    assert geometry.box.tolist() == [[0, 0, 3, 4], [0, 0, 5, 6]] == geometry.window.tolist()
    assert geometry.size.tolist() == [[3, 4], [5, 6]]
    assert not geometry.flip.any()
    assert geometry.box.dtype == geometry.window.dtype == geometry.size.dtype == np.int32


@dataclass(frozen=True)
class UpperLeft(GeometryOperation):
    """Cuts out 5 x 6 pixels, and defines nothing but what it must."""

    def compose(self, composition: Composition, uniforms: Any) -> None:
        assert uniforms.shape == (len(composition.extent), 0)
        size = np.array([[5, 6]])
        composition.fail((composition.extent < size).any(axis=1), "{height}x{width}: too small")
        composition.crop(np.zeros_like(composition.extent), size)


@dataclass(frozen=True)
class EitherFilter(GeometryOperation):
    """Resizes every other sample with "bicubic"."""

    cuts = False
    fits_every_image = True
    mixes_filters = True

    @property
    def resampling(self) -> Resampling:
        return Resampling()

    def compose(self, composition: Composition, uniforms: Any) -> None:
        composition.resize(np.array([[7, 8]]))
        composition.bicubic = np.arange(len(composition.extent)) % 2 == 1


def test_padding_after_an_operation_from_outside_is_about_what_it_cut_out_of_a_resized_image() -> (
    None
):
    split = Recipe((Resize(shorter=9), UpperLeft(), Pad((2, 1, 0, 3), padding_mode="edge"))).split()
    sizes, draws = sizes_of_images(), Draws(0, 0, np.arange(ROWS))
    geometry = split.geometry.resolve(draws, sizes)
    assert not geometry.errors
    for row in range(ROWS):
        image = image_of(sizes[row], row)
        expected = F.pad(F.resize(image, [9])[:, :5, :6], [2, 1, 0, 3], padding_mode="edge")
        found = apply_reference(image, geometry, row, split.geometry)
        assert found.shape == expected.shape
        assert (found.int() - expected.int()).abs().max() <= 1


PLANS: dict[str, Any] = {
    "nothing": Recipe(),
    "flip": [v2.RandomHorizontalFlip()],
    "crop": [v2.RandomCrop((3, 1))],
    "crop that fits": [v2.CenterCrop(1)],
    "crop from outside": Recipe((UpperLeft(),)),
    "padding": [v2.Pad(2)],
    "resize": [v2.Resize((7, 8))],
    "resize and crop": [v2.Resize((7, 8)), v2.RandomCrop(5)],
    "resize to a longest side": [v2.Resize(None, max_size=10)],
    "resize with either filter": Recipe((EitherFilter(),)),
    "random resized crop": [v2.RandomResizedCrop(9)],
    "resize to a drawn size": [v2.ScaleJitter((20, 20))],
    "rotation": [v2.RandomRotation(9)],
    "resize and rotation": [v2.Resize(9), v2.RandomRotation(9)],
}


@pytest.mark.parametrize("coloured", [False, True], ids=["", "coloured"])
@pytest.mark.parametrize("name", PLANS)
def test_what_a_plan_says_of_itself_is_so_for_what_it_resolves_to(
    name: str, coloured: bool
) -> None:
    made = PLANS[name]
    recipe = made if isinstance(made, Recipe) else Recipe.from_transform(v2.Compose(made))
    plan = recipe.split().geometry
    if coloured:
        plan = replace(plan, colour=WholeImages(()))
    sizes, draws = sizes_of_images(), Draws(3, 1, np.arange(ROWS))
    geometry = plan.resolve(draws, sizes)
    later, nowhere = geometry.later is not None, np.zeros_like(geometry.size)
    whole = (geometry.window == np.concatenate([nowhere, geometry.size], axis=1)).all()
    assert plan.resamples == (later or geometry.resamples)
    if plan.resamples or plan.shows_whole_grids:  # otherwise the box is no more than what is shown
        assert plan.shows_whole_grids == (whole and not later)
    if plan.fits_every_image:
        assert not geometry.errors
    assert plan.mixes_filters == (geometry.bicubic is not None)
    same = np.concatenate([nowhere, sizes], axis=1)
    assert plan.is_identity == (
        (geometry.box == same).all()
        and (geometry.window == same).all()
        and not geometry.flip.any()
        and not later
        and geometry.colour is None
    )
    assert plan.resampling.coloured == (geometry.colour is not None) == coloured
    assert (plan.resampling.later is not None) == later
    assert (plan.mask_resampling.later is not None) == later
    assert not plan.mask_resampling.coloured
    assert (plan.resampling.as_stored, plan.mask_resampling.as_stored) == (False, True)
    assert not plan.needs_objects  # it was resolved without
    assert [op for _, op in plan.all_ops] == list(recipe.ops)
    of_one_size = plan.resolve(draws, np.full_like(sizes, 31)).out_sizes
    assert plan.draws_size == (of_one_size != of_one_size[0]).any()


def test_the_defaults_are_torchvisions() -> None:
    def default(made: Any, name: str) -> Any:
        found = inspect.signature(made).parameters[name].default
        return getattr(found, "value", found)  # modes are no strings before torchvision 0.27

    mode, fill = default(v2.Pad, "padding_mode"), (float(default(v2.Pad, "fill")),)
    for made in (Resampling(), GeometryPlan()):
        assert made.interpolation == default(v2.Resize, "interpolation")
        assert made.antialias is default(v2.Resize, "antialias")
        assert (made.padding_mode, made.fill) == (mode, fill)
    assert GeometryPlan().mask_fill == fill
    assert Padding() == (mode, fill, fill)
    warp = WarpSampling()
    assert warp.interpolation == default(v2.RandomAffine, "interpolation")
    assert warp.fill == (default(v2.RandomAffine, "fill"),)


@pytest.mark.parametrize("rows", [slice(3, 9), np.array([8, 2, 2, 40])], ids=["slice", "index"])
@pytest.mark.parametrize("some", [False, True], ids=["few arrays", "all arrays"])
def test_some_rows_of_a_geometry_are_those_of_all_its_arrays(rows: Any, some: bool) -> None:
    transform = v2.Compose([v2.RandomVerticalFlip(), v2.Resize(9), v2.RandomHorizontalFlip()])
    geometry = resolve(transform, sizes_of_images())
    geometry = replace(
        geometry,
        bicubic=np.random.default_rng(0).random(ROWS) < 0.5 if some else None,
        flipped_first=geometry.flipped_first if some else None,
    )
    taken = geometry.take(rows)
    assert len(taken) == len(taken.box)
    for one in fields(Geometry):
        whole = getattr(geometry, one.name)
        if isinstance(whole, np.ndarray):
            assert np.array_equal(getattr(taken, one.name), whole[rows]), one.name
        else:
            assert getattr(taken, one.name) == whole, one.name


def test_resolving_depends_on_the_sample_and_not_on_the_batch() -> None:
    plan = (
        Recipe.from_transform(v2.Compose([v2.RandomResizedCrop(9), v2.RandomVerticalFlip()]))
        .split(None)
        .geometry
    )
    plan = pickle.loads(pickle.dumps(plan))
    draws, sizes = Draws(5, 2, np.arange(ROWS) * 7), sizes_of_images().astype(np.int32)
    before = sizes.copy()
    whole, part = plan.resolve(draws, sizes), plan.resolve(draws.take(slice(20, 40)), sizes[20:40])
    assert (whole.box[20:40] == part.box).all()
    assert (whole.flip[20:40] == part.flip).all()
    assert (sizes == before).all()
    assert (plan.resolve(Draws(5, 3, draws.indices), sizes).box != whole.box).any()


@pytest.mark.whole
@pytest.mark.parametrize("size", [(375, 500), (90, 40), (64, 400)], ids=str)
def test_random_resized_crop_boxes_are_distributed_as_torchvisions(size: tuple[int, int]) -> None:
    count = 4000
    op = RandomResizedCrop((224, 224))
    draws = Draws(seed=11, epoch=0, indices=np.arange(count))
    ours = random_resized_crop_boxes(
        draws.uniform(0, 22), np.full((count, 2), size), scale=op.scale, ratio=op.ratio
    ).astype(float)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        image = torch.zeros(3, *size, dtype=torch.uint8)
        theirs = np.array(
            [
                v1.RandomResizedCrop.get_params(image, list(op.scale), list(op.ratio))
                for _ in range(count)
            ],
            dtype=float,
        )
    for name, statistic in {
        "area": lambda boxes: boxes[:, 2] * boxes[:, 3],
        "ratio": lambda boxes: boxes[:, 3] / boxes[:, 2],
        "top": lambda boxes: boxes[:, 0] / (size[0] - boxes[:, 2] + 1),
        "left": lambda boxes: boxes[:, 1] / (size[1] - boxes[:, 3] + 1),
    }.items():
        a, b = np.sort(statistic(ours)), np.sort(statistic(theirs))
        grid = np.concatenate([a, b])
        distance = (
            np.abs(np.searchsorted(a, grid, "right") - np.searchsorted(b, grid, "right")).max()
            / count
        )
        # Kolmogorov and Smirnov, two samples: exceeded once in a thousand by equal distributions.
        assert distance < 1.95 * math.sqrt(2 / count), name


def test_the_exponential_is_that_of_the_c_library_to_two_units_in_the_last_place() -> None:
    x = np.concatenate([np.linspace(-1.0, 1.0, 5001), np.linspace(-30, 30, 5001)])
    expected = np.array([math.exp(value) for value in x])
    assert (np.abs(_exp(x) - expected) <= 2 * np.spacing(expected)).all()


@pytest.mark.parametrize(
    "op",
    [Resize(shorter=7), Resize(shorter=7, max_size=9), Resize(max_size=9), Resize(size=(3, 4))],
    ids=str,
)
def test_resized_sizes_are_torchvisions(op: Resize) -> None:
    size = list(op.size) if op.size is not None else None if op.shorter is None else [op.shorter]
    sizes = sizes_of_images()
    for (height, width), ours in zip(
        sizes.tolist(),
        resized_sizes(sizes, size=op.size, shorter=op.shorter, max_size=op.max_size).tolist(),
        strict=True,
    ):
        if min(ours) == 0:
            with pytest.raises(RuntimeError, match="greater than 0"):
                F.resize(torch.zeros(1, height, width), size, max_size=op.max_size)
        else:
            resized = F.resize(torch.zeros(1, height, width), size, max_size=op.max_size)
            assert ours == list(resized.shape[-2:])


@pytest.mark.parametrize(
    ("window", "pads"),
    [
        ((0, 0, 9, 7), False),
        ((1, 2, 8, 5), False),
        ((0, 0, 1, 1), False),
        ((-1, 0, 9, 7), True),
        ((0, -1, 9, 7), True),
        ((1, 0, 9, 7), True),
        ((0, 1, 9, 7), True),
        ((0, 0, 10, 7), True),
        ((0, 0, 9, 8), True),
    ],
)
def test_a_window_pads_where_it_reaches_out_of_its_grid(
    window: tuple[int, int, int, int], pads: bool
) -> None:
    grids = np.array([[9, 7], [30, 40]], np.int32)
    windows = np.array([window, (0, 0, 30, 40)], np.int32)
    boxes = np.concatenate([np.full((2, 2), 3, np.int32), grids], axis=1)
    geometry = Geometry(boxes, grids, windows, np.zeros((2, 2), np.bool_))
    assert geometry.pads is pads
    assert not geometry.resamples
    assert replace(geometry, size=grids + np.array([[0, 0], [0, 1]], np.int32)).resamples


def test_an_operation_that_lacks_its_method_is_named() -> None:
    class Shear(GeometryStep):
        pass

    step: Any = Shear()
    for method in (step.compose, step.warp):
        with pytest.raises(NotImplementedError, match=f"Shear does not define {method.__name__}"):
            method(None, None)
