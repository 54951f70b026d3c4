"""JPEGs decoded on a GPU by their points: what the host planned (`DevicePlan` of the core) is
copied there at once, decoded and resized by the kernels of `fastload/native/cuda/`.

A batch takes one copy and four launches a chunk, whatever its images are. The pixels are those of
the CPU to the last bit. `docs/gpu-decode.md` has the design, and what has not run on a GPU.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from fastload.errors import BackendUnavailableError
from fastload.render import nvrtc
from fastload.render.driver import Kernels, KernelsOnHost

if TYPE_CHECKING:
    import fastload.native._core as _core

MEMORY = 256 << 20
"""Bytes on the device that a plan is made for: of coefficients, samples and pixels at a time (192 a
block, 3 a pixel; some 280 crops of photographs of 500 x 375), and as many again of data that are
copied there for a batch. A crop that takes more, and those for which a batch has no room left, are
left to the CPU."""

ON_HOST = "FASTLOAD_CUDA_ON_HOST"
"""Environment variable: 1 has the kernels run on the host, one thread after the other, for batches
that stay there. It is slow, and for tests."""

_BLOCKS_AT_ONCE = 32
"""Blocks of samples that a block of threads makes (`kSampleThreads` / 8)."""
_SEGMENT_THREADS, _SAMPLE_THREADS, _STRIP = 128, 256, 256
"""As in `batch.cuh`."""


class Left(IntEnum):
    """Why a crop is left to the CPU (`device_plan.hpp`)."""

    NONE = 0
    KIND = 1
    POINTS = 2
    MEMORY = 3
    BOX = 4
    TURNED = 5
    SHARE = 6


class ChunkArguments(ctypes.Structure):
    """As in `batch.cuh`: addresses on the device, then counts."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("batch", "crops", "segments", "tasks")),
        *((name, ctypes.c_uint64) for name in ("coefficients", "samples", "pixels", "failures")),
        *((name, ctypes.c_uint64) for name in ("resizes", "out")),
        *((name, ctypes.c_uint32) for name in ("crop_count", "blocks", "strips")),
        *((name, ctypes.c_uint32) for name in ("out_height", "out_width", "unused")),
    ]


Launch = Callable[[str, int, int, ChunkArguments], None]
"""Queues a kernel: its name, blocks, threads of each, and its arguments, which are copied."""


@dataclass(frozen=True)
class DecodedCrops:
    """The crops of a batch on a device, as they are before they are resized: those that were
    planned, in order."""

    pixels: torch.Tensor
    """(P, 3) uint8: all pixels of all crops, row after row."""
    failures: torch.Tensor
    """(N,) int32: not 0 where the data of a crop are not what its points say; its pixels are then
    not to be used."""
    rows: npt.NDArray[np.int64]
    """(N,): the row of each crop in the batch."""
    boxes: npt.NDArray[np.int64]
    """(N, 4): of each its box in the image: top, left, height, width."""
    start: npt.NDArray[np.int64]
    """(N,): the first pixel of each."""


