"""DINO's crops: two large ones and several small ones of each image.

Follows `DataAugmentationDINO` of github.com/facebookresearch/dino (Apache 2.0) at 7c446df, and the
defaults of its `main_dino.py`. Caron et al., 2021, "Emerging properties in self-supervised vision
transformers".
"""

from __future__ import annotations

from fastload.arguments import integer
from fastload.pipelines.contrastive import KERNEL_OF_PILLOW, view
from fastload.pipelines.normalised import checked_scale
from fastload.recipe.views import Views

ORIGINALS = {
    "main_dino.DataAugmentationDINO": "dino",
    "__main__.DataAugmentationDINO": "dino",
}

_LARGE, _SMALL = 224, 96
"""Which the original does not leave open."""


def dino(
    global_crops_scale: tuple[float, float] = (0.4, 1.0),
    local_crops_scale: tuple[float, float] = (0.05, 0.4),
    local_crops_number: int = 8,
) -> Views:
    """A transform of RGB images into 2 + `local_crops_number` views.

    The first two are float32 (3, 224, 224), the others (3, 96, 96), normalised by ImageNet's mean
    and deviation. A batch holds a list of (B, 3, H, W) tensors.

    Args:
        global_crops_scale: least and largest share of the image's area that the crop of one
            of the first two has.
        local_crops_scale: likewise of the small views.
        local_crops_number: how many small views there are.

    Raises:
        ConfigurationError: a scale is not (low, high) with 0 < low <= high <= 1, or the number is
            below 0.
    """
    large = checked_scale("global_crops_scale", global_crops_scale)
    small = checked_scale("local_crops_scale", local_crops_scale)
    count = integer("local_crops_number", local_crops_number, 0)
    return Views(
        view(_LARGE, large, blurred=1.0, kernel_size=KERNEL_OF_PILLOW),
        view(_LARGE, large, blurred=0.1, kernel_size=KERNEL_OF_PILLOW, solarized=0.2),
        *[view(_SMALL, small, blurred=0.5, kernel_size=KERNEL_OF_PILLOW)] * count,
    )
