"""SwAV's crops: two large ones and several small ones of each image, with strong changes of colour.

Follows `SwaVTransform` of lightly 1.6.0 (MIT), which is a third party's: the authors' own code has
no free licence, and was not read. Caron et al., 2020, "Unsupervised learning of visual features by
contrasting cluster assignments", is the method's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchvision.transforms import InterpolationMode

from fastload.arguments import require
from fastload.pipelines.contrastive import KERNEL_OF_PILLOW, jittered, view
from fastload.pipelines.normalised import checked_probability, checked_scale, checked_sizes
from fastload.recipe.views import Views

ORIGINALS = {"lightly.transforms.swav_transform.SwaVTransform": "swav"}


def swav(
    crop_sizes: tuple[int, ...] = (224, 96),
    crop_counts: tuple[int, ...] = (2, 6),
    crop_min_scales: tuple[float, ...] = (0.14, 0.05),
    crop_max_scales: tuple[float, ...] = (1.0, 0.14),
    *,
    cj_strength: float = 1.0,
    gaussian_blur: float = 0.5,
) -> Views:
    """A transform of RGB images into `sum(crop_counts)` views, float32 (3, size, size), those of
    the first size first, normalised by ImageNet's mean and deviation. A batch holds a list of
    (B, 3, size, size) tensors.

    Args:
        crop_sizes: one size or several [pixels].
        crop_counts: how many views have each of the sizes.
        crop_min_scales: for each size, the least share of the image's area that a crop has.
        crop_max_scales: the largest.
        cj_strength: what the changes of brightness, contrast, saturation and hue, 0.8, 0.8, 0.8 and
            0.2, are multiplied by.
        gaussian_blur: the probability that a view is blurred.

    Raises:
        ConfigurationError: a size or a number is below 1, a scale not above 0 and at most 1, the
            four are not equally many, the strength is not 0 to 2.5 (with more the hue would turn by
            more than a half), or the probability not 0 to 1.
    """
    sizes = checked_sizes("crop_sizes", crop_sizes)
    counts = checked_sizes("crop_counts", crop_counts)
    of_sizes: dict[str, Sequence[Any]] = {
        "crop_counts": counts,
        "crop_min_scales": crop_min_scales,
        "crop_max_scales": crop_max_scales,
    }
    for name, values in of_sizes.items():
        good = isinstance(values, Sequence) and len(values) == len(sizes)
        require(name, good, f"one for each of the {len(sizes)} of crop_sizes", values)
    jitter = jittered("cj_strength", cj_strength, (0.8, 0.8, 0.8, 0.2))
    checked_probability("gaussian_blur", gaussian_blur)
    views: list[Any] = []
    for size, count, *scale in zip(sizes, counts, crop_min_scales, crop_max_scales, strict=True):
        one = view(
            size,
            checked_scale("crop_min_scales, crop_max_scales", (scale[0], scale[1])),
            jitter=jitter,
            blurred=gaussian_blur,
            kernel_size=KERNEL_OF_PILLOW,
            interpolation=InterpolationMode.BILINEAR,
        )
        views += [one] * count
    return Views(*views)
