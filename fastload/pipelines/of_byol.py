"""BYOL's views: two crops of each image, of which one is always blurred, and the other solarized
now and then.

Follows `BYOLTransform` of lightly 1.6.0 (MIT), which is a third party's. Grill et al., 2020,
"Bootstrap your own latent", appendix B, is the method's.
"""

from __future__ import annotations

from torchvision.transforms import InterpolationMode

from fastload.arguments import integer
from fastload.pipelines.contrastive import jittered, two_unlike_views
from fastload.pipelines.normalised import checked_filter, checked_scale
from fastload.recipe.views import Views

ORIGINALS = {"lightly.transforms.byol_transform.BYOLTransform": "byol"}


def byol(
    input_size: int = 224,
    cj_strength: float = 1.0,
    min_scale: float = 0.08,
    *,
    interpolation: InterpolationMode = InterpolationMode.BILINEAR,
) -> Views:
    """A transform of RGB images into two views, float32 (3, `input_size`, `input_size`), normalised
    by ImageNet's mean and deviation. A batch holds a list of two (B, 3, H, W) tensors.

    Args:
        input_size: of a view [pixels].
        cj_strength: what the changes of brightness, contrast, saturation and hue, 0.4, 0.4, 0.2 and
            0.1, are multiplied by; lightly's manual has 0.5 for small images, as CIFAR's.
        min_scale: the least share of the image's area that a crop has.
        interpolation: of the crops. The code's is bilinear, the paper's bicubic.

    Raises:
        ConfigurationError: the size is below 1, the strength is not 0 to 5 (with more the hue would
            turn by more than a half), the scale not above 0 and at most 1, or there is no such
            filter.
    """
    integer("input_size", input_size, 1)
    jitter = jittered("cj_strength", cj_strength, (0.4, 0.4, 0.2, 0.1))
    scale = checked_scale("min_scale", (min_scale, 1.0))
    return two_unlike_views(input_size, scale, jitter, checked_filter(interpolation))
