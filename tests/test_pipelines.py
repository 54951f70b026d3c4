"""Pipelines of the field: the operations of each, and what is refused. `benchmarks/pipelines`
judges them beside their originals, which are not here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload import pipelines
from fastload.errors import ConfigurationError
from fastload.recipe import Recipe
from fastload.recipe.convert import Normalize, ToDtype
from fastload.recipe.operation import PixelOperation
from tests.images import write_photo_folder

TO_FLOATS = [
    "ToDtype(dtype=torch.float32)",
    "Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))",
]


def described(transform: Any) -> list[str]:
    return [op.describe() for op in Recipe.from_transform(transform).ops]


@pytest.mark.parametrize(
    ("policy", "shown"),
    [
        (None, []),
        ("ra", ["RandAugment(num_ops=2, interpolation='bilinear')"]),
        ("ta_wide", ["TrivialAugmentWide(num_magnitude_bins=31, interpolation='bilinear')"]),
        ("augmix", ["AugMix(severity=3)"]),
    ],
)
def test_torchvision_classification(policy: str | None, shown: list[str]) -> None:
    made = described(pipelines.torchvision_classification(auto_augment_policy=policy))
    crop = ["RandomResizedCrop(size=(224, 224))", "RandomHorizontalFlip(p=0.5)"]
    assert made == [*crop, *shown, *TO_FLOATS]


def test_torchvision_classification_by_its_settings() -> None:
    made = described(
        pipelines.torchvision_classification(
            crop_size=176, hflip_prob=0.0, auto_augment_policy="svhn", random_erase_prob=0.1
        )
    )
    assert made[0] == "RandomResizedCrop(size=(176, 176))"
    assert made[1].startswith("AutoAugment(policies=((('ShearX', 0.9, 4), ('Invert', 0.2, 0))")
    assert made[2:4] == TO_FLOATS
    assert made[4].startswith("RandomErasing(p=0.1")


def test_torchvision_classification_for_evaluation() -> None:
    made = described(pipelines.torchvision_classification_eval(resize_size=232))
    assert made == ["Resize(shorter=232)", "CenterCrop(size=(224, 224))", *TO_FLOATS]


def test_one_mix_or_the_other_or_none() -> None:
    mixing = pipelines.torchvision_classification_mixing
    both, one = mixing(7, 0.2, 1.0), mixing(7, 0.2)
    assert both is not None
    assert one is not None
    assert [type(mix) for mix in both.transforms] == [v2.MixUp, v2.CutMix]
    assert [type(mix) for mix in one.transforms] == [v2.MixUp]
    assert mixing(7) is None


def test_batches_of_the_newer_recipe_of_torchvision(tmp_path: Path) -> None:
    folder = write_photo_folder(tmp_path, classes=2, per_class=4)
    transform = pipelines.torchvision_classification(
        crop_size=32, auto_augment_policy="ta_wide", random_erase_prob=0.1
    )
    mixing = pipelines.torchvision_classification_mixing(2, 0.2, 1.0)
    with fastload.create_loader(
        folder, batch_size=4, transform=transform, batch_transform=mixing, shuffle=True
    ) as loader:
        for images, labels in loader:
            assert images.shape == (4, 3, 32, 32)
            assert images.dtype == torch.float32
            torch.testing.assert_close(labels.sum(1), torch.ones(4))


def test_crops_of_dinov2(tmp_path: Path) -> None:
    """Two large ones and the small ones; the first is never blurred, the second may be inverted."""
    views = pipelines.dinov2(local_crops_number=3, global_crops_size=40, local_crops_size=24)
    first, second, *small = map(described, views.transforms)
    assert small == [small[0]] * 3
    assert first[0] == (
        "RandomResizedCrop(size=(40, 40), scale=(0.32, 1.0), interpolation='bicubic')"
    )
    assert small[0][0] == (
        "RandomResizedCrop(size=(24, 24), scale=(0.05, 0.32), interpolation='bicubic')"
    )
    blurs = [crop[4].rpartition("p=")[2] for crop in (first, second, small[0])]
    assert blurs == ["0.0)", "0.9)", "0.5)"]
    assert second[5] == "RandomSolarize(threshold=128.0, p=0.2)"
    assert [len(first), len(second), len(small[0])] == [7, 8, 7]
    folder = write_photo_folder(tmp_path, classes=2, per_class=4)
    with fastload.create_loader(folder, batch_size=4, transform=views) as loader:
        assert "worker" not in str(loader.explain()).split("transforms")[1].split("\n\n")[0]
        for crops, _ in loader:
            assert [tuple(crop.shape) for crop in crops] == [
                *[(4, 3, 40, 40)] * 2,
                *[(4, 3, 24, 24)] * 3,
            ]


VIEW = [
    "RandomHorizontalFlip(p=0.5)",
    "RandomApply([ColorJitter(brightness=(0.6, 1.4), contrast=(0.6, 1.4), saturation=(0.8, 1.2), "
    "hue=(-0.1, 0.1))], p=0.8)",
    "RandomGrayscale(p=0.2)",
]


def blur(kernel: int) -> str:
    return f"GaussianBlur(kernel_size=({kernel}, {kernel}))"


def cropped(size: int, scale: str, interpolation: str = "bicubic") -> str:
    filtered = f", interpolation={interpolation!r}" if interpolation != "bilinear" else ""
    return f"RandomResizedCrop(size=({size}, {size}){scale}{filtered})"


def test_crops_of_dino() -> None:
    first, second, *small = map(described, pipelines.dino(local_crops_number=2).transforms)
    large = [cropped(224, ", scale=(0.4, 1.0)"), *VIEW]
    solarized = ["RandomSolarize(threshold=128.0, p=0.2)", *TO_FLOATS]
    assert first == [*large, f"RandomApply([{blur(13)}], p=1.0)", *TO_FLOATS]
    assert second == [*large, f"RandomApply([{blur(13)}], p=0.1)", *solarized]
    assert small == [
        [
            cropped(96, ", scale=(0.05, 0.4)"),
            *VIEW,
            f"RandomApply([{blur(13)}], p=0.5)",
            *TO_FLOATS,
        ]
    ] * len(small)
    assert len(small) == 2


def test_crops_of_ibot() -> None:
    """One that is always blurred, others of its size as DINO's second, and small ones."""
    views = pipelines.ibot((0.25, 1.0), (0.05, 0.25), 3, 2)
    first, second, third, *small = map(described, views.transforms)
    large = [cropped(224, ", scale=(0.25, 1.0)"), *VIEW]
    solarized = ["RandomSolarize(threshold=128.0, p=0.2)", *TO_FLOATS]
    assert first == [*large, f"RandomApply([{blur(13)}], p=1.0)", *TO_FLOATS]
    assert second == third == [*large, f"RandomApply([{blur(13)}], p=0.1)", *solarized]
    crop = [cropped(96, ", scale=(0.05, 0.25)"), *VIEW]
    assert small == [[*crop, f"RandomApply([{blur(13)}], p=0.5)", *TO_FLOATS]] * 2
    plain = [described(view)[0] for view in pipelines.ibot().transforms]
    assert plain == [cropped(224, ", scale=(0.14, 1.0)")] * 2


