"""DINOv2's crops: github.com/facebookresearch/dinov2 as `dinov2`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torchvision import transforms as v1

import fastload
from benchmarks.pipelines.classes import of_fastload, of_image_folder, several
from benchmarks.pipelines.originals import module
from benchmarks.pipelines.pipeline import Pipeline
from fastload import pipelines

LARGE, SMALL = 224, 96


def original(originals: Path, large: int = LARGE, small: int = SMALL) -> Any:
    folder = originals / "dinov2/dinov2/data"
    package = ModuleType("dinov2_data")
    package.__path__ = [str(folder)]  # without its __init__, which needs xFormers
    sys.modules.setdefault("dinov2_data", package)
    module(folder / "transforms.py", "dinov2_data.transforms")
    made = module(folder / "augmentations.py", "dinov2_data.augmentations")
    # Of its ssl_default_config.yaml.
    return made.DataAugmentationDINO((0.32, 1.0), (0.05, 0.32), 8, large, small)


def as_views(made: Any) -> fastload.Views:
    """Its own transforms, put together as its `__call__` calls them."""
    large, small = made.geometric_augmentation_global, made.geometric_augmentation_local
    first, second, local = made.global_transfo1, made.global_transfo2, made.local_transfo
    chains = [(large, first), (large, second), *[(small, local)] * made.local_crops_number]
    return fastload.Views(*(v1.Compose(list(chain)) for chain in chains))


def views(batch: Any) -> Sequence[torch.Tensor]:
    crops, _ = batch
    return [*crops["global_crops"], *crops["local_crops"]]


PIPELINES = (
    Pipeline(
        "dinov2",
        "dinov2",
        of_image_folder(lambda on: original(on.originals, on.size(LARGE), on.size(SMALL)), views),
        of_fastload(
            lambda on: pipelines.dinov2(
                global_crops_size=on.size(LARGE), local_crops_size=on.size(SMALL)
            ),
            several,
        ),
        batch_size=16,
        bar=8.0,
        operations=lambda originals: (as_views(original(originals)), pipelines.dinov2()),
    ),
)
