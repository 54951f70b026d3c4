"""The preset of torchvision's training script for semantic segmentation.

Follows `references/segmentation` of github.com/pytorch/vision (BSD 3-clause): `presets.py` at
e337654, `transforms.py` at 1ff32d3, and the sizes of its `train.py`.
"""

from __future__ import annotations

from typing import Any

from torchvision.transforms import v2

from fastload.arguments import integer
from fastload.pipelines.normalised import MEAN, STD, Floats, checked_probability, to_floats
from fastload.recipe.transforms import FixedSizeCrop, RandomResize

ORIGINALS = {
    "presets.SegmentationPresetTrain": "torchvision_segmentation",
    "presets.SegmentationPresetEval": "torchvision_segmentation_eval",
}

_IGNORED = 255
"""What masks are padded with: the script's loss leaves this class out."""


def torchvision_segmentation(
    *,
    base_size: int = 520,
    crop_size: int = 480,
    hflip_prob: float = 0.5,
    mean: Floats = MEAN,
    std: Floats = STD,
) -> v2.Compose:
    """A transform of RGB images and masks of classes into float32 (3, `crop_size`, `crop_size`) and
    masks of the same size, for training: the shorter side becomes half to twice `base_size`, what
    is larger than the crop is cut anywhere, what is smaller is padded right and below, of masks
    with 255.

    Args:
        base_size: half of the longest shorter side, or twice the shortest [pixels].
        crop_size: of the image [pixels].
        hflip_prob: probability of mirroring.
        mean: that is taken away from each channel, of 0..1.
        std: that each channel is divided by, then.

    Raises:
        ConfigurationError: `base_size` is below 2, `crop_size` below 1, or `hflip_prob` not from 0
            to 1.
    """
    integer("base_size", base_size, 2)
    integer("crop_size", crop_size, 1)
    checked_probability("hflip_prob", hflip_prob)
    steps: list[Any] = [RandomResize(int(0.5 * base_size), int(2.0 * base_size) + 1)]
    if hflip_prob > 0:
        steps.append(v2.RandomHorizontalFlip(hflip_prob))
    steps.append(FixedSizeCrop(crop_size, mask_fill=_IGNORED, apart=True))
    return v2.Compose([*steps, *to_floats(mean, std)])


def torchvision_segmentation_eval(
    *, base_size: int = 520, mean: Floats = MEAN, std: Floats = STD
) -> v2.Compose:
    """A transform for evaluation: the shorter side becomes `base_size`. Sizes differ, so that
    batches have one image, as in the script (`batch_size=1`).

    Args:
        base_size: of the shorter side [pixels].
        mean: that is taken away from each channel, of 0..1.
        std: that each channel is divided by, then.

    Raises:
        ConfigurationError: the size is below 1.
    """
    integer("base_size", base_size, 1)
    return v2.Compose([RandomResize(base_size, base_size + 1), *to_floats(mean, std)])