@pytest.mark.parametrize(("size", "kernel"), [(224, 23), (96, 9), (32, 3), (4, 1)])
def test_views_of_simclr(size: int, kernel: int) -> None:
    """The kernel as the original makes it odd: int(0.1 * size) // 2 * 2 + 1."""
    views = [described(view) for view in pipelines.simclr(size, 0.5, 3).transforms]
    assert (
        views
        == [
            [
                cropped(size, "", "bilinear"),
                VIEW[0],
                "RandomApply([ColorJitter(brightness=(0.6, 1.4), contrast=(0.6, 1.4), "
                "saturation=(0.6, 1.4), hue=(-0.1, 0.1))], p=0.8)",
                VIEW[2],
                f"RandomApply([{blur(kernel)}], p=1.0)",
                TO_FLOATS[0],
            ]
        ]
        * 3
    )


def test_a_view_of_simclr_may_be_blurred_as_the_paper_has_it() -> None:
    (view,) = pipelines.simclr(32, n_views=1, blurred=0.5).transforms
    assert described(view)[4].endswith("p=0.5)")


def test_views_of_byol() -> None:
    """Both are cut alike; the first is always blurred, the second seldom, and then solarized."""
    first, second = map(described, pipelines.byol(96, min_scale=0.2).transforms)
    crop = [cropped(96, ", scale=(0.2, 1.0)", "bilinear"), *VIEW]
    solarized = ["RandomSolarize(threshold=128.0, p=0.2)", *TO_FLOATS]
    assert first == [*crop, f"RandomApply([{blur(13)}], p=1.0)", *TO_FLOATS]
    assert second == [*crop, f"RandomApply([{blur(13)}], p=0.1)", *solarized]
    weaker, _ = map(described, pipelines.byol(32, 0.5, interpolation="bicubic").transforms)
    assert weaker[0] == cropped(32, "")
    assert weaker[2] == (
        "RandomApply([ColorJitter(brightness=(0.8, 1.2), contrast=(0.8, 1.2), "
        "saturation=(0.9, 1.1), hue=(-0.05, 0.05))], p=0.8)"
    )


