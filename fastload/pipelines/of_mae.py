"""MAE's pretraining: a crop of each image, mirrored or not, and nothing else.

Follows the paper: He et al., 2022, "Masked autoencoders are scalable vision learners", section 4
and appendix A.1 (random resized crops); scale, filter and normalising as the authors' script
(github.com/facebookresearch/mae at efb2a80, CC BY-NC 4.0) was seen to have them when it was run.
"""

from __future__ import annotations

from torchvision.transforms import InterpolationMode, v2

from fastload.arguments import integer
from fastload.pipelines.normalised import to_floats


def mae(input_size: int = 224) -> v2.Compose:
    """A transform of RGB images into float32 (3, `input_size`, `input_size`), normalised by
    ImageNet's mean and deviation. The patches that are masked are drawn by the model.

    Args:
        input_size: of the image [pixels].

    Raises:
        ConfigurationError: the size is below 1.
    """
    integer("input_size", input_size, 1)
    bicubic = InterpolationMode.BICUBIC
    return v2.Compose(
        [
            v2.RandomResizedCrop(input_size, scale=(0.2, 1.0), interpolation=bicubic),
            v2.RandomHorizontalFlip(),
            *to_floats(),
        ]
    )
