"""DETR's transforms of COCO.

Follows `make_coco_transforms` of `datasets/coco.py` of github.com/facebookresearch/detr (Apache
2.0) at 29901c5. Carion et al., 2020, "End-to-End Object Detection with Transformers".
"""

from __future__ import annotations

from collections.abc import Sequence

from torchvision.transforms import v2

from fastload.pipelines.normalised import to_floats
from fastload.recipe.transforms import DropObjects, ResizeOrCrop

ORIGINALS = {"datasets.transforms.RandomSelect": "detr"}

SCALES = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)


def detr(scales: Sequence[int] = SCALES, max_size: int = 1333) -> v2.Compose:
    """A transform of RGB images and boxes, for training: the shorter side becomes one of `scales`
    and the longer `max_size` at most, of half of the images after a crop. Images are float32,
    normalised by ImageNet's mean and deviation, and differ in size: give `collate_fn="detr"`.

    Raises:
        ConfigurationError: a size is below 1 pixel.
    """
    return v2.Compose(
        [
            v2.ClampBoundingBoxes(),
            v2.RandomHorizontalFlip(),
            ResizeOrCrop(scales, max_size, first=(400, 500, 600), crop=(384, 600)),
            DropObjects(min_size=0, min_area=0),
            *to_floats(),
        ]
    )


def detr_eval(size: int = 800, max_size: int = 1333) -> v2.Compose:
    """A transform for evaluation: the shorter side becomes `size`, the longer `max_size` at
    most."""
    resize = ResizeOrCrop((size,), max_size, p=0.0)
    return v2.Compose([v2.ClampBoundingBoxes(), resize, *to_floats()])
