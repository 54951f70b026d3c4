"""The preset of torchvision's training script for classification.

Follows `references/classification` of github.com/pytorch/vision (BSD 3-clause): `presets.py` at
080836e, and for mixing `train.py` at 017e9b9.
"""

from __future__ import annotations

import math
from typing import Any

from torchvision.transforms import AutoAugmentPolicy, InterpolationMode, v2

from fastload.arguments import integer, require
from fastload.pipelines.normalised import (
    MEAN,
    STD,
    Floats,
    checked_filter,
    checked_probability,
    to_floats,
)

ORIGINALS = {
    "presets.ClassificationPresetTrain": "torchvision_classification",
    "presets.ClassificationPresetEval": "torchvision_classification_eval",
}


def torchvision_classification(
    *,
    crop_size: int = 224,
    mean: Floats = MEAN,
    std: Floats = STD,
    interpolation: InterpolationMode = InterpolationMode.BILINEAR,
    hflip_prob: float = 0.5,
    auto_augment_policy: str | None = None,
    ra_magnitude: int = 9,
    augmix_severity: int = 3,
    random_erase_prob: float = 0.0,
) -> v2.Compose:
    """A transform of RGB images into float32 (3, `crop_size`, `crop_size`), for training.

    The defaults are those of the script; its newer recipe is `crop_size=176,
    auto_augment_policy="ta_wide", random_erase_prob=0.1`, with
    `torchvision_classification_mixing(classes, 0.2, 1.0)`.

    Args:
        crop_size: of the image [pixels].
        mean: that is taken away from each channel, of 0..1.
        std: that each channel is divided by, then.
        interpolation: of the crop, and of the policy.
        hflip_prob: probability of mirroring.
        auto_augment_policy: "ra", "ta_wide", "augmix", or a policy of AutoAugment: "imagenet",
            "cifar10", "svhn".
        ra_magnitude: 0 to 30.
        augmix_severity: 1 to 10.
        random_erase_prob: probability that a box is erased.

    Raises:
        ConfigurationError: the policy is none of these, the size is below 1, or a number is not in
            its bounds.
    """
    integer("crop_size", crop_size, 1)
    interpolation = checked_filter(interpolation)
    for name, p in (("hflip_prob", hflip_prob), ("random_erase_prob", random_erase_prob)):
        checked_probability(name, p)
    require("ra_magnitude", integer("ra_magnitude", ra_magnitude, 0) <= 30, "0 to 30", ra_magnitude)
    severity = integer("augmix_severity", augmix_severity, 1)
    require("augmix_severity", severity <= 10, "1 to 10", augmix_severity)
    steps: list[Any] = [v2.RandomResizedCrop(crop_size, interpolation=interpolation)]
    if hflip_prob > 0:
        steps.append(v2.RandomHorizontalFlip(hflip_prob))
    if auto_augment_policy == "ra":
        steps.append(v2.RandAugment(interpolation=interpolation, magnitude=ra_magnitude))
    elif auto_augment_policy == "ta_wide":
        steps.append(v2.TrivialAugmentWide(interpolation=interpolation))
    elif auto_augment_policy == "augmix":
        steps.append(v2.AugMix(interpolation=interpolation, severity=augmix_severity))
    elif auto_augment_policy is not None:
        steps.append(v2.AutoAugment(_policy(auto_augment_policy), interpolation=interpolation))
    steps += to_floats(mean, std)
    if random_erase_prob > 0:
        steps.append(v2.RandomErasing(p=random_erase_prob))
    return v2.Compose(steps)


def torchvision_classification_eval(
    *,
    crop_size: int = 224,
    resize_size: int = 256,
    mean: Floats = MEAN,
    std: Floats = STD,
    interpolation: InterpolationMode = InterpolationMode.BILINEAR,
) -> v2.Compose:
    """A transform of RGB images into float32 (3, `crop_size`, `crop_size`), for evaluation: the
    shorter side becomes `resize_size` [pixels], and the middle is cut out.

    Args:
        crop_size: of the image [pixels].
        resize_size: of the shorter side before [pixels].
        mean: that is taken away from each channel, of 0..1.
        std: that each channel is divided by, then.
        interpolation: of the resize.

    Raises:
        ConfigurationError: a size is below 1.
    """
    integer("crop_size", crop_size, 1)
    integer("resize_size", resize_size, 1)
    interpolation = checked_filter(interpolation)
    return v2.Compose(
        [
            v2.Resize(resize_size, interpolation=interpolation),
            v2.CenterCrop(crop_size),
            *to_floats(mean, std),
        ]
    )


def torchvision_classification_mixing(
    num_classes: int, mixup_alpha: float = 0.0, cutmix_alpha: float = 0.0
) -> v2.RandomChoice | None:
    """The `batch_transform` of the recipe: MixUp, CutMix, or one of the two for each batch; None
    where both alphas are 0. Labels become float32 (B, `num_classes`).

    Args:
        num_classes: of the data.
        mixup_alpha: of MixUp's Beta(alpha, alpha); 0: without it.
        cutmix_alpha: of CutMix's; 0: without it.

    Raises:
        ConfigurationError: the number of classes is below 1, or an alpha below 0.
    """
    integer("num_classes", num_classes, 1)
    for name, alpha in (("mixup_alpha", mixup_alpha), ("cutmix_alpha", cutmix_alpha)):
        require(name, 0 <= alpha < math.inf, "a number of at least 0", alpha)
    mixes: list[Any] = []
    if mixup_alpha > 0:
        mixes.append(v2.MixUp(alpha=mixup_alpha, num_classes=num_classes))
    if cutmix_alpha > 0:
        mixes.append(v2.CutMix(alpha=cutmix_alpha, num_classes=num_classes))
    return v2.RandomChoice(mixes) if mixes else None


def _policy(name: str) -> AutoAugmentPolicy:
    policies = {policy.value: policy for policy in AutoAugmentPolicy}
    known = ", ".join(map(repr, ("ra", "ta_wide", "augmix", *policies)))
    require("auto_augment_policy", name in policies, f"None or one of {known}", name)
    return policies[name]
