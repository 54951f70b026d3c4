"""Steps on the planes of floating-point images, as numbers for each plane of a batch, and what they
do, by torch. The native core does the same to float32 in host memory
(`fastload.recipe.floats_by_core`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from fastload.draws import BoolArray, Float64Array, UInt64Array
from fastload.render.noise import normals
from fastload.render.transfer import on_device

KINDS = (
    "noise",
    "blur",
    "multiply",
    "contrast",
    "low_resolution",
    "gamma_of_negative",
    "gamma",
)
"""What a step may be. The same list is in `native/floats.hpp`."""
TAPS = 7
"""Of a blur, each way."""
NUMBERS = 2 * TAPS
"""How many numbers a step has. They are, in the order of KINDS: the deviation; the weights of a
blur down, and then across, mirrored at the borders; the factor; the factor of differences from the
mean; how many rows and columns are left, the nearest ones, between which lines are drawn; the
exponent of values whose range is 0 to 1, after which mean and deviation become what they were (both
gammas)."""
_LEAST = 1e-7


@dataclass(frozen=True)
class FloatSteps:
    """Steps of each plane of B images of C channels, in order."""

    kinds: npt.NDArray[np.int32]
    """(S,): positions in KINDS."""
    applies: BoolArray
    """(B, S, C): which planes go through a step."""
    numbers: npt.NDArray[np.float32]
    """(B, S, C, NUMBERS)."""
    keys: UInt64Array
    """(B, S): of noise: the numbers are functions of it and of the place in the image, plane by
    plane."""


def change_planes(images: torch.Tensor, steps: FloatSteps) -> None:
    """Take contiguous (B, C, H, W) images through the steps, in place."""
    planes, channels = images.view(-1, *images.shape[2:]), images.shape[1]
    for position, kind in enumerate(steps.kinds.tolist()):
        chosen = np.flatnonzero(steps.applies[:, position])
        if not len(chosen):
            continue
        numbers = steps.numbers[:, position].reshape(-1, NUMBERS)[chosen]
        if KINDS[kind] == "noise":
            _add_noise(images, chosen // channels, numbers, steps.keys[:, position])
            continue
        places = on_device(chosen, images.device)
        planes[places] = _CHANGES[KINDS[kind]](planes[places], numbers)


def _add_noise(
    images: torch.Tensor, rows: Any, numbers: npt.NDArray[np.float32], keys: UInt64Array
) -> None:
    channels = images.shape[1]
    rows, numbers = rows[::channels], numbers[::channels, 0]  # of all channels of a sample
    noise = normals(keys[rows], images[0].numel(), images.device)
    noise = noise.view(-1, *images.shape[1:]) * on_device(numbers, images.device).view(-1, 1, 1, 1)
    images.index_add_(0, on_device(rows, images.device), noise.to(images.dtype))


def _blur(planes: torch.Tensor, numbers: npt.NDArray[np.float32]) -> torch.Tensor:
    for axis in (1, 2):
        given = numbers[:, :TAPS] if axis == 1 else numbers[:, TAPS:]
        weights = on_device(given.copy(), planes.device).to(planes.dtype)[:, :, None, None]
        reach = [0, 0, TAPS // 2, TAPS // 2] if axis == 1 else [TAPS // 2, TAPS // 2, 0, 0]
        padded, side = functional.pad(planes, reach, mode="reflect"), planes.shape[axis]
        planes = padded.narrow(axis, 0, side) * weights[:, 0]
        for tap in range(1, TAPS):
            planes = planes.addcmul_(padded.narrow(axis, tap, side), weights[:, tap])
    return planes


def _multiply(planes: torch.Tensor, numbers: npt.NDArray[np.float32]) -> torch.Tensor:
    return planes * _first(numbers, planes)


def _change_contrast(planes: torch.Tensor, numbers: npt.NDArray[np.float32]) -> torch.Tensor:
    """Values stay within the range of the plane."""
    mean, (least, most) = planes.mean((1, 2), keepdim=True), _range(planes)
    changed = (planes - mean).mul_(_first(numbers, planes)).add_(mean)
    return torch.clamp(changed, least, most)


def _lower_resolution(planes: torch.Tensor, numbers: npt.NDArray[np.float32]) -> torch.Tensor:
    for axis in (1, 2):
        first, second, share = _between(planes.shape[axis], numbers[:, axis - 1, None])
        shape = (-1, planes.shape[1], 1) if axis == 1 else (-1, 1, planes.shape[2])
        low, high = (
            planes.gather(axis, on_device(one, planes.device).view(shape).expand_as(planes))
            for one in (first, second)
        )
        part = on_device(share, planes.device).view(shape)
        planes = torch.lerp(low, high, part.to(planes.dtype))
    return planes


def _between(side: int, fewer: npt.NDArray[np.float32]) -> tuple[Any, Any, Any]:
    """For each pixel of a side, which two come after one another, (N, side) each, and the share of
    the second, where there are (N, 1) `fewer` in between. In float32, as torch's interpolation
    computes places."""
    half, down = np.float32(0.5), fewer / np.float32(side)
    place = np.maximum((np.arange(side, dtype=np.float32) + half) * down - half, np.float32(0))
    low = np.floor(place).astype(np.int64)
    high, up = np.minimum(low + 1, fewer.astype(np.int64) - 1), np.float32(side) / fewer
    first, second = (
        np.floor((one.astype(np.float32) + half) * up).astype(np.int64) for one in (low, high)
    )
    return first, second, place - low.astype(np.float32)


def _gamma_of_negative(planes: torch.Tensor, numbers: npt.NDArray[np.float32]) -> torch.Tensor:
    return -_gamma(-planes, numbers)


def _gamma(planes: torch.Tensor, numbers: npt.NDArray[np.float32]) -> torch.Tensor:
    least, most = _range(planes)
    extent = most - least
    changed = (planes - least).div_(extent.clamp(min=_LEAST))
    mean, deviation = _mean_and_deviation(changed)
    changed.log_().mul_(_first(numbers, planes)).exp_()  # 0 stays 0: e to the power of -inf
    mean_now, deviation_now = _mean_and_deviation(changed)
    stretched = extent * deviation / (extent * deviation_now).clamp(min=_LEAST)
    return changed.sub_(mean_now).mul_(extent * stretched).add_(mean * extent + least)


def _mean_and_deviation(planes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each plane, (N, 1, 1); of the deviations those of samples (Bessel)."""
    mean = planes.mean((1, 2), keepdim=True)
    norm = torch.linalg.vector_norm(planes - mean, dim=(1, 2), keepdim=True)
    return mean, norm / (planes.shape[1] * planes.shape[2] - 1) ** 0.5


