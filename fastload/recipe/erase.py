"""RandomErasing on a batch: boxes of its own for each sample, filled with a value or with noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
import torchvision.transforms as v1
from torchvision.transforms import v2

from fastload.draws import Draws, Int64Array, UInt64Array
from fastload.errors import ConfigurationError, counted
from fastload.recipe.attributes import check, check_settings, read_bounds, read_floats
from fastload.recipe.operation import ImageState, PixelOperation, register
from fastload.render.noise import box_normals, counted_normals
from fastload.render.transfer import constants, on_device

_ATTEMPTS = 10


@register
@dataclass(frozen=True)
class RandomErasing(PixelOperation):
    transforms = (v1.RandomErasing, v2.RandomErasing)
    writes_places = True

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    """Bounds of height / width."""
    value: tuple[float, ...] | Literal["random", "colour"] = (0.0,)
    """Noise for each pixel ("random"), or for each channel of a box ("colour")."""
    counts: tuple[int, int] = field(default=(1, 1), repr=False)
    """The least and the largest number of boxes; each has its share of the area."""
    out: torch.Tensor | None = field(default=None, repr=False, compare=False)
    """Memory that may be written to, on a CPU: images that lie there are erased in place."""

    def __post_init__(self) -> None:
        check_settings(self)
        check(self, "scale", self.scale[1] <= 1, "shares of the image, at most 1")
        good = (
            self.value in ("random", "colour")
            if isinstance(self.value, str)
            else bool(self.value) and all(map(math.isfinite, self.value))
        )
        check(self, "value", good, "finite numbers, one or one a channel, or 'random'")
        few = 1 <= self.counts[0] <= self.counts[1]
        check(self, "counts", few, "(low, high) with 1 <= low <= high")

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> RandomErasing:
        value: Any = (
            "random" if transform.value in (None, "random") else read_floats(transform.value)
        )
        return cls(
            float(transform.p), read_bounds(transform.scale), read_bounds(transform.ratio), value
        )

    def boxes(
        self, draws: Draws, stream: int, *, height: int, width: int, number: int = 0
    ) -> Int64Array:
        """(B, 4) int64: top, left, height, width of the boxes of torchvision's, the first or
        another `number` of each image; all 0 where nothing is erased.

        With probability p: ten attempts, area uniform in `scale` of the image's, log(height /
        width) uniform in the logs of `ratio`, sides rounded; the first box smaller than the image
        both ways is placed uniformly. Of several boxes each has its part of that area.
        """
        each, (least, most) = 2 * _ATTEMPTS + 2, self.counts
        every = draws.uniform(stream, 1 + each * most + (most > least))
        counts = np.full(len(draws), most)
        if most > least:
            counts = least + np.floor(every[:, -1] * (most - least + 1)).astype(np.int64)
        u = every[:, 1 + each * number : 1 + each * (number + 1)]
        (small, large), (flat, tall) = self.scale, self.ratio
        shares = small + u[:, :_ATTEMPTS] * (large - small)
        area = height * width * shares / counts[:, None]
        ratio = np.exp(math.log(flat) + u[:, _ATTEMPTS:-2] * (math.log(tall) - math.log(flat)))
        box_height, box_width = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
        fits = (box_height < height) & (box_width < width)
        first = fits.argmax(axis=1)[:, None]
        sides = np.concatenate(
            [np.take_along_axis(side, first, axis=1) for side in (box_height, box_width)], axis=1
        )
        start = np.floor(u[:, -2:] * (np.array([height, width]) - sides + 1))
        erased = fits.any(axis=1) & (every[:, 0] < self.p) & (number < counts)
        return np.where(erased[:, None], np.concatenate([start, sides], axis=1), 0.0).astype(
            np.int64
        )

    def into(self, out: torch.Tensor) -> RandomErasing:
        return replace(self, out=out)

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        """Values are converted to the dtype of the images as torchvision does: cut to whole
        numbers, not scaled."""
        channels, height, width = images.shape[1:]
        if not isinstance(self.value, str) and len(self.value) not in (1, channels):
            raise ConfigurationError(
                f"RandomErasing(value={self.value}) has {counted(len(self.value), 'value')} for "
                f"images of {counted(channels, 'channel')}; give 1 or {channels}."
            )
        on_host = images.device.type == "cpu"
        own = self.out is not None and images.data_ptr() == self.out.data_ptr()
        for number in range(self.counts[1]):
            boxes = self.boxes(draws, stream, height=height, width=width, number=number)
            if boxes[:, 2:].all(axis=1).any():
                if on_host and not own:
                    images, own = images.clone(), True
                images = self._erased(images, boxes, draws, stream, number)
        return images

    def _erased(
        self, images: torch.Tensor, boxes: Int64Array, draws: Draws, stream: int, number: int
    ) -> torch.Tensor:
        """On a CPU in place."""
        if isinstance(self.value, str):
            by_pixel = self.value == "random"
            return _fill_with_noise(images, boxes, draws.integers(stream), number, by_pixel)
        value = (
            constants(np.array(self.value, dtype=np.float32), images.device)
            .to(images.dtype)
            .view(-1, 1, 1)
        )
        if images.device.type != "cpu":
            return torch.where(inside_boxes(boxes, images), value, images)
        # Where no kernels are launched, a slice a sample is ten times faster than a mask for all
        # pixels.
        for row, (top, left, box_height, box_width) in enumerate(boxes.tolist()):
            images[row, :, top : top + box_height, left : left + box_width] = value
        return images


def inside_boxes(boxes: Int64Array, images: torch.Tensor) -> torch.Tensor:
    """(B, 1, H, W) bool: the pixels of the (B, 4) boxes, on the device of the images."""
    top, left, height, width = on_device(boxes, images.device).view(-1, 4, 1, 1, 1).unbind(1)
    y = torch.arange(images.shape[2], device=images.device).view(-1, 1)
    x = torch.arange(images.shape[3], device=images.device)
    return (y >= top) & (y < top + height) & (x >= left) & (x < left + width)


def _fill_with_noise(
    images: torch.Tensor, boxes: Int64Array, keys: UInt64Array, number: int, by_pixel: bool
) -> torch.Tensor:
    """Noise in the boxes alone, on a CPU in place. `number`: which of the boxes of an image; noise
    of another one is independent."""
    channels, height, width = images.shape[1:]
    if images.device.type == "cpu":
        # A slice a sample: writing to a list of places takes longer than the noise itself.
        rows = np.flatnonzero(boxes[:, 2:].all(axis=1))
        top, left, tall, wide = boxes[rows].T
        first = number * channels
        described = np.zeros((len(rows), 6), dtype=np.int64)
        described[:, 1] = channels
        if by_pixel:
            described[:, 0] = (first * height + top) * width + left
            described[:, 2], described[:, 4] = height * width, width
            described[:, 3], described[:, 5] = tall, wide
        else:
            described[:, 0] = first
            described[:, 2:] = 1, 1, 0, 1
        fillings = box_normals(keys[rows], described)
        for sample, filling in zip(rows.tolist(), fillings, strict=True):
            above, beside, lines, columns = boxes[sample].tolist()
            filling = filling if images.is_floating_point() else filling.to(torch.int32)
            images[sample, :, above : above + lines, beside : beside + columns] = filling
        return images
    # The erased pixels of all samples are one list.
    rows = np.flatnonzero(boxes[:, 2:].all(axis=1))
    counts = boxes[rows, 2] * boxes[rows, 3]
    described = np.concatenate(
        [
            rows[:, None],
            boxes[rows],
            (np.cumsum(counts) - counts)[:, None],
            keys.view(np.int64)[rows, None],
        ],
        axis=1,
    )
    total = int(counts.sum())
    of_row = torch.repeat_interleave(on_device(counts, images.device), output_size=total)
    row, top, left, _, box_width, start, key = on_device(described, images.device)[of_row].unbind(1)
    position = torch.arange(total, device=images.device) - start
    y, x = top + position // box_width, left + position % box_width
    plane = torch.arange(channels, device=images.device)[:, None]
    first = number * channels
    place = ((first + plane) * height + y) * width + x if by_pixel else first + plane
    noise = counted_normals(key.expand(channels, -1), place.expand(channels, total))
    if not images.is_floating_point():
        # By way of int32 negative numbers wrap on every device, as they do on the CPU.
        noise = noise.to(torch.int32)
    return images.index_put((row, plane, y, x), noise.to(images.dtype))
