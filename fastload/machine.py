"""What this process may use, and what the machine and its libraries are, as plain facts.

Loaders divide work by the cores, and keep torch to one thread beside theirs; `fastload doctor`
judges what it finds, benchmarks record it.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import platform
import re
from collections.abc import Iterator
from ctypes.util import find_library
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import psutil

_OPENMP = re.compile(r"/(?:.*/)?lib(?:gomp|iomp5|omp)[^/\n]*\.so[^/\n]*$", re.MULTILINE)
# Instruction sets that libjpeg-turbo and resizing kernels choose from, as /proc/cpuinfo calls them.
_SIMD = {"x86_64": ("sse2", "sse4_1", "avx2", "avx512bw"), "aarch64": ("asimd", "sve")}


def usable_cores() -> int:
    """Cores for one training process: by affinity and cgroup quota, shared by the processes of this
    machine. At least 1."""
    return max(1, math.floor(min(affinity_cores(), quota_cores() or math.inf) / ranks_here()))


def ranks_here() -> int:
    """Training processes of this machine, as launchers such as torchrun say in LOCAL_WORLD_SIZE;
    1 where none says it."""
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(said)) if said.isdecimal() else 1


def affinity_cores() -> int:
    """Cores that the scheduler may put this process on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def use_one_thread_here() -> None:
    """Let torch's CPU kernels run on the calling thread alone; other threads are not affected.

    Otherwise each kernel wakes a team of OpenMP threads that wait for each other by spinning.
    Beside threads that decode, which leave no core free, that made batches of 32 photographs
    four times slower (2 cores). As `torch.set_num_threads` would change the whole process, the
    number that OpenMP keeps for each thread ("nthreads-var", OpenMP 5.2, section 2.4) is set in
    every OpenMP library that is loaded, if there is any.
    """
    import torch

    torch.get_num_threads()  # torch sets this thread's number at its first use: now, not later
    with contextlib.suppress(OSError):  # not Linux
        for library in set(_OPENMP.findall(Path("/proc/self/maps").read_text())):
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_NOW).omp_set_num_threads(1)


def quota_cores(root: Path = Path("/")) -> float | None:
    """The cgroup's CPU bandwidth in cores, 1.5 for 150 ms of every 100 ms; None if it is not
    limited or not known.

    The limit of any parent applies as well. Reads cgroup v2 (`cpu.max`) and v1
    (`cpu.cfs_quota_us`).
    """
    limits: list[float] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for folder in _upwards(root / "sys/fs/cgroup", path):
                limits += _ratio(*_read(folder / "cpu.max").split()[:2])
        elif "cpu" in controllers.split(","):
            for mount in (controllers, "cpu"):
                for folder in _upwards(root / "sys/fs/cgroup" / mount, path):
                    limits += _ratio(
                        _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
                    )
    return min(limits, default=None)


def _upwards(mount: Path, path: str) -> list[Path]:
    """The cgroup's folder and its parents. Inside a container the path may be the host's; the mount
    itself counts."""
    names = [name for name in path.split("/") if name and name != ".."]
    return [mount.joinpath(*names[:count]) for count in range(len(names), -1, -1)]


def _ratio(quota: str = "", period: str = "") -> list[float]:
    """[quota / period], or [] for "max", -1, and what cannot be read."""
    try:
        limit = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return []
    return [limit] if limit > 0 else []


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def memory_bytes() -> int:
    """RAM, or the limit of this container where that is less."""
    total: int = psutil.virtual_memory().total
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):
        text = _read(Path("/sys/fs/cgroup") / limit)
        if text.isdigit():  # absent, or "max"
            total = min(total, int(text))
    return total


def cpu_model() -> str:
    """The processor's name as it gives it itself; its architecture where it gives none."""
    return next(
        (value for name, value in _cpuinfo() if name == "model name" and value),
        platform.machine(),
    )


def simd_extensions() -> tuple[str, ...]:
    """Those of `_SIMD` that this processor has; empty where that cannot be known."""
    flags = next((value.split() for name, value in _cpuinfo() if name in ("flags", "features")), [])
    return tuple(flag for flag in _SIMD.get(platform.machine(), ()) if flag in flags)


def _cpuinfo() -> Iterator[tuple[str, str]]:
    """The fields of /proc/cpuinfo, which only Linux has."""
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        yield name.strip().lower(), value.strip()


def cache_home() -> Path:
    """The folder of fastload's caches, unless a command or an argument names another; it need not
    be there yet."""
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".cache") / "fastload"


def file_system_of(path: str) -> str:
    """The kind of the file system that a path is on ("ext4", "nfs4"); "" where Linux does not say.
    Of proc(5), mountinfo: the fields after " - " begin with the kind, the fifth is the place."""
    place = os.path.realpath(path)
    nearest = "", ""
    for line in _read(Path("/proc/self/mountinfo")).splitlines():
        before, _, after = line.partition(" - ")
        mount = before.split()[4].encode().decode("unicode_escape")  # \\040 for a space
        inside = mount == "/" or place == mount or place.startswith(f"{mount}/")
        if inside and len(mount) >= len(nearest[0]):
            nearest = mount, after.split()[0]
    return nearest[1]


class Gpus(NamedTuple):
    """What the NVIDIA driver says (NVML)."""

    names: tuple[str, ...]
    """One a GPU, with memory and driver version."""
    reason: str
    """Why there are none."""


def driver_gpus() -> Gpus:
    """The GPUs of this machine, whether or not torch can use them."""
    try:
        import pynvml
    except ImportError:
        return Gpus((), "nvidia-ml-py is not installed")
    names = []
    try:
        pynvml.nvmlInit()
        driver = pynvml.nvmlSystemGetDriverVersion()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle).total / (1 << 30)
            names.append(f"{pynvml.nvmlDeviceGetName(handle)}, {memory:.0f} GiB, driver {driver}")
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return Gpus(tuple(names), f"the NVIDIA driver is not there, or fails: {error}")
    return Gpus(tuple(names), "the driver lists none")


def system_turbojpeg() -> str | None:
    """The system's TurboJPEG library, which PyTurboJPEG uses: file and version; None if there is
    none. Raises OSError: it is there and does not load."""
    name = find_library("turbojpeg")
    if name is not None:
        library = ctypes.CDLL(name)
    else:
        # It asks ldconfig, gcc and ld. The loader knows LD_LIBRARY_PATH without them, where
        # PyTurboJPEG looks for this name, too.
        name = "libturbojpeg.so.0"
        try:
            library = ctypes.CDLL(name)
        except OSError:
            return None
    # The library does not tell its version; version 3 brought the functions that begin with tj3.
    return f"{name}, version {'3 or newer' if hasattr(library, 'tj3Init') else '2 or older'}"


def pillow_is_simd() -> bool:
    """Whether Pillow-SIMD stands in for Pillow. It numbers itself after the Pillow it stems from:
    9.5.0.post2."""
    import PIL

    return ".post" in PIL.__version__


def libjpeg_turbo_of_pillow() -> str | None:
    """Version of the libjpeg-turbo in Pillow; None if it was built with another libjpeg."""
    from PIL import features

    version: str | None = features.version_feature("libjpeg_turbo")
    return version


def installed_distribution(begin: str) -> str | None:
    """Name and version of an installed distribution whose name begins so ("nvidia-dali"); None if
    there is none."""
    installed = (f"{one.metadata['Name']} {one.version}" for one in metadata.distributions())
    return next((name for name in installed if name.startswith(begin)), None)


def dali_version() -> str | None:
    """Package and version of NVIDIA DALI; None if it is not installed."""
    return installed_distribution("nvidia-dali")
