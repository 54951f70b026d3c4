"""Albumentations' transforms against albumentations itself, which is given our random numbers:
images, masks, boxes and points."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

import fastload
from fastload.draws import Draws
from fastload.errors import ConfigurationError, UnsupportedTransformError
from fastload.recipe import Recipe
from fastload.recipe.albumentations_geometry import normal_pairs
from fastload.recipe.operation import Operation
from fastload.recipe.random_apply import OneOf, RandomApply
from fastload.render.noise import normals
from fastload.sources import EncodedFiles, Ragged, RaggedArray, Source, ValueArray
from fastload.sources.buffers import PathTable
from tests.backends import Contestant, contestants
from tests.images import labels, photo, png

A = pytest.importorskip("albumentations", reason="pip install .[albumentations]")
cv2 = pytest.importorskip("cv2")
ToTensorV2 = pytest.importorskip("albumentations.pytorch").ToTensorV2

SAMPLES = 9
RNG = np.random.default_rng(11)
SIZES = [(40 + 11 * n % 23, 50 + 7 * n % 19) for n in range(SAMPLES)]
COUNTS = [3, 0, 1, 5, 2, 4, 3, 1, 2]


def some_boxes(size: tuple[int, int], count: int) -> Any:
    """On multiples of 1/4 pixel, so that float32 has them."""
    ends = np.round(RNG.random((count, 2, 2)) * np.array(size)[::-1] * 4) / 4
    low, high = ends.min(axis=1), ends.max(axis=1)
    high = np.minimum(np.maximum(high, low + 1), np.array(size)[::-1])
    return np.concatenate([np.minimum(low, high - 1), high], axis=1)


BOXES = [some_boxes(size, count) for size, count in zip(SIZES, COUNTS, strict=True)]
POINTS = [boxes.reshape(-1, 2, 2) for boxes in BOXES]
IDS = [100 * n + np.arange(count) for n, count in enumerate(COUNTS)]
FILLS = {"fill": (90, 30, 200), "fill_mask": 9}
SHIFT = {"x": (-0.2, 0.2), "y": (-0.1, 0.3)}


class Scripted:
    """A generator of random numbers that gives back ours, in both of Python's and numpy's ways."""

    def __init__(self, numbers: Iterable[float]) -> None:
        self._numbers = iter(numbers)

    def random(self) -> float:
        return float(next(self._numbers))

    def uniform(self, a: float, b: float, size: int | None = None) -> Any:
        drawn = [a + (b - a) * self.random() for _ in range(1 if size is None else size)]
        return drawn[0] if size is None else np.array(drawn)

    def randint(self, a: int, b: int) -> int:
        return a + int(self.random() * (b - a + 1))

    def integers(self, low: Any, high: Any, size: int | None = None) -> Any:
        if size is None:
            return 0
        spans = np.broadcast_to(high - low, (size,))
        return np.array([low + int(self.random() * span) for span in spans])

    def normal(self, mean: float, deviation: float, size: tuple[int, int]) -> Any:
        drawn = np.array([self.random() for _ in range(np.prod(size))]).reshape(size)
        return mean + deviation * normal_pairs(drawn)

    def choice(self, values: Any) -> Any:
        return values[int(self.random() * len(values))]


def numbers_for(transform: Any, u: list[float]) -> list[float]:
    """Ours in the order of albumentations' own. Those of operations with a probability begin with
    the one that says whether they are done, which albumentations does not draw for a p of 1."""
    match transform:
        case A.RandomResizedCrop():
            tries = [number for pair in zip(u[:10], u[10:20], strict=True) for number in pair]
            return [*tries, *u[20:]]
        case A.HorizontalFlip() | A.VerticalFlip():
            return u
        case (
            A.Affine()
            | A.Rotate()
            | A.Perspective()
            | A.RandomRotate90()
            | A.Transpose()
            | A.RandomScale()
            | A.BBoxSafeRandomCrop()
        ):
            rest = [u[7]] if type(transform) is A.Rotate else u[1:]
            if isinstance(transform, A.Affine) and transform.keep_ratio:
                rest = u[1:]  # y is drawn, too, and not used
            return rest if transform.p == 1 else [u[0], *rest]
    return u


class Tries(Scripted):
    """For RandomResizedCrop: areas and ratios until one fits, and then a place."""

    def random(self) -> float:
        return float(next(self._place))

    def __init__(self, numbers: list[float]) -> None:
        self._tries, self._place = iter(numbers[:20]), iter(numbers[20:])

    def uniform(self, a: float, b: float, size: int | None = None) -> Any:
        return a + (b - a) * float(next(self._tries))


def by_albumentations(transforms: list[Any], index: int, draws: Draws, **rules: Any) -> Any:
    """A sample after transforms with our numbers: image, mask, boxes, points and ids."""
    params = A.BboxParams(format="pascal_voc", label_fields=["ids"], **rules)
    points = A.KeypointParams(format="xy", remove_invisible=False, label_fields=["of"])
    compose = A.Compose(transforms, bbox_params=params, keypoint_params=points)
    streams = steps_of(Recipe.from_transform(compose).ops)
    for transform in transforms:
        u: list[float] = []
        for stream, op in streams.pop(0):
            u += draws.uniform(stream, getattr(op, "uniforms", 0))[0].tolist()
        found = numbers_for(transform, u)
        made = Tries(found) if isinstance(transform, A.RandomResizedCrop) else Scripted(found)
        transform.py_random = transform.random_generator = made
    height, width = SIZES[index]
    return compose(
        image=photo(height, width, seed=index),
        mask=labels(height, width, seed=index).reshape(height, width),
        bboxes=BOXES[index].astype(np.float64),
        ids=IDS[index].tolist(),
        keypoints=POINTS[index].reshape(-1, 2),
        of=np.repeat(IDS[index], 2).tolist(),
    )


def steps_of(ops: Iterable[Operation]) -> list[list[tuple[int, Operation]]]:
    """The operations of each transform, with their streams: those between two rules for boxes, or
    a flip."""
    found: list[list[tuple[int, Operation]]] = [[]]
    for stream, op in enumerate(ops):
        if op.only_columns:
            if found[-1]:
                found.append([])
            continue
        found[-1].append((stream, op))
        if getattr(op, "mirrors", False):
            found.append([])
    return found


CHAINS: dict[str, Callable[[], list[Any]]] = {
    "flips": lambda: [A.HorizontalFlip(p=0.6), A.VerticalFlip(p=0.3)],
    "resize": lambda: [A.Resize(31, 47)],
    "resize-up": lambda: [A.Resize(90, 111)],
    "grey-then-up": lambda: [A.ToGray(p=0), A.Resize(150, 190)],
    "resize-nearest": lambda: [A.Resize(33, 41, interpolation=cv2.INTER_NEAREST)],
    "longest": lambda: [A.LongestMaxSize([33, 48, 71])],
    "longest-hw": lambda: [A.LongestMaxSize(max_size_hw=(44, None))],
    "smallest": lambda: [A.SmallestMaxSize([30, 61]), A.RandomCrop(28, 25)],
    "letterbox": lambda: [A.LongestMaxSize(48), A.PadIfNeeded(48, 48, **FILLS)],
    "pad-random": lambda: [A.PadIfNeeded(63, 70, position="random", **FILLS)],
    "pad-corner": lambda: [A.PadIfNeeded(63, 70, position="bottom_left", fill=7)],
    "pad-multiple": lambda: [A.PadIfNeeded(None, None, 32, 16), A.Pad((1, 2, 3, 4), fill=9)],
    "random-crop": lambda: [A.RandomCrop(30, 41)],
    "random-crop-padded": lambda: [A.RandomCrop(50, 60, pad_if_needed=True, **FILLS)],
    "center-crop": lambda: [A.CenterCrop(31, 40), A.HorizontalFlip()],
    "center-crop-padded": lambda: [A.CenterCrop(55, 33, pad_if_needed=True, fill=5)],
    "crop": lambda: [A.Crop(3, 7, 33, 39)],
    "random-resized-crop": lambda: [A.RandomResizedCrop((32, 40), (0.2, 0.9), (0.4, 2.5))],
    "random-sized-crop": lambda: [A.RandomSizedCrop((20, 45), (32, 40), 1.4)],
    "scale": lambda: [A.RandomScale((-0.5, 0.6), p=0.7), A.CenterCrop(20, 20)],
    "affine": lambda: [
        A.Affine(
            scale={"x": (0.6, 1.4), "y": (0.8, 1.1)},
            translate_percent=SHIFT,
            rotate=(-40, 30),
            shear={"x": (-10, 10), "y": (-5, 9)},
            p=0.8,
            **FILLS,
        )
    ],
    "affine-pixels": lambda: [
        A.Affine(scale=(0.7, 1.3), keep_ratio=True, translate_px=(-9, 6), rotate=(-5, 5), p=1)
    ],
    "affine-nearest": lambda: [
        A.Affine(rotate=(-60, 60), interpolation=cv2.INTER_NEAREST, p=1, **FILLS)
    ],
    "shift-scale-rotate": lambda: [A.ShiftScaleRotate(0.1, 0.3, 30, p=0.7, fill=114)],
    "rotate": lambda: [A.Rotate((-80, 20), p=0.9), A.HorizontalFlip(p=0.5)],
    "perspective": lambda: [A.Perspective((0.05, 0.2), p=0.8, **FILLS)],
    "perspective-cut": lambda: [
        A.Perspective(0.3, keep_size=False, interpolation=cv2.INTER_NEAREST, p=0.8, fill=77)
    ],
    "turns": lambda: [A.RandomRotate90(p=0.9), A.Transpose(p=0.5)],
    "safe-crop": lambda: [A.BBoxSafeRandomCrop(0.3, p=0.8)],
    "sized-safe-crop": lambda: [A.RandomSizedBBoxSafeCrop(32, 40, 0.2), A.HorizontalFlip(p=0.5)],
    "long": lambda: [
        A.LongestMaxSize(60),
        A.HorizontalFlip(p=0.5),
        A.Affine(rotate=(-20, 20), scale=(0.7, 1.3), p=0.7),
        A.PadIfNeeded(60, 60, fill=114),
        A.RandomCrop(44, 44),
        A.Resize(40, 40),
    ],
}
RULES = {
    "min_area": 20.0,
    "min_visibility": 0.3,
    "min_width": 2.5,
    "min_height": 1.5,
    "max_accept_ratio": 6.0,
}
DROPPED = (
    *("random-resized-crop", "affine", "perspective-cut", "rotate", "sized-safe-crop", "letterbox"),
    *("center-crop-padded", "long"),
)
"""The chains after which boxes are dropped by `RULES`, which are the same for all."""
ROUNDED_FACTOR = ("longest", "longest-hw", "smallest", "letterbox", "scale", "long")
"""Albumentations multiplies points by the factor that it has not rounded yet, and boxes by what the
sides really become; here points go where the pixels go."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    root = tmp_path_factory.mktemp("albumentations")
    paths: dict[str, list[str]] = {"image": [], "mask": []}
    for n, (height, width) in enumerate(SIZES):
        pixels = {"image": photo(height, width, seed=n), "mask": labels(height, width, seed=n)}
        for name, files in paths.items():
            files.append(str(root / f"{name}{n}.png"))
            Path(files[-1]).write_bytes(png(pixels[name]))
    columns = {
        "image": EncodedFiles(PathTable.of(paths["image"])),
        "mask": EncodedFiles(PathTable.of(paths["mask"]), role="mask"),
        "boxes": RaggedArray(Ragged.of(BOXES), role="boxes"),
        "keypoints": RaggedArray(Ragged.of(POINTS), role="keypoints:none"),
        "ids": RaggedArray(Ragged.of(IDS), role="instances"),
        "index": ValueArray(np.arange(SAMPLES)),
    }
    return Source(columns, "albumentations", "albumentations", "dict")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:ShiftScaleRotate")
