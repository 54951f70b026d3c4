"""Lowering of every spelling that torchvision knows, and where the operations are placed."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from PIL import Image
from torch import nn
from torchvision import tv_tensors
from torchvision.models import ResNet18_Weights
from torchvision.transforms import InterpolationMode, v2

import fastload
from fastload.errors import ConfigurationError, UnsupportedTransformError
from fastload.recipe import Opaque, Operation, Recipe, SplitRecipe
from fastload.recipe.augment import RandAugment, TrivialAugmentWide
from fastload.recipe.augmix import AugMix
from fastload.recipe.colour import ColorJitter, GaussianBlur, Grayscale, RandomGrayscale
from fastload.recipe.convert import MaskToDtype, Normalize, ToDtype
from fastload.recipe.crops import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from fastload.recipe.erase import RandomErasing
from fastload.recipe.random_apply import RandomApply
from fastload.recipe.views import Views
from tests import warm

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FLOAT = ToDtype(torch.float32, scale=True)


pytestmark = pytest.mark.filterwarnings("ignore:The transform `ToTensor")


def lowered(transform: Any) -> tuple[Operation, ...]:
    return Recipe.from_transform(transform).ops


def both(make: Callable[[Any], Any], *ops: Operation) -> list[Any]:
    """The same spelling with the classes of v1 and of v2."""
    return [pytest.param(make, module, ops, id=name) for name, module in (("v1", v1), ("v2", v2))]


@pytest.mark.parametrize(
    ("make", "module", "ops"),
    [
        *both(lambda t: t.RandomResizedCrop(224), RandomResizedCrop((224, 224))),
        *both(lambda t: t.RandomResizedCrop([9]), RandomResizedCrop((9, 9))),
        *both(
            lambda t: t.RandomResizedCrop(
                (9, 8), scale=[0.5, 1], ratio=(1, 2), interpolation=InterpolationMode.BICUBIC
            ),
            RandomResizedCrop((9, 8), (0.5, 1.0), (1.0, 2.0), "bicubic"),
        ),
        *both(lambda t: t.Resize(256), Resize(shorter=256)),
        *both(lambda t: t.Resize([256]), Resize(shorter=256)),
        *both(lambda t: t.Resize(256, max_size=300), Resize(shorter=256, max_size=300)),
        *both(lambda t: t.Resize((25, 26)), Resize((25, 26))),
        *both(lambda t: t.CenterCrop(224), CenterCrop((224, 224))),
        *both(lambda t: t.CenterCrop([7, 8]), CenterCrop((7, 8))),
        *both(lambda t: t.RandomCrop(32), RandomCrop((32, 32))),
        *both(lambda t: t.RandomCrop(32, 4), RandomCrop((32, 32), (4, 4, 4, 4))),
        *both(lambda t: t.RandomCrop((3, 2), [5]), RandomCrop((3, 2), (5, 5, 5, 5))),
        *both(lambda t: t.RandomCrop((3, 2), (1, 2)), RandomCrop((3, 2), (1, 2, 1, 2))),
        *both(lambda t: t.RandomCrop((3, 2), (1, 2, 3, 4)), RandomCrop((3, 2), (1, 2, 3, 4))),
        *both(
            lambda t: t.RandomCrop(9, pad_if_needed=True, fill=7),
            RandomCrop((9, 9), None, True, (7.0,), (7.0,)),
        ),
        *both(
            lambda t: t.RandomCrop(9, 1, fill=(1, 2, 3)),
            RandomCrop((9, 9), (1,) * 4, False, (1.0, 2.0, 3.0), (0.0,)),
        ),
        *both(
            lambda t: t.RandomCrop(9, 1, padding_mode="reflect"),
            RandomCrop((9, 9), (1,) * 4, padding_mode="reflect"),
        ),
        *both(lambda t: t.Pad(2), Pad((2, 2, 2, 2))),
        *both(lambda t: t.Pad((1, 2), fill=3), Pad((1, 2, 1, 2), (3.0,), (3.0,))),
        *both(
            lambda t: t.Pad([1, 2, 3, 4], padding_mode="symmetric"),
            Pad((1, 2, 3, 4), padding_mode="symmetric"),
        ),
        *both(lambda t: t.RandomHorizontalFlip(), RandomHorizontalFlip(0.5)),
        *both(lambda t: t.RandomVerticalFlip(0.2), RandomVerticalFlip(0.2)),
        *both(
            lambda t: t.ColorJitter(0.4, (0.5, 2.0), 0, 0.1),
            ColorJitter((0.6, 1.4), (0.5, 2.0), None, (-0.1, 0.1)),
        ),
        *both(lambda t: t.RandomGrayscale(0.2), RandomGrayscale(0.2)),
        *both(lambda t: t.Grayscale(3), Grayscale(3)),
        *both(lambda t: t.RandomErasing(), RandomErasing()),
        *both(
            lambda t: t.RandomErasing(0.1, (0.1, 0.2), (1, 2), "random"),
            RandomErasing(0.1, (0.1, 0.2), (1.0, 2.0), "random"),
        ),
        *both(lambda t: t.RandomErasing(value=3), RandomErasing(value=(3.0,))),
        *both(lambda t: t.RandomErasing(value=[1, 2, 3]), RandomErasing(value=(1.0, 2.0, 3.0))),
        *both(lambda t: t.RandAugment(3, 5, 11), RandAugment(3, 5, 11)),
        *both(
            lambda t: t.RandAugment(interpolation=InterpolationMode.BILINEAR, fill=[1, 2, 3]),
            RandAugment(interpolation="bilinear", fill=(1.0, 2.0, 3.0)),
        ),
        *both(lambda t: t.TrivialAugmentWide(), TrivialAugmentWide()),
        *both(lambda t: t.AugMix(), AugMix()),
        *both(
            lambda t: t.AugMix(5, 2, 4, 0.5, False, InterpolationMode.NEAREST, 8),
            AugMix(5, 2, 4, 0.5, False, "nearest", (8.0,)),
        ),
        *both(lambda t: t.TrivialAugmentWide(fill=128), TrivialAugmentWide(fill=(128.0,))),
        *both(lambda t: t.GaussianBlur(5), GaussianBlur((5, 5), (0.1, 2.0))),
        *both(lambda t: t.GaussianBlur((5, 3), 1.5), GaussianBlur((5, 3), (1.5, 1.5))),
        *both(
            lambda t: t.RandomApply([t.ColorJitter(0.4), t.Compose([t.GaussianBlur(3)])], p=0.8),
            RandomApply((ColorJitter((0.6, 1.4)), GaussianBlur((3, 3))), 0.8),
        ),
        *both(
            lambda t: t.RandomApply(
                nn.ModuleList([t.RandomApply([t.RandomHorizontalFlip()])]), p=0.1
            ),
            RandomApply((RandomApply((RandomHorizontalFlip(),)),), 0.1),
        ),
        *both(lambda t: t.RandomApply([nn.Identity()])),
        *both(lambda t: t.Normalize(MEAN, list(STD)), Normalize(MEAN, STD)),
        *both(
            lambda t: t.Normalize(np.array([0.5]), torch.tensor([0.25])), Normalize((0.5,), (0.25,))
        ),
        *both(lambda t: t.ConvertImageDtype(torch.float16), ToDtype(torch.float16, scale=True)),
        *both(lambda t: t.PILToTensor()),
        *both(lambda t: t.ToTensor(), FLOAT),
        *both(lambda t: t.ToPILImage()),
        *both(
            lambda t: t.Compose(
                [t.Compose([t.PILToTensor()]), t.Compose([t.CenterCrop(3), t.ToTensor()])]
            ),
            CenterCrop((3, 3)),
            FLOAT,
        ),
    ],
)
def test_v1_and_v2_spellings_mean_the_same(
    make: Callable[[Any], Any], module: Any, ops: tuple[Operation, ...]
) -> None:
    assert lowered(make(module)) == ops


@pytest.mark.parametrize(
    ("transform", "ops"),
    [
        (None, ()),
        (v1.Normalize(0.5, 0.5), (Normalize((0.5,), (0.5,)),)),
        (v2.Resize(None, max_size=30), (Resize(max_size=30),)),
        (v2.ToImage(), ()),
        (v2.ToPureTensor(), ()),
        (v2.Identity(), ()),
        (nn.Identity(), ()),
        (nn.Sequential(v2.ToImage(), nn.Sequential(v2.CenterCrop(3))), (CenterCrop((3, 3)),)),
        (v2.ToDtype(torch.float32, scale=True), (FLOAT,)),
        (v2.ToDtype(torch.float32), (ToDtype(torch.float32, scale=False),)),
        (
            v2.ToDtype({tv_tensors.Image: torch.float16, "others": None}, scale=True),
            (ToDtype(torch.float16, True),),
        ),
        (
            v2.ToDtype({torch.Tensor: torch.float16, tv_tensors.Mask: torch.int64}),
            (MaskToDtype(torch.int64), ToDtype(torch.float16, False)),
        ),
        (
            v2.ToDtype({"others": torch.float16}),
            (MaskToDtype(torch.float16), ToDtype(torch.float16, False)),
        ),
        (v2.ToDtype({tv_tensors.Mask: torch.int64, "others": None}), (MaskToDtype(torch.int64),)),
        (
            v2.Pad(1, fill={Image.Image: (1, 2, 3), tv_tensors.Mask: 255}),
            (Pad((1, 1, 1, 1), (1.0, 2.0, 3.0), (255.0,)),),
        ),
        (v2.Pad(1, fill={"others": 4}), (Pad((1, 1, 1, 1), (4.0,), (4.0,)),)),
        (v2.Pad(1, fill=None), (Pad((1, 1, 1, 1)),)),
        (v2.RandomCrop(9, 0), (RandomCrop((9, 9)),)),
        (
            ResNet18_Weights.IMAGENET1K_V1.transforms(),
            (Resize(shorter=256), CenterCrop((224, 224)), FLOAT, Normalize(MEAN, STD)),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_spellings(transform: Any, ops: tuple[Operation, ...]) -> None:
    assert lowered(transform) == ops


@pytest.mark.parametrize("first", [v2.ToImage(), v2.PILToTensor()], ids=["image", "pure"])
@pytest.mark.parametrize("kind", [tv_tensors.Image, torch.Tensor, tv_tensors.Mask])
def test_a_dict_of_dtypes_without_the_images_is_an_error_where_torchvision_raises(
    first: Any, kind: type
) -> None:
    transform = v2.Compose([first, v2.ToDtype({kind: torch.float32}, scale=True)])
    arrays = (np.zeros((2, 4, 4, 3), np.uint8),)
    try:
        expected = transform(Image.new("RGB", (4, 4))).dtype
    except ValueError as error:
        with (
            pytest.raises(ValueError, match=str(error)[:40]),
            fastload.create_loader(arrays, transform=transform, num_workers=0) as loader,
        ):
            next(iter(loader))
        with pytest.raises(UnsupportedTransformError, match="has no dtype for the images"):
            fastload.create_loader(arrays, transform=transform, backend="turbojpeg")
    else:
        with fastload.create_loader(arrays, transform=transform, backend="turbojpeg") as loader:
            assert next(iter(loader))[0].dtype == expected == torch.float32


@pytest.mark.parametrize(
    "value", ["bicubic", InterpolationMode.BICUBIC, 3, Image.Resampling.BICUBIC], ids=repr
)
def test_interpolation_may_be_a_name_a_mode_or_a_number(value: Any) -> None:
    assert lowered(v2.Resize(8, interpolation=value)) == (
        Resize(shorter=8, interpolation="bicubic"),
    )


@pytest.mark.parametrize("antialias", [False, None])
def test_antialias_false_matters_for_tensors_only(antialias: Any) -> None:
    resize = v2.Resize(8, antialias=antialias)
    assert lowered(resize) == (Resize(shorter=8, antialias=True),)
    assert lowered(v2.Compose([v2.ToImage(), resize])) == (Resize(shorter=8, antialias=False),)
    assert lowered(v2.Compose([v2.ToImage(), v2.ToPILImage(), resize])) == (
        Resize(shorter=8, antialias=True),
    )


def test_nearest_is_what_pillow_or_torch_take_it_for() -> None:
    resize = v2.Resize((5, 7), interpolation=InterpolationMode.NEAREST)
    (before,) = lowered(resize)
    (after,) = lowered(v2.Compose([v2.PILToTensor(), resize]))
    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    for op, expected in (
        (before, v2.functional.pil_to_tensor(resize(Image.fromarray(pixels)))),
        (after, resize(tensor)),
    ):
        assert isinstance(op, Resize)
        ours = v2.functional.resize(
            tensor, [5, 7], interpolation=InterpolationMode(op.interpolation)
        )
        assert torch.equal(ours, expected)


class SpecialCrop(v2.CenterCrop):
    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        return super().transform(inpt, params)


class SpecialCompose(v1.Compose):
    def __call__(self, img: Any) -> Any:
        return img


class GaussianBlur3:
    """As MoCo and DINO have one of their own, under torchvision's name."""

    def __call__(self, image: Any) -> Any:
        return image


