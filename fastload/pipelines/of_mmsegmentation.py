"""mmsegmentation's default transforms, as its configurations of ADE20K and Cityscapes have them.

Follows `configs/_base_/datasets/ade20k.py` and `cityscapes.py`, `mmseg/datasets/transforms` and
`SegDataPreProcessor` of github.com/open-mmlab/mmsegmentation (Apache 2.0), 1.2.2, with mmcv 2.1.0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torchvision.transforms import v2

from fastload.arguments import flag, require
from fastload.pipelines.normalised import (
    Floats,
    are_numbers,
    checked_pair,
    checked_probability,
    to_floats,
)
from fastload.recipe.crop_by_classes import CropByClasses
from fastload.recipe.padding_mask import PaddingMask
from fastload.recipe.photometric_bytes import PhotometricDistortionOfBytes
from fastload.recipe.transforms import FixedSizeCrop, RandomRescale

ORIGINALS = {"mmseg.datasets.transforms.transforms.PhotoMetricDistortion": "mmsegmentation"}

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
_IGNORED = 255
Size = tuple[int, int]


def mmsegmentation(
    crop_size: Size = (512, 512),
    *,
    scale: Size = (2048, 512),
    ratio_range: tuple[float, float] = (0.5, 2.0),
    cat_max_ratio: float = 0.75,
    prob: float = 0.5,
    reduce_zero_label: bool = False,
    mean: Floats = MEAN,
    std: Floats = STD,
) -> v2.Compose:
    """A transform of RGB images and masks of classes into float32 (3, height, width), normalised,
    and masks of the same size, for training: resized by a ratio, cut so that no class has too much
    of the crop, half mirrored, changed in colour, and padded right and below, masks with 255. A
    column `padding_mask` says where; give `batch_transform=mmsegmentation_batches(...)`, which
    makes that 0.

    Args:
        crop_size: height and width of the images [pixels].
        scale: most pixels of the longer and the shorter side before the crop, times a ratio.
        ratio_range: the least and the largest ratio.
        cat_max_ratio: a crop is drawn again, up to ten times, while one class has as large a part
            of it; 1: never.
        prob: of mirroring.
        reduce_zero_label: whether 0 is no class, as in ADE20K.
        mean: that is taken away from each channel, of 0 to 255.
        std: that each channel is divided by, then.

    Raises:
        ConfigurationError: an argument is none of these.
    """
    sizes = checked_pair("crop_size", crop_size), checked_pair("scale", scale)
    low_high = are_numbers(ratio_range, 2) and 0 < ratio_range[0] <= ratio_range[1]
    require("ratio_range", low_high, "(low, high) with 0 < low <= high", ratio_range)
    part = are_numbers((cat_max_ratio,), 1) and 0 < cat_max_ratio <= 1
    require("cat_max_ratio", part, "a number above 0, to 1", cat_max_ratio)
    ignored = (0, _IGNORED) if flag("reduce_zero_label", reduce_zero_label) else (_IGNORED,)
    trials = 10 if cat_max_ratio < 1 else 0
    checked_probability("prob", prob)
    for name, floats in (("mean", mean), ("std", std)):
        require(name, are_numbers(floats, 3), "three numbers", floats)
    return v2.Compose(
        [
            v2.ToImage(),  # PIL images are resized with antialiasing, whatever is asked for
            RandomRescale(sizes[1], ratio=ratio_range),
            CropByClasses(sizes[0], max_ratio=cat_max_ratio, ignored=ignored, trials=trials),
            *([v2.RandomHorizontalFlip(prob)] if prob > 0 else []),
            FixedSizeCrop(sizes[0], mask_fill=_IGNORED),
            PaddingMask(),
            PhotometricDistortionOfBytes(),
            *to_floats(_of_one(mean), _of_one(std)),
        ]
    )


def mmsegmentation_batches(
    *, reduce_zero_label: bool = False
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """The `batch_transform`: (images, masks) of a batch (images, masks, padding_mask). The images
    are set to 0, in place, where they are padded; masks are int64.

    Args:
        reduce_zero_label: as of `mmsegmentation`: class 0 becomes 255, and all others one less.

    Raises:
        ConfigurationError: it is neither True nor False.
    """
    return _Batches(flag("reduce_zero_label", reduce_zero_label))


class _Batches:
    """A class, so that it can be pickled."""

    def __init__(self, reduce_zero_label: bool) -> None:
        self.reduce_zero_label = reduce_zero_label

    def __call__(
        self, images: torch.Tensor, masks: torch.Tensor, padding_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if images.is_cpu:  # a GPU would have to be waited for
            for image, padded in zip(images, padding_mask, strict=True):
                if padded.any():
                    image.masked_fill_(padded, 0)
        else:
            images.masked_fill_(padding_mask[:, None], 0)
        if self.reduce_zero_label:
            ignored = masks == _IGNORED
            masks = (masks.byte() - 1).masked_fill_(ignored, _IGNORED)  # of bytes 0 - 1 is 255
        return images, masks.long()


def _of_one(floats: Floats) -> Floats:
    red, green, blue = floats
    return red / 255, green / 255, blue / 255
