"""Changes of the values of floating-point images of any number of channels, each of some samples:
noise, blur, brightness, contrast, a lower resolution and gamma, as nnU-Net trains with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from fastload.draws import Draws, Float64Array
from fastload.errors import ConfigurationError
from fastload.recipe.operation import ImageState, PixelOperation, register
from fastload.recipe.transforms import ForLoaders
from fastload.render.noise import normals
from fastload.render.transfer import on_device

NOISE, BLUR, BRIGHTNESS, CONTRAST, LOW_RESOLUTION, INVERTED_GAMMA, GAMMA = range(7)
"""In the order in which they are done; also the streams of their numbers."""
PROBABILITIES = (0.1, 0.2, 0.15, 0.15, 0.25, 0.1, 0.3)
"""Of each."""
MOST_NOISE, SIGMAS, FACTORS, SCALES, GAMMAS = 0.1, (0.5, 1.0), (0.75, 1.25), (0.5, 1.0), (0.7, 1.5)
P_CHANNEL = 0.5
"""Of each channel to be blurred, or to get a lower resolution."""
_TAPS, _TRUNCATE, _LEAST = 7, 6, 1e-7


class ChangedIntensities(ForLoaders):
    """Noise, blur, brightness, contrast, a lower resolution, gamma of the negative and gamma:
    the transforms of batchgeneratorsv2 with the numbers of nnU-Net's trainer.

    For floating-point images of a loader; called by itself it raises.
    """

    works_on = "works on batches of a loader"


@register
@dataclass(frozen=True)
class ChangeIntensities(PixelOperation):
    """See `ChangedIntensities`."""

    transforms = (ChangedIntensities,)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> ChangeIntensities:
        return cls()

    def check_dtype(self, dtype: torch.dtype) -> None:
        if not dtype.is_floating_point:
            raise ConfigurationError(
                f"{self.describe()} needs floating-point images, got {dtype}; put it after the "
                "ToDtype that converts them."
            )

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        self.check_dtype(images.dtype)
        if min(images.shape[2:]) <= _TAPS // 2:
            raise ConfigurationError(
                f"{self.describe()} blurs with {_TAPS} pixels, mirrored at the edges; images need "
                f"at least {_TAPS // 2 + 1} each way, got {tuple(images.shape[2:])}."
            )
        made, own = images.clone(memory_format=torch.contiguous_format), draws.within(stream)
        channels = images.shape[1]
        for kind, change in enumerate(_CHANGES):
            drawn = own.uniform(kind, 1 + 4 * channels)
            rows = np.flatnonzero(drawn[:, 0] < PROBABILITIES[kind])
            if len(rows):
                numbers = drawn[rows, 1:].reshape(len(rows), channels, 4)
                change(made, rows, numbers, own.take(rows))
        return made


def _add_noise(images: torch.Tensor, rows: Any, drawn: Float64Array, draws: Draws) -> None:
    """Of one deviation for all channels of a sample."""
    shape = (len(rows), *images.shape[1:])
    noise = normals(draws.integers(_KEYS), shape[1] * shape[2] * shape[3], images.device)
    noise = noise.view(shape) * _column(MOST_NOISE * drawn[:, 0, 0], images)
    images.index_add_(0, on_device(rows, images.device), noise.to(images.dtype))


def _blur(images: torch.Tensor, rows: Any, drawn: Float64Array, draws: Draws) -> None:
    """Channels by themselves, down and across by two deviations."""
    of_planes, planes, deviations = _planes(images, rows, drawn, (0, 1, 2))
    if planes is None:
        return
    for axis, drawn_sigmas in enumerate(deviations, 1):
        sigmas = SIGMAS[0] + drawn_sigmas * (SIGMAS[1] - SIGMAS[0])
        kernels = np.stack([_kernel(sigma) for sigma in sigmas]).astype(np.float32)
        weights = on_device(kernels, images.device).to(images.dtype)[:, :, None, None]
        reach = [0, 0, _TAPS // 2, _TAPS // 2] if axis == 1 else [_TAPS // 2, _TAPS // 2, 0, 0]
        padded, side = functional.pad(planes, reach, mode="reflect"), planes.shape[axis]
        planes = padded.narrow(axis, 0, side) * weights[:, 0]
        for tap in range(1, _TAPS):
            planes = planes.addcmul_(padded.narrow(axis, tap, side), weights[:, tap])
    images.view(-1, *images.shape[2:])[of_planes] = planes


def _kernel(sigma: float) -> Float64Array:
    """The bell curve at so many pixels as are the odd number next to 6 deviations and a half, and
    zeros beyond."""
    wanted = sigma * _TRUNCATE + 0.5
    size = round(wanted)
    size += 0 if size % 2 else (1 if wanted >= size else -1)
    away = np.arange(_TAPS) - _TAPS // 2
    curve = np.where(np.abs(away) <= size // 2, np.exp(-0.5 * (away / sigma) ** 2), 0.0)
    kernel: Float64Array = curve / curve.sum()
    return kernel


def _brighten(images: torch.Tensor, rows: Any, drawn: Float64Array, draws: Draws) -> None:
    """Channels by themselves, multiplied."""
    places = on_device(rows, images.device)
    images[places] = images[places] * _column(factors(FACTORS, drawn), images)


def _change_contrast(images: torch.Tensor, rows: Any, drawn: Float64Array, draws: Draws) -> None:
    """Differences from the mean of a channel, multiplied; values stay within its range."""
    places = on_device(rows, images.device)
    given = images[places]
    mean, (least, most) = given.mean((2, 3), keepdim=True), _range(given)
    changed = (given - mean).mul_(_column(factors(FACTORS, drawn), images)).add_(mean)
    images[places] = torch.clamp(changed, least, most)


def _lower_resolution(images: torch.Tensor, rows: Any, drawn: Float64Array, draws: Draws) -> None:
    """Channels by themselves: the nearest of fewer pixels, and lines between them."""
    of_planes, planes, (drawn_scales,) = _planes(images, rows, drawn, (0, 1))
    if planes is None:
        return
    scales = SCALES[0] + drawn_scales * (SCALES[1] - SCALES[0])
    for axis in (1, 2):
        first, second, share = _between(planes.shape[axis], scales)
        shape = (-1, planes.shape[1], 1) if axis == 1 else (-1, 1, planes.shape[2])
        low, high = (
            planes.gather(axis, on_device(one, images.device).view(shape).expand_as(planes))
            for one in (first, second)
        )
        part = on_device(share, images.device).view(shape)
        planes = torch.lerp(low, high, part.to(images.dtype))
    images.view(-1, *images.shape[2:])[of_planes] = planes


def _between(side: int, scales: Float64Array) -> tuple[Any, Any, Any]:
    """For each pixel of a side, which two come after one another, (N, side) each, and the share of
    the second, where (N,) scales say how many there are in between. In float32, as torch's
    interpolate computes places."""
    fewer = np.array([round(side * float(scale)) for scale in scales.astype(np.float32)])[:, None]
    half, down = np.float32(0.5), (fewer / side).astype(np.float32)
    place = np.maximum((np.arange(side, dtype=np.float32) + half) * down - half, np.float32(0))
    low = np.floor(place).astype(np.int64)
    high, up = np.minimum(low + 1, fewer - 1), (side / fewer).astype(np.float32)
    first, second = (
        np.floor((one.astype(np.float32) + half) * up).astype(np.int64) for one in (low, high)
    )
    return first, second, place - low.astype(np.float32)


def _gamma_of_negative(images: torch.Tensor, rows: Any, drawn: Float64Array, draws: Draws) -> None:
    places = on_device(rows, images.device)
    images[places] = -_with_gamma(-images[places], factors(GAMMAS, drawn))


def _gamma(images: torch.Tensor, rows: Any, drawn: Float64Array, draws: Draws) -> None:
    places = on_device(rows, images.device)
    images[places] = _with_gamma(images[places], factors(GAMMAS, drawn))


def _with_gamma(images: torch.Tensor, gammas: Float64Array) -> torch.Tensor:
    """Of channels by themselves: the range becomes 0..1, and then the mean and the deviation what
    they were."""
    least, most = _range(images)
    extent = most - least
    changed = (images - least).div_(extent.clamp(min=_LEAST))
    mean, deviation = _mean_and_deviation(changed)
    changed.log_().mul_(_column(gammas, images)).exp_()  # 0 stays 0: e to the power of -inf
    mean_now, deviation_now = _mean_and_deviation(changed)
    stretched = extent * deviation / (extent * deviation_now).clamp(min=_LEAST)
    return changed.sub_(mean_now).mul_(extent * stretched).add_(mean * extent + least)


def _mean_and_deviation(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each channel, (N, C, 1, 1); of the deviations those of samples (Bessel)."""
    mean = images.mean((2, 3), keepdim=True)
    norm = torch.linalg.vector_norm(images - mean, dim=(2, 3), keepdim=True)
    return mean, norm / (images.shape[2] * images.shape[3] - 1) ** 0.5


