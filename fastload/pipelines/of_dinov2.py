"""DINOv2's crops: two large ones and several small ones of each image.

Follows `DataAugmentationDINO` of github.com/facebookresearch/dinov2 (Apache 2.0) at b8931f7, and
the crops of its `ssl_default_config.yaml`. Oquab et al., 2023, "DINOv2: Learning robust visual
features without supervision".
"""

from __future__ import annotations

from fastload.arguments import integer
from fastload.pipelines.contrastive import view
from fastload.pipelines.normalised import checked_scale
from fastload.recipe.views import Views

ORIGINALS = {"dinov2.data.augmentations.DataAugmentationDINO": "dinov2"}

_NEVER, _MOSTLY, _HALF = 0.0, 0.9, 0.5
"""How often a crop is blurred: of the first, the second, and the small ones. The original gives
its GaussianBlur p=1.0, 0.1 and 0.5, and that calls torchvision's RandomApply with 1 - p."""
_KERNEL = 9


def dinov2(
    global_crops_scale: tuple[float, float] = (0.32, 1.0),
    local_crops_scale: tuple[float, float] = (0.05, 0.32),
    local_crops_number: int = 8,
    global_crops_size: int = 224,
    local_crops_size: int = 96,
) -> Views:
    """A transform of RGB images into 2 + `local_crops_number` views.

    The first two are float32 (3, `global_crops_size`, `global_crops_size`), the others (3,
    `local_crops_size`, `local_crops_size`), normalised by ImageNet's mean and deviation. A batch
    holds a list of (B, 3, H, W) tensors. The masks of patches are made by the training code, and
    are none of this.

    Args:
        global_crops_scale: least and largest share of the image's area that the crop of one
            of the first two has.
        local_crops_scale: likewise of the small views.
        local_crops_number: how many small views there are.
        global_crops_size: of the first two [pixels].
        local_crops_size: of the small views [pixels].

    Raises:
        ConfigurationError: a scale is not (low, high) with 0 < low <= high <= 1, or a number is
            below 1 (of `local_crops_number`: below 0).
    """
    large = checked_scale("global_crops_scale", global_crops_scale)
    small = checked_scale("local_crops_scale", local_crops_scale)
    for name, size in (
        ("global_crops_size", global_crops_size),
        ("local_crops_size", local_crops_size),
    ):
        integer(name, size, 1)
    locals_ = integer("local_crops_number", local_crops_number, 0)
    return Views(
        view(global_crops_size, large, blurred=_NEVER, kernel_size=_KERNEL),
        view(global_crops_size, large, blurred=_MOSTLY, kernel_size=_KERNEL, solarized=0.2),
        *[view(local_crops_size, small, blurred=_HALF, kernel_size=_KERNEL)] * locals_,
    )
