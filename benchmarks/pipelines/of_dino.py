"""DINO's crops: github.com/facebookresearch/dino as `dino`."""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

from benchmarks.pipelines.classes import of_fastload, of_image_folder, several
from benchmarks.pipelines.originals import module
from benchmarks.pipelines.pipeline import Pipeline, Setting
from fastload import pipelines


def original(setting: Setting) -> Any:
    with mock.patch.object(sys, "path", [str(setting.originals / "dino"), *sys.path]):
        made = module(setting.originals / "dino/main_dino.py", "main_dino")
    # The defaults of its command line.
    return setting.sized(made.DataAugmentationDINO((0.4, 1.0), (0.05, 0.4), 8), "size")


PIPELINES = (
    Pipeline(
        "dino",
        "dino",
        of_image_folder(original, several),
        of_fastload(lambda on: on.sized(pipelines.dino(), "size"), several),
        batch_size=16,
        bar=8.0,
    ),
)
