"""Distortions that are no projective map: each pixel has a place of its own in the image. They work
on batches of images of one size; boxes and points do not follow them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torchvision.transforms as v1
from torchvision.transforms import v2

from fastload.draws import BoolArray, Draws, Float64Array
from fastload.errors import ConfigurationError, counted
from fastload.geometry import Fill, Interpolation
from fastload.geometry.plan import WarpSampling
from fastload.recipe.attributes import check, check_settings, read_floats
from fastload.recipe.colour import gaussian_weights, smoothed
from fastload.recipe.operation import (
    ImageState,
    NotLowerableError,
    PixelOperation,
    Size,
    register,
)
from fastload.recipe.warps import Pair, Warping, between
from fastload.render.device import choose_rows
from fastload.render.transfer import on_device
from fastload.render.warp import remap_batch

_AT_ONCE = 1 << 16
"""Random numbers of a sample that are drawn at once; `Draws` has 131,070 of a stream."""


@dataclass(frozen=True, kw_only=True)
class _Distortion(PixelOperation):
    """Define `places` and `samplings`."""

    moves_pixels = True

    interpolation: Interpolation = "bilinear"
    """Of images; masks always take the nearest pixel."""
    fill: Fill = (0.0,)
    mask_fill: Fill = (0.0,)

    def __post_init__(self) -> None:
        check_settings(self)
        known = self.interpolation not in ("bicubic", "lanczos")
        check(self, "interpolation", known, "'nearest' or 'bilinear'")

    def places(self, draws: Draws, stream: int, size: Size) -> tuple[torch.Tensor, torch.Tensor]:
        """x and y in the image that pixels of images of this size show, (B, H, W) each or so that
        they broadcast: (0, 0) is the upper left corner of the image [pixels]."""
        raise NotImplementedError

    @property
    def samplings(self) -> tuple[WarpSampling, WarpSampling]:
        """How pixels of images and of masks are made."""
        raise NotImplementedError

    def fits_batches(self, size: Size | None) -> bool:
        return size is not None

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        return self._moved(images, draws, stream, self.samplings[0])

    def apply_to_masks(self, masks: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        return self._moved(masks, draws, stream, self.samplings[1])

    def _moved(
        self, pixels: torch.Tensor, draws: Draws, stream: int, sampling: WarpSampling
    ) -> torch.Tensor:
        size = (pixels.shape[2], pixels.shape[3])
        self.size_after(size)
        if len(sampling.fill) not in (1, pixels.shape[1]):
            raise ConfigurationError(
                f"{type(self).__name__}(fill={sampling.fill}) has "
                f"{counted(len(sampling.fill), 'value')} for images of "
                f"{counted(pixels.shape[1], 'channel')}; give 1 or {pixels.shape[1]}."
            )
        if not len(pixels):
            return pixels
        rows = self.rows(draws, stream)
        if not rows.any():
            return pixels
        x, y = (on_device(part.numpy(), pixels.device) for part in self.places(draws, stream, size))
        moved = remap_batch(pixels, x, y, sampling)
        return moved if rows.all() else choose_rows(rows, moved, pixels)

    def rows(self, draws: Draws, stream: int) -> BoolArray:
        """(B,): which samples it is done to."""
        return np.ones(len(draws), dtype=np.bool_)


@register
@dataclass(frozen=True, kw_only=True)
class ElasticTransform(_Distortion):
    """Uniform noise, smoothed, is how far each pixel is moved (Simard et al., 2003)."""

    transforms = (v1.ElasticTransform, v2.ElasticTransform)

    alphas: Pair = (50.0, 50.0)
    """What the noise along x and along y, -1 to 1, is multiplied by [half pixels]."""
    sigmas: Pair = (5.0, 5.0)
    """Deviations of the Gaussian along x and along y [pixels]; 0 and 0: it is not smoothed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        good = min(self.sigmas) > 0 or self.sigmas == (0.0, 0.0)
        check(self, "sigmas", good, "above 0, or both 0")

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> ElasticTransform:
        alpha, sigma = (read_floats(value) for value in (transform.alpha, transform.sigma))
        if len(alpha) != 2 or len(sigma) != 2:
            raise NotLowerableError(f"alpha={alpha}, sigma={sigma}: two numbers each are known")
        if not _counts_by_side():
            raise NotLowerableError(
                "this torchvision divides shifts along x by the height (pytorch/vision, issue "
                "9299), and so moves pixels of wide and tall images otherwise; a later one does not"
            )
        common = Warping.read_common(transform, image)
        del common["fades"]  # torchvision makes tensors of PIL images here
        return cls(alphas=(alpha[0], alpha[1]), sigmas=(sigma[0], sigma[1]), **common)

    @property
    def samplings(self) -> tuple[WarpSampling, WarpSampling]:
        return WarpSampling(self.interpolation, self.fill), WarpSampling("nearest", self.mask_fill)

    def size_after(self, size: Size | None) -> Size | None:
        most = max(map(_taps_of, self.sigmas)) // 2
        if size is not None and min(size) <= most:
            raise ConfigurationError(
                f"{self.describe()} does not fit images of {size[0]}x{size[1]} pixels: its noise "
                f"is mirrored at the borders for {most} pixels, and they must be larger; choose a "
                "smaller sigma."
            )
        return size

    def shifts(self, draws: Draws, stream: int, size: Size) -> torch.Tensor:
        """(B, 2, H, W) float32: along x and y [pixels]."""
        noise = _uniform_field(draws.within(stream), 2 * size[0] * size[1])
        shifts = torch.from_numpy(noise).view(-1, 2, *size).mul_(2.0).sub_(1.0)
        if self.sigmas != (0.0, 0.0):
            shifts = torch.cat([self._smoothed(shifts[:, k : k + 1], k) for k in range(2)], dim=1)
        # Torchvision counts by the side, from -1 to 1.
        return shifts.mul_(torch.tensor(self.alphas, dtype=torch.float32).view(1, 2, 1, 1) / 2.0)

    def _smoothed(self, noise: torch.Tensor, axis: int) -> torch.Tensor:
        """With a kernel that has the side of this axis along both."""
        taps = _taps_of(self.sigmas[axis])
        across, down = (gaussian_weights(np.full(len(noise), sigma), taps) for sigma in self.sigmas)
        return smoothed(noise, down, across)

    def places(self, draws: Draws, stream: int, size: Size) -> tuple[torch.Tensor, torch.Tensor]:
        moved = self.shifts(draws, stream, size).to(torch.float64)
        down, across = (torch.arange(side, dtype=torch.float64) + 0.5 for side in size)
        return moved[:, 0] + across, moved[:, 1] + down[:, None]


