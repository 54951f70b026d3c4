"""YOLOX's training of detectors.

Follows `yolox/exp/yolox_base.py`, `yolox/data/data_augment.py` and
`yolox/data/datasets/mosaicdetection.py` of github.com/Megvii-BaseDetection/YOLOX (Apache 2.0) at
6ddff48. Ge et al., 2021, "YOLOX: Exceeding YOLO Series in 2021".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torchvision.transforms import v2

from fastload.arguments import integer, require
from fastload.pipelines.normalised import checked_probability, checked_sizes
from fastload.recipe.transforms import (
    BGR,
    CanvasAffine,
    CanvasJitter,
    DropObjects,
    HSVShift,
    Letterbox,
    MixUp,
    Mosaic,
)

ORIGINALS = {
    "yolox.data.data_augment.TrainTransform": "yolox",
    "yolox.data.datasets.mosaicdetection.MosaicDetection": "yolox",
}

LARGER_THAN_A_PIXEL = math.nextafter(1.0, 2.0)

Batch = tuple[torch.Tensor, torch.Tensor]


def yolox(
    input_size: Sequence[int] = (640, 640),
    *,
    mosaic_prob: float = 1.0,
    mixup_prob: float = 1.0,
    hsv_prob: float = 1.0,
    flip_prob: float = 0.5,
    degrees: float = 10.0,
    translate: float = 0.1,
    mosaic_scale: tuple[float, float] = (0.1, 2.0),
    enable_mixup: bool = True,
    mixup_scale: tuple[float, float] = (0.5, 1.5),
    shear: float = 2.0,
    no_aug: bool = False,
) -> v2.Compose:
    """A transform of RGB images and boxes into float32 (3, height, width), 0 to 255, blue first,
    for training. Give `collate_fn="yolo"`, and `yolox_batches()` as the `batch_transform`.

    Args:
        input_size: height, width [pixels].
        mosaic_prob: 1, or 0 for what `no_aug` does.
        mixup_prob: probability that another sample is blended in.
        hsv_prob: probability that colours are changed.
        flip_prob: probability of mirroring, left and right.
        degrees: the angle is from minus to plus this number.
        translate: how far the middle may move, in parts of the width and height.
        mosaic_scale: least and largest factor of the affine map.
        enable_mixup: whether there is MixUp at all.
        mixup_scale: least and largest factor of the sample that is blended in.
        shear: both angles are from minus to plus this number [degrees].
        no_aug: without mosaic, affine map and MixUp, as of `no_aug_epochs` before the end: make
            another Loader for those epochs.

    Raises:
        ConfigurationError: a probability is not from 0 to 1, that of the mosaic between them; a
            size is below 1, or a number too large.
    """
    sizes = checked_sizes("input_size", input_size)
    require("input_size", len(sizes) == 2, "(height, width)", input_size)
    for name, p in (("mixup_prob", mixup_prob), ("hsv_prob", hsv_prob), ("flip_prob", flip_prob)):
        checked_probability(name, p)
    whole = "1, or 0: samples without a mosaic have no affine map and no MixUp in the original"
    require("mosaic_prob", mosaic_prob in (0, 1), whole, mosaic_prob)
    size = sizes[0], sizes[1]
    colour, flip = HSVShift(5, 30, 30, p=hsv_prob), v2.RandomHorizontalFlip(flip_prob)
    fitted = Letterbox(size, rounding="down", corner=True, antialias=False)
    if no_aug or mosaic_prob == 0:
        steps = [colour, flip, fitted]
    else:
        steps = [
            Mosaic(size, rounding="down", antialias=False),
            CanvasAffine(
                size,
                degrees=degrees,
                translate=translate,
                scale=mosaic_scale,
                shear=shear,
                corner=True,
            ),
            MixUp(
                p=mixup_prob if enable_mixup else 0.0,
                weight=0.5,
                partner=v2.Compose([fitted, CanvasJitter(size, scale=mixup_scale)]),
            ),
            colour,
            flip,
        ]
    return v2.Compose(
        [
            *steps[:1],
            v2.ToImage(),
            *steps[1:],
            DropObjects(min_size=LARGER_THAN_A_PIXEL, min_area=0),
            BGR(),
            v2.ToDtype(torch.float32),
        ]
    )


def yolox_batches(
    max_labels: int = 120,
) -> Callable[[torch.Tensor, torch.Tensor], Batch]:
    """The `batch_transform` for batches of `collate_fn="yolo"`: (images, targets), targets float32
    (B, `max_labels`, 5): class, centre x and y, width, height [pixels], and zeros after the objects
    of an image. Objects beyond `max_labels` are left out, as there.

    Args:
        max_labels: rows of targets an image, from 1 on.

    Raises:
        ConfigurationError: `max_labels` is below 1.
    """
    return _Padded(integer("max_labels", max_labels, 1))


class _Padded:
    """A class, so that it can be pickled."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, images: torch.Tensor, targets: torch.Tensor) -> Batch:
        height, width = images.shape[-2:]
        padded = targets.new_zeros((len(images), self.most, 5))
        of_image = targets[:, 0].long()
        first = torch.searchsorted(of_image, torch.arange(len(images), device=of_image.device))
        place = torch.arange(len(of_image), device=of_image.device) - first[of_image]
        kept = place < self.most
        pixels = targets.new_tensor([1, width, height, width, height])
        padded[of_image[kept], place[kept]] = targets[kept, 1:] * pixels
        return images, padded
