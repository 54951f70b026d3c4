"""Colour operations of batches against torchvision's, sample by sample with the same parameters."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

import fastload
from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.geometry import Interpolation
from fastload.recipe import Operation, Recipe, colour, transforms
from fastload.recipe.augment import AUGMENTATIONS, AugmentStep, RandAugment, TrivialAugmentWide
from fastload.recipe.augmix import AugMix
from fastload.recipe.colour import ColorJitter, Grayscale, RandomGrayscale
from fastload.recipe.gaussian_noise import GaussianNoise
from fastload.recipe.hsv import HSV, HSVShift
from fastload.recipe.jpeg import JPEG
from fastload.recipe.photometric import RandomChannelPermutation, RandomPhotometricDistort
from fastload.recipe.split import BatchProgram
from fastload.render.hsv import adjust_hsv
from fastload.sources.kinds import IMAGE, MASK
from tests.test_recipe_batch import draws_of, images_of, masks_of

STREAM = 4
COUNT = 48


def pictures(
    channels: int, dtype: torch.dtype = torch.uint8, *, height: int = 33, width: int = 46
) -> torch.Tensor:
    """(B, C, H, W): photographs, and the cases that trip colour arithmetic: black, white, flat,
    grey and saturated."""
    images = images_of(COUNT, channels=channels, height=height, width=width)
    images[0], images[1], images[2] = 0, 255, 77
    images[3] = images[3, :1]
    images[4] = torch.where(images[4] > 128, 255, 0)
    return images if dtype == torch.uint8 else images.to(dtype) / 255


def compare(ours: torch.Tensor, theirs: torch.Tensor, *, share: float = 0.0) -> None:
    """uint8 pixels equal except for `share` of them, which may differ by 1; floats to within
    rounding."""
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    if ours.is_floating_point():
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    else:
        different = ours != theirs
        assert different.float().mean() <= share
        assert (ours.int() - theirs.int()).abs().max() <= 1


FACTORS = torch.linspace(0.0, 2.0, COUNT, dtype=torch.float64)
KERNELS: tuple[
    tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor], torch.Tensor], ...
] = (
    (colour.adjust_brightness, F.adjust_brightness, FACTORS),
    (colour.adjust_contrast, F.adjust_contrast, FACTORS),
    (colour.adjust_saturation, F.adjust_saturation, FACTORS),
    (colour.adjust_sharpness, F.adjust_sharpness, FACTORS),
    (colour.adjust_hue, F.adjust_hue, FACTORS / 2 - 0.5),
    (
        colour.posterize,
        lambda image, bits: F.posterize(image, int(bits)),
        torch.arange(COUNT).double() % 9,
    ),
    (
        colour.solarize,
        lambda image, share: F.solarize(
            image, share if image.is_floating_point() else 255.0 * share
        ),
        torch.linspace(0.0, 1.0, COUNT).double(),
    ),
)


@pytest.mark.parametrize(
    ("ours", "theirs", "parameters"), KERNELS, ids=lambda x: getattr(x, "__name__", "")
)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(33, 46), (2, 5), (1, 1)])
def test_kernel(
    ours: Callable[..., torch.Tensor],
    theirs: Callable[..., torch.Tensor],
    parameters: torch.Tensor,
    dtype: torch.dtype,
    channels: int,
    size: tuple[int, int],
) -> None:
    images = pictures(channels, dtype, height=size[0], width=size[1])
    expected = torch.stack([theirs(i, p) for i, p in zip(images, parameters.tolist(), strict=True)])
    # Hues are computed by another formula, and a mean of grey values exactly: both may fall on the
    # other side of a whole number now and then.
    rare = 1e-3 if ours in (colour.adjust_hue, colour.adjust_contrast) else 0.0
    compare(ours(images.contiguous(), parameters), expected, share=rare)


def run(op: Operation, images: torch.Tensor, draws: Draws) -> torch.Tensor:
    return BatchProgram(((STREAM, op),))({"i": images}, {"i": IMAGE}, draws)["i"]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "op",
    [
        ColorJitter((0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1)),
        ColorJitter(brightness=(0.0, 2.0), saturation=(0.0, 2.0)),
        ColorJitter(hue=(-0.5, 0.5)),
        ColorJitter(),
    ],
    ids=repr,
)
def test_color_jitter(op: ColorJitter, channels: int, dtype: torch.dtype) -> None:
    images, draws = pictures(channels, dtype), draws_of(COUNT)
    adjust = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
    expected = []
    for image, factors, order in zip(images, *op.parameters(draws, STREAM), strict=True):
        for k in order:
            image = image if math.isnan(factors[k]) else adjust[k](image, float(factors[k]))
        expected.append(image)
    # A 1 that comes of one step can grow in the next.
    ours, theirs = run(op, images, draws), torch.stack(expected)
    if dtype == torch.uint8:
        assert (ours != theirs).float().mean() < 1e-3
        assert (ours.int() - theirs.int()).abs().max() <= 3
    else:
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("p", [0.5, 1.0])
def test_photometric_distort(p: float, channels: int, dtype: torch.dtype) -> None:
    """torchvision's transform with the same numbers."""
    images, draws = pictures(channels, dtype), draws_of(COUNT)
    transform = v2.RandomPhotometricDistort(hue=(-0.3, 0.3), p=p)
    (op,) = Recipe.from_transform(transform).ops
    assert isinstance(op, RandomPhotometricDistort)
    names = ("brightness_factor", "contrast_factor", "saturation_factor", "hue_factor")
    expected = []
    for image, factors, order in zip(images, *op.parameters(draws, STREAM), strict=True):
        given = [None if math.isnan(factor) else float(factor) for factor in factors]
        last = given.pop()
        params: dict[str, Any] = dict(zip(names, given, strict=True))
        assert last is None or params["contrast_factor"] is None
        params["contrast_before"] = last is None
        params["contrast_factor"] = params["contrast_factor"] or last
        params["channel_permutation"] = torch.tensor(order[:1] * 0 if channels == 1 else order)
        expected.append(transform.transform(image, params))
    ours, theirs = run(op, images, draws), torch.stack(expected)
    if dtype == torch.uint8:
        assert (ours != theirs).float().mean() < 2e-3
        assert (ours.int() - theirs.int()).abs().max() <= 3
    else:
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-5)