def _range(planes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return planes.amin((1, 2), keepdim=True), planes.amax((1, 2), keepdim=True)


def _first(numbers: npt.NDArray[np.float32], planes: torch.Tensor) -> torch.Tensor:
    """(N, 1, 1): the first number of each plane."""
    return on_device(numbers[:, 0].copy(), planes.device).view(-1, 1, 1).to(planes.dtype)


def bell_curves(deviations: Float64Array) -> Float64Array:
    """(..., TAPS) weights of blurs by (...,) deviations [pixels]: the bell curve at so many pixels
    as are the odd number next to 6 deviations and a half, and zeros beyond."""
    wanted = 6 * deviations + 0.5
    size = np.rint(wanted)
    size = size + np.where(size % 2 == 1, 0, np.where(wanted >= size, 1, -1))
    away = np.arange(TAPS) - TAPS // 2
    curve = np.exp(-0.5 * (away / deviations[..., None]) ** 2)
    curve = np.where(np.abs(away) <= size[..., None] // 2, curve, 0.0)
    weights: Float64Array = curve / curve.sum(axis=-1, keepdims=True)
    return weights


_CHANGES: dict[str, Callable[[torch.Tensor, npt.NDArray[np.float32]], torch.Tensor]] = {
    "blur": _blur,
    "multiply": _multiply,
    "contrast": _change_contrast,
    "low_resolution": _lower_resolution,
    "gamma_of_negative": _gamma_of_negative,
    "gamma": _gamma,
}
