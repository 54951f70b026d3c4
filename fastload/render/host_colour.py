"""The steps of colour on batches in host memory, by the threads of the native core: the very bits
that torch's operations give on this processor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from fastload import native
from fastload.decode.libraries import core_pool
from fastload.machine import usable_cores
from fastload.native import NativePool, Pending
from fastload.native.pool import fuses
from fastload.render.steps import (
    BlurSteps,
    ClaheSteps,
    FilterSteps,
    JpegSteps,
    MedianSteps,
    MixtureSteps,
    NoiseSteps,
    Steps,
)


class HostColour:
    """Threads that do steps of colour, started by the first batch."""

    def __init__(self, threads: int | None = None) -> None:
        """`threads`: None for as many as there are cores. Raises BackendUnavailableError."""
        self._pool = NativePool(threads or usable_cores())

    def run(self, images: npt.NDArray[np.uint8], steps: Sequence[Steps]) -> None:
        """(B, H, W, C) uint8 images, C = 1 or 3 (of noise any), C-contiguous and writable, after
        all of these, one after the other, in place."""
        if not images.size:
            return
        for part in steps:
            if failures := self._submitted(images, part).wait():  # nothing else can go wrong
                raise MemoryError(f"colour on the host: {failures[0].message}")

    def _submitted(self, images: npt.NDArray[np.uint8], part: Steps) -> Pending:
        if isinstance(part, NoiseSteps):
            return self._pool.add_noise(
                images,
                part.keys,
                part.scales,
                part.shifts,
                rows=part.rows,
                clips=part.clips,
                shared=part.shared,
            )
        if isinstance(part, JpegSteps):
            return self._pool.recompress(images, part.qualities, blue_first=part.blue_first)
        if isinstance(part, FilterSteps):
            return self._pool.convolve(images, part.kernels, rows=part.rows, fused=fuses())
        if isinstance(part, MedianSteps):
            return self._pool.median(images, part.sides)
        if isinstance(part, ClaheSteps):
            return self._pool.clahe(images, part.limits, part.tiles)
        if isinstance(part, BlurSteps):
            return self._pool.blur(images, part.down, part.across, rows=part.rows, fused=fuses())
        chains = part.chains if isinstance(part, MixtureSteps) else part
        weights = part.weights if isinstance(part, MixtureSteps) else None
        fill = None
        if images.shape[3] not in (1, 3):  # steps of single values, see `of_any_channels`
            images = images.reshape(*images.shape[:2], -1, 1)
        if chains.fill is not None:
            fill = np.resize(np.array(chains.fill, dtype=np.float32), 3)
        return self._pool.recolour(
            images,
            chains.kinds,
            chains.numbers,
            weights=weights,
            bilinear=chains.bilinear,
            fill=fill,
            fused=fuses(),
        )

    def close(self) -> None:
        """End the threads; a later batch starts them again."""
        self._pool.close()


def converted(
    images: torch.Tensor,
    scale: npt.NDArray[np.float32],
    offset: npt.NDArray[np.float32],
    out: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """(B, 3, H, W) uint8 images on a CPU times (3,) numbers plus (3,) others as float32, rounded as
    `torch.addcmul` does it here, by the native core in this thread; their pixels lie packed, as do
    those of the result. `out`: where it may be written to. None: the core is not built, or the
    images lie otherwise."""
    pixels = images.permute(0, 2, 3, 1)
    packed = images.shape[1] == 3 and pixels.stride()[2:] == (3, 1)
    if not (packed and native.available()):
        return None
    if out is None or not out.permute(0, 2, 3, 1).is_contiguous() or out.shape != images.shape:
        out = torch.empty(pixels.shape, dtype=torch.float32, device="cpu").permute(0, 3, 1, 2)
    done = core_pool().convert(
        pixels.numpy(), scale, offset, out.permute(0, 2, 3, 1).numpy(), fused=fuses(), here=True
    )
    if failures := done.wait():
        raise MemoryError(f"colour on the host: {failures[0].message}")
    return out


def recoloured(
    pixels: npt.NDArray[np.uint8],
    kinds: npt.NDArray[np.int32],
    numbers: npt.NDArray[np.float32],
) -> npt.NDArray[np.uint8]:
    """A (H, W, C) image after the (S,) kinds and (S, NUMBERS) numbers of `ColourSteps`, by the
    native core in this thread. Raises BackendUnavailableError."""
    copy = np.array(pixels, dtype=np.uint8, order="C")
    done = core_pool().recolour(copy[None], kinds[None], numbers[None], fused=fuses(), here=True)
    if failures := done.wait():
        raise MemoryError(f"colour on the host: {failures[0].message}")
    return copy