def test_photometric_distort_draws_as_torchvision_does() -> None:
    op = RandomPhotometricDistort(p=0.3)
    factors, orders = op.parameters(draws_of(6000), STREAM)
    done = ~np.isnan(factors)
    assert np.abs(done.mean(axis=0) - [0.3, 0.15, 0.3, 0.3, 0.15]).max() < 0.02
    assert not (done[:, 1] & done[:, 4]).any()
    assert np.abs(np.corrcoef(done[:, [0, 2, 3]].T) - np.eye(3)).max() < 0.05
    for k, name in enumerate(("brightness", "contrast", "saturation", "hue")):
        found, (low, high) = factors[done[:, k], k], getattr(op, name)
        assert low <= found.min() < low + (high - low) / 20
        assert high - (high - low) / 20 < found.max() <= high
    moved = orders[(orders != np.arange(3)).any(axis=1)]
    assert abs(len(moved) / 6000 - 0.3 * 5 / 6) < 0.02
    assert (np.sort(orders, axis=1) == np.arange(3)).all()
    assert len(np.unique(moved, axis=0)) == 5


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("clip", [True, False])
def test_gaussian_noise(clip: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision's with the same noise, which is normal."""
    images, draws = pictures(3, dtype), draws_of(COUNT)
    (op,) = Recipe.from_transform(v2.GaussianNoise(0.1, 0.2, clip)).ops
    assert isinstance(op, GaussianNoise)
    ours = run(op, images, draws)
    for image, noise, found in zip(images, op.noise(images, draws, STREAM), ours, strict=True):
        monkeypatch.setattr(torch, "randn_like", lambda like, noise=noise, **_: noise)
        torch.testing.assert_close(
            found, F.gaussian_noise(image, 0.1, 0.2, clip), rtol=0, atol=1e-6
        )
    noise = op.noise(images, draws, STREAM).numpy().ravel()
    for share, normal in ((0.0228, -2.0), (0.1587, -1.0), (0.5, 0.0), (0.8413, 1.0)):
        assert abs(np.quantile(noise, share) - normal) < 0.02
    planes = op.noise(images, draws, STREAM).flatten(2)[:20].flatten(0, 1).numpy()
    assert np.abs(np.corrcoef(planes) - np.eye(60)).max() < 0.15
    with pytest.raises(ConfigurationError, match="before the ToDtype"):
        run(op, images.to(torch.int32), draws)


@pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")
@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_of_a_drawn_quality(channels: int) -> None:
    images, draws = pictures(channels, torch.uint8), draws_of(COUNT)
    (op,) = Recipe.from_transform(v2.JPEG((5, 60))).ops
    assert isinstance(op, JPEG)
    qualities = op.qualities(draws, STREAM).tolist()
    expected = [F.jpeg(image, quality) for image, quality in zip(images, qualities, strict=True)]
    assert torch.equal(run(op, images, draws), torch.stack(expected))
    many = op.qualities(draws_of(9000), STREAM)
    assert np.array_equal(np.unique(many), np.arange(5, 61))
    with pytest.raises(ConfigurationError, match="before the ToDtype"):
        run(op, images.float(), draws)
    with pytest.raises(ConfigurationError, match="1 <= low <= high <= 100"):
        JPEG((0, 50))


def test_channels_are_permuted_in_every_order() -> None:
    images, draws = pictures(3, torch.uint8), draws_of(COUNT)
    op = RandomChannelPermutation()
    orders = op.orders(draws, STREAM)
    expected = [F.permute_channels(i, o.tolist()) for i, o in zip(images, orders, strict=True)]
    assert torch.equal(run(op, images, draws), torch.stack(expected))
    shares = np.unique(op.orders(draws_of(6000), STREAM), axis=0, return_counts=True)[1] / 6000
    assert len(shares) == 6
    assert np.abs(shares - 1 / 6).max() < 0.02


@pytest.mark.parametrize("turns", [False, True])
def test_hsv_as_yolo_makes_it(turns: bool) -> None:
    """YOLOv5's; and Ultralytics', which adds to the hue."""
    cv2 = pytest.importorskip("cv2")
    images = pictures(3, torch.uint8, height=40, width=50)
    op, draws = HSV(0.5, 0.9, 0.8, turns), draws_of(COUNT)
    ours = run(op, images, draws)
    levels = np.arange(256)
    drawn = (2 * draws.uniform(STREAM, 3) - 1) * (0.5, 0.9, 0.8)
    for image, found, part in zip(images, ours, drawn, strict=True):
        r = (1 + part).astype(np.float32).astype(np.float64)
        pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
        parts = cv2.split(cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV))
        tables = (
            (levels + part[0] * 180 if turns else levels * r[0]) % 180,
            np.clip(levels * r[1], 0, 255),
            np.clip(levels * r[2], 0, 255),
        )
        changed = [cv2.LUT(p, t.astype(np.uint8)) for p, t in zip(parts, tables, strict=True)]
        wanted = cv2.cvtColor(cv2.merge(changed), cv2.COLOR_HSV2RGB)
        assert np.abs(found.permute(1, 2, 0).numpy().astype(int) - wanted).max() <= 1


