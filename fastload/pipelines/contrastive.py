"""A view of an image as self-supervised methods make it: SimCLR's steps, in their order."""

from __future__ import annotations

from torchvision.transforms import InterpolationMode, v2

from fastload.pipelines.normalised import to_floats

Range = tuple[float, float]


def view(
    size: int,
    scale: Range,
    *,
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.2, 0.1),
    blurred: float,
    kernel_size: int,
    solarized: float = 0.0,
    interpolation: InterpolationMode = InterpolationMode.BICUBIC,
    last: tuple[v2.Transform, ...] | None = None,
) -> v2.Compose:
    """Crop, mirror, colour (of 4 of 5 images; grey of 1 of 5), blur, solarize.

    Args:
        scale: the share of the image's area that a crop has.
        jitter: of brightness, contrast, saturation and hue.
        blurred, solarized: with which probability.
        kernel_size: of the blur [pixels], whose deviation is 0.1 to 2 pixels.
        last: in place of normalising by ImageNet's mean and deviation.
    """
    solarize = (v2.RandomSolarize(threshold=128, p=solarized),) if solarized else ()
    return v2.Compose(
        [
            v2.RandomResizedCrop(size, scale=scale, interpolation=interpolation),
            v2.RandomHorizontalFlip(p=0.5),
            v2.RandomApply([v2.ColorJitter(*jitter)], p=0.8),
            v2.RandomGrayscale(p=0.2),
            v2.RandomApply([v2.GaussianBlur(kernel_size, sigma=(0.1, 2.0))], p=blurred),
            *solarize,
            *(to_floats() if last is None else last),
        ]
    )