@pytest.mark.parametrize(
    ("chain", "rules"),
    [
        pytest.param(chain, rules, id=f"{chain}{name}", marks=[] if quick else pytest.mark.whole)
        for chains, rules, name in ((CHAINS, {}, ""), (DROPPED, RULES, "-dropped"))
        for quick, chain in ((number % 4 == 0, one) for number, one in enumerate(chains))
    ],
)
def test_as_albumentations(chain: str, rules: dict[str, Any], source: Source) -> None:
    params = A.BboxParams(format="pascal_voc", label_fields=["ids"], **rules)
    transform = A.Compose(CHAINS[chain](), bbox_params=params)
    dropped = 0
    with fastload.create_loader(source, transform=transform, shuffle=True, seed=3) as loader:
        for number in range(2 * SAMPLES):
            batch = next(iterator := iter(loader)) if number % SAMPLES == 0 else next(iterator)
            index = int(batch["index"][0])
            draws = Draws(3, number // SAMPLES, np.array([index]))
            wanted = by_albumentations(CHAINS[chain](), index, draws, **rules)
            compare(batch, wanted, rounded=chain in ROUNDED_FACTOR)
            dropped += COUNTS[index] - len(batch["ids"][0])
    if rules:
        assert dropped > 0


def compare(batch: Any, wanted: Any, *, rounded: bool) -> None:
    image = batch["image"][0].permute(1, 2, 0).numpy().astype(int)
    assert image.shape == wanted["image"].shape
    away = np.abs(image - wanted["image"])
    assert away.max() <= 2
    assert away.mean() < 0.5
    # Of a row or column of masks the neighbour where a position is on the border between two.
    assert (batch["mask"][0].numpy() != wanted["mask"]).mean() <= 0.06
    ids = batch["ids"][0].tolist()
    assert ids == [int(one) for one in wanted["ids"]]
    boxes = np.array(wanted["bboxes"]).reshape(-1, 4)
    assert np.allclose(batch["boxes"][0].numpy(), boxes, rtol=0, atol=1e-4)
    names, places = (wanted[name] for name in ("of", "keypoints"))
    points = dict(zip(map(int, names[::2]), places.reshape(-1, 2, 2), strict=True))
    for one, found in zip(ids, batch["keypoints"][0].numpy(), strict=True):
        assert np.allclose(found, points[one], rtol=0, atol=1.0 if rounded else 1e-4)


def test_perspective_of_images_of_a_few_pixels() -> None:
    """Where albumentations moves points apart that are closer than 2 pixels."""
    sizes = np.stack(np.meshgrid(range(1, 9), [1, 2, 3, 5, 200]), axis=-1).reshape(-1, 2)
    transform = A.Perspective((0.1, 0.4), keep_size=False, p=1)
    op, numbers = only_op(transform), DRAWS.uniform(0, 10)
    for size, own in zip(sizes, np.resize(numbers, (len(sizes), 10)), strict=True):
        transform.py_random = transform.random_generator = Scripted(own[1:])
        wanted = transform.get_params_dependent_on_data({"shape": (*size.tolist(), 3)}, {})
        made = op.warp(size[None], own[None])
        assert made.size[0].tolist() == [wanted["max_height"], wanted["max_width"]]
        assert np.allclose(made.forward[0], wanted["matrix"], rtol=1e-5, atol=1e-5)


def test_normal_numbers_are_normal() -> None:
    numbers = normal_pairs(Draws(0, 0, np.arange(20000)).uniform(0, 2))
    assert np.abs(numbers.mean(axis=0)).max() < 0.03
    assert np.abs(np.cov(numbers.T) - np.eye(2)).max() < 0.03
    within = (np.abs(numbers[..., None]) < [0.5, 1, 2, 3]).mean(axis=0)
    assert np.abs(within - [0.3829, 0.6827, 0.9545, 0.9973]).max() < 0.01


# -- Colour


COUNT = 30
PHOTOS = np.stack([photo(40, 52, seed=n) for n in range(COUNT)])
DRAWS = Draws(1, 0, np.arange(COUNT))


def made(op: Operation, stream: int = 0) -> Any:
    pixels = torch.from_numpy(PHOTOS).permute(0, 3, 1, 2)
    return op.apply(pixels, DRAWS, stream).permute(0, 2, 3, 1).numpy()


def only_op(transform: Any) -> Any:
    (op,) = Recipe.from_transform(transform).ops
    return op


def far(found: Any, wanted: Any) -> Any:
    return np.abs(found.astype(int) - np.asarray(wanted, dtype=int))


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"brightness": 0.5, "contrast": 0.5, "saturation": 0.5, "hue": 0}, 3),
        # OpenCV counts hues in 180 steps.
        ({"hue": (-0.5, 0.5)}, 10),
    ],
)
def test_colour_jitter(settings: dict[str, Any], most: int) -> None:
    transform = A.ColorJitter(**settings, p=1)
    op = only_op(transform)
    factors, orders = op.parameters(DRAWS, 0)
    neutral = np.where(np.isnan(factors), [1, 1, 1, 0], factors).astype(float)
    names = ("brightness", "contrast", "saturation", "hue")
    wanted = [
        transform.apply(one, order=list(order), **dict(zip(names, own.tolist(), strict=True)))
        for one, own, order in zip(PHOTOS, neutral, orders, strict=True)
    ]
    away = far(made(op), wanted)
    assert away.max() <= most
    assert away.mean() < 0.7


