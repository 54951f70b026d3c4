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


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pipelines.torchvision_classification(auto_augment_policy="rand"), "'ta_wide'"),
        (lambda: pipelines.dinov2(global_crops_scale=(0.5, 0.2)), "global_crops_scale"),
        (lambda: pipelines.dinov2(local_crops_scale=(0.0, 0.2)), "0 < low <= high <= 1"),
        (lambda: pipelines.dinov2(local_crops_number=-1), "local_crops_number=-1"),
        (lambda: pipelines.dinov2(global_crops_size=0), "global_crops_size=0"),
    ],
)
def test_what_the_original_could_not_do_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()
