"""The steps of colour on batches in host memory, by the threads of the native core: the very bits
that torch's operations give on this processor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

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
    joined,
)

if TYPE_CHECKING:
    from fastload.render.floats import FloatSteps


class HostColour:
    """Threads that do steps of colour, started by the first batch."""

    def __init__(self, threads: int | None = None) -> None:
        """`threads`: None for as many as there are cores. Raises BackendUnavailableError."""
        self._pool = NativePool(threads or usable_cores())

    def run(self, images: npt.NDArray[np.uint8], steps: Sequence[Steps]) -> None:
        """(B, H, W, C) uint8 images, C = 1 or 3 (of noise any), C-contiguous and writable, after
        all of these, one after the other, in place."""
        self.run_together([(images, steps)])

    def run_together(
        self, batches: Iterable[tuple[npt.NDArray[np.uint8], Sequence[Steps]]]
    ) -> None:
        """Several batches in memory of their own, each after steps of its own, as by `run`. Their
        first steps are done side by side, then their second ones, so that this thread and those of
        the core wait for each other as often as the longest has steps."""
        left = [(images, joined(steps)) for images, steps in batches if images.size]
        while left := [(images, steps) for images, steps in left if steps]:
            started = [self._submitted(images, steps.pop(0)) for images, steps in left]
            for pending in started:
                self._wait(pending)

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

    def change_floats(
        self,
        images: torch.Tensor,
        out: torch.Tensor,
        *,
        conversion: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None,
        turn: tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]] | None,
        steps: FloatSteps,
        mirrors: npt.NDArray[np.bool_],
    ) -> None:
        """What becomes of (B, C, H, W) uint8 or float32 images, into (B, C, h, w) float32 `out`, in
        either memory format: bytes are converted, samples turned about the centre or its middle
        taken, their planes go through the steps, and they are mirrored.

        Args:
            conversion: (C,) numbers that bytes are multiplied by, and (C,) that are added then.
            turn: (B, 2, 2) matrices from places about the centre, down and right, to those in the
                image, and (B,) which samples are turned.
            mirrors: (B, 2): upside down, left and right.
        """
        scale, offset = (None, None) if conversion is None else conversion
        last = not out.is_contiguous()
        self._wait(
            self._pool.change_floats(
                images.numpy(),
                (out.permute(0, 2, 3, 1) if last else out).numpy(),
                channels_last=last,
                scale=scale,
                offset=offset,
                matrices=None if turn is None else turn[0],
                turned=None if turn is None else turn[1],
                kinds=steps.kinds,
                applies=steps.applies,
                numbers=steps.numbers,
                keys=steps.keys,
                mirrors=mirrors,
            )
        )

    def turn_masks(
        self,
        masks: torch.Tensor,
        size: tuple[int, int],
        turn: tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]],
    ) -> torch.Tensor:
        """(B, 1, h, w) of (B, 1, H, W) masks of classes, uint8 or uint16: `turn` as of
        `change_floats`; of the places of a turned pixel that class is taken that has most of it."""
        out = torch.empty((len(masks), 1, *size), dtype=masks.dtype)
        given = masks[:, 0].contiguous().numpy()
        self._wait(self._pool.turn_masks(given, out[:, 0].numpy(), *turn))
        return out

    def _wait(self, pending: Pending) -> None:
        if failures := pending.wait():  # nothing else can go wrong
            raise MemoryError(f"colour on the host: {failures[0].message}")

    def close(self) -> None:
        """End the threads; a later batch starts them again."""
        self._pool.close()


def converts(images: torch.Tensor) -> bool:
    """Whether `converted` can convert (B, C, H, W) images."""
    rgb = images.shape[1] == 3 and images.dtype == torch.uint8 and images.device.type == "cpu"
    return rgb and (images.stride(3), images.stride(1)) == (3, 1) and native.available()


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
    if not converts(images):
        return None
    pixels = images.permute(0, 2, 3, 1)
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