GaussianBlur3.__name__ = "GaussianBlur"


def double(image: Any) -> Any:
    return image


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (SpecialCrop(8), "subclass of CenterCrop"),
        (SpecialCompose([]), "subclass of Compose"),
        (double, "not a torchvision transform"),
        (functools.partial(double), "not a torchvision transform"),
        (v2.Lambda(double), "no batched form"),
        (v1.Lambda(double), "not a torchvision transform"),
        (v2.RandomApply([v2.CenterCrop(8)]), "moves pixels"),
        (
            v2.RandomApply([v2.ColorJitter(0.4), v2.Lambda(double)]),
            "inside it: torchvision.transforms.v2",
        ),
        (
            v1.RandomApply([double]),
            "inside it: tests.test_recipe_lower.double (it is not a torchvision transform",
        ),
        (v1.RandomApply([GaussianBlur3()]), "it is not torchvision's GaussianBlur; use that one"),
        (v1.RandomApply([v1.ToTensor()]), "changes the kind"),
        (v1.RandomApply([Views(None, None)]), "changes the kind or the number"),
        (v1.RandomChoice([v1.CenterCrop(8)]), "moves pixels; draw it"),
        (v2.ElasticTransform(sigma=0.3, fill=None), "fill=None leaves it to the kind"),
        (v1.FiveCrop(3), "no batched form"),
        (
            v2.Compose([v2.ToImage(), v2.Resize(8, interpolation="lanczos")]),
            "'lanczos' is for PIL images",
        ),
        (v2.RandomRotation(9, interpolation=InterpolationMode.BICUBIC), "'bicubic' is not among"),
        (
            v1.RandomResizedCrop(8, interpolation=InterpolationMode.BOX),
            "'box' is not among nearest",
        ),
        (v2.Resize(8, interpolation=5), "'hamming' is not among nearest"),
        (v2.RandAugment(interpolation=InterpolationMode.BICUBIC), "'bicubic'"),
        (v2.Pad(-2), "negative"),
        (v1.RandomCrop(9, 2, pad_if_needed=True, padding_mode="reflect"), "several times"),
        (v2.Compose([v2.ToDtype(torch.float32), v2.ToPILImage()]), "conversion to a PIL image"),
        (v1.ToPILImage("L"), "conversion to a PIL image"),
    ],
    ids=lambda value: (
        getattr(value, "__name__", type(value).__name__) if not isinstance(value, str) else ""
    ),
)
def test_what_has_no_equivalent_is_opaque_with_a_reason(transform: Any, reason: str) -> None:
    op = lowered(transform)[-1]
    assert isinstance(op, Opaque)
    assert reason in op.reason