@pytest.mark.parametrize("limit", [(30, 250), (100, 100), (50, 50), (200, 200)])
def test_gamma(limit: tuple[int, int]) -> None:
    transform = A.RandomGamma(limit, p=1)
    op = only_op(transform)
    exponents = op.exponents(DRAWS, 0).tolist()
    wanted = [transform.apply(one, gamma) for one, gamma in zip(PHOTOS, exponents, strict=True)]
    assert np.array_equal(made(op), wanted)
    numbers = DRAWS.uniform(0, 1)[:, 0].tolist()
    for exponent, number in zip(exponents, numbers, strict=True):
        transform.py_random = Scripted([number])
        drawn = transform.get_params_dependent_on_data({}, {})["gamma"]
        assert exponent == pytest.approx(drawn, rel=1e-6)


def test_channels_are_shuffled() -> None:
    op = only_op(A.ChannelShuffle(p=1))
    wanted = [one[..., order] for one, order in zip(PHOTOS, op.orders(DRAWS, 0), strict=True)]
    assert np.array_equal(made(op), wanted)
    assert len({tuple(order) for order in op.orders(DRAWS, 0)}) == 6, "albumentations draws all"


@pytest.mark.parametrize("by_max", [True, False])
def test_brightness_and_contrast(by_max: bool) -> None:
    transform = A.RandomBrightnessContrast((-0.3, 0.2), 0.4, brightness_by_max=by_max, p=1)
    numbers = DRAWS.uniform(0, 2).tolist()
    wanted = []
    for one, own in zip(PHOTOS, numbers, strict=True):
        transform.py_random = Scripted(own)
        wanted.append(transform(image=one)["image"])
    assert far(made(only_op(transform)), wanted).max() == 0