def test_hsv_as_yolox_makes_it() -> None:
    """Its `augment_hsv`; grey pixels, too, get a saturation, and so a colour."""
    cv2 = pytest.importorskip("cv2")
    images = pictures(3, torch.uint8, height=40, width=50)
    images[:, :, :9] = 114
    op, draws = HSVShift(20, 60, 50, 0.8), draws_of(COUNT)
    ours = run(op, images, draws)
    numbers = draws.uniform(STREAM, 7)
    changed = 0
    for image, found, u in zip(images, ours, numbers, strict=True):
        if u[0] >= 0.8:
            assert torch.equal(found, image)
            continue
        shifts = ((2 * u[1:4] - 1) * (20, 60, 50) * (u[4:] < 0.5)).astype(np.int16)
        pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
        hsv = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV).astype(np.int16)
        hsv[..., 0] = (hsv[..., 0] + shifts[0]) % 180
        hsv[..., 1:] = np.clip(hsv[..., 1:] + shifts[1:], 0, 255)
        wanted = cv2.cvtColor(hsv.astype(np.uint8), cv2.COLOR_HSV2RGB)
        assert np.abs(found.permute(1, 2, 0).numpy().astype(int) - wanted).max() <= 1
        changed += int((wanted[0, 0] != wanted[0, 0, 0]).any())
    assert changed > 0
    grey = pictures(1, torch.uint8)
    assert torch.equal(run(op, grey, draws), grey)
    with pytest.raises(ConfigurationError, match="from 0 to"):
        HSVShift(181)
    with pytest.raises(ConfigurationError, match="hue must be"):
        transforms.HSVShift(181)
    torch.manual_seed(0)
    assert not torch.equal(transforms.HSVShift(20, 60, 50)(images[0]), images[0])