@pytest.mark.parametrize("transform", [3, "Resize", v2.Compose([v2.CenterCrop(3), 5])], ids=str)
def test_what_cannot_be_called_is_refused(transform: Any) -> None:
    with pytest.raises(ConfigurationError, match="not callable"):
        Recipe.from_transform(transform)


def test_mixing_belongs_into_batch_transform() -> None:
    with pytest.raises(ConfigurationError, match="batch_transform"):
        Recipe.from_transform(v2.Compose([v2.CenterCrop(3), v2.MixUp(num_classes=3)]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: CenterCrop((0, 3)),
        lambda: RandomResizedCrop((3, 3), scale=(0.5, 0.1)),
        lambda: RandomResizedCrop((3, 3), ratio=(0.0, 1.0)),
        lambda: Resize(),
        lambda: Resize((3, 3), max_size=4),
        lambda: Resize(shorter=8, max_size=8),
        lambda: Resize(shorter=8, interpolation="hamming"),  # type: ignore[arg-type]
        lambda: RandomCrop((3, 3), padding=(1, 1, 1, -1)),
        lambda: RandomCrop((3, 3), padding_mode="wrap"),  # type: ignore[arg-type]
        lambda: Pad((1, 1, 1, 1), fill=()),
        lambda: Pad((1, 1, 1, 1), fill=(float("nan"),)),
        lambda: RandomHorizontalFlip(1.5),
        lambda: ColorJitter(hue=(-0.6, 0.0)),
        lambda: Grayscale(2),
        lambda: RandomErasing(scale=(0.5, 1.5)),
        lambda: RandAugment(magnitude=31),
        lambda: TrivialAugmentWide(1),
        lambda: Normalize((0.5, 0.5), (0.5, 0.5, 0.5)),
        lambda: Normalize((0.5,), (0.0,)),
    ],
)
def test_operations_check_themselves(make: Callable[[], Operation]) -> None:
    with pytest.raises(ConfigurationError):
        make()