def test_views_of_moco_v3() -> None:
    first, second = map(described, pipelines.moco_v3(0.2, size=96).transforms)
    crop = [cropped(96, ", scale=(0.2, 1.0)", "bilinear"), *VIEW]
    solarized = ["RandomSolarize(threshold=128.0, p=0.2)", *TO_FLOATS]
    assert first == [*crop, f"RandomApply([{blur(13)}], p=1.0)", *TO_FLOATS]
    assert second == [*crop, f"RandomApply([{blur(13)}], p=0.1)", *solarized]
    assert described(pipelines.moco_v3().transforms[0])[0] == cropped(224, "", "bilinear")


def test_crops_of_swav() -> None:
    """So many of each size, the shares of their area pair by pair."""
    views = pipelines.swav(
        (64, 32, 16), (2, 1, 3), (0.3, 0.1, 0.05), (1.0, 0.3, 0.1), cj_strength=0.5
    )
    shown = list(map(described, views.transforms))
    crops = [
        *[cropped(64, ", scale=(0.3, 1.0)", "bilinear")] * 2,
        cropped(32, ", scale=(0.1, 0.3)", "bilinear"),
        *[cropped(16, ", scale=(0.05, 0.1)", "bilinear")] * 3,
    ]
    assert [view[0] for view in shown] == crops
    jitter = (
        "RandomApply([ColorJitter(brightness=(0.6, 1.4), contrast=(0.6, 1.4), "
        "saturation=(0.6, 1.4), hue=(-0.1, 0.1))], p=0.8)"
    )
    rest = [VIEW[0], jitter, VIEW[2], f"RandomApply([{blur(13)}], p=0.5)", *TO_FLOATS]
    assert [view[1:] for view in shown] == [rest] * 6
    shown = list(map(described, pipelines.swav().transforms))
    assert "hue=(-0.2, 0.2)" in shown[0][2]
    assert [view[0] for view in shown] == [
        *[cropped(224, ", scale=(0.14, 1.0)", "bilinear")] * 2,
        *[cropped(96, ", scale=(0.05, 0.14)", "bilinear")] * 6,
    ]


def test_mae() -> None:
    made = described(pipelines.mae(96))
    assert made == [cropped(96, ", scale=(0.2, 1.0)"), "RandomHorizontalFlip(p=0.5)", *TO_FLOATS]