@pytest.mark.parametrize("per_channel", [True, False])
def test_noise(per_channel: bool) -> None:
    """The same pixels of the same noise; and noise of the same mean and deviation."""
    transform = A.GaussNoise((0.1, 0.2), (-0.1, 0.05), per_channel=per_channel, p=1)
    op = only_op(transform)
    found = made(op)
    (steps,) = op.colour_steps(DRAWS, 0, (3, *PHOTOS.shape[1:3]))
    each = 3 if per_channel else 1
    numbers = normals(steps.keys, PHOTOS[0, ..., 0].size * each, torch.device("cpu")).numpy()
    numbers = numbers.reshape(*PHOTOS.shape[:3], each)
    drawn = DRAWS.uniform(0, 2).tolist()
    for row, (photo_, own) in enumerate(zip(PHOTOS, drawn, strict=True)):
        # Of a mean of its own, so that the numbers of OpenCV's generator do not matter.
        transform.py_random = Scripted(own)
        transform.random_generator = np.random.default_rng(row)
        asked = transform.get_params_dependent_on_data({}, {"image": np.full_like(photo_, 128)})
        theirs = asked["noise_map"]
        assert abs(theirs.mean() - steps.shifts[row]) < 4 * steps.scales[row] / 40
        assert abs(theirs.std() / steps.scales[row] - 1) < 0.08
        noise = np.broadcast_to(
            numbers[row] * steps.scales[row] + steps.shifts[row], photo_.shape
        ).copy()
        assert np.array_equal(found[row], transform.apply(photo_, noise_map=noise))
    assert "noise_scale_factor" in only_op(A.GaussNoise(noise_scale_factor=0.5, p=1)).reason


