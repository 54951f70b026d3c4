"""OpenCLIP's images: the package open_clip_torch."""

from __future__ import annotations

from typing import Any

from benchmarks.pipelines.classes import of_fastload, of_image_folder, one
from benchmarks.pipelines.pipeline import Pipeline, Setting
from fastload import pipelines
from fastload.pipelines.of_open_clip import OPENAI_MEAN, OPENAI_STD

SIZE = 224


def images(name: str, is_train: bool) -> Pipeline:
    def original(setting: Setting) -> Any:
        try:
            from open_clip import image_transform
        except ImportError:
            raise SystemExit("pip install open_clip_torch==3.3.0") from None
        return image_transform(setting.size(SIZE), is_train)

    def ours(setting: Setting) -> Any:
        return pipelines.open_clip(setting.size(SIZE), is_train)

    return Pipeline(
        f"open_clip{name}",
        "open_clip",
        of_image_folder(original, one, OPENAI_MEAN, OPENAI_STD),
        of_fastload(ours, one, OPENAI_MEAN, OPENAI_STD),
        batch_size=64,
        bar=4.0 if is_train else None,
        exact=not is_train,
    )


PIPELINES = (images("", True), images(", evaluation", False))