def test_three_augment_of_deit3() -> None:
    (crop, flip, one_of_three, jitter, *rest) = described(pipelines.deit3())
    assert crop == cropped(224, "")
    assert [flip, *rest] == ["RandomHorizontalFlip(p=0.5)", *TO_FLOATS]
    assert one_of_three == (
        "OneOf([RandomGrayscale(p=1.0), RandomSolarize(threshold=128.0, p=1.0), "
        f"{blur(13)}], probabilities=(0.3333333333333333, 0.3333333333333333, 0.3333333333333333))"
    )
    assert jitter == (
        "ColorJitter(brightness=(0.7, 1.3), contrast=(0.7, 1.3), saturation=(0.7, 1.3))"
    )
    assert len(described(pipelines.deit3(color_jitter=None))) == 5
    simple = described(pipelines.deit3(64, src=True))
    assert simple[0] == "Resize(shorter=64, interpolation='bicubic')"
    assert simple[1] == ("RandomCrop(size=(64, 64), padding=(4, 4, 4, 4), padding_mode='reflect')")
    assert simple[2:4] == [flip, one_of_three]


@pytest.mark.parametrize(
    "name", ["byol", "deit3", "dino", "dinov2", "ibot", "moco_v3", "simclr", "swav"]
)
def test_all_colour_is_done_by_the_native_core(name: str) -> None:
    (*ops, last) = Recipe.from_transform(getattr(pipelines, name)()).ops
    every = [*ops, *getattr(last, "inner", ())]
    floats = ToDtype, Normalize
    colour = [op for op in every if isinstance(op, PixelOperation) and not isinstance(op, floats)]
    assert len(colour) >= 2
    assert [op.describe() for op in colour if not op.has_steps] == []


def test_images_of_open_clip() -> None:
    floats = [
        TO_FLOATS[0],
        "Normalize(mean=(0.48145466, 0.4578275, 0.40821073), "
        "std=(0.26862954, 0.26130258, 0.27577711))",
    ]
    assert described(pipelines.open_clip()) == [cropped(224, ", scale=(0.9, 1.0)"), *floats]
    assert described(pipelines.open_clip(336, is_train=False)) == [
        "Resize(shorter=336, interpolation='bicubic')",
        "CenterCrop(size=(336, 336))",
        *floats,
    ]


