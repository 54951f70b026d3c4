"""Random crops and flips of images of one size, resolved on the device that holds them.

For small images the host would take longer to place the crops than a GPU to cut them out. Here the host gives the
indices, and all else is a function of them: the very numbers of `Draws`, in some hundred small kernels a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fastload.draws import Draws
from fastload.geometry import Fill, GeometryPlan, PaddingMode
from fastload.recipe import RandomCrop, RandomHorizontalFlip, RandomVerticalFlip
from fastload.render.device import on_device

__all__ = ["DeviceCrops", "crop_on_device", "device_uniforms"]

_U32 = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def device_uniforms(draws: Draws, streams: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """(2, S, B) float64 on the device: `[j, s]` is column j of `draws.uniform(streams[s], 2)`, to the last bit."""
    index = on_device(draws.indices, device)
    high = index >> 32
    if draws.repeats is not None:
        high = high | on_device(draws.repeats, device) << 8
    shape = (len(streams), len(draws))
    stream = on_device(np.array(streams, dtype=np.int64) << 16, device)[:, None]
    multiplier, keys = _constants(draws.seed, device)
    # Words 0 and 2, and words 1 and 3, of Philox4x32-10 (see fastload.draws). Products wrap at 64 bits, as they should.
    x = torch.stack([(index & _U32).expand(shape), torch.full(shape, draws.epoch, dtype=torch.int64, device=device)])
    y = torch.stack([high.expand(shape), stream.expand(shape)])
    for key in keys:
        product = (multiplier * x).flip(0)
        x = ((product >> 32) ^ y ^ key) & _U32
        y = product
    bits = (x >> 5 << 26) | ((y & _U32) >> 6)
    return bits.to(torch.float64) * 2.0**-53


def _constants(seed: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(2, 1, 1) multipliers and (10, 2, 1, 1) keys of the rounds."""
    words = (seed & _U32, seed >> 32 & _U32)
    keys = [[(word + turn * step) & _U32 for word, step in zip(words, _KEY_STEPS, strict=True)] for turn in range(10)]
    packed = on_device(np.array([_MULTIPLIERS, *keys], dtype=np.int64), device).view(11, 2, 1, 1)
    return packed[0], packed[1:]


@dataclass(frozen=True)
class DeviceCrops:
    """A plan of at most one random crop, then flips, for images of one size."""

    size: tuple[int, int]
    """(height, width) of the images."""
    out_size: tuple[int, int]
    before: tuple[int, int]
    """Rows and columns of padding before the image."""
    choices: tuple[int, int]
    """How many places there are for the crop."""
    crop: int | None
    """Stream of the crop's draws; None: there is no crop."""
    flips: tuple[tuple[int, int, float], ...]
    """(stream, axis, probability)"""

    @staticmethod
    def of(plan: GeometryPlan, size: tuple[int, int]) -> DeviceCrops | None:
        """None if the plan has other operations, or the crop does not fit into the image."""
        before, choices, out_size, crop = (0, 0), (1, 1), size, None
        ops = list(plan.ops)
        if ops and isinstance(ops[0][1], RandomCrop):
            crop, op = ops.pop(0)
            assert isinstance(op, RandomCrop)
            left, top, right, bottom = op.padding or (0, 0, 0, 0)
            room = size[0] + top + bottom - op.size[0], size[1] + left + right - op.size[1]
            if op.pad_if_needed or min(room) < 0:
                return None
            before, choices, out_size = (top, left), (room[0] + 1, room[1] + 1), op.size
        flips = [(stream, op) for stream, op in ops if isinstance(op, RandomHorizontalFlip | RandomVerticalFlip)]
        if len(flips) < len(ops) or (crop is None and not flips):
            return None
        mirrors = tuple((stream, int(isinstance(op, RandomHorizontalFlip)), op.p) for stream, op in flips)
        return DeviceCrops(size, out_size, before, choices, crop, mirrors)

    @property
    def pads(self) -> bool:
        """Whether a crop may reach outside of the image."""
        ends = (c - 1 + o - b for c, o, b in zip(self.choices, self.out_size, self.before, strict=True))
        return any(self.before) or any(end > limit for end, limit in zip(ends, self.size, strict=True))

    def positions(self, draws: Draws, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, h) and (B, w) int64: row and column of the image that each output pixel shows; outside of it: padding."""
        streams = [] if self.crop is None else [self.crop]
        uniforms = device_uniforms(draws, (*streams, *(stream for stream, _, _ in self.flips)), device)
        found = []
        for axis in (0, 1):
            offsets = torch.arange(self.out_size[axis], device=device).expand(len(draws), -1)
            mirrored = [uniforms[0, len(streams) + i] < p for i, (_, a, p) in enumerate(self.flips) if a == axis]
            for rows in mirrored:
                offsets = torch.where(rows[:, None], self.out_size[axis] - 1 - offsets, offsets)
            if streams:
                offsets = offsets + (uniforms[axis, 0] * self.choices[axis]).to(torch.int64)[:, None]
            found.append(offsets - self.before[axis])
        return found[0], found[1]


def crop_on_device(
    pixels: torch.Tensor,
    start: npt.NDArray[np.int64],
    crops: DeviceCrops,
    positions: tuple[torch.Tensor, torch.Tensor],
    *,
    padding_mode: PaddingMode,
    fill: Fill,
) -> torch.Tensor:
    """(B, h, w, C) uint8 on the device.

    Args:
        pixels: (P, C) uint8: all pixels of all images.
        start: (B,): first pixel of each sample's image.
        crops: what the positions are of.
        positions: as `DeviceCrops.positions` gives them.
        padding_mode: how pixels outside the image are made.
        fill: one value, or one a channel, of "constant" padding.
    """
    folded = [_fold(where, limit, padding_mode) for where, limit in zip(positions, crops.size, strict=True)]
    rows = on_device(start, pixels.device)[:, None] + folded[0] * crops.size[1]
    index = rows[:, :, None] + folded[1][:, None, :]
    out = pixels.index_select(0, index.reshape(-1)).view(*index.shape, pixels.shape[1])
    if padding_mode != "constant" or not crops.pads:
        return out
    outside = [(where != inside)[:, :, None] for where, inside in zip(positions, folded, strict=True)]
    value = on_device(np.array(fill, dtype=np.uint8), pixels.device)
    return torch.where((outside[0] | outside[1].transpose(1, 2))[..., None], value, out)


def _fold(positions: torch.Tensor, limit: int, mode: PaddingMode) -> torch.Tensor:
    """Positions within the image; of constant padding, any. As `fastload.render.gather.axis_maps`."""
    if mode in ("constant", "edge"):
        return positions.clamp(0, limit - 1)
    if mode == "symmetric":
        positions = positions.remainder(2 * limit)
        return torch.minimum(positions, 2 * limit - 1 - positions)
    positions = positions.remainder(max(2 * (limit - 1), 1))
    return torch.minimum(positions, (2 * (limit - 1) - positions).clamp(min=0)) if limit > 1 else positions * 0