def _counts_by_side() -> bool:
    """Whether the installed torchvision divides shifts along x by the width, and along y by the
    height."""
    with torch.random.fork_rng(devices=[]):
        shifts = v1.ElasticTransform.get_params([1.0, 1.0], [0.0, 0.0], [1, 64])
    return bool(shifts[..., 0].abs().max() <= 1 / 64)


def _taps_of(sigma: float) -> int:
    return int(8 * sigma + 1) | 1


def _uniform_field(draws: Draws, count: int) -> npt.NDArray[np.float32]:
    """(B, count) in [0, 1)."""
    field = np.empty((len(draws), count), dtype=np.float32)
    for number, first in enumerate(range(0, count, _AT_ONCE)):
        part = field[:, first : first + _AT_ONCE]
        part[...] = draws.uniform(number, part.shape[1])
    return field


@dataclass(frozen=True, kw_only=True)
class GridDistortion(_Distortion):
    """Columns and rows of a grid get widths of their own: albumentations'."""

    steps: int = 5
    """Into so many parts each side is divided; what is left of it is one more."""
    limit: Pair = (-0.3, 0.3)
    """Bounds of how much wider a part is, in parts of its width."""
    normalized: bool = True
    """Whether the parts of a side are scaled so that they fill it."""
    p: float = 0.5

    @property
    def samplings(self) -> tuple[WarpSampling, WarpSampling]:
        images = WarpSampling(self.interpolation, self.fill, mixes=True)
        return images, WarpSampling("nearest", self.mask_fill)

    def size_after(self, size: Size | None) -> Size | None:
        if size is not None and min(size) < self.steps:
            raise ConfigurationError(
                f"{self.describe()} does not fit images of {size[0]}x{size[1]} pixels, which have "
                f"fewer rows or columns than num_steps={self.steps}; choose a smaller one."
            )
        return size

    def rows(self, draws: Draws, stream: int) -> BoolArray:
        chosen: BoolArray = draws.uniform(stream, 1)[:, 0] < self.p
        return chosen

    def axes(self, draws: Draws, stream: int, size: Size) -> list[npt.NDArray[np.float32]]:
        """(B, W) and (B, H): what each column and each row shows, counted from the centre of the
        first pixel."""
        uniforms = draws.uniform(stream, 1 + 2 * (self.steps + 1))
        drawn = between(self.limit, uniforms[:, 1:]) + 1.0
        halves = drawn[:, : self.steps + 1], drawn[:, self.steps + 1 :]
        return [self._axis(*pair) for pair in zip(halves, size[::-1], strict=True)]

    def _axis(self, widths: Float64Array, side: int) -> npt.NDArray[np.float32]:
        each = side // self.steps
        if self.normalized:
            rest = min(side, (self.steps + 1) * each) - self.steps * each
            widths = np.concatenate([widths[:, :-1], widths[:, -1:] * (rest / each)], axis=1)
            widths = widths * (side / each / widths.sum(axis=1, keepdims=True))
        # What lies beyond the last part shows the first pixel, as there.
        places = np.zeros((len(widths), side), dtype=np.float32)
        begin = np.zeros(len(widths))
        for part in range(self.steps + 1):
            pixels = places[:, part * each : (part + 1) * each]
            end = begin + each * widths[:, part]
            pixels[...] = np.linspace(begin, end, pixels.shape[1], axis=1)
            begin = end
        return places

    def places(self, draws: Draws, stream: int, size: Size) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = (
            torch.from_numpy(axis).to(torch.float64) + 0.5
            for axis in self.axes(draws, stream, size)
        )
        return x[:, None, :].expand(-1, size[0], -1), y[:, :, None].expand(-1, -1, size[1])