def test_hsv_by_the_hexcone() -> None:
    """Against `colorsys`, from HSV in bytes on."""
    images = pictures(3, torch.uint8)[5:6, :, :8, :8]
    (pixels,) = adjust_hsv(images, np.tile(np.arange(256, dtype=np.uint8), (1, 3, 1)))
    for before, after in zip(
        images[0].flatten(1).T.tolist(), pixels.flatten(1).T.tolist(), strict=True
    ):
        hue, saturation, value = colorsys.rgb_to_hsv(*(part / 255 for part in before))
        hue, saturation = round(hue * 180) % 180 / 180, round(saturation * 255) / 255
        wanted = [255 * part for part in colorsys.hsv_to_rgb(hue, saturation, value)]
        assert np.abs(np.array(wanted) - after).max() <= 2.6  # hues are rounded to 2 degrees


def test_hsv_by_itself() -> None:
    transform = fastload.HSV(0.5, 0.9, 0.8)
    image = tv_tensors.Image(pictures(3, torch.uint8)[5])
    torch.manual_seed(3)
    found = transform(image)
    assert isinstance(found, tv_tensors.Image)
    assert not torch.equal(found, image)
    torch.manual_seed(3)
    assert torch.equal(F.pil_to_tensor(transform(F.to_pil_image(image))), found)
    boxes = tv_tensors.BoundingBoxes([[1, 2, 3, 4]], format="XYXY", canvas_size=(9, 9))
    assert torch.equal(transform(image, boxes)[1], boxes)
    assert torch.equal(fastload.HSV(0, 0, 0)(image[:1]), image[:1])
    with pytest.raises(ConfigurationError, match="before the ToDtype"):
        transform(image.float())
    with pytest.raises(ConfigurationError, match="from 0 to 1"):
        fastload.HSV(2)


def test_color_jitter_draws_as_torchvision_does() -> None:
    op = ColorJitter((0.2, 1.8), (0.5, 1.0), (1.0, 3.0), (-0.3, 0.2))
    ours, order = op.parameters(draws_of(4000), STREAM)
    torch.manual_seed(0)
    theirs = [
        v1.ColorJitter.get_params(
            list(op.brightness), list(op.contrast), list(op.saturation), list(op.hue)
        )  # type: ignore[arg-type]
        for _ in range(4000)
    ]
    factors = np.array([parameters[1:] for parameters in theirs], dtype=np.float64)
    span = np.ptp(factors, axis=0)
    for q in (0.0, 0.1, 0.5, 0.9, 1.0):
        assert (
            np.abs(np.quantile(ours, q, axis=0) - np.quantile(factors, q, axis=0)) < 0.04 * span
        ).all()
    # Neither do the factors depend on each other, nor on when they are applied.
    turns = np.argsort(order, axis=1)
    related = np.corrcoef(ours.T, turns.T)[:4]
    assert np.abs(related - np.eye(4, 8)).max() < 0.06
    assert (np.sort(order, axis=1) == np.arange(4)).all()
    _, counts = np.unique(order, axis=0, return_counts=True)
    assert len(counts) == 24
    assert np.abs(counts / 4000 - 1 / 24).max() < 0.015


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("channels", [1, 3])
def test_grey(channels: int, dtype: torch.dtype) -> None:
    images, draws = pictures(channels, dtype), draws_of(COUNT)
    for outputs in (1, 3):
        compare(run(Grayscale(outputs), images, draws), F.rgb_to_grayscale(images, outputs))
    op = RandomGrayscale(0.4)
    chosen = draws.uniform(STREAM, 1)[:, 0] < 0.4
    assert 0.2 < chosen.mean() < 0.6
    expected = [
        F.rgb_to_grayscale(i, channels) if grey else i
        for i, grey in zip(images, chosen, strict=True)
    ]
    compare(run(op, images, draws), torch.stack(expected))


