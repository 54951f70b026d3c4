"""Colour and blur: the operations, and the kernels that they share with the augmentations.

Each kernel gives the pixels of torchvision's functional operation of the same name, called on each
sample by itself: uint8 in, uint8 out, cut or rounded in the same places; floating point in, the
same out, pixels in 0..1. No result depends on the other samples: what is summed over an image is
summed exactly, or in float64. All take (B, C, H, W) with C = 1 or 3, and (B,) float64 parameters on
the same device; none changes its input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torchvision.transforms as v1
from torch.nn.functional import pad
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from fastload.draws import Draws, Float64Array, Int64Array
from fastload.errors import ConfigurationError
from fastload.recipe.attributes import check, check_settings, read_bounds, read_floats, read_pair
from fastload.recipe.operation import ImageState, PixelOperation, Size, register
from fastload.render import fused
from fastload.render.device import choose_rows, column
from fastload.render.steps import KINDS, NUMBERS, BlurSteps, ColourSteps, Steps
from fastload.render.transfer import on_device

Kernel = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]

_PROPERTIES = ("brightness", "contrast", "saturation", "hue")
assert KINDS[:4] == _PROPERTIES


@register
@dataclass(frozen=True)
class ColorJitter(PixelOperation):
    transforms = (v1.ColorJitter, v2.ColorJitter)
    has_steps = True
    of_any_size = True

    brightness: tuple[float, float] | None = None
    contrast: tuple[float, float] | None = None
    saturation: tuple[float, float] | None = None
    hue: tuple[float, float] | None = None
    """Bounds of each factor; None leaves the property alone. The four are applied in a random order
    per sample."""

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> ColorJitter:
        settings = (getattr(transform, name) for name in _PROPERTIES)
        return cls(*(None if bounds is None else read_bounds(bounds) for bounds in settings))

    @property
    def pointwise(self) -> bool:  # type: ignore[override]
        return self.contrast is None  # contrast needs the mean of the image

    def parameters(self, draws: Draws, stream: int) -> tuple[npt.NDArray[np.float32], Int64Array]:
        """(B, 4) factors, uniform within the bounds of brightness, contrast, saturation and hue,
        NaN for what is left alone; and (B, 4) which of them comes first to fourth, every order
        equally likely."""
        uniform = draws.uniform(stream, 8)
        factors = np.full((len(draws), 4), np.nan, dtype=np.float32)
        for k, name in enumerate(_PROPERTIES):
            bounds: tuple[float, float] | None = getattr(self, name)
            if bounds is not None:
                factors[:, k] = bounds[0] + (bounds[1] - bounds[0]) * uniform[:, k]
        return factors, np.argsort(uniform[:, 4:], axis=1, kind="stable")

    def _in_order(self, draws: Draws, stream: int) -> tuple[npt.NDArray[np.float32], Int64Array]:
        """The factors, and (B, n) which of them comes when, without those that are left alone."""
        factors, order = self.parameters(draws, stream)
        active = np.array([getattr(self, name) is not None for name in _PROPERTIES])
        return factors, order[active[order]].reshape(len(draws), active.sum())

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        factors, order = self._in_order(draws, stream)
        given = np.take_along_axis(factors, order, axis=1).astype(np.float64)
        numbers = np.zeros((*order.shape, NUMBERS), dtype=np.float32)
        numbers[..., 0] = np.where(order == _PROPERTIES.index("hue"), 6.0 * given, given)
        numbers[..., 1] = 1.0 - given
        return [ColourSteps(order.astype(np.int32), numbers)]

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        require_grey_or_rgb(self, images)
        if images.dtype == torch.uint8 and fused.active(images):
            return fused.run(images, self.colour_steps(draws, stream, shape_of(images)))
        factors, order = self._in_order(draws, stream)
        adjust = (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)
        for kinds in order.T:
            chosen = np.take_along_axis(factors, kinds[:, None], axis=1).astype(np.float64)
            images = map_groups(
                images, kinds, chosen, lambda kind, rows, factor: adjust[kind](rows, factor[:, 0])
            )
        return images


@register
@dataclass(frozen=True)
class RandomGrayscale(PixelOperation):
    transforms = (v1.RandomGrayscale, v2.RandomGrayscale)
    has_steps = True
    of_any_size = True
    pointwise = True

    p: float = 0.1

    def __post_init__(self) -> None:
        check_settings(self)

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        require_grey_or_rgb(self, images)
        if images.dtype == torch.uint8 and fused.active(images):
            return fused.run(images, self.colour_steps(draws, stream, shape_of(images)))
        chosen = draws.uniform(stream, 1)[:, 0] < self.p
        if images.shape[1] == 1 or not chosen.any():
            return images
        return choose_rows(chosen, grayscale(images), images)

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        grey = draws.uniform(stream, 1) < self.p
        kinds = np.where(grey, KINDS.index("grey"), -1).astype(np.int32)
        return [ColourSteps(kinds, np.zeros((len(draws), 1, NUMBERS), dtype=np.float32))]


@register
@dataclass(frozen=True)
class Grayscale(PixelOperation):
    transforms = (v1.Grayscale, v2.Grayscale)
    pointwise = True

    num_output_channels: int = 1

    def __post_init__(self) -> None:
        check_settings(self)

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        require_grey_or_rgb(self, images)
        return grayscale(images).expand(-1, self.num_output_channels, -1, -1)


@register
@dataclass(frozen=True)
class RGB(PixelOperation):
    """Grey images three times, as red, green and blue."""

    transforms = (v2.RGB,)
    pointwise = True

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        require_grey_or_rgb(self, images)
        return images.expand(-1, 3, -1, -1)


@register
@dataclass(frozen=True)
class GaussianBlur(PixelOperation):
    """Images are mirrored at their borders, and must be larger than half the kernel."""

    transforms = (v1.GaussianBlur, v2.GaussianBlur)
    has_steps = True

    kernel_size: tuple[int, int]
    """(width, height) [pixels], both odd."""
    sigma: tuple[float, float] = (0.1, 2.0)
    """Bounds of the standard deviation [pixels]."""

    def __post_init__(self) -> None:
        good = len(self.kernel_size) == 2 and all(
            side > 0 and side % 2 for side in self.kernel_size
        )
        check(self, "kernel_size", good, "(width, height), both odd and positive")
        check_settings(self)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> GaussianBlur:
        low, *_, high = read_floats(transform.sigma)
        return cls(read_pair(transform.kernel_size), (low, high))

    def size_after(self, size: Size | None) -> Size | None:
        width, height = self.kernel_size
        if size is not None and (size[0] <= height // 2 or size[1] <= width // 2):
            raise ConfigurationError(
                f"{self.describe()} does not fit images of {size[0]}x{size[1]} pixels: they are "
                "mirrored at their borders for half the kernel, and must be larger; choose a "
                "smaller kernel_size."
            )
        return size

    def sigmas(self, draws: Draws, stream: int) -> Float64Array:
        """(B,) float64: uniform within the bounds."""
        low, high = self.sigma
        result: Float64Array = low + (high - low) * draws.uniform(stream, 1)[:, 0]
        return result

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        self.size_after((images.shape[2], images.shape[3]))
        if images.dtype == torch.uint8 and fused.active(images):
            return fused.run(images, self.colour_steps(draws, stream, shape_of(images)))
        sigmas, (width, height) = self.sigmas(draws, stream), self.kernel_size
        return blurred(images, gaussian_weights(sigmas, height), gaussian_weights(sigmas, width))

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        self.size_after(shape[1:])
        sigmas, (width, height) = self.sigmas(draws, stream), self.kernel_size
        down = gaussian_weights(sigmas, height)
        return [BlurSteps(down, down if width == height else gaussian_weights(sigmas, width))]


def shape_of(images: torch.Tensor) -> tuple[int, int, int]:
    """(C, H, W) of a batch."""
    _, channels, height, width = images.shape
    return channels, height, width


def blurred(
    images: torch.Tensor, down: npt.NDArray[np.float32], across: npt.NDArray[np.float32]
) -> torch.Tensor:
    """(B, C, H, W) images, mirrored at their borders, with (taps, B) weights of the rows and of the
    columns around a pixel."""
    # Planar, as the rows that are added up lie side by side then.
    pixels = smoothed(images.contiguous().to(torch.float32), down, across)
    return (pixels if images.is_floating_point() else pixels.round_()).to(images.dtype)


def smoothed(
    pixels: torch.Tensor, down: npt.NDArray[np.float32], across: npt.NDArray[np.float32]
) -> torch.Tensor:
    """The same of (B, C, H, W) float32."""
    half_down, half = len(down) // 2, len(across) // 2
    pixels = pad(pixels, (half, half, half_down, half_down), mode="reflect")
    return _smoothed(_smoothed(pixels, 2, down), 3, across)


def _smoothed(pixels: torch.Tensor, axis: int, weights: npt.NDArray[np.float32]) -> torch.Tensor:
    """Weighted sums of the pixels and those that follow along an axis, which gets shorter. Tap by
    tap, and not as a convolution, whose sums depend on how many samples there are; it is also
    several times as fast on a CPU."""
    length = pixels.shape[axis] - len(weights) + 1
    # A row of each weight: with two numbers a sample beside the pixels, the CPU's multiply-add is
    # not vectorised.
    columns = pixels.shape[3] if axis == 2 else length
    rows = on_device(weights, pixels.device)[:, :, None, None, None].repeat(1, 1, 1, 1, columns)
    total = pixels.narrow(axis, 0, length) * rows[0]
    for place, row in enumerate(rows[1:], 1):
        total.addcmul_(pixels.narrow(axis, place, length), row)
    return total


def gaussian_weights(
    sigmas: Float64Array, taps: int, sides: Int64Array | None = None
) -> npt.NDArray[np.float32]:
    """(taps, B): of a Gaussian, with sum 1. With (B,) odd `sides` of so many taps in the middle; of
    the others 0."""
    places = np.arange(taps)[:, None] - taps // 2
    weights = np.exp(-0.5 * (places / sigmas) ** 2)
    if sides is not None:
        weights = np.where(np.abs(places) <= sides // 2, weights, 0.0)
    result: npt.NDArray[np.float32] = (weights / weights.sum(axis=0)).astype(np.float32)
    return result


def require_grey_or_rgb(op: object, images: torch.Tensor) -> None:
    if images.shape[1] not in (1, 3):
        raise ConfigurationError(
            f"{type(op).__name__} needs images of 1 or 3 channels, got {images.shape[1]}; "
            "remove it from the transform, or give grey or RGB images."
        )
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise ConfigurationError(
            f"{type(op).__name__} needs uint8 or floating-point images, got {images.dtype}; "
            "put it before the ToDtype that converts them."
        )


def map_groups(
    pixels: torch.Tensor, kinds: Int64Array, parameters: Float64Array, kernel: Kernel
) -> torch.Tensor:
    """Apply to each row of a (B, C, H, W) batch the operation drawn for it: one call for all rows
    of a kind. Rows with a negative kind stay as they are.

    Rows, kinds and (B, P) parameters are known on the host, so nothing waits for the device; two
    small copies in all. Called as kernel(kind, rows (n, C, H, W), their parameters (n, P) on the
    device), which may return its input.
    """
    drawn = np.unique(kinds)
    if drawn.size == 0 or drawn[-1] < 0:
        return pixels
    # Planar: the kernels work channel by channel, and whole samples are copied in one piece.
    pixels = pixels.contiguous()
    if drawn.size == 1:
        return kernel(int(drawn[0]), pixels, on_device(parameters, pixels.device))
    order = np.argsort(kinds, kind="stable")
    rows, back = on_device(np.stack([order, np.argsort(order)]), pixels.device)
    sorted_parameters = on_device(parameters[order], pixels.device)
    grouped = pixels.index_select(0, rows)
    bounds = np.searchsorted(kinds[order], [*drawn.tolist(), np.iinfo(np.int64).max]).tolist()
    parts = []
    for kind, start, stop in zip(drawn.tolist(), bounds, bounds[1:], strict=False):
        part = grouped[start:stop]
        parts.append(part if kind < 0 else kernel(kind, part, sorted_parameters[start:stop]))
    return torch.cat(parts).index_select(0, back)


def adjust_brightness(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """factor * x."""
    return _clamped(images * _single(factor), images)


def adjust_contrast(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Blend with the mean of the image's grey values."""
    grey = grayscale(images)
    if grey.dtype == torch.uint8:
        # Row sums of up to 65,793 bytes are exact in float32 in any order, and so is their sum in
        # float64.
        mean = grey.sum(-1, dtype=torch.float32).sum((1, 2), dtype=torch.float64) / grey[0].numel()
    else:
        mean = grey.mean((1, 2, 3), dtype=torch.float64)
    # A row of each mean: with two numbers a sample beside the pixels, the CPU's multiply-add is not
    # vectorised.
    return _blend(images, _single(mean).repeat(1, 1, 1, images.shape[3]), factor)