# Where operations run.


def where(split: SplitRecipe) -> list[str]:
    return [place for _, place in split.placement]


def test_the_usual_training_recipe() -> None:
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(224, interpolation="bicubic"),
            v2.RandomHorizontalFlip(),
            v2.TrivialAugmentWide(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
            v2.RandomErasing(0.1),
        ]
    )
    split = Recipe.from_transform(transform).split()
    assert where(split) == ["decode", "decode", "device", "device", "device", "device"]
    assert split.geometry.ops == (
        (0, RandomResizedCrop((224, 224), interpolation="bicubic")),
        (1, RandomHorizontalFlip()),
    )
    assert split.geometry.out_size == (224, 224)
    assert split.geometry.interpolation == "bicubic"
    assert split.geometry.resamples
    assert split.batch.ops == (
        (2, TrivialAugmentWide()),
        (3, FLOAT),
        (4, Normalize(MEAN, STD)),
        (5, RandomErasing(0.1)),
    )
    assert split.opaque is None


@pytest.mark.parametrize(
    ("fixed_size", "transform", "places", "out_size"),
    [
        (None, [v2.Resize(9), v2.CenterCrop(7)], "decode decode", (7, 7)),
        (None, [v2.Resize(9)], "decode", None),
        ((20, 40), [v2.Resize(9)], "decode", (9, 18)),
        ((20, 40), [v2.Pad((1, 2, 3, 4))], "decode", (26, 44)),
        ((20, 40), [v2.RandomHorizontalFlip()], "decode", (20, 40)),
        # A second resize, and a resize of what may be padding, wait for the batch.
        (
            None,
            [v2.Resize((9, 9)), v2.RandomResizedCrop(7), v2.RandomVerticalFlip()],
            "decode device device",
            (9, 9),
        ),
        (None, [v2.CenterCrop(9), v2.Resize(7)], "decode device", (9, 9)),
        ((20, 40), [v2.CenterCrop(9), v2.Resize(7)], "decode decode", (7, 7)),
        (None, [v2.RandomCrop(9), v2.Resize(7)], "decode decode", (7, 7)),
        (None, [v2.RandomCrop(9, padding=1), v2.Resize(7)], "decode device", (9, 9)),
        # Padding about the edges of a cut in a resized image.
        (None, [v2.Resize((9, 9)), v2.RandomCrop(7), v2.Pad(1)], "decode decode device", (7, 7)),
        (None, [v2.RandomCrop(7), v2.Pad(1)], "decode decode", (9, 9)),
        # Paddings that differ, and reflections of reflections.
        (None, [v2.RandomCrop(7, padding=1, fill=3), v2.Pad(1)], "decode device", (7, 7)),
        (None, [v2.RandomCrop(7, padding=1), v2.Pad(1)], "decode decode", (9, 9)),
        (
            (8, 8),
            [v2.Pad(1, padding_mode="reflect"), v2.Pad(1, padding_mode="reflect")],
            "decode device",
            (10, 10),
        ),
        (
            None,
            [v2.RandomCrop(7, 1, padding_mode="edge"), v2.CenterCrop(6)],
            "decode decode",
            (6, 6),
        ),
        # Nearest pixels are not symmetric.
        (
            (8, 8),
            [v2.RandomHorizontalFlip(), v2.Resize(5, interpolation="nearest")],
            "decode device",
            (8, 8),
        ),
        # Conversions stand aside.
        (None, [v1.ToTensor(), v2.RandomResizedCrop(7)], "device decode", (7, 7)),
        (
            None,
            [v2.ToImage(), v2.ToDtype(torch.uint8, scale=True), v2.RandomResizedCrop(7)],
            "device decode",
            (7, 7),
        ),
        (
            (8, 8),
            [v2.ToDtype(torch.int32, scale=True), v2.RandomResizedCrop(7)],
            "device device",
            (8, 8),
        ),
        (
            (8, 8),
            [v1.ToTensor(), v2.ToDtype(torch.uint8), v2.RandomResizedCrop(7)],
            "device device device",
            (8, 8),
        ),
        # After Normalize only what is exact, and what needs no padding, is made at decoding.
        (
            None,
            [v1.ToTensor(), v2.Normalize(MEAN, STD), v2.RandomCrop(7)],
            "device device decode",
            (7, 7),
        ),
        (
            (8, 8),
            [v1.ToTensor(), v2.Normalize(MEAN, STD), v2.RandomCrop(7, padding=1)],
            "device device device",
            (8, 8),
        ),
        (
            (8, 8),
            [v1.ToTensor(), v2.Normalize(MEAN, STD), v2.Resize(7)],
            "device device device",
            (8, 8),
        ),
        (
            (8, 8),
            [v1.ToTensor(), v2.Normalize(MEAN, STD), v2.CenterCrop(6)],
            "device device decode",
            (6, 6),
        ),
        # A fill that uint8 cannot hold.
        ((8, 8), [v1.ToTensor(), v2.Pad(1, fill=-1)], "device device", (8, 8)),
        # Colours of images of different sizes, and their mirroring.
        (None, [v2.ColorJitter(0, 0.4), v2.RandomHorizontalFlip()], "device device", None),
        # Of brightness, saturation and hue, each pixel is by itself; contrast is about them all.
        (None, [v2.ColorJitter(0.4, 0, 1, 0.1), v2.RandomHorizontalFlip()], "device decode", None),
        ((8, 8), [v2.ColorJitter(0.4), v2.RandomResizedCrop(7)], "device device", (8, 8)),
    ],
    ids=str,
)
def test_placement(fixed_size: Any, transform: list[Any], places: str, out_size: Any) -> None:
    recipe = Recipe.from_transform(v2.Compose(transform))
    split = recipe.split(fixed_size)
    assert where(split) == places.split()
    assert split.geometry.out_size == out_size
    assert split.opaque is None
    # Every operation is somewhere, under the stream of its position.
    assert sorted([*split.geometry.ops, *split.batch.ops], key=lambda pair: pair[0]) == list(
        enumerate(recipe.ops)
    )