@pytest.mark.parametrize("channels", [1, 3])
def test_compression(channels: int) -> None:
    transform = A.ImageCompression("jpeg", (5, 70), p=1)
    op = only_op(transform)
    photos = np.ascontiguousarray(PHOTOS[..., :channels])
    planes = torch.from_numpy(photos).permute(0, 3, 1, 2)
    found = op.apply(planes, DRAWS, 0).permute(0, 2, 3, 1).numpy()
    for one, quality, own in zip(photos, op.qualities(DRAWS, 0).tolist(), found, strict=True):
        assert np.array_equal(own, transform.apply(one, quality=quality, image_type=".jpg"))
    assert "webp" in only_op(A.ImageCompression("webp", p=1)).reason


def test_grey_and_blur_and_normalised() -> None:
    grey = A.ToGray(p=1)
    assert far(made(only_op(grey)), [grey(image=one)["image"] for one in PHOTOS]).max() <= 1
    blur = A.GaussianBlur((5, 5), (1.2, 1.2), p=1)
    assert far(made(only_op(blur)), [blur(image=one)["image"] for one in PHOTOS]).max() <= 1
    normal = A.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.1), max_pixel_value=250)
    arrays = {"image": PHOTOS}
    with fastload.create_loader(
        arrays, batch_size=COUNT, transform=A.Compose([normal, ToTensorV2()])
    ) as loader:
        found = next(iter(loader))["image"].permute(0, 2, 3, 1).numpy()
    wanted = np.stack([normal(image=one)["image"] for one in PHOTOS])
    assert found.dtype == np.float32
    assert np.abs(found - wanted).max() < 1e-5


