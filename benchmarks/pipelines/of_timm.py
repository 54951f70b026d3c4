"""timm's transforms: the package timm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.pipelines.classes import of_fastload, of_image_folder, one
from benchmarks.pipelines.fed_timm import black_without_bits, both
from benchmarks.pipelines.pipeline import Judgement, Pipeline, Setting
from fastload import pipelines
from fastload.recipe import Recipe
from fastload.recipe.pillow_augment import PillowAugMix, PillowAutoAugment, PillowRandAugment

SIZE = 224
TRAINING: dict[str, Any] = {"interpolation": "random", "re_mode": "pixel"}
"""What `train.py` gives beside its options."""
MEAN_APART = 0.5
"""Of 255: AugMix, whose chains timm cuts to bytes before it mixes them with the image, is half of
its weight off on average, 0.25."""
_IMAGES = 64


def images(name: str, is_training: bool, **settings: Any) -> Pipeline:
    given = {"is_training": is_training, **(TRAINING if is_training else {}), **settings}

    def original(setting: Setting) -> Any:
        from timm.data import create_transform

        black_without_bits()
        return create_transform(setting.size(SIZE), **given)

    def ours(setting: Setting) -> Any:
        return pipelines.timm(setting.size(SIZE), **given)

    def same(setting: Setting) -> list[Judgement]:
        """Of what `auto_augment` makes, with our numbers; the crops are in the distributions."""
        augment = next(
            t for t in original(setting).transforms if "auto_augment" in type(t).__module__
        )
        (op,) = Recipe.from_transform(augment).ops
        assert isinstance(op, PillowRandAugment | PillowAutoAugment | PillowAugMix)
        files = sorted(Path(setting.data).glob("*/*.jpg"))[:_IMAGES]
        side = setting.size(SIZE)
        pixels = np.stack(
            [np.asarray(Image.open(f).convert("RGB").resize((side, side))) for f in files]
        )
        wanted, found = both(augment, op, pixels)
        apart = np.abs(wanted.astype(int) - found)
        mean = float(apart.mean())
        what = f"mean difference over {len(files)} images with the same numbers, of 255"
        return [Judgement(what, mean, MEAN_APART, False)]

    return Pipeline(
        f"timm{name}",
        "timm",
        of_image_folder(original, one),
        of_fastload(ours, one),
        batch_size=64,
        bar=4.0,
        exact=not is_training,
        same=same if "auto_augment" in given else None,
    )


PIPELINES = (
    images(", RandAugment", True, auto_augment="rand-m9-mstd0.5-inc1", re_prob=0.25),
    images("", True),
    images(", AutoAugment", True, auto_augment="original-mstd0.5", re_prob=0.25, re_count=3),
    images(", 3-Augment", True, auto_augment="3a"),
    images(", AugMix", True, auto_augment="augmix-m5-w4-d2"),
    images(", evaluation", False, crop_pct=0.875, interpolation="bicubic"),
)
