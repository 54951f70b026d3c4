"""What the NVIDIA driver says about the GPU while a loader feeds it (NVML, by nvidia-ml-py)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

__all__ = ["GpuReading", "GpuWatch", "gpu_watch", "reading_of"]

_PERIOD = 0.05
"""Between two questions [seconds]. The driver itself looks every 1/6 to 1 s, so that answers repeat."""


@dataclass(frozen=True)
class GpuReading:
    """One round of one loader."""

    busy_share: float
    """Mean utilisation, 0 to 1. Utilisation is the share of time in which at least one kernel ran."""
    idle_windows: int
    """How often it fell to 0%."""
    idle_seconds: float
    """How long it was at 0%, together."""
    longest_idle_seconds: float
    peak_memory: int
    """[bytes] of this process (workers have no part in it); of the whole GPU where the driver does not know it."""
    utilisation: tuple[tuple[float, float], ...]
    """(seconds since the start, share 0 to 1)"""

    def metrics(self) -> dict[str, float]:
        """As the results name them."""
        return {
            "gpu_busy_share": self.busy_share,
            "gpu_idle_windows": float(self.idle_windows),
            "gpu_idle_seconds": self.idle_seconds,
            "gpu_longest_idle_seconds": self.longest_idle_seconds,
            "peak_gpu_memory_bytes": float(self.peak_memory),
        }


def reading_of(samples: Sequence[tuple[float, float]], end: float, peak_memory: int) -> GpuReading:
    """Summarise a timeline.

    Args:
        samples: (seconds, utilisation 0 to 1), at least one; each holds until the next one, the last until `end`.
    """
    ends = [*(at for at, _ in samples[1:]), max(end, samples[-1][0])]
    pieces = [(later - at, share) for (at, share), later in zip(samples, ends, strict=True)]
    total = sum(length for length, _ in pieces)
    idle = [sum(length for length, _ in group) for zero, group in groupby(pieces, lambda p: p[1] == 0.0) if zero]
    return GpuReading(
        busy_share=sum(length * share for length, share in pieces) / total if total else samples[0][1],
        idle_windows=len(idle),
        idle_seconds=sum(idle),
        longest_idle_seconds=max(idle, default=0.0),
        peak_memory=peak_memory,
        utilisation=tuple(samples),
    )


class GpuWatch:
    """Asks in a thread of its own, between `start` and `stop`."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._samples: list[tuple[float, float]] = []
        self._peak = 0
        self._stopping.clear()
        self._begun = time.perf_counter()
        self._thread = threading.Thread(target=self._ask, name="fastload-gpu-watch", daemon=True)
        self._thread.start()

    def stop(self) -> GpuReading | None:
        """What was seen; None if the driver answered nothing. May be called without a start."""
        thread, self._thread = self._thread, None
        if thread is None:
            return None
        self._stopping.set()
        thread.join()
        end = time.perf_counter() - self._begun
        return reading_of(self._samples, end, self._peak) if self._samples else None

    def _ask(self) -> None:
        nvml = self._nvml
        while True:
            try:
                share = nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
                self._samples.append((time.perf_counter() - self._begun, share))
                self._peak = max(self._peak, self._memory())
            except nvml.NVMLError:
                return  # a MIG slice has no utilisation; what was seen so far counts
            if self._stopping.wait(_PERIOD):
                return

    def _memory(self) -> int:
        nvml = self._nvml
        known = {p.pid: p.usedGpuMemory or 0 for p in nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)}
        if known.get(os.getpid()):  # in a container the driver may know us by another number
            return int(known[os.getpid()])
        return int(nvml.nvmlDeviceGetMemoryInfo(self._handle).used)


def gpu_watch(device: torch.device) -> tuple[GpuWatch | None, str]:
    """A watch on the device, or None and the reason why there is none."""
    if device.type != "cuda":
        return None, "the batches go to the CPU"
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return None, "nvidia-ml-py is not installed: pip install nvidia-ml-py"
    except pynvml.NVMLError as error:
        return None, f"the NVIDIA driver does not answer: {error}"
    try:
        # By UUID: CUDA_VISIBLE_DEVICES renumbers what torch sees, not what the driver sees.
        uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
        if uuid is None:
            handle = pynvml.nvmlDeviceGetHandleByIndex(device.index or 0)
        else:
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        pynvml.nvmlDeviceGetUtilizationRates(handle)
    except pynvml.NVMLError as error:
        return None, f"the NVIDIA driver does not tell the utilisation of {device}: {error}"
    return GpuWatch(pynvml, handle), ""
