"""timm's augmentations of images: understood where they stand, with timm itself beside them, and
`pipelines.timm`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload import pipelines
from fastload.errors import ConfigurationError
from fastload.recipe import Recipe
from fastload.recipe.erase import RandomErasing
from tests.images import write_photo_folder
from tests.test_recipe_batch import draws_of

data = pytest.importorskip("timm.data", reason="pip install .[integrations]")

from timm.data import auto_augment as timm_augment  # noqa: E402
from timm.data import random_erasing as timm_erasing  # noqa: E402

from benchmarks.pipelines.fed_timm import black_without_bits, both  # noqa: E402

HPARAMS = {"translate_const": 20, "img_mean": (124, 116, 104)}
STRINGS = {
    "rand-m9-mstd0.5-inc1": "PillowRandAugment(15 operations, num_layers=2, deviation=0.5, ",
    "rand-m20-n3-p0.9-mmax25-tweights": "PillowRandAugment(15 operations, num_layers=3, ",
    "rand-m8-mstd101-t3aw": "PillowRandAugment(14 operations, num_layers=2, deviation=inf, ",
    "original-mstd0.5": "PillowAutoAugment(50 operations, deviation=0.5, ",
    "v0": "PillowAutoAugment(50 operations, ",
    "3a": "PillowAutoAugment(3 operations, ",
    "augmix-m5-w4-d2": "PillowAugMix(13 operations, width=4, depth=2, deviation=inf, ",
}


def of_timm(string: str, **more: Any) -> Any:
    hparams = HPARAMS | more
    if string.startswith("rand"):
        return timm_augment.rand_augment_transform(string, hparams)
    if string.startswith("augmix"):
        return timm_augment.augment_and_mix_transform(string, hparams)
    return timm_augment.auto_augment_transform(string, hparams)


def photographs() -> Any:
    """(B, H, W, 3) uint8: smooth, as photographs are."""
    rng, (y, x) = np.random.default_rng(1), np.mgrid[:40, :52]
    waves = [np.sin(x / rng.uniform(3, 20) + y / rng.uniform(3, 20)) for _ in range(3 * 12)]
    made = np.stack(waves).reshape(12, 3, 40, 52).transpose(0, 2, 3, 1) * 90 + 120
    return (made + rng.normal(0, 4, made.shape)).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("string", STRINGS)
def test_the_pixels_of_timm_with_the_same_numbers(
    string: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import ImageOps

    monkeypatch.setattr(ImageOps, "posterize", ImageOps.posterize)  # put back afterwards
    black_without_bits.__wrapped__()
    transform = of_timm(string)
    (op,) = Recipe.from_transform(transform).ops
    assert op.describe() == STRINGS[string] + "bilinear or bicubic)"
    wanted, found = both(transform, op, photographs())
    apart = np.abs(wanted.astype(int) - found)
    assert apart.mean() < 0.4
    blurs = "3a" in string
    assert (apart > 2).mean() < (0.15 if blurs else 0.01)
    assert (wanted != photographs()).mean() > 0.1


def test_filters_and_what_is_around_an_image() -> None:
    (op,) = Recipe.from_transform(of_timm("rand-m9", interpolation=3)).ops
    assert op.filters == ("bicubic",)
    assert op.fill == (124.0, 116.0, 104.0)
    # Translate goes 0.3 of a side at most in AugMix of create_transform, a share of 0.45 elsewhere.
    (mixed,) = Recipe.from_transform(of_timm("augmix", translate_pct=0.3)).ops
    reach = {one.name: one.reach for one in (*op.ops, *mixed.ops)}
    assert (reach["TranslateXRel"], reach["Rotate"]) == (0.3, 0.0)


def test_strengths_that_are_not_those_that_are_followed_run_as_they_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def explained(transform: Any) -> str:
        (op,) = Recipe.from_transform(transform).ops
        assert op.is_opaque
        return str(op.reason_not_placed(None))

    other = of_timm("rand-m9")
    other.ops[3].level_fn = lambda level, _: (level * 4.0,)
    assert "Rotate of this timm has" in explained(other)
    nearest = of_timm("rand-m9", interpolation=0)
    assert "moved with the filters nearest" in explained(nearest)
    blended = of_timm("augmix-b1")
    assert "not blended chain by chain" in explained(blended)
    own = of_timm("rand-m9")
    own.ops[0].aug_fn = lambda image, **_: image
    assert "AutoContrast is not an operation of timm's" in explained(own)


@pytest.mark.parametrize("mode", ["const", "rand", "pixel"])
def test_erased_boxes_are_as_many_and_as_large_as_timms(mode: str) -> None:
    """How many pixels are erased, and how many colours are in them, over 400 images of each."""
    transform = timm_erasing.RandomErasing(0.8, mode=mode, max_count=3, device="cpu")
    (op,) = Recipe.from_transform(v2.Compose([v2.ToDtype(torch.float32), transform])).ops[1:]
    assert op.counts == (1, 3)
    count = 400
    images = torch.full((count, 3, 24, 30), 9.0)
    theirs = torch.stack([transform(image.clone()) for image in images])
    ours = op.apply(images, draws_of(count), 1)
    shares = []
    for made in (ours, theirs):
        erased = (made != 9.0).all(1)
        area = erased.flatten(1).float().mean(1)
        colours = [len(image[0][where].unique()) for image, where in zip(made, erased, strict=True)]
        shares.append(([area.mean(), (area > 0).float().mean()], np.bincount(colours)[:5] / count))
        assert erased.any(0).float().mean() > 0.9
    np.testing.assert_allclose(*(areas for areas, _ in shares), atol=0.08)
    if mode != "pixel":
        np.testing.assert_allclose(*(colours for _, colours in shares), atol=0.12)
    else:
        noise = ours[ours != 9.0]
        assert (noise.mean().abs(), noise.std()) == pytest.approx((0.0, 1.0), abs=0.05)


def test_boxes_of_an_image_have_noise_of_their_own() -> None:
    op = RandomErasing(1.0, (0.2, 0.2), (1.0, 1.0), "colour", (4, 4))
    made = op.apply(torch.full((30, 3, 32, 32), 9.0), draws_of(30), 1)
    values = made[made != 9.0].unique()
    assert len(values) > 30 * 3 * 3


def test_a_pipeline_needs_no_workers(tmp_path: Path) -> None:
    folder = write_photo_folder(tmp_path, classes=2, per_class=2)
    settings: dict[str, Any] = {
        "is_training": True,
        "auto_augment": "rand-m9-mstd0.5-inc1",
        "interpolation": "random",
        "re_prob": 0.5,
        "re_mode": "pixel",
        "re_count": 2,
    }
    transform = pipelines.timm(32, **settings)
    mixing = data.Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=2)
    with fastload.create_loader(
        folder, batch_size=4, transform=transform, batch_transform=mixing
    ) as loader:
        assert "worker" not in str(loader.explain()).split("transforms")[1].split("\n\n")[0]
        ((images, labels),) = loader
    assert (tuple(images.shape), tuple(labels.shape)) == ((4, 3, 32, 32), (4, 2))
    torch.testing.assert_close(labels.sum(1), torch.ones(4))


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({}, ["Resize(shorter=36)", "CenterCrop(size=(32, 32))"]),
        (
            {"crop_pct": 1.0, "crop_mode": "squash", "interpolation": "bicubic"},
            ["Resize(size=(32, 32), interpolation='bicubic')", "CenterCrop(size=(32, 32))"],
        ),
        (
            {"crop_mode": "border"},
            ["ResizeKeepRatio(size=(36, 36), longest=1.0)", "CenterCropOrPad(size=(32, 32), fill="],
        ),
        (
            {"is_training": True, "vflip": 0.2, "grayscale_prob": 0.1},
            [
                "RandomResizedCrop(size=(32, 32))",
                "RandomHorizontalFlip(p=0.5)",
                "RandomVerticalFlip(p=0.2)",
                "ColorJitter(",
                "RandomGrayscale(p=0.1)",
            ],
        ),
        ({"is_training": True, "no_aug": True}, ["Resize(shorter=32)", "CenterCrop("]),
    ],
)
def test_arguments_are_those_of_create_transform(
    settings: dict[str, Any], shown: list[str]
) -> None:
    ops = Recipe.from_transform(pipelines.timm(32, **settings)).ops
    assert ops == Recipe.from_transform(data.create_transform(32, **settings)).ops
    described = [op.describe() for op in ops]
    assert len(described) == len(shown) + 2
    assert all(map(str.startswith, described, shown))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"auto_augment": "rand-m9-mstd0.5-inc"}, "'inc' is none of the sections of 'rand'"),
        ({"auto_augment": "rand-m9-w3"}, "'w3' is none.* mmax"),
        ({"auto_augment": "rand-tfoo"}, r"'tfoo' .*t \(weights, 3a, 3aw\)"),
        ({"auto_augment": "rand-m9.5"}, "'m9.5' is none"),
        ({"auto_augment": "rand-p1.5"}, "'p1.5' is none"),
        ({"auto_augment": "augmix-b1"}, "'b1' is none"),
        ({"auto_augment": "v1"}, "it begins with one of rand, augmix, original"),
        ({"auto_augment": "original-m5"}, "'m5' is none of the sections of 'original'"),
        ({"auto_augment": "rand-n9-t3aw-n30"}, "14 at most, each once"),
        ({"interpolation": "nearest"}, "interpolation: must be one of 'bilinear', 'bicubic'"),
        ({"is_training": False, "interpolation": "random"}, "interpolation: must be one of"),
        ({"re_mode": "noise"}, "re_mode: must be one of"),
        ({"re_count": 0}, "re_count: must be an int of at least 1"),
        ({"re_prob": 2}, "re_prob: must be a probability"),
        ({"crop_mode": "corner"}, "crop_mode: must be one of"),
        ({"crop_pct": 1.5}, "crop_pct: must be above 0"),
        ({"input_size": 0}, "input_size: must be an int"),
        ({"std": (0.2, 0.2, 0.0)}, "three numbers above 0"),
        ({"reprob": 0.1}, "re_prob"),
    ],
)
def test_what_timm_does_not_have_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        pipelines.timm(**({"is_training": True} | settings))


def test_a_version_that_is_not_followed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(timm_augment.LEVEL_TO_ARG, "Rotate", lambda level, _: (level * 4.0,))
    with pytest.raises(ConfigurationError, match="follows timm 1.0.31; install that, or give"):
        pipelines.timm(32, is_training=True, auto_augment="rand-m9")