@pytest.mark.parametrize(
    ("convert", "fill", "expected"),
    [
        ([v1.ToTensor()], 0.5, (128.0,)),
        ([v1.ToTensor()], (0.0, 0.2, 1.0), (0.0, 51.0, 255.0)),
        ([v1.ToTensor()], (0.2, 0.2, 0.2), (51.0,)),
        ([v2.ToImage(), v2.ToDtype(torch.float32)], 7.0, (7.0,)),
        ([], 7.9, (7.0,)),
    ],
)
def test_fills_are_on_the_scale_of_uint8_in_the_plan(
    convert: list[Any], fill: Any, expected: Any
) -> None:
    plan = (
        Recipe.from_transform(v2.Compose([*convert, v2.RandomCrop(9, 2, fill=fill)]))
        .split()
        .geometry
    )
    assert plan.fill == expected


def test_masks_are_filled_as_they_were_set_to() -> None:
    transform = v2.Compose(
        [v1.ToTensor(), v2.Pad(1, fill={torch.Tensor: 0.5, tv_tensors.Mask: 255})]
    )
    plan = Recipe.from_transform(transform).split().geometry
    assert (plan.fill, plan.mask_fill) == ((128.0,), (255.0,))


@pytest.mark.parametrize("fill", [-1, 256])
def test_a_fill_outside_uint8_is_refused(fill: int) -> None:
    with pytest.raises(ConfigurationError, match="uint8"):
        Recipe.from_transform(v2.RandomCrop(9, 2, fill=fill)).split()


