"""DETR's transforms of COCO.

Follows `make_coco_transforms` of `datasets/coco.py` of github.com/facebookresearch/detr (Apache
2.0) at 29901c5. Carion et al., 2020, "End-to-End Object Detection with Transformers".
"""

from __future__ import annotations

from collections.abc import Sequence

from torchvision.transforms import v2

from fastload.arguments import integer
from fastload.pipelines.normalised import checked_sizes, to_floats
from fastload.recipe.transforms import DropObjects, ResizeOrCrop

ORIGINALS = {"datasets.transforms.RandomSelect": "detr"}

SCALES = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)


def detr(scales: Sequence[int] = SCALES, max_size: int = 1333) -> v2.Compose:
    """A transform of RGB images and boxes, for training: the shorter side becomes one of `scales`
    and the longer `max_size` at most, of half of the images after a crop. Images are float32,
    normalised by ImageNet's mean and deviation, and differ in size: give `collate_fn="detr"`.

    Args:
        scales: lengths of the shorter side [pixels], one of which is drawn.
        max_size: most pixels of the longer side; the shorter becomes less for it.

    Raises:
        ConfigurationError: a size is below 1 pixel.
    """
    chosen, most = checked_sizes("scales", scales), integer("max_size", max_size, 1)
    return v2.Compose(
        [
            v2.ClampBoundingBoxes(),
            v2.RandomHorizontalFlip(),
            ResizeOrCrop(chosen, most, first=(400, 500, 600), crop=(384, 600)),
            _drop_empty(),
            *to_floats(),
        ]
    )


def detr_eval(size: int = 800, max_size: int = 1333) -> v2.Compose:
    """A transform for evaluation: the shorter side becomes `size`, the longer `max_size` at
    most.

    Args:
        size: of the shorter side [pixels].
        max_size: most pixels of the longer side; the shorter becomes less for it.

    Raises:
        ConfigurationError: a size is below 1 pixel.
    """
    resize = ResizeOrCrop((integer("size", size, 1),), integer("max_size", max_size, 1), p=0.0)
    return v2.Compose([v2.ClampBoundingBoxes(), _drop_empty(), resize, *to_floats()])


def _drop_empty() -> DropObjects:
    """Of boxes that lie outside of their image nothing is left."""
    return DropObjects(min_size=0, min_area=0)
