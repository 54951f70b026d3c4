"""SimCLR's views: several crops of each image, with strong changes of colour.

Follows `get_simclr_pipeline_transform` and `ContrastiveLearningViewGenerator` of
github.com/sthalles/SimCLR (MIT) at 1848fc9, which is a third party's. Chen et al., 2020, "A simple
framework for contrastive learning of visual representations", appendix A, is the method's.
"""

from __future__ import annotations

import torch
from torchvision.transforms import InterpolationMode, v2

from fastload.arguments import integer, require
from fastload.pipelines.contrastive import view
from fastload.pipelines.normalised import checked_probability
from fastload.recipe.views import Views

ORIGINALS = {"data_aug.view_generator.ContrastiveLearningViewGenerator": "simclr"}


def simclr(size: int = 224, s: float = 1, n_views: int = 2, *, blurred: float = 1.0) -> Views:
    """A transform of RGB images into `n_views` views, float32 (3, `size`, `size`) of 0..1. A batch
    holds a list of (B, 3, H, W) tensors.

    Args:
        size: the original has none of its own; 224 is the paper's.
        s: the strength of the changes of colour.
        n_views: how many views there are of an image.
        blurred: the probability that a view is blurred. The code blurs all of them, the paper half:
            `blurred=0.5`.

    Raises:
        ConfigurationError: the size or the number of views below 1, `s` is not 0 to 2.5
            (with more the hue would turn by more than a half), or `blurred` not 0 to 1.
    """
    integer("size", size, 1)
    views = integer("n_views", n_views, 1)
    require("s", 0 <= s <= 2.5, "0 to 2.5", s)
    checked_probability("blurred", blurred)
    strength = (0.8 * s, 0.8 * s, 0.8 * s, 0.2 * s)
    one = view(
        size,
        (0.08, 1.0),
        jitter=strength,
        blurred=blurred,
        kernel_size=size // 10 // 2 * 2 + 1,
        interpolation=InterpolationMode.BILINEAR,
        last=(v2.ToImage(), v2.ToDtype(torch.float32, scale=True)),
    )
    return Views(*[one] * views)