def torchvision_step(
    transform: Any, image: torch.Tensor, step: AugmentStep, row: int
) -> torch.Tensor:
    """torchvision's own transform, whose random functions return what is drawn for this row."""
    kind, chosen = int(step.kinds[row]), int(step.bins[row])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            torch,
            "randint",
            lambda n, size: torch.tensor(kind if n == len(AUGMENTATIONS) else chosen),
        )
        patch.setattr(
            torch, "rand", lambda size: torch.tensor(0.25 if step.magnitudes[row] < 0 else 0.75)
        )
        result: torch.Tensor = transform(image)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("fill", [None, (37.0,), (200.0, 0.0, 90.0)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(33, 46), (40, 40)])
def test_rand_augment(
    interpolation: Interpolation,
    fill: tuple[float, ...] | None,
    channels: int,
    size: tuple[int, int],
) -> None:
    fill = fill if fill is None else fill[:channels]
    op = RandAugment(num_ops=1, magnitude=17, interpolation=interpolation, fill=fill)
    transform = v2.RandAugment(1, 17, interpolation=v2.InterpolationMode(interpolation), fill=fill)  # type: ignore[arg-type]
    check_augment(op, transform, channels, size)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("fill", [None, (37.0,)])
@pytest.mark.parametrize("size", [(33, 46), (40, 40)])
def test_trivial_augment_wide(
    interpolation: Interpolation, fill: tuple[float, ...] | None, size: tuple[int, int]
) -> None:
    op = TrivialAugmentWide(interpolation=interpolation, fill=fill)
    transform = v2.TrivialAugmentWide(interpolation=v2.InterpolationMode(interpolation), fill=fill)  # type: ignore[arg-type]
    check_augment(op, transform, 3, size)


def check_augment(
    op: RandAugment | TrivialAugmentWide, transform: Any, channels: int, size: tuple[int, int]
) -> None:
    images = pictures(channels, height=size[0], width=size[1])
    seen: set[int] = set()
    for seed in range(3):
        draws = draws_of(COUNT, seed=seed)
        (step,) = op.steps(draws, STREAM, height=size[0], width=size[1])
        expected = torch.stack(
            [torchvision_step(transform, images[row], step, row) for row in range(COUNT)]
        )
        compare(run(op, images, draws), expected, share=2e-4)
        seen |= set(step.kinds.tolist())
    assert seen == set(range(len(AUGMENTATIONS)))


@pytest.mark.parametrize("depth", [-1, 2])
def test_augmix(depth: int) -> None:
    """The sum of the definition, of chains that torchvision's functions make."""
    op = AugMix(severity=7, chain_depth=depth, alpha=0.7)
    transform = v2.AugMix(7, chain_depth=depth, alpha=0.7)
    images, draws = pictures(3), draws_of(COUNT)
    weights = op.weights(draws, STREAM)
    seen: set[int] = set()
    expected = images * torch.from_numpy(weights[:, 0]).view(-1, 1, 1, 1)
    for number, steps in enumerate(op.chains(draws, STREAM, height=33, width=46), 1):
        made = images
        for step in steps:
            made = torch.stack(
                [
                    transform._apply_image_or_video_transform(
                        made[row],
                        AUGMENTATIONS[step.kinds[row]],
                        float(step.magnitudes[row]),
                        interpolation=transform.interpolation,
                        fill=transform._fill,
                    )
                    for row in range(COUNT)
                ]
            )
            seen |= set(step.kinds.tolist())
        expected += made * torch.from_numpy(weights[:, number]).view(-1, 1, 1, 1)
    different = run(op, images, draws) != expected.to(torch.uint8)
    assert different.float().mean() < 1e-3
    assert seen == set(range(len(AUGMENTATIONS))) - ({0} if depth > 0 else set())


@pytest.mark.parametrize("all_ops", [True, False])
def test_augmix_draws_what_torchvision_lists(all_ops: bool) -> None:
    op, count = AugMix(severity=4, mixture_width=1, chain_depth=1, all_ops=all_ops), 4000
    listed = v2.AugMix._AUGMENTATION_SPACE if all_ops else v2.AugMix._PARTIAL_AUGMENTATION_SPACE
    ((step,),) = op.chains(draws_of(count), STREAM, height=32, width=48)
    names = [AUGMENTATIONS[kind] for kind in step.kinds]
    assert set(names) == set(listed)
    for name, (magnitudes, signed) in listed.items():
        chosen = np.array(names) == name
        assert chosen.mean() == pytest.approx(1 / len(listed), abs=0.02)
        table = magnitudes(10, 32, 48)
        if table is None:
            assert not step.magnitudes[chosen].any()
            continue
        drawn = set(np.float32(step.magnitudes[chosen]).tolist())
        given = set(np.float32(table[:4].tolist()).tolist())
        assert drawn == (given | {-n for n in given} if signed else given)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.3, 1.0, 2.5])
