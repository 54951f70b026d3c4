"""OpenCLIP's images, for training and for evaluation.

Follows `image_transform` of open_clip_torch 3.3.0 (github.com/mlfoundations/open_clip, MIT) with
its `AugmentationCfg`, without `use_timm` and the changes of colour, which are off by default.
"""

from __future__ import annotations

from torchvision.transforms import InterpolationMode, v2

from fastload.arguments import flag, integer
from fastload.pipelines.normalised import Floats, checked_scale, to_floats

OPENAI_MEAN = (0.48145466, 0.4578275, 0.40821073)
OPENAI_STD = (0.26862954, 0.26130258, 0.27577711)


def open_clip(
    image_size: int = 224,
    is_train: bool = True,
    mean: Floats = OPENAI_MEAN,
    std: Floats = OPENAI_STD,
    *,
    scale: tuple[float, float] = (0.9, 1.0),
) -> v2.Compose:
    """A transform of RGB images into float32 (3, `image_size`, `image_size`). Captions are values
    of the data, and no part of it.

    Args:
        image_size: of the image [pixels].
        is_train: a random resized crop; else the shorter side becomes `image_size` and the middle
            is cut out.
        mean: that is taken away from each channel, of 0..1.
        std: that each channel is divided by, then.
        scale: least and largest share of the image's area that a crop has.

    Raises:
        ConfigurationError: the size is below 1, the scale is not (low, high) with
            0 < low <= high <= 1, or `mean` or `std` not three numbers.
    """
    integer("image_size", image_size, 1)
    area = checked_scale("scale", scale)
    bicubic = InterpolationMode.BICUBIC
    steps = (
        [v2.RandomResizedCrop(image_size, scale=area, interpolation=bicubic)]
        if flag("is_train", is_train)
        else [v2.Resize(image_size, interpolation=bicubic), v2.CenterCrop(image_size)]
    )
    return v2.Compose([*steps, *to_floats(mean, std)])
