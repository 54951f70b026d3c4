"""DeiT III's 3-Augment: each image is grey, solarized or blurred.

Follows `new_data_aug_generator` of github.com/facebookresearch/deit (Apache 2.0) at 7e160fe, its
`augment.py`, with the defaults of `main.py --ThreeAugment`. Touvron et al., 2022, "DeiT III:
Revenge of the ViT".
"""

from __future__ import annotations

from torchvision.transforms import InterpolationMode, v2

from fastload.arguments import integer, require
from fastload.pipelines.normalised import to_floats

_KERNEL = 13
"""3 deviations on each side: Pillow's blur, which the original has, has no kernel that is cut."""


def deit3(input_size: int = 224, color_jitter: float | None = 0.3, src: bool = False) -> v2.Compose:
    """A transform of RGB images into float32 (3, `input_size`, `input_size`), normalised by
    ImageNet's mean and deviation.

    Args:
        input_size: of the image [pixels].
        color_jitter: of brightness, contrast and saturation; None or 0: none.
        src: the simple random crop: the shorter side becomes `input_size`, and a square is cut out
            after 4 pixels were mirrored at each border. Else a random resized crop.

    Raises:
        ConfigurationError: the size is below 1 (with `src`: below 5, of which 4 can be mirrored),
            or the jitter is negative.
    """
    integer("input_size", input_size, 5 if src else 1)
    jitter = color_jitter or 0.0
    require("color_jitter", jitter >= 0, "None or at least 0", color_jitter)
    bicubic = InterpolationMode.BICUBIC
    crop = (
        [
            v2.Resize(input_size, interpolation=bicubic),
            v2.RandomCrop(input_size, padding=4, padding_mode="reflect"),
        ]
        if src
        else [v2.RandomResizedCrop(input_size, scale=(0.08, 1.0), interpolation=bicubic)]
    )
    one_of_three = v2.RandomChoice(
        [
            v2.RandomGrayscale(p=1.0),  # the native core does it, unlike Grayscale
            v2.RandomSolarize(threshold=128, p=1.0),
            v2.GaussianBlur(_KERNEL, sigma=(0.1, 2.0)),
        ]
    )
    colour = [v2.ColorJitter(jitter, jitter, jitter)] if jitter else []
    return v2.Compose([*crop, v2.RandomHorizontalFlip(), one_of_three, *colour, *to_floats()])
