"""What this machine and its libraries are, as plain facts: `fastload doctor` judges them, benchmarks record them."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from ctypes.util import find_library
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

__all__ = [
    "Gpus",
    "cache_home",
    "cpu_model",
    "dali_version",
    "driver_gpus",
    "libjpeg_turbo_of_pillow",
    "memory_bytes",
    "pillow_is_simd",
    "simd_extensions",
    "system_turbojpeg",
]

_CPUINFO = Path("/proc/cpuinfo")
_SIMD = {
    "x86_64": ("sse2", "sse4_1", "avx2", "avx512bw"),
    "aarch64": ("asimd", "sve"),
}
"""Instruction sets that libjpeg-turbo and resizing kernels choose from, as /proc/cpuinfo calls them."""


def cpu_model(cpuinfo: Path = _CPUINFO) -> str:
    """The processor's name as it gives it itself; its architecture where it gives none."""
    return next((value for name, value in _fields(cpuinfo) if name == "model name" and value), platform.machine())


def simd_extensions(cpuinfo: Path = _CPUINFO) -> tuple[str, ...]:
    """Those of `_SIMD` that this processor has; empty where that cannot be known."""
    flags = next((value.split() for name, value in _fields(cpuinfo) if name in ("flags", "features")), [])
    return tuple(flag for flag in _SIMD.get(platform.machine(), ()) if flag in flags)


def _fields(cpuinfo: Path) -> Iterator[tuple[str, str]]:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        name, _, value = line.partition(":")
        yield name.strip().lower(), value.strip()


def memory_bytes(cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """RAM, or the limit of this container where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in (cgroups / "memory.max", cgroups / "memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(limit.read_text()))
        except (OSError, ValueError):
            continue  # absent, or "max"
    return total


def cache_home() -> Path:
    """The folder of fastload's caches, unless a command or an argument names another; it need not be there yet."""
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".cache") / "fastload"


@dataclass(frozen=True)
class Gpus:
    """What the NVIDIA driver says (NVML)."""

    names: tuple[str, ...]
    """One a GPU, with memory and driver version."""
    reason: str
    """Why there are none."""


def driver_gpus() -> Gpus:
    """The GPUs of this machine, whether or not torch can use them."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return Gpus((), "nvidia-ml-py is not installed")
    except pynvml.NVMLError as error:
        return Gpus((), f"the NVIDIA driver is not there: {error}")
    names = []
    reason = "the driver lists none"
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle).total / (1 << 30)
            names.append(f"{_text(pynvml.nvmlDeviceGetName(handle))}, {memory:.0f} GiB, driver {driver}")
    except pynvml.NVMLError as error:
        reason = f"the NVIDIA driver answers: {error}"
    finally:
        pynvml.nvmlShutdown()
    return Gpus(tuple(names), reason)


def _text(value: str | bytes) -> str:
    """Older versions of nvidia-ml-py answer in bytes."""
    return value.decode() if isinstance(value, bytes) else value


def system_turbojpeg() -> str | None:
    """The system's TurboJPEG library, which PyTurboJPEG uses: file and version; None if there is none.

    Raises:
        OSError: it is there and does not load.
    """
    name = find_library("turbojpeg")
    if name is None:
        return None
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise OSError(f"{name} does not load: {error}") from error
    # The library does not tell its version; version 3 brought the functions that begin with tj3.
    return f"{name}, version {'3 or newer' if hasattr(library, 'tj3Init') else '2 or older'}"


def pillow_is_simd() -> bool:
    """Whether Pillow-SIMD stands in for Pillow. It numbers itself after the Pillow it stems from: 9.5.0.post2."""
    import PIL

    return ".post" in PIL.__version__


def libjpeg_turbo_of_pillow() -> str | None:
    """Version of the libjpeg-turbo in Pillow; None if it was built with another libjpeg."""
    from PIL import features

    if not features.check_feature("libjpeg_turbo"):
        return None
    version: str | None = features.version_feature("libjpeg_turbo")
    return version


def dali_version() -> str | None:
    """Package and version of NVIDIA DALI; None if it is not installed."""
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"] or ""
        if name.startswith("nvidia-dali"):
            return f"{name} {distribution.version}"
    return None