def adjust_saturation(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Blend with the grey values; grey images stay as they are."""
    return images if images.shape[1] == 1 else _blend(images, grayscale(images), factor)


def adjust_hue(images: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Turn the hue by `shift` in -0.5..0.5 of a full circle; grey images stay as they are.

    Hue h in sixths of the circle and back by the formula without cases (Wikipedia, "HSL and HSV",
    "HSV to RGB alternative"): channel n = 5, 3, 1 is v - c * clamp(min(k, 4 - k), 0, 1) with k = (n
    + h) mod 6, where v is the largest channel and c the distance to the smallest.
    """
    if images.shape[1] == 1:
        return images
    integral = not images.is_floating_point()
    pixels = functional.to_dtype(images.contiguous(), torch.float32, scale=True)
    red, green, blue = pixels.unbind(1)
    largest, smallest = pixels.amax(1), pixels.amin(1)
    chroma = largest - smallest
    # Where the chroma is 0 all differences are 0 and the hue has no effect; this avoids 0 / 0.
    divisor = chroma.clamp(min=1e-12)
    hue = torch.where(
        largest == red,
        (green - blue).div_(divisor),
        torch.where(
            largest == green,
            (blue - red).div_(divisor).add_(2.0),
            (red - green).div_(divisor).add_(4.0),
        ),
    )
    hue += _single(6.0 * shift)[:, 0]
    result = torch.empty_like(pixels)
    for channel, n in enumerate((5.0, 3.0, 1.0)):
        k = hue + n
        # k mod 6, many times faster than torch.remainder on a CPU.
        k.sub_(torch.floor(k / 6.0), alpha=6.0)
        weight = torch.minimum(k, 4.0 - k).clamp_(0.0, 1.0)
        torch.addcmul(largest, weight, chroma, value=-1.0, out=result[:, channel])
    # As torchvision goes back to integers: 0..1 to 0..255.999, cut.
    return result.mul_(255.999).to(torch.uint8) if integral else result.to(images.dtype)


def adjust_sharpness(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Blend with the image smoothed by [[1, 1, 1], [1, 5, 1], [1, 1, 1]] / 13; the border stays as
    it is."""
    if images.shape[2] <= 2 or images.shape[3] <= 2:
        return images
    pixels = images.to(torch.float32, copy=True)
    # Sums of uint8 pixels are exact, whichever way a convolution would add them.
    columns = pixels[:, :, :-2] + pixels[:, :, 1:-1] + pixels[:, :, 2:]
    smooth = columns[..., :-2] + columns[..., 1:-1] + columns[..., 2:]
    inner = pixels[:, :, 1:-1, 1:-1]
    smooth.add_(inner, alpha=4.0).div_(13.0)
    if not images.is_floating_point():
        smooth.round_()
    inner.addcmul_(smooth.sub_(inner), _single(1.0 - factor))
    return _clamped(pixels, images)


def grayscale(images: torch.Tensor) -> torch.Tensor:
    """(B, 1, H, W): 0.2989 R + 0.587 G + 0.114 B, cut to whole numbers for uint8; grey images as
    they are."""
    if images.shape[1] == 1:
        return images
    # Of bytes torch makes numbers of the process's default dtype, bfloat16 perhaps.
    pixels = images if images.is_floating_point() else images.to(torch.float32)
    grey: torch.Tensor = functional.rgb_to_grayscale(pixels, num_output_channels=1)
    return grey.to(images.dtype)


def posterize(images: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """Keep the `bits` upper bits of each value, 0..8."""
    count = column(bits).to(torch.int32)
    if images.is_floating_point():
        levels = torch.bitwise_left_shift(torch.ones_like(count), count).to(torch.float32)
        return (
            images.mul(levels)
            .floor_()
            .clamp_(torch.zeros_like(levels), levels - 1.0)
            .div_(levels)
            .to(images.dtype)
        )
    upper = torch.bitwise_right_shift(torch.full_like(count, 0xFF00), count)
    return images & upper.bitwise_and_(0xFF).to(torch.uint8)


def solarize(images: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """Invert the values at or above `threshold`, which is a fraction 0..1 of the largest value."""
    if images.is_floating_point():
        return torch.where(images >= _single(threshold), 1.0 - images, images)
    # x >= t is x >= ceil(t) for whole x, so bytes can be compared. True is 1, which negated is 255
    # and inverts x.
    smallest = _single(255.0 * threshold).ceil_().to(torch.uint8)
    return (images >= smallest).view(torch.uint8).neg_().bitwise_xor_(images)


def _blend(images: torch.Tensor, other: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """factor * images + (1 - factor) * other.

    Both weights are rounded to float32 by themselves. The first product is rounded, the sum is a
    fused multiply-add where the processor has one. So does torchvision, and grey pixels, which lie
    exactly on a whole number, would otherwise be cut to the number below in other places.
    """
    scaled = images * _single(factor)
    return _clamped(scaled.addcmul_(other, _single(1.0 - factor)), images)


def _single(values: torch.Tensor) -> torch.Tensor:
    """(B,) parameters as (B, 1, 1, 1) float32, to broadcast over (B, C, H, W)."""
    return column(values.to(torch.float32))


def _clamped(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Float values (changed in place) as pixels of the dtype of `like`, cut to its range."""
    return values.clamp_(0.0, 1.0 if like.is_floating_point() else 255.0).to(like.dtype)
