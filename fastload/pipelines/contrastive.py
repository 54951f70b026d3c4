"""A view of an image as self-supervised methods make it: SimCLR's steps, in their order."""

from __future__ import annotations

from torchvision.transforms import InterpolationMode, v2

from fastload.arguments import require
from fastload.pipelines.normalised import are_numbers, to_floats
from fastload.recipe.views import Views

Range = tuple[float, float]
Jitter = tuple[float, float, float, float]
KERNEL_OF_PILLOW = 13
"""3 deviations on each side: Pillow's blur, which some originals have, has no kernel that is
cut."""


def jittered(name: str, strength: float, jitter: Jitter) -> Jitter:
    """The changes of brightness, contrast, saturation and hue, times a strength. Raises
    ConfigurationError: it is below 0, or the hue would turn by more than a half."""
    most = 0.5 / jitter[3]
    good = are_numbers((strength,), 1) and 0 <= strength <= most
    require(name, good, f"0 to {most:g}", strength)
    brightness, contrast, saturation, hue = (strength * one for one in jitter)
    return brightness, contrast, saturation, hue


def view(
    size: int,
    scale: Range,
    *,
    jitter: Jitter = (0.4, 0.4, 0.2, 0.1),
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


def two_unlike_views(
    size: int, scale: Range, jitter: Jitter, interpolation: InterpolationMode
) -> Views:
    """BYOL's: the first is always blurred; the second of 1 of 10 images, and solarized of 1 of 5.
    The blur is as Pillow's."""
    first, second = (
        view(
            size,
            scale,
            jitter=jitter,
            blurred=blurred,
            kernel_size=KERNEL_OF_PILLOW,
            solarized=solarized,
            interpolation=interpolation,
        )
        for blurred, solarized in ((1.0, 0.0), (0.1, 0.2))
    )
    return Views(first, second)