@pytest.mark.parametrize(
    ("transform", "shapes"),
    [
        (pipelines.deit3(32), [32]),
        (pipelines.deit3(32, src=True), [32]),
        (pipelines.mae(32), [32]),
        (pipelines.simclr(32), [32, 32]),
        (pipelines.byol(32), [32, 32]),
        (pipelines.swav((32, 16), (1, 2)), [32, 16, 16]),
        (pipelines.open_clip(32), [32]),
    ],
)
def test_batches_without_worker_processes(
    transform: Any, shapes: list[int], tmp_path: Path
) -> None:
    folder = write_photo_folder(tmp_path, classes=1, per_class=2)
    with fastload.create_loader(folder, batch_size=2, transform=transform) as loader:
        assert "worker" not in str(loader.explain()).split("transforms")[1].split("\n\n")[0]
        images, _ = next(iter(loader))
    views = images if isinstance(images, list | tuple) else [images]
    assert [tuple(view.shape) for view in views] == [(2, 3, size, size) for size in shapes]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pipelines.torchvision_classification(auto_augment_policy="rand"), "'ta_wide'"),
        (lambda: pipelines.torchvision_classification(crop_size=22.5), "crop_size: must be an int"),
        (lambda: pipelines.torchvision_classification(hflip_prob=-0.5), "hflip_prob: must be a"),
        (lambda: pipelines.torchvision_classification(random_erase_prob=2), "random_erase_prob"),
        (lambda: pipelines.torchvision_classification(ra_magnitude=31), "0 to 30"),
        (lambda: pipelines.torchvision_classification(augmix_severity=11), "1 to 10"),
        (lambda: pipelines.torchvision_classification(mean=(0.5,)), "mean: must be three numbers"),
        (lambda: pipelines.torchvision_classification(interpolation="cubic"), "'bicubic'"),
        (lambda: pipelines.torchvision_classification_eval(crop_size=0), "crop_size: must be"),
        (lambda: pipelines.torchvision_classification_eval(resize_size=0), "resize_size: must be"),
        (lambda: pipelines.torchvision_classification_mixing(0), "num_classes: must be"),
        (lambda: pipelines.torchvision_classification_mixing(7, -0.2), "mixup_alpha: must be"),
        (lambda: pipelines.dinov2(global_crops_scale=(0.5, 0.2)), "global_crops_scale"),
        (lambda: pipelines.dinov2(local_crops_scale=(0.0, 0.2)), "0 < low <= high <= 1"),
        (
            lambda: pipelines.dinov2(local_crops_number=-1),
            "local_crops_number: must be an int of at least 0",
        ),
        (lambda: pipelines.dinov2(global_crops_size=0), "global_crops_size: must be an int"),
        (lambda: pipelines.dinov2(local_crops_size=9.5), "local_crops_size: must be an int"),
        (lambda: pipelines.dino(local_crops_number=-1), "local_crops_number: must be an int"),
        (lambda: pipelines.dino(local_crops_scale=(0.5, 0.2)), "local_crops_scale"),
        (lambda: pipelines.dino(local_crops_scale=0.4), "local_crops_scale: must be"),
        (lambda: pipelines.simclr(0), "size: must be an int of at least 1"),
        (lambda: pipelines.simclr(n_views=0), "n_views: must be"),
        (lambda: pipelines.simclr(s=3), "s: must be 0 to 2.5"),
        (lambda: pipelines.simclr(blurred=1.5), "blurred: must be a probability from 0 to 1"),
        (lambda: pipelines.byol(0), "input_size: must be an int of at least 1"),
        (lambda: pipelines.byol(cj_strength=5.5), "cj_strength: must be 0 to 5"),
        (lambda: pipelines.byol(min_scale=0.0), "min_scale: must be"),
        (lambda: pipelines.byol(interpolation="cubic"), "'bicubic'"),
        (lambda: pipelines.ibot(global_crops_number=0), "global_crops_number: must be an int of"),
        (lambda: pipelines.ibot(local_crops_number=-1), "local_crops_number: must be an int of"),
        (lambda: pipelines.ibot(global_crops_scale=(0.5, 0.2)), "global_crops_scale"),
        (lambda: pipelines.ibot(local_crops_scale=(0.0, 0.2)), "local_crops_scale"),
        (lambda: pipelines.moco_v3(crop_min=1.5), "crop_min: must be"),
        (lambda: pipelines.moco_v3(size=0), "size: must be an int of at least 1"),
        (lambda: pipelines.swav(crop_sizes=(224, 0)), "crop_sizes: must be an int"),
        (lambda: pipelines.swav(crop_sizes=224), "crop_sizes: must be one size or several"),
        (lambda: pipelines.swav(crop_counts=(2, 6, 1)), "crop_counts: must be one for each of"),
        (lambda: pipelines.swav(crop_min_scales=0.1), "crop_min_scales: must be one for each of"),
        (lambda: pipelines.swav(crop_max_scales=(1.0, 0.01)), "0 < low <= high <= 1"),
        (lambda: pipelines.swav(cj_strength=3), "cj_strength: must be 0 to 2.5"),
        (lambda: pipelines.swav(gaussian_blur=-1), "gaussian_blur: must be a probability"),
        (lambda: pipelines.mae(0), "input_size: must be an int of at least 1"),
        (lambda: pipelines.deit3(4, src=True), "input_size: must be an int of at least 5"),
        (lambda: pipelines.deit3(color_jitter=-0.1), "color_jitter: must be None or at least 0"),
        (lambda: pipelines.open_clip(scale=(0.0, 1.0)), "scale: must be"),
        (lambda: pipelines.open_clip(image_size=0), "image_size: must be"),
        (lambda: pipelines.open_clip(is_train="val"), "is_train: must be True or False"),
        (lambda: pipelines.open_clip(std=(0.2, 0.2, 0.0)), "three numbers above 0"),
    ],
)
def test_what_the_original_could_not_do_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()