def test_the_weights_of_augmix_have_dirichlets_distribution(alpha: float) -> None:
    """The first two moments: 1 / 2 and 1 / (4 (2 alpha + 1)) of the sample itself, and those of
    one chain of three among all."""
    weights = AugMix(alpha=alpha).weights(draws_of(20000), STREAM).astype(np.float64)
    assert weights.sum(axis=1) == pytest.approx(1.0, abs=1e-5)
    own = weights[:, 0]
    assert own.mean() == pytest.approx(0.5, abs=0.01)
    assert own.var() == pytest.approx(0.25 / (2 * alpha + 1), rel=0.05)
    parts = weights[:, 1:] / weights[:, 1:].sum(axis=1, keepdims=True)
    assert parts.mean(axis=0) == pytest.approx(1 / 3, abs=0.01)
    assert parts.var(axis=0) == pytest.approx(2 / 9 / (3 * alpha + 1), rel=0.05)


def test_operations_follow_each_other() -> None:
    images, draws = pictures(3), draws_of(COUNT)
    op = RandAugment(num_ops=3)
    transform = v2.RandAugment(1)
    expected = images
    for step in op.steps(draws, STREAM, height=33, width=46):
        expected = torch.stack(
            [torchvision_step(transform, expected[row], step, row) for row in range(COUNT)]
        )
    different = run(op, images, draws) != expected
    assert different.float().mean() < 1e-3
    assert torch.equal(run(RandAugment(num_ops=0), images, draws), images)


def test_augmentations_are_drawn_uniformly() -> None:
    for op in (RandAugment(), TrivialAugmentWide()):
        for step in op.steps(draws_of(7000), STREAM, height=32, width=32):
            counts = np.bincount(step.kinds, minlength=14)
            assert np.abs(counts / 7000 - 1 / 14).max() < 0.015
            signed = (step.kinds >= 1) & (step.kinds <= 9) & (step.magnitudes != 0)
            assert (step.magnitudes[signed] < 0).mean() == pytest.approx(0.5, abs=0.03)
            assert (step.magnitudes[~signed] >= 0).all()
            expected_bins = {9} if isinstance(op, RandAugment) else set(range(31))
            assert set(step.bins.tolist()) == expected_bins


def test_masks_follow_the_geometric_operations_of_an_augmentation() -> None:
    """A mask moves as an image of the same pixels does, and no colour operation reaches it."""
    masks = masks_of(COUNT, height=40, width=40)
    images = masks[:, None].contiguous()
    op = TrivialAugmentWide(fill=(0.0,))
    draws = draws_of(COUNT)
    result = BatchProgram(((STREAM, op),))(
        {"i": images, "m": masks}, {"i": IMAGE, "m": MASK}, draws
    )
    (step,) = op.steps(draws, STREAM, height=40, width=40)
    geometric = (step.kinds >= 1) & (step.kinds <= 5)
    assert 8 < geometric.sum() < COUNT
    assert torch.equal(result["m"][geometric], result["i"][geometric])
    assert torch.equal(result["m"][~geometric], images[~geometric])
    assert not torch.equal(result["i"][~geometric], images[~geometric])
    assert not torch.equal(result["m"][geometric], images[geometric])


def test_masks_are_not_filled_with_the_colour_of_images() -> None:
    masks = masks_of(COUNT)
    op = TrivialAugmentWide(fill=(200.0,), interpolation="bilinear")
    result = BatchProgram(((STREAM, op),))({"m": masks}, {"m": MASK}, draws_of(COUNT))["m"]
    assert set(result.unique().tolist()) <= set(masks.unique().tolist()) | {0}


@pytest.mark.gpu
@pytest.mark.parametrize(
    "op",
    [
        ColorJitter((0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1)),
        RandomGrayscale(0.5),
        RandAugment(),
        TrivialAugmentWide(interpolation="bilinear"),
    ],
    ids=repr,
)
def test_colour_on_a_gpu(op: Operation) -> None:
    images, draws = pictures(3), draws_of(COUNT)
    here, there = run(op, images, draws), run(op, images.cuda(), draws).cpu()
    assert (here != there).float().mean() < 1e-2
    assert there.stride() == here.stride()