@pytest.mark.parametrize(
    "settings",
    [
        {"hole_height_range": (0.1, 0.4), "hole_width_range": (0.2, 0.3)},
        {"hole_height_range": (3, 9), "hole_width_range": (1, 70), "fill_mask": 7},
    ],
)
def test_coarse_dropout(settings: dict[str, Any]) -> None:
    transform = A.CoarseDropout((2, 4), fill=(1, 2, 3), p=1, **settings)
    op = only_op(transform)
    numbers = DRAWS.uniform(0, 1 + 4 * 4)
    masks = np.full((COUNT, 1, 40, 52), 3, np.uint8)
    found, found_masks = made(op), op.apply_to_masks(torch.from_numpy(masks), DRAWS, 0).numpy()
    for row, own in enumerate(numbers):
        holes = 2 + int(own[0] * 3)
        # It draws all heights, then all widths, then all rows, then all columns.
        each = own[1:].reshape(4, 4)[:holes].T.ravel()
        transform.py_random, transform.random_generator = Scripted(own[:1]), Scripted(each)
        done = transform(image=PHOTOS[row], mask=masks[row, 0])
        assert np.array_equal(found[row], done["image"])
        assert np.array_equal(found_masks[row, 0], done["mask"])


# -- Several transforms


def groups_of(transform: Any) -> Any:
    op = only_op(transform)
    assert isinstance(op, OneOf | RandomApply)
    return [(sorted(type(one).__name__ for one in ops), high - low) for ops, low, high in op.groups]


def test_one_of_several() -> None:
    flips = [A.HorizontalFlip(p=0.3), A.VerticalFlip(p=0.9)]
    names = [["RandomHorizontalFlip"], ["RandomVerticalFlip"]]
    found = groups_of(A.OneOf(flips, p=0.8))
    assert [name for name, _ in found] == names
    assert np.allclose([part for _, part in found], [0.2, 0.6])
    found = groups_of(A.SomeOf([*flips, A.NoOp()], n=2, p=0.9))
    both = [*names[0], *names[1]]
    assert [name for name, _ in found] == [both, *names]
    assert np.allclose([part for _, part in found], 0.3)
    found = groups_of(A.RandomOrder(flips, n=2))
    assert [name for name, _ in found] == [both, both]
    assert groups_of(A.Sequential([A.ToGray(p=1), flips[1]], p=0.4)) == [
        (["Grayscale", "RandomVerticalFlip"], 0.4)
    ]


def test_one_of_several_is_done_to_each() -> None:
    """Flips by OneOf, boxes with them, and in the part of the samples that is asked for."""
    count = 400
    pixels = np.zeros((count, 6, 8, 3), np.uint8)
    pixels[:, 0, 0] = 255
    boxes = Ragged.of([np.array([[0.0, 0, 1, 1]])] * count)
    one_of = A.OneOf([A.HorizontalFlip(p=1), A.Sequential([A.VerticalFlip(p=1)], p=0.1)], p=0.8)
    transform = A.Compose([one_of], bbox_params=A.BboxParams("pascal_voc"))
    with fastload.create_loader(
        {"image": pixels, "boxes": boxes}, batch_size=count, transform=transform
    ) as loader:
        batch = next(iter(loader))
    corners = batch["boxes"].values.long()
    seen = [batch["image"][n, 0, top, left] for n, (left, top, *_) in enumerate(corners.tolist())]
    assert min(seen) == 255
    across, down = (corners[:, :2] > 0).double().mean(dim=0).tolist()
    # 8 parts of 11 are a flip across, within four standard deviations.
    assert abs(across - 0.8 / 1.1) < 0.09
    assert abs(down - 0.08 / 1.1) < 0.06


# -- All backends


