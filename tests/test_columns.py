"""Columns that geometry moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError


@pytest.mark.parametrize("name", ["boxes", "keypoints"])
@pytest.mark.parametrize("backend", ["auto", "torch", "turbojpeg", "cache"])
def test_boxes_are_not_left_behind_in_silence(name: str, backend: str) -> None:
    arrays = {"image": np.zeros((4, 8, 8, 3), np.uint8), name: np.zeros((4, 4), np.float32)}
    crop = v2.Compose([v2.ColorJitter(0.5), v2.RandomCrop(4)])
    for transform in (v2.RandomResizedCrop(4), v2.RandomHorizontalFlip(), crop, v2.RandAugment(), lambda image: image):
        with pytest.raises(ConfigurationError, match=rf"moves the pixels.*'{name}' would stay"):
            fastload.create_loader(arrays, 2, transform=transform, backend=backend)
    with fastload.create_loader(arrays, 2, transform=v2.ColorJitter(0.5), backend="turbojpeg") as loader:
        assert [batch[name].shape for batch in loader] == [(2, 4), (2, 4)]


class _WithBoxes(torch.utils.data.Dataset[Any]):
    """Samples (image, {"boxes": ...}), as torchvision wraps COCO."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        boxes = tv_tensors.BoundingBoxes([[0, 0, 4, 4]], format="XYXY", canvas_size=(8, 8))  # type: ignore[call-overload]
        return torch.zeros(3, 8, 8, dtype=torch.uint8), {"boxes": boxes}


def test_boxes_of_a_dataset_are_not_left_behind_in_silence() -> None:
    for transform in (v2.RandomResizedCrop(4), v2.Compose([v2.ColorJitter(0.5), v2.RandomCrop(4)])):
        with (
            fastload.create_loader(_WithBoxes(), 2, transform=transform, num_workers=0) as loader,
            pytest.raises(ConfigurationError, match="holds boxes or points"),
        ):
            next(iter(loader))