def test_normalize_on_integers_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="ToDtype"):
        Recipe.from_transform(v2.Compose([v2.ToImage(), v2.Normalize(MEAN, STD)])).split()


@pytest.mark.parametrize(
    "transform",
    [
        [v2.RandomCrop(9)],
        [v2.Resize((20, 8)), v2.RandomCrop(9)],
        [v1.ToTensor(), v2.Normalize(MEAN, STD), v2.RandomCrop((10, 8))],
        [v2.Pad(8, padding_mode="reflect")],
    ],
)
def test_what_no_image_of_a_fixed_size_can_go_through_is_refused_at_once(
    transform: list[Any],
) -> None:
    with pytest.raises(ConfigurationError, match="does not fit images of"):
        Recipe.from_transform(v2.Compose(transform)).split((8, 8))


def image() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8))


def test_everything_up_to_an_opaque_transform_runs_as_it_was_written() -> None:
    transform = v2.Compose(
        [
            v2.Resize((8, 9)),
            v2.ElasticTransform(alpha=0.0, sigma=0.3, fill=None),
            v1.ToTensor(),
            v2.Normalize(MEAN, STD),
        ]
    )
    split = Recipe.from_transform(transform).split()
    assert where(split) == ["worker", "worker", "device", "device"]
    assert split.geometry.is_identity
    assert split.opaque is not None
    result = split.opaque(image())
    assert isinstance(result, Image.Image)
    assert np.array_equal(result, v2.Resize((8, 9))(image()))
    assert [op for _, op in split.batch.ops] == [FLOAT, Normalize(MEAN, STD)]


