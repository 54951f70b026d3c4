"""The images that Stable Diffusion, and SDXL, are fine-tuned with, as diffusers' scripts do it.

Follows `examples/text_to_image/train_text_to_image.py` and `train_text_to_image_sdxl.py` of
github.com/huggingface/diffusers (Apache 2.0) at 58eb52c.
"""

from __future__ import annotations

import torch
from torchvision.transforms import InterpolationMode, v2

from fastload.arguments import flag, integer
from fastload.pipelines.normalised import checked_filter
from fastload.recipe.size_and_crop import SizeAndCrop

_HALF = (0.5, 0.5, 0.5)


def diffusers_text_to_image(
    resolution: int = 512,
    center_crop: bool = False,
    random_flip: bool = False,
    *,
    image_interpolation_mode: InterpolationMode = InterpolationMode.LANCZOS,
) -> v2.Compose:
    """A transform of RGB images into float32 (3, `resolution`, `resolution`), from -1 to 1. Texts
    that go with them are a column of the batch, a list of strings.

    Args:
        resolution: of the shorter side, and of the square that is cut out [pixels].
        center_crop: cut out the middle; else any part.
        random_flip: mirror half of the images.
        image_interpolation_mode: of the resize: also its name, "lanczos", "bicubic", "bilinear".

    Raises:
        ConfigurationError: the resolution is below 1, one of the two is not True or False, or there
            is no such filter.
    """
    resize, crop = _resize_and_crop(resolution, center_crop, image_interpolation_mode)
    flips = [v2.RandomHorizontalFlip()] if flag("random_flip", random_flip) else []
    return v2.Compose([resize, crop, *flips, *_to_floats()])


def diffusers_sdxl(
    resolution: int = 1024,
    center_crop: bool = False,
    random_flip: bool = False,
    *,
    image_interpolation_mode: InterpolationMode = InterpolationMode.LANCZOS,
) -> v2.Compose:
    """The same, mirrored before the crop. Batches have two more columns, "original_sizes" and
    "crop_top_lefts", int64 (B, 2): the height and the width of the files [pixels], and the top and
    the left of the crops in the resized images.

    Args:
        resolution: of the shorter side, and of the square that is cut out [pixels].
        center_crop: cut out the middle; else any part.
        random_flip: mirror half of the images.
        image_interpolation_mode: of the resize: also its name.

    Raises:
        ConfigurationError: as of `diffusers_text_to_image`.
    """
    resize, crop = _resize_and_crop(resolution, center_crop, image_interpolation_mode)
    flips = [v2.RandomHorizontalFlip()] if flag("random_flip", random_flip) else []
    return v2.Compose([resize, *flips, crop, *_to_floats(), SizeAndCrop()])


def _resize_and_crop(
    resolution: int, center_crop: bool, mode: InterpolationMode
) -> tuple[v2.Transform, v2.Transform]:
    size = integer("resolution", resolution, 1)
    middle = flag("center_crop", center_crop)
    resize = v2.Resize(size, interpolation=checked_filter(mode, "image_interpolation_mode"))
    return resize, v2.CenterCrop(size) if middle else v2.RandomCrop(size)


def _to_floats() -> tuple[v2.Transform, ...]:
    return v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(_HALF, _HALF)