@contestants()
def test_all_backends_have_the_same_samples(
    contestant: Contestant, source: Source, tmp_path: Path
) -> None:
    rules = A.BboxParams(format="pascal_voc", label_fields=["ids"], min_visibility=0.2)
    chain = [*CHAINS["long"](), A.RandomBrightnessContrast(p=0.5), A.Normalize(), ToTensorV2()]
    transform = A.Compose(chain, bbox_params=rules)
    arguments: dict[str, Any] = {"transform": transform, "shuffle": True, "batch_size": 4}
    with fastload.create_loader(source, backend="torch", num_workers=0, **arguments) as loader:
        wanted = list(loader)
    with contestant.create(source, tmp_path, **arguments) as loader:
        for batch, other in zip(loader, wanted, strict=True):
            assert torch.equal(batch["index"].cpu(), other["index"])
            assert torch.equal(batch["ids"].values.cpu(), other["ids"].values)
            assert torch.allclose(batch["boxes"].values.cpu(), other["boxes"].values)
            if contestant.backend != "dali":
                assert (batch["image"].cpu() - other["image"]).abs().max() < 0.05


# -- What runs as it was written, and what is refused


class Cross(A.ImageOnlyTransform):  # type: ignore[misc, name-defined]
    """A transform of one's own."""

    def apply(self, img: Any, at: int, **params: Any) -> Any:
        img = img.copy()
        img[:, at] = 255
        return img

    def get_params_dependent_on_data(self, params: Any, data: Any) -> dict[str, int]:
        return {"at": self.py_random.randint(0, params["shape"][1] - 1)}


@contestants("torch-0", "torch-2")
def test_what_is_not_known_runs_as_it_was_written(contestant: Contestant, tmp_path: Path) -> None:
    """With random numbers that follow (seed, epoch, index), and others for each transform."""
    arrays = {"image": PHOTOS, "mask": PHOTOS[..., :1]}
    chain = [A.RandomCrop(20, 30), Cross(p=1), A.HorizontalFlip(), A.VerticalFlip()]
    transform = A.Compose(chain, bbox_params=A.BboxParams("coco", label_fields=["names"]))
    arguments: dict[str, Any] = {"transform": transform, "seed": 5, "shuffle": True}
    with contestant.create(arrays, tmp_path / "a", batch_size=5, **arguments) as loader:
        assert "Cross" in loader.explain()
        found = list(loader)
        again = list(loader)
    with fastload.create_loader(arrays, batch_size=3, num_workers=0, **arguments) as loader:
        other = list(loader)
    for name in ("image", "mask"):
        one, two = (torch.cat([batch[name] for batch in batches]) for batches in (found, other))
        assert torch.equal(one, two)
        assert not torch.equal(one, torch.cat([batch[name] for batch in again]))
    images, masks = one_of_each(found)
    lines = (images == 255).all(dim=1).all(dim=1)
    assert lines.any(dim=1).all()
    # The mask is that of the image, except for the line: so both were cut and turned alike.
    assert (images[:, 0] != masks).any(dim=1).sum(dim=1).max() <= 1
    at = lines.double().argmax(dim=1)
    assert len(at.unique()) > 8


def one_of_each(batches: list[Any]) -> tuple[Any, Any]:
    images, masks = (torch.cat([batch[name] for batch in batches]) for name in ("image", "mask"))
    return images, masks


@pytest.mark.slow
def test_what_runs_as_it_was_written_is_given_what_it_takes() -> None:
    """Bytes in colour, of whatever a data set gives; and no tensors, whose rows are channels."""
    palette = [Image.fromarray(one).convert("P") for one in PHOTOS[:3]]
    transform = A.Compose([Cross(p=1), A.CenterCrop(30, 30), ToTensorV2()])
    with fastload.create_loader(palette, transform=transform, batch_size=3) as loader:
        found = next(iter(loader))
    wanted = np.stack([np.asarray(one.convert("RGB"))[5:35, 11:41] for one in palette])
    assert found.dtype == torch.uint8
    assert (found.permute(0, 2, 3, 1).numpy() == wanted).mean() > 0.95
    after = v2.Compose([v2.ToImage(), A.Compose([Cross(p=1)])])
    with (
        fastload.create_loader({"image": PHOTOS}, transform=after) as loader,
        pytest.raises(ConfigurationError, match="given a tensor"),
    ):
        next(iter(loader))


@pytest.mark.slow
def test_a_transform_of_ones_own_leaves_the_users_object_alone() -> None:
    transform = A.Compose([Cross(p=1)], seed=3)
    before = transform.py_random.getstate()
    with fastload.create_loader({"image": PHOTOS}, transform=transform) as loader:
        list(loader)
    assert transform.py_random.getstate() == before