def factors(bounds: tuple[float, float], drawn: Float64Array) -> Float64Array:
    """(N, C) from (N, C, 4) uniform numbers: below 1 as often as above."""
    low = bounds[0] + drawn[..., 1] * (1 - bounds[0])
    high = 1 + drawn[..., 1] * (bounds[1] - 1)
    return np.where(drawn[..., 0] < 0.5, low, high)


def _planes(
    images: torch.Tensor, rows: Any, drawn: Float64Array, numbers: tuple[int, ...]
) -> tuple[Any, torch.Tensor | None, list[Float64Array]]:
    """The channels that are changed: their numbers among all of the batch, their pixels (N, H, W),
    and the rest of what was drawn for each; None: there are none."""
    row, channel = np.nonzero(drawn[:, :, numbers[0]] < P_CHANNEL)
    of_planes = on_device(rows[row] * images.shape[1] + channel, images.device)
    planes = images.view(-1, *images.shape[2:])[of_planes] if len(row) else None
    return of_planes, planes, [drawn[row, channel, one] for one in numbers[1:]]


def _range(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)


def _column(values: Float64Array, images: torch.Tensor) -> torch.Tensor:
    """(N, 1, 1, 1) of (N,), (N, C, 1, 1) of (N, C)."""
    shape = (len(values), -1, 1, 1)
    return on_device(values.astype(np.float32), images.device).view(shape).to(images.dtype)


_KEYS = len(PROBABILITIES)
"""The stream of the keys of noise."""
_CHANGES = (
    _add_noise,
    _blur,
    _brighten,
    _change_contrast,
    _lower_resolution,
    _gamma_of_negative,
    _gamma,
)