def as_array(image: Any) -> Any:
    return np.asarray(image)[::-1].copy()


def test_a_foreign_transform_is_followed_by_the_conversion_that_understands_it() -> None:
    transform = v2.Compose([v2.CenterCrop(8), as_array, v1.ToTensor(), v2.Normalize(MEAN, STD)])
    split = Recipe.from_transform(transform).split()
    assert where(split) == ["worker", "worker", "worker", "device"]
    assert split.opaque is not None
    assert split.opaque(image()).shape == (3, 8, 8)


@pytest.mark.parametrize(
    "inner",
    [v2.ElasticTransform(sigma=0.3, fill=None), v2.Lambda(as_array)],
    ids=["torchvision", "foreign"],
)
def test_containers_are_as_foreign_as_what_they_contain(inner: Any) -> None:
    split = Recipe.from_transform(v2.Compose([v2.RandomApply([inner]), v1.ToTensor()])).split()
    assert where(split) == [
        "worker",
        "device" if isinstance(inner, v2.ElasticTransform) else "worker",
    ]


def test_a_resize_after_an_operation_on_images_of_different_sizes_makes_the_prefix_opaque() -> None:
    transform = v2.Compose(
        [v2.GaussianBlur(3), v2.RandomResizedCrop(8), v2.RandomHorizontalFlip(), v1.ToTensor()]
    )
    split = Recipe.from_transform(transform).split()
    assert where(split) == ["worker", "worker", "device", "device"]
    assert split.opaque is not None
    assert re.search(r"(?s)RandomResizedCrop.*GaussianBlur", split.reasons[0])