def test_what_only_python_can_do_is_refused_beside_boxes_and_other_backends() -> None:
    arrays = {"image": PHOTOS, "boxes": Ragged.of([np.ones((1, 4))] * COUNT)}
    transform = A.Compose([A.Resize(20, 20), A.ElasticTransform()])
    with pytest.raises(ConfigurationError, match="inside it: .*ElasticTransform"):
        fastload.create_loader(arrays, transform=transform)
    with pytest.raises(UnsupportedTransformError, match="inside it: .*ElasticTransform"):
        fastload.create_loader({"image": PHOTOS}, transform=transform, backend="cache")


VOC = {"bbox_params": A.BboxParams("pascal_voc")}


@pytest.mark.parametrize(
    ("transform", "why"),
    [
        (A.Resize(8, 8, interpolation=cv2.INTER_AREA), "not among INTER_NEAREST"),
        (A.Resize(8, 8, area_for_downscale="image"), "area_for_downscale"),
        (A.Resize(8, 8, mask_interpolation=cv2.INTER_LINEAR), "nearest pixel alone"),
        (A.Resize(8, 8, p=0.5), "have another size"),
        (A.PadIfNeeded(8, 8, border_mode=cv2.BORDER_REFLECT_101), "BORDER_CONSTANT"),
        (A.Crop(0, 0, 8, 8, pad_if_needed=True), "put PadIfNeeded before it"),
        (A.Rotate(crop_border=True), "crop_border"),
        (A.Affine(fit_output=True), "fit_output"),
        (A.Perspective(fit_output=True), "fit_output"),
        (A.Perspective(border_mode=cv2.BORDER_REPLICATE), "BORDER_CONSTANT"),
        (A.Affine(rotate_method="ellipse"), "ellipse"),
        (A.Normalize(normalization="min_max"), "min_max"),
        (A.ToGray(method="max", p=1), "weighted_average"),
        (A.RandomBrightnessContrast(ensure_safe_range=True), "ensure_safe_range"),
        (A.CoarseDropout(fill="random"), "not a number"),
        (A.Sequential([A.Resize(8, 8)], p=0.5), "not done to every sample"),
        (A.OneOf([A.Normalize(), A.NoOp()]), "changes the kind"),
        (A.SomeOf([A.NoOp()] * 12, n=6), "more than 64"),
        (A.Compose([A.Normalize(), A.ToGray()]), "after Normalize"),
        (A.Compose([A.NoOp()], save_applied_params=True), "save_applied_params"),
        (A.Compose([A.CoarseDropout()], **VOC), "shrinks or drops the boxes"),
        (
            A.Compose(
                [A.HorizontalFlip()], bbox_params=A.BboxParams("coco", check_each_transform=False)
            ),
            "check_each_transform",
        ),
        (
            A.Compose([A.HorizontalFlip()], keypoint_params=A.KeypointParams("xy")),
            "remove_invisible=False",
        ),
        (
            A.Compose(
                [A.HorizontalFlip()], keypoint_params=A.KeypointParams("yx", remove_invisible=False)
            ),
            "not 'xy'",
        ),
    ],
)
def test_what_is_not_the_same_stays_as_it_is(transform: Any, why: str) -> None:
    (op,) = Recipe.from_transform(transform).ops
    assert op.is_opaque
    assert why in op.reason_not_placed(None)


def test_boxes_in_another_form_are_refused_where_a_source_does_not_say_which() -> None:
    arrays = {"image": PHOTOS, "boxes": Ragged.of([np.ones((1, 4))] * COUNT)}
    transform = A.Compose([A.HorizontalFlip()], bbox_params=A.BboxParams("coco"))
    with pytest.raises(ConfigurationError, match="format='coco'.*write format='pascal_voc'"):
        fastload.create_loader(arrays, transform=transform)


@pytest.mark.parametrize("form", ["coco", "yolo", "albumentations"])
def test_boxes_of_a_source_that_says_so_are_served_as_ever(form: str, source: Source) -> None:
    known = Source(source.columns, "x", "x", "dict", classes=("a", "b"))
    made = []
    for one in (form, "pascal_voc"):
        rules = A.BboxParams(one, min_area=30)
        transform = A.Compose([A.Resize(20, 30)], bbox_params=rules)
        with fastload.create_loader(known, batch_size=SAMPLES, transform=transform) as loader:
            made.append(next(iter(loader))["boxes"].values)
    assert torch.equal(*made)
