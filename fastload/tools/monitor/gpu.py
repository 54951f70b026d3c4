"""What the NVIDIA driver says about a GPU while it is used (NVML, by nvidia-ml-py)."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from fastload.errors import ConfigurationError

# Least time between two questions about PCIe [seconds]: the driver counts for 20 ms before it
# answers those.
_PCIE_EVERY = 0.5


@dataclass(frozen=True)
class GpuReading:
    """What was seen of one GPU over some time."""

    busy_share: float
    """Mean utilisation, 0 to 1: the share of the time in which at least one kernel ran."""
    idle_windows: int
    """How often the utilisation fell to 0%."""
    idle_seconds: float
    """How long it was at 0%, together."""
    longest_idle_seconds: float
    """The longest of these times."""
    peak_memory: int
    """[bytes] Of this process without its workers; of the whole GPU where the driver does not know
    the process."""
    utilisation: tuple[tuple[float, float], ...]
    """(seconds since the start, share 0 to 1)."""
    power_watts: float | None = None
    """Mean of the whole board. None, here and below: the driver does not tell."""
    peak_power_watts: float | None = None
    """The most of the whole board."""
    pcie_rx_bytes: float | None = None
    """Mean traffic into the GPU over PCIe [bytes/s], of all its users."""
    pcie_tx_bytes: float | None = None
    """The same out of the GPU."""

    def metrics(self) -> dict[str, float]:
        """As results name them; what the driver did not tell is left out."""
        metrics = {
            "gpu_busy_share": self.busy_share,
            "gpu_idle_windows": float(self.idle_windows),
            "gpu_idle_seconds": self.idle_seconds,
            "gpu_longest_idle_seconds": self.longest_idle_seconds,
            "peak_gpu_memory_bytes": float(self.peak_memory),
            "gpu_power_watts": self.power_watts,
            "peak_gpu_power_watts": self.peak_power_watts,
            "pcie_rx_bytes_per_second": self.pcie_rx_bytes,
            "pcie_tx_bytes_per_second": self.pcie_tx_bytes,
        }
        return {name: value for name, value in metrics.items() if value is not None}


def reading_of(
    samples: Sequence[tuple[float, float]],
    end: float,
    peak_memory: int,
    *,
    power: Sequence[float] = (),
    pcie: Sequence[tuple[float, float]] = (),
) -> GpuReading:
    """Summarise a timeline [seconds], at least one sample; each holds until the next one, the last
    until `end`.

    Args:
        power: [W], in equal distances.
        pcie: (received, sent) [bytes/s], in equal distances.
    """
    ends = [*(at for at, _ in samples[1:]), max(end, samples[-1][0])]
    pieces = [(later - at, share) for (at, share), later in zip(samples, ends, strict=True)]
    total = sum(length for length, _ in pieces)
    idle = [
        sum(length for length, _ in group)
        for zero, group in groupby(pieces, lambda p: p[1] == 0.0)
        if zero
    ]
    return GpuReading(
        busy_share=sum(length * share for length, share in pieces) / total
        if total
        else samples[0][1],
        idle_windows=len(idle),
        idle_seconds=sum(idle),
        longest_idle_seconds=max(idle, default=0.0),
        peak_memory=peak_memory,
        utilisation=tuple(samples),
        power_watts=sum(power) / len(power) if power else None,
        peak_power_watts=max(power, default=None),
        pcie_rx_bytes=sum(rx for rx, _ in pcie) / len(pcie) if pcie else None,
        pcie_tx_bytes=sum(tx for _, tx in pcie) / len(pcie) if pcie else None,
    )


class GpuMonitor:
    """Asks the driver in a thread of its own, between `start` and `stop` or within a `with`.

        with GpuMonitor() as monitor:
            train()
        print(monitor.reading or monitor.reason)

    Where the driver cannot be asked (no GPU, no NVML, no driver, a MIG slice), `available` is
    False, `reason` says why, and there is no reading; nothing is raised.
    """

    def __init__(self, device: torch.device | str | int | None = None, period: float = 1.0) -> None:
        """
        Args:
            device: as torch numbers it; None: the current one.
            period: between two questions [seconds]. The driver itself looks every 1/6 to 1 s;
                questions take some of the host's time, and of a lock that launching kernels takes
                too, so ask more often only to look closely.

        Raises:
            ConfigurationError: `period` is not above 0.
        """
        if not period > 0:
            raise ConfigurationError(f"period: must be above 0 seconds, got {period}.")
        self.reading: GpuReading | None = None
        """What the latest `stop` returned."""
        self._period = period
        self._nvml, self._handle, self.reason = _open(device)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def available(self) -> bool:
        """Whether the driver answers; if not, `reason` says why."""
        return not self.reason

    def start(self) -> None:
        """Start again; what was seen before is forgotten. Does nothing where the driver cannot be
        asked."""
        self.stop()
        if not self.available:
            return
        self._samples: list[tuple[float, float]] = []
        self._power: list[float] = []
        self._pcie: list[tuple[float, float]] = []
        self._peak = 0
        self._stopping.clear()
        self._started = time.perf_counter()
        self._thread = threading.Thread(target=self._ask, name="fastload-gpu-monitor", daemon=True)
        self._thread.start()

    def stop(self) -> GpuReading | None:
        """What was seen; None if the driver answered nothing. May be called without a start."""
        thread, self._thread = self._thread, None
        if thread is None:
            return None
        self._stopping.set()
        thread.join()
        end = time.perf_counter() - self._started
        self.reading = None
        if self._samples:
            self.reading = reading_of(
                self._samples, end, self._peak, power=self._power, pcie=self._pcie
            )
        return self.reading

    def __enter__(self) -> GpuMonitor:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _ask(self) -> None:
        nvml, handle = self._nvml, self._handle
        asked = -math.inf
        while True:
            try:
                share = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
                self._samples.append((time.perf_counter() - self._started, share))
                self._peak = max(self._peak, self._memory())
            except nvml.NVMLError:
                return  # what was seen so far counts
            self._optional(lambda: self._power.append(nvml.nvmlDeviceGetPowerUsage(handle) / 1000))
            if time.perf_counter() - asked >= _PCIE_EVERY:
                asked = time.perf_counter()
                self._optional(
                    lambda: self._pcie.append((self._traffic("RX"), self._traffic("TX")))
                )
            if self._stopping.wait(self._period):
                return

    def _optional(self, question: Callable[[], None]) -> None:
        """Some boards have no meter of this."""
        with contextlib.suppress(self._nvml.NVMLError):
            question()

    def _traffic(self, direction: str) -> float:
        counter = getattr(self._nvml, f"NVML_PCIE_UTIL_{direction}_BYTES")
        # Reported in KB/s.
        return float(self._nvml.nvmlDeviceGetPcieThroughput(self._handle, counter)) * 1024

    def _memory(self) -> int:
        nvml = self._nvml
        known = {
            p.pid: p.usedGpuMemory or 0
            for p in nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        }
        if known.get(os.getpid()):  # in a container the driver may know us by another number
            return int(known[os.getpid()])
        return int(nvml.nvmlDeviceGetMemoryInfo(self._handle).used)


def _open(device: torch.device | str | int | None) -> tuple[Any, Any, str]:
    """NVML, the device as NVML knows it, and the reason why it cannot be asked, empty if it can."""
    if device is not None and not isinstance(device, int) and torch.device(device).type != "cuda":
        return None, None, "the batches go to the CPU"
    if not torch.cuda.is_available():
        return None, None, "torch sees no CUDA device"
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return None, None, "nvidia-ml-py is not installed: pip install nvidia-ml-py"
    except pynvml.NVMLError as error:
        return None, None, f"the NVIDIA driver does not answer: {error}"
    index = device if isinstance(device, int) else torch.device(device or "cuda").index
    index = torch.cuda.current_device() if index is None else index
    handle = None
    try:
        # By UUID: CUDA_VISIBLE_DEVICES renumbers what torch sees, not what the driver sees.
        uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
        if uuid is None:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        else:
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        pynvml.nvmlDeviceGetUtilizationRates(handle)
    except pynvml.NVMLError as error:
        reason = f"the NVIDIA driver does not tell the utilisation of cuda:{index}: {error}"
        return None, None, reason + _mig(pynvml, handle)
    return pynvml, handle, ""


def _mig(nvml: Any, handle: Any) -> str:
    """What to add to a refusal where the GPU is divided."""
    divided = os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-")
    if handle is not None:
        with contextlib.suppress(nvml.NVMLError):
            divided |= nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    return " (MIG is on, and a slice of a GPU has no utilisation of its own)" if divided else ""
