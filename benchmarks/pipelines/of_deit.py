"""DeiT III's 3-Augment: github.com/facebookresearch/deit as `deit`, and timm."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import timm.data.transforms as timm_transforms

from benchmarks.pipelines.classes import of_fastload, of_image_folder, one
from benchmarks.pipelines.originals import module
from benchmarks.pipelines.pipeline import Pipeline
from fastload import pipelines

SIZE = 224


def original(originals: Path, size: int, src: bool) -> Any:
    # It imports a name, and does not use it, that newer versions of timm have under another one.
    if not hasattr(timm_transforms, "_pil_interp"):
        timm_transforms._pil_interp = timm_transforms.str_to_pil_interp
    made = module(originals / "deit/augment.py", "deit_augment")
    # The defaults of its main.py.
    return made.new_data_aug_generator(Namespace(input_size=size, src=src, color_jitter=0.3))


def three_augment(name: str, src: bool) -> Pipeline:
    return Pipeline(
        f"deit3{name}",
        "deit3",
        of_image_folder(lambda on: original(on.originals, on.size(SIZE), src), one),
        of_fastload(lambda on: pipelines.deit3(on.size(SIZE), src=src), one),
        batch_size=64,
        bar=4.0,
    )


PIPELINES = (three_augment("", False), three_augment(", simple random crop", True))