class DeviceDecoder:
    """Decodes planned batches on a device. For one stream; memory is kept from batch to batch."""

    def __init__(self, device: torch.device, launch: Launch | None = None) -> None:
        """
        Args:
            launch: instead of the GPU's driver, for tests.

        Raises:
            BackendUnavailableError: this GPU, driver or NVRTC cannot; the message says why.
        """
        self.device = device
        self._launch = launch or launch_on(device)
        self._coefficients = torch.empty(0)
        self._samples = torch.empty(0)
        self._pixels = torch.empty(0)
        self.trusted = False
        """Whether its pixels were compared with those of the host."""

    @property
    def nbytes(self) -> int:
        """Bytes on the device that are kept between batches."""
        return self._coefficients.nbytes + self._samples.nbytes + self._pixels.nbytes

    def decode(self, plan: _core.DevicePlan) -> DecodedCrops:
        """Queue the decoding of a finished plan on the current stream, and nothing after it.
        Nothing is waited for."""
        boxes = plan.boxes.reshape(-1, 4).astype(np.int64)
        counts = boxes[:, 2:].prod(axis=1)
        pixels = self._empty(plan.pixel_bytes)
        failures = self._run(plan, pixels, None)
        rows, start = planned_rows(plan), np.cumsum(counts) - counts
        return DecodedCrops(pixels.view(-1, 3), failures, rows, boxes, start)

    def make(self, plan: _core.DevicePlan, out: torch.Tensor) -> torch.Tensor:
        """Queue all that is to be done for a finished plan on the current stream: its images,
        resized, cut and mirrored, go to their rows of `out`, (B, h, w, 3) uint8, contiguous.
        Nothing is waited for.

        Returns:
            (N,) int32, for the N rows of `planned_rows`: not 0 where the data are not what its
            points say; the row of `out` is then not to be used.
        """
        return self._run(plan, None, out)

    def _run(
        self, plan: _core.DevicePlan, whole: torch.Tensor | None, out: torch.Tensor | None
    ) -> torch.Tensor:
        """`whole`: where all pixels of all crops are to stay."""
        count = len(planned_rows(plan))
        failures = torch.zeros(count, dtype=torch.int32, device=self.device)
        if not count:
            return failures
        batch, chunks = self._sent(plan.buffer), plan.chunks
        most = max(blocks for *_, blocks, _, _, _ in chunks)
        if self._samples.numel() < 64 * most:
            # Zeros once: the kernels leave zeros behind.
            self._coefficients = torch.zeros(64 * most, dtype=torch.int16, device=self.device)
            self._samples = self._empty(64 * most)
        if whole is None and self._pixels.numel() < (most := max(chunk[-1] for chunk in chunks)):
            self._pixels = self._empty(most)
        (crops_at, crop), (segments_at, _), (tasks_at, task), (resizes_at, resize) = plan.tables
        height, width = (0, 0) if out is None else out.shape[1:3]
        for first_crop, crops, first_task, tasks, blocks, strips, first_pixel, _ in chunks:
            arguments = ChunkArguments(
                batch.data_ptr(),
                batch.data_ptr() + crops_at + crop * first_crop,
                batch.data_ptr() + segments_at,
                batch.data_ptr() + tasks_at + task * first_task,
                self._coefficients.data_ptr(),
                self._samples.data_ptr(),
                self._pixels.data_ptr() if whole is None else whole.data_ptr() + first_pixel,
                failures.data_ptr() + failures.itemsize * first_crop,
                batch.data_ptr() + resizes_at + resize * first_crop,
                0 if out is None else out.data_ptr(),
                crops,
                blocks,
                strips,
                height,
                width,
            )
            groups = -(-blocks // _BLOCKS_AT_ONCE)
            self._launch("fastload_decode_segments", tasks, _SEGMENT_THREADS, arguments)
            self._launch("fastload_make_samples", groups, _SAMPLE_THREADS, arguments)
            self._launch("fastload_make_pixels", strips, _STRIP, arguments)
            if out is not None:
                of_out = crops * -(-height * width // _STRIP)
                self._launch("fastload_resize", of_out, _STRIP, arguments)
        return failures

    def _empty(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.uint8, device=self.device)

    def _sent(self, buffer: npt.NDArray[np.uint8]) -> torch.Tensor:
        """A copy on the device, through page-locked memory, which torch keeps until it is read."""
        locked = self.device.type == "cuda"
        host = torch.empty(len(buffer), dtype=torch.uint8, pin_memory=locked)
        host.numpy()[:] = buffer
        return host.to(self.device, non_blocking=True)


def planned_rows(plan: _core.DevicePlan) -> npt.NDArray[np.int64]:
    """The rows of a batch that its plan has."""
    return np.flatnonzero(plan.left == Left.NONE)


def why_not(device: torch.device) -> str:
    """Why JPEGs cannot be decoded on a device, for a person; empty where nothing is in the way that
    can be known before a kernel is compiled."""
    if _on_host(device):
        return ""
    if device.type != "cuda" or not torch.cuda.is_available():
        return f"batches go to {device}, and decoding there needs a CUDA GPU: device='cuda'"
    return nvrtc.why_not()


def launch_on(device: torch.device) -> Launch:
    """How kernels are launched on a device.

    Raises:
        BackendUnavailableError: they cannot be; the message says why.
    """
    return run_here if _on_host(device) else driver_launch(device)


def _on_host(device: torch.device) -> bool:
    return device.type == "cpu" and os.environ.get(ON_HOST) == "1"


def run_here(name: str, blocks: int, threads: int, arguments: ChunkArguments) -> None:
    """Run a kernel on the host, before this returns."""
    KernelsOnHost().launch(name, blocks, threads, arguments)


def driver_launch(device: torch.device) -> Launch:
    """Launches by the driver of a CUDA device, on torch's current stream there.

    Raises:
        BackendUnavailableError: it cannot; the message says why.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        raise BackendUnavailableError(f"decoding on {device} needs a CUDA GPU.")
    return Kernels(device, nvrtc.JPEGS).launch
