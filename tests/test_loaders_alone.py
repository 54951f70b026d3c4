"""Transforms that loaders alone can do are refused where single samples would go through them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torchvision.transforms import v2

import fastload
from fastload import create_loader
from fastload.errors import ConfigurationError
from fastload.recipe.boxes_of_masks import BoxesOfMasks
from fastload.recipe.crop_by_classes import CropByClasses
from fastload.recipe.crop_with_foreground import CropWithForeground
from fastload.recipe.hide_keypoints import HideKeypoints
from fastload.recipe.intensities import ChangedIntensities
from fastload.recipe.padding_mask import PaddingMask
from fastload.recipe.size_and_crop import SizeAndCrop
from tests import images

MADE = (
    CropByClasses(16),
    CropWithForeground(16, shown=16, p=0.5),
    BoxesOfMasks(),
    HideKeypoints(),
    PaddingMask(),
    SizeAndCrop(),
    fastload.DropObjects(),
    fastload.Mosaic(32),
    ChangedIntensities(),
)


def samples(batch: list[Any]) -> list[Any]:
    return batch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images.write_photo_folder(tmp_path_factory.mktemp("data"))


class Either:
    """Of a user's, with transforms in a dictionary, one of which leads back to it."""

    def __init__(self, made: Any) -> None:
        self.transforms = {"weak": v2.RandomChoice([made, self])}

    def __call__(self, image: Any) -> Any:
        return image


def refused(folder: Path, transform: Any, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as raised:
        create_loader(folder, 2, transform=v2.Compose([transform, v2.ToImage()]), **options)
    return str(raised.value)


@pytest.mark.parametrize("made", MADE, ids=lambda made: type(made).__name__)
def test_in_a_container_of_the_users(made: Any, folder: Path) -> None:
    """At construction, and not at the first batch."""
    message = refused(folder, Either(made))
    assert message.startswith(f"transform: {type(made).__name__} ")
    assert "in Python and one sample at a time: tests.test_loaders_alone.Either" in message


@pytest.mark.parametrize("made", MADE[:-2], ids=lambda made: type(made).__name__)
def test_for_some_samples(made: Any, folder: Path) -> None:
    assert "RandomApply (inside it" in refused(folder, v2.RandomApply([made]))


def test_with_a_collate_function(folder: Path) -> None:
    message = refused(folder, CropByClasses(16), collate_fn=samples)
    assert message.startswith("transform: CropByClasses looks at the masks of a loader's source")
    assert "collate_fn tests.test_loaders_alone.samples takes finished samples" in message


@pytest.mark.parametrize("made", MADE, ids=lambda made: type(made).__name__)
def test_called(made: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{type(made).__name__} "):
        made(images.photo(20, 30))
