"""FiveCrop and TenCrop against torchvision's in a DataLoader: the same lists of batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError
from fastload.recipe import Recipe
from tests.cases import whole_but
from tests.images import photo

PHOTOS = [Image.fromarray(photo(31 + n, 40 - n, seed=n)) for n in range(5)]
FLOATS = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.2] * 3)]


class Pictures(torch.utils.data.Dataset[Any]):
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return len(PHOTOS)

    def __getitem__(self, index: int) -> Any:
        image = PHOTOS[index]
        return image if self.transform is None else self.transform(image), index


CHAINS: dict[str, list[Any]] = {
    "five": [v2.FiveCrop(20), *FLOATS],
    "odd": [v2.FiveCrop((13, 24)), v2.ToImage(), v2.Identity()],
    "ten": [v2.TenCrop(17), *FLOATS],
    "upside down": [v2.Resize((30, 33)), v2.TenCrop((9, 12), vertical_flip=True), *FLOATS],
    "of tensors": [v2.ToImage(), v2.FiveCrop(20), v2.ToDtype(torch.float32, scale=True)],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", whole_but(["five"], CHAINS))
def test_as_a_dataloader_has_them(name: str) -> None:
    transform = v2.Compose(CHAINS[name])
    (op,) = [op for op in Recipe.from_transform(transform).ops if op.makes_views]
    assert not op.is_opaque
    wanted = list(DataLoader(Pictures(transform), batch_size=3))
    with fastload.create_loader(Pictures(None), batch_size=3, transform=transform) as given:
        made = list(given)
    # The data set's own, by the one line.
    with fastload.from_dataloader(DataLoader(Pictures(transform), batch_size=3)) as adopted:
        for batches in (made, list(adopted)):
            for (views, labels), (others, numbers) in zip(batches, wanted, strict=True):
                assert isinstance(views, list)
                assert torch.equal(labels, numbers)
                assert len(views) == len(others)
                for one, other in zip(views, others, strict=True):
                    assert one.dtype == other.dtype
                    assert (one.double() - other.double()).abs().max() < (
                        1e-5 if name != "upside down" else 0.05
                    )


@pytest.mark.parametrize(
    "then",
    [
        [v2.Lambda(lambda crops: torch.stack([v2.functional.to_image(one) for one in crops]))],
        [v2.RandomHorizontalFlip()],
        [v2.ToImage(), v2.ToPureTensor(), v2.Normalize([0.5], [0.5])],
        [v2.PILToTensor()],
    ],
    ids=["a function", "random", "plain tensors", "to plain tensors"],
)
def test_what_takes_crops_otherwise_runs_as_it_was_written(then: list[Any]) -> None:
    ops = Recipe.from_transform(v2.Compose([v2.FiveCrop(20), *then])).ops
    assert any(op.is_opaque for op in ops)


def test_crops_of_v1_are_for_functions() -> None:
    assert Recipe.from_transform(v1.FiveCrop(20)).ops[0].is_opaque


def test_images_smaller_than_their_crops_are_refused() -> None:
    transform = v2.Compose([v2.Resize((12, 40)), v2.FiveCrop(20)])
    with pytest.raises(ConfigurationError, match="a crop of 20x20 pixels reaches out"):
        fastload.create_loader({"image": np.zeros((3, 30, 30, 3), np.uint8)}, transform=transform)
