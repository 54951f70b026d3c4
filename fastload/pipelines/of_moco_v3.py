"""MoCo v3's views: two crops of each image, of which one is always blurred, and the other solarized
now and then.

Follows Chen et al., 2021, "An empirical study of training self-supervised vision transformers",
whose views are BYOL's; shares, filter and probabilities as the authors' script
(github.com/facebookresearch/moco-v3 at c349e6e, CC BY-NC 4.0) was seen to have them when it was
run.
"""

from __future__ import annotations

from torchvision.transforms import InterpolationMode

from fastload.arguments import integer
from fastload.pipelines.contrastive import two_unlike_views
from fastload.pipelines.normalised import checked_scale
from fastload.recipe.views import Views


def moco_v3(crop_min: float = 0.08, *, size: int = 224) -> Views:
    """A transform of RGB images into two views, float32 (3, `size`, `size`), normalised by
    ImageNet's mean and deviation. A batch holds a list of two (B, 3, H, W) tensors.

    Args:
        crop_min: the least share of the image's area that a crop has.
        size: of a view [pixels]; the script leaves only 224.

    Raises:
        ConfigurationError: the share is not above 0 and at most 1, or the size below 1.
    """
    integer("size", size, 1)
    scale = checked_scale("crop_min", (crop_min, 1.0))
    return two_unlike_views(size, scale, (0.4, 0.4, 0.2, 0.1), InterpolationMode.BILINEAR)
