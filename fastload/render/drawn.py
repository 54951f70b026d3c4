"""Images that lie in one array on a device: one kernel draws where a batch comes from, cuts,
mirrors, converts to the numbers that the trainer gets, and writes them.

The arithmetic is that of the host, bit for bit: the same Philox numbers (`fastload.draws`), the
same windows (`fastload.geometry`), one multiply-add for each value. No data is sent for a
batch: the order of an epoch is sent once, in one copy, and a batch is a slice of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fastload.draws import Draws, Int64Array
from fastload.geometry import GeometryPlan, Resampling
from fastload.geometry.drawn import DrawnCrop, DrawnFlip
from fastload.render.fused import PADDING, active, kernels
from fastload.render.transfer import constants, on_device, stream_of

_HEAD = 3
"""Numbers in front of the order: the key's low and high words, the epoch."""
_DOWN, _ACROSS, _CROP = range(3)


@dataclass(frozen=True)
class Conversion:
    """A conversion of uint8 pixels: times (C,) `scale` plus (C,) `offset` in float32, then to
    `dtype`."""

    scale: npt.NDArray[np.float32]
    offset: npt.NDArray[np.float32]
    dtype: torch.dtype


@dataclass(frozen=True)
class DrawnGeometry:
    """A plan for images of one size, as the numbers that the kernel needs."""

    size: tuple[int, int]
    """(height, width) of the images."""
    out_size: tuple[int, int]
    steps: tuple[tuple[int, int, int], ...]
    """See the kernel."""
    crop: DrawnCrop | None

    @classmethod
    def of(cls, plan: GeometryPlan, size: tuple[int, int]) -> DrawnGeometry | None:
        """The numbers of a plan; None where it is more than mirrorings and one crop. The plan gives
        no errors for images of this size."""
        if plan.later is not None or plan.colour is not None:
            return None
        steps, crop = list[tuple[int, int, int]](), None
        for stream, op in plan.ops:
            drawn = op.drawn()
            if isinstance(drawn, DrawnFlip):
                # u < p for u of 53 bits: both times 2^53 are exact.
                kind = _ACROSS if drawn.axis == 1 else _DOWN
                steps.append((kind, stream, math.ceil(drawn.p * 2.0**53)))
            elif isinstance(drawn, DrawnCrop) and crop is None:
                crop = drawn
                steps.append((_CROP, stream, 0))
            else:
                return None
        return cls(size, size if crop is None else crop.size, tuple(steps), crop)

    @property
    def numbers(self) -> dict[str, int]:
        """Constants of the kernel: padding before, and windows that there are, along each axis."""
        (above, left), counts = (0, 0), (1, 1)
        if self.crop is not None:
            above, left = self.crop.before
            whole = zip(self.size, self.crop.before, self.crop.after, self.out_size, strict=True)
            down, across = (side + a + b - window + 1 for side, a, b, window in whole)
            counts = down, across
        return {
            "ABOVE": above,
            "LEFT": left,
            "COUNT_DOWN": counts[0],
            "COUNT_ACROSS": counts[1],
            "PADS": self.crop is not None and any((*self.crop.before, *self.crop.after)),
        }


class OrderOnDevice:
    """Indices of many batches, in one copy with the key of their draws."""

    def __init__(self, draws: Draws, whole: Int64Array, rows: Int64Array, device: torch.device):
        """`whole`: the indices; `rows`: which row of the array each of them is."""
        head = [draws.seed & 0xFFFFFFFF, (draws.seed >> 32) & 0xFFFFFFFF, draws.epoch]
        same = rows is whole
        sent = np.concatenate([np.array(head, dtype=np.int64), whole, *([] if same else [rows])])
        self.table = on_device(sent, device)
        """(3 + n,) int64: the head and the indices; then n rows, where these differ from the
        indices."""
        self.indices = self.table[_HEAD : _HEAD + len(whole)]
        self.rows = self.indices if same else self.table[_HEAD + len(whole) :]
        self.stream = stream_of(device)
        """The stream that it was copied on."""
        self.key = draws.seed, draws.epoch, self.stream
        """Distinguishes it from other orders of the same indices."""


@dataclass(frozen=True, eq=False)
class PendingImages:
    """The images of a batch, not made yet: one kernel makes and converts them once the conversion
    is known."""

    pixels: torch.Tensor
    """(N * H * W, C) uint8."""
    geometry: DrawnGeometry
    resampling: Resampling
    order: OrderOnDevice
    first: int
    """Place in the order."""
    count: int

    @property
    def device(self) -> torch.device:
        return self.pixels.device

    @property
    def channels(self) -> int:
        return self.pixels.shape[1]

    def __len__(self) -> int:
        return self.count

    def arrays(self) -> Iterator[torch.Tensor]:
        """The tensors that it holds."""
        yield self.pixels
        yield self.order.table

    def make(self, conversion: Conversion | None = None) -> torch.Tensor:
        """(B, C, h, w) in channels_last, uint8 where nothing is converted, queued on the current
        stream."""
        (height, width), channels, device = self.geometry.out_size, self.channels, self.device
        dtype = torch.uint8 if conversion is None else conversion.dtype
        out = torch.empty((self.count, height, width, channels), dtype=dtype, device=device)
        if not out.numel():
            return out.permute(0, 3, 1, 2)
        if device.type == "cuda" and stream_of(device) != self.order.stream:
            self.order.table.record_stream(torch.cuda.current_stream(device))
        fill = np.trunc(np.array(self.resampling.fill, dtype=np.float32))
        filled = constants(np.ascontiguousarray(np.broadcast_to(fill, channels)), device)
        steps = np.array(self.geometry.steps or [(0, 0, 0)], dtype=np.int64)
        numbers = (filled, filled)
        if conversion is not None:
            numbers = constants(conversion.scale, device), constants(conversion.offset, device)
        kernels(device).drawn(
            *(self.pixels, self.order.table, self.order.rows, constants(steps, device)),
            *((filled, *numbers), out, self.first, len(self.geometry.steps), self.geometry.size),
            PADDING[self.resampling.padding_mode],
            self.geometry.numbers,
            converts=conversion is not None,
        )
        return out.permute(0, 3, 1, 2)


def can_draw(pixels: torch.Tensor, draws: Draws) -> bool:
    """Whether the kernel is there for these pixels, and knows these draws."""
    return draws.repeats is None and draws.keys is None and active(pixels)
