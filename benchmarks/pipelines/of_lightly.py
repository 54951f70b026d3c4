"""BYOL's views and SwAV's crops: the package lightly."""

from __future__ import annotations

from typing import Any

from benchmarks.pipelines.classes import of_fastload, of_image_folder, several
from benchmarks.pipelines.pipeline import Pipeline, Setting
from fastload import pipelines

SIZE, SMALL = 224, 96


def byol(setting: Setting) -> Any:
    from lightly.transforms import byol_transform as of

    size = setting.size(SIZE)
    return of.BYOLTransform(of.BYOLView1Transform(size), of.BYOLView2Transform(size))


def swav(setting: Setting) -> Any:
    from lightly.transforms.swav_transform import SwaVTransform

    return SwaVTransform(crop_sizes=(setting.size(SIZE), setting.size(SMALL)))


PIPELINES = (
    Pipeline(
        "byol",
        "byol",
        of_image_folder(byol, several),
        of_fastload(lambda on: pipelines.byol(on.size(SIZE)), several),
        batch_size=32,
        bar=4.0,
    ),
    Pipeline(
        "swav",
        "swav",
        of_image_folder(swav, several),
        of_fastload(lambda on: pipelines.swav((on.size(SIZE), on.size(SMALL))), several),
        batch_size=16,
        bar=8.0,
    ),
)
