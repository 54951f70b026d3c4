"""iBOT's crops: github.com/bytedance/ibot as `ibot`. Its data set makes masks as well, which are
not ours: both sides read ImageFolder."""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

from benchmarks.pipelines.classes import of_fastload, of_image_folder, several
from benchmarks.pipelines.originals import module, packages_of
from benchmarks.pipelines.pipeline import Pipeline, Setting
from fastload import pipelines

CROPS = ((0.25, 1.0), (0.05, 0.25), 2, 10)
"""Of the commands in its manual that have small ones."""
_UNUSED = (
    "tensorboardX",
    "models",
    "models.head",
    "evaluation",
    "evaluation.unsupervised",
    "evaluation.unsupervised.unsup_cls",
)
"""What the script imports, and has no part in the crops."""


def original(setting: Setting) -> Any:
    folder = setting.originals / "ibot"
    absent = {name: mock.MagicMock() for name in _UNUSED}
    with (
        mock.patch.dict(sys.modules, absent),
        packages_of(folder, "utils", "loader"),
    ):
        made = module(folder / "main_ibot.py", "main_ibot").DataAugmentationiBOT(*CROPS)
    return setting.sized(made, "size")


def ours(setting: Setting) -> Any:
    return setting.sized(pipelines.ibot(*CROPS), "size")


PIPELINES = (
    Pipeline(
        "ibot",
        "ibot",
        of_image_folder(original, several),
        of_fastload(ours, several),
        batch_size=16,
        bar=8.0,
    ),
)
