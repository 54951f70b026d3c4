"""iBOT's crops: large ones and small ones of each image.

Follows `DataAugmentationiBOT` of github.com/bytedance/ibot (Apache 2.0) at da316d8, and the
defaults of its `main_ibot.py`. Zhou et al., 2021, "iBOT: Image BERT pre-training with online
tokenizer".
"""

from __future__ import annotations

from fastload.arguments import integer
from fastload.pipelines.contrastive import KERNEL_OF_PILLOW, view
from fastload.pipelines.normalised import checked_scale
from fastload.recipe.views import Views

ORIGINALS = {
    "main_ibot.DataAugmentationiBOT": "ibot",
    "__main__.DataAugmentationiBOT": "ibot",
}

_LARGE, _SMALL = 224, 96
"""Which the original does not leave open."""


def ibot(
    global_crops_scale: tuple[float, float] = (0.14, 1.0),
    local_crops_scale: tuple[float, float] = (0.05, 0.4),
    global_crops_number: int = 2,
    local_crops_number: int = 0,
) -> Views:
    """A transform of RGB images into `global_crops_number` + `local_crops_number` views.

    The first ones are float32 (3, 224, 224), the others (3, 96, 96), normalised by ImageNet's mean
    and deviation. A batch holds a list of (B, 3, H, W) tensors. The masks of patches are made by
    the original's data set, and are none of this.

    Args:
        global_crops_scale: least and largest share of the image's area that the crop of one
            of the first views has.
        local_crops_scale: likewise of the small views.
        global_crops_number: how many views of 224 pixels there are.
        local_crops_number: how many of 96 pixels.

    Raises:
        ConfigurationError: a scale is not (low, high) with 0 < low <= high <= 1, or a number is
            below 1 (of `local_crops_number`: below 0).
    """
    large = checked_scale("global_crops_scale", global_crops_scale)
    small = checked_scale("local_crops_scale", local_crops_scale)
    others = integer("global_crops_number", global_crops_number, 1) - 1
    locals_ = integer("local_crops_number", local_crops_number, 0)
    return Views(
        view(_LARGE, large, blurred=1.0, kernel_size=KERNEL_OF_PILLOW),
        *[view(_LARGE, large, blurred=0.1, kernel_size=KERNEL_OF_PILLOW, solarized=0.2)] * others,
        *[view(_SMALL, small, blurred=0.5, kernel_size=KERNEL_OF_PILLOW)] * locals_,
    )