def test_colour_before_geometry_is_done_to_whole_images() -> None:
    """Only where there is no other way, and from the first operation on."""
    crop, jitter = v2.RandomResizedCrop(8), v2.ColorJitter(0.4, 0.4)
    distort = v2.RandomPhotometricDistort()
    for transforms, places, coloured in (
        ([jitter, crop, v1.ToTensor()], "decode decode device", True),
        ([distort, fastload.HSV(), crop, jitter], "decode decode decode device", True),
        ([v2.RandomApply([jitter], 0.5), crop], "decode decode", True),
        ([jitter, v2.RandomHorizontalFlip()], "device device", False),
        ([crop, jitter], "decode device", False),
        ([crop, v2.RandomPhotometricDistort()], "decode device", False),
        ([v2.GaussianBlur(3), crop], "worker worker", False),
        ([jitter, v2.GaussianBlur(3), crop], "worker worker worker", False),
        ([v2.RandomHorizontalFlip(), distort, crop], "worker worker worker", False),
    ):
        split = Recipe.from_transform(v2.Compose(transforms)).split()
        assert " ".join(where(split)) == places
        assert split.colours_images == coloured
    same = Recipe.from_transform(v2.Compose([jitter, crop])).split((40, 50))
    assert not same.colours_images


def test_the_reason_names_the_transform() -> None:
    split = Recipe.from_transform(v2.Compose([SpecialCrop(8), v1.ToTensor()])).split()
    (reason,) = split.reasons
    assert "SpecialCrop" in reason
    assert "subclass of CenterCrop" in reason


def test_several_inputs_go_through_an_opaque_part() -> None:
    split = Recipe.from_transform(
        v2.Compose([v2.CenterCrop(8), v2.ElasticTransform(sigma=0.3, fill=None)])
    ).split()
    assert split.opaque is not None
    mask = tv_tensors.Mask(torch.zeros(1, 20, 30, dtype=torch.uint8))
    pixels, cut = split.opaque(tv_tensors.Image(torch.zeros(3, 20, 30, dtype=torch.uint8)), mask)
    assert pixels.shape == (3, 8, 8)
    assert cut.shape == (1, 8, 8)


def test_a_recipe_made_by_hand_cannot_run_what_cannot_be_placed() -> None:
    with pytest.raises(UnsupportedTransformError, match="from_transform"):
        Recipe((GaussianBlur((3, 3)), RandomResizedCrop((8, 8)))).split()


def test_recipes_compare_by_their_operations() -> None:
    first = Recipe.from_transform(v1.Compose([v1.CenterCrop(8), v1.ToTensor()]))
    second = Recipe((CenterCrop((8, 8)), FLOAT))
    assert first == second
    assert first.fingerprint == second.fingerprint
    assert first.fingerprint != Recipe((CenterCrop((8, 9)), FLOAT)).fingerprint
    assert first.fingerprint != Recipe((FLOAT, CenterCrop((8, 8)))).fingerprint
    assert Recipe.from_transform(first) is first


@pytest.mark.slow
def test_fingerprints_are_stable_over_processes(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "from torchvision.transforms import v2; from fastload.recipe import "
        "Recipe;print(Recipe.from_transform(v2.Compose([v2.CenterCrop(8), "
        "v2.ElasticTransform(sigma=0.3, fill=None)])).fingerprint, hash('a'))"
    )
    here = Recipe.from_transform(
        v2.Compose([v2.CenterCrop(8), v2.ElasticTransform(sigma=0.3, fill=None)])
    ).fingerprint
    there, seeded = warm.run("program.py", directory=tmp_path).stdout.split()
    assert there == here
    assert "PYTHONHASHSEED" in os.environ or int(seeded) != hash("a"), "of another interpreter"


@pytest.mark.parametrize(
    "transform",
    [v2.ToImage(), v2.Compose([v2.CenterCrop(8), v2.PILToTensor()]), v2.Compose([v1.ToTensor()])],
    ids=str,
)
def test_a_recipe_as_a_whole_is_the_transform_that_was_given(transform: Any) -> None:
    split = Recipe.from_transform(transform).as_opaque("it is a test")
    assert split.opaque is not None
    assert torch.equal(split.opaque(image()), transform(image()))
    assert split.batch.is_identity
    assert "it is a test" in split.reasons[0]


def test_no_transform_as_a_whole_is_none() -> None:
    assert Recipe().as_opaque("it is a test").opaque is None
