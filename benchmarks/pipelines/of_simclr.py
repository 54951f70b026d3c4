"""SimCLR's views: github.com/sthalles/SimCLR as `SimCLR`."""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

from benchmarks.pipelines.classes import of_fastload, of_image_folder, several
from benchmarks.pipelines.originals import module
from benchmarks.pipelines.pipeline import Pipeline, Setting
from fastload import pipelines

SIZE = 224
NOTHING = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)


def original(setting: Setting) -> Any:
    folder = setting.originals / "SimCLR"
    with mock.patch.object(sys, "path", [str(folder), *sys.path]):
        file = folder / "data_aug/contrastive_learning_dataset.py"
        dataset = module(file, "contrastive_learning_dataset").ContrastiveLearningDataset
        views = module(folder / "data_aug/view_generator.py", "data_aug.view_generator")
    transform = dataset.get_simclr_pipeline_transform(setting.size(SIZE))
    return views.ContrastiveLearningViewGenerator(transform, 2)


PIPELINES = (
    Pipeline(
        "simclr",
        "simclr",
        of_image_folder(original, several, *NOTHING),
        of_fastload(lambda on: pipelines.simclr(on.size(SIZE)), several, *NOTHING),
        batch_size=32,
        bar=4.0,
    ),
)
