"""What a container or its host gives to a training run: NVIDIA driver, shared memory, a cache
folder to write to.

The image's entry point runs this module each time, so it imports neither torch nor a backend.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from fastload.files import free_bytes
from fastload.machine import cache_home

_GIB, _MIB = 1 << 30, 1 << 20
# The oldest driver for any minor version of a CUDA major version (NVIDIA, CUDA Compatibility, table
# 1).
_OLDEST_DRIVER = {11: "450", 12: "525", 13: "580"}
_TOOLKIT = (
    "If Docker then finds no device driver, the host lacks the NVIDIA Container Toolkit: sudo "
    "apt-get install -y nvidia-container-toolkit && sudo nvidia-ctk runtime configure "
    "--runtime=docker && sudo systemctl restart docker"
)
_SMALL_SHM = (
    "Worker processes pass batches through it and die when it is full: docker run --shm-size=8g "
    "(shm_size: 8g in a compose file; or --ipc=host)."
)

Status = Literal["ok", "note", "warning", "broken"]
"""`note`: something is absent that one can do without. `warning`: it costs speed or will fail
later. `broken`: fastload does not work like this."""


@dataclass(frozen=True)
class Finding:
    """One line of `fastload doctor`, under the heading of its group."""

    group: str
    name: str
    value: str
    status: Status = "ok"
    advice: str = ""
    """What to do; empty when all is well."""

    @classmethod
    def advised(
        cls, group: str, name: str, value: str, advice: str, status: Status = "warning"
    ) -> Finding:
        """Of this status if there is something to advise."""
        return cls(group, name, value, status if advice else "ok", advice)


def environment() -> Iterator[Finding]:
    """Everything below, for this process."""
    yield from nvidia(
        installed_driver(), kernel_driver(), torch_cuda(), os.environ.get("NVIDIA_VISIBLE_DEVICES")
    )
    yield from shared_memory()
    yield from cache_folder(cache_home())


def shared_memory(path: str = "/dev/shm") -> Iterator[Finding]:
    """The `torch` backend's workers hand batches over through it."""
    if not hasattr(os, "statvfs"):  # Windows, where no worker processes are
        return
    try:
        stat = os.statvfs(path)
    except OSError as error:
        value = f"absent ({error.strerror})"
        advice = "Worker processes need it: mount a tmpfs there."
    else:
        total, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
        value = f"{_size(free)} free of {_size(total)}" + (
            ", Docker's default" if total == 64 * _MIB else ""
        )
        advice = "" if free >= _GIB else _SMALL_SHM
    yield Finding.advised("machine", path, value, advice)


def _size(count: int) -> str:
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / _MIB:.0f} MiB"


def cache_folder(path: Path) -> Iterator[Finding]:
    """Decoded caches go there unless a command names another directory."""
    nearest = next(parent for parent in (path, *path.parents) if os.path.isdir(parent))
    advice = ""
    if os.access(nearest, os.W_OK | os.X_OK):
        value = f"{path}, {_size(free_bytes(nearest))} free"
    elif not hasattr(os, "statvfs"):
        value = f"{path}: {nearest} may not be written to"
        advice = "Give the folder to this user"
    elif os.statvfs(nearest).f_flag & os.ST_RDONLY:
        value = f"{path}: mounted read-only"
        advice = f"Mount it without `:ro` (docker run -v fastload-cache:{nearest})"
    else:
        user = f"{os.geteuid()}:{os.getegid()}"
        value = f"{path}: user {user} may not write to {nearest}"
        advice = (
            f"Give the folder to that user (on the host of a container: sudo chown -R {user} "
            "FOLDER), run as its owner "
            '(docker run --user "$(id -u):$(id -g)")'
        )
    advice += ", or name a folder that can be written: XDG_CACHE_HOME=/folder" if advice else ""
    yield Finding.advised("machine", "cache folder", value, advice)


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver as this process can load it (NVML)."""

    version: str | None
    """Such as "550.54.15"; None if there is none, or it does not answer."""
    cuda: tuple[int, int] = (0, 0)
    """The newest CUDA that it runs, as (major, minor)."""
    reason: str = ""
    """Why there is no version."""


def nvidia(
    driver: Driver, kernel: str | None, built: tuple[int, int] | None, wanted: str | None
) -> Iterator[Finding]:
    """What keeps torch from the GPU: nothing where all is well, or where no GPU is expected.

    `kernel` is the version of the driver that runs in the kernel, which a container shares with its
    host; `built` the CUDA that torch was built for; `wanted` NVIDIA_VISIBLE_DEVICES, where "void"
    and "none" say that no GPU is wanted.
    """
    if built is None or wanted in ("void", "none"):
        return
    if driver.version is not None:
        # Within a major version of CUDA an older driver runs newer libraries.
        if driver.cuda[0] >= built[0]:
            return
        oldest = (
            f"driver {_OLDEST_DRIVER[built[0]]} or newer"
            if built[0] in _OLDEST_DRIVER
            else "a newer driver"
        )
        runs, needs = ("{}.{}".format(*cuda) for cuda in (driver.cuda, built))
        value = (
            f"{driver.version} is too old: it runs CUDA up to {runs}, torch was built for {needs}"
        )
        advice = (
            f"Install {oldest} on the host, or take a torch for CUDA {driver.cuda[0]} "
            "(pytorch.org, Get Started; in an image: docker build --build-arg TORCH_INDEX_URL=...)."
        )
    elif kernel is not None:
        value = f"{kernel} runs on this machine, and cannot be loaded here ({driver.reason})"
        advice = (
            "In a container, start it with its GPUs: docker run --gpus all (podman run --device "
            f"nvidia.com/gpu=all). {_TOOLKIT}"
        )
    elif wanted:
        value = (
            f"none in this container (NVIDIA_VISIBLE_DEVICES={wanted}), so training runs on the CPU"
        )
        advice = (
            f"On a machine with GPUs: docker run --gpus all. {_TOOLKIT}. On one without, say so: "
            "docker run -e NVIDIA_VISIBLE_DEVICES=void"
        )
    else:
        return
    yield Finding.advised("GPU", "NVIDIA driver", value, advice)


def installed_driver() -> Driver:
    """The driver of this machine or container."""
    try:
        import pynvml
    except ImportError:
        return Driver(None, reason="nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
        try:
            version = pynvml.nvmlSystemGetDriverVersion()
            cuda: int = pynvml.nvmlSystemGetCudaDriverVersion()  # 12040 for 12.4
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return Driver(None, reason=str(error))
    return Driver(
        version.decode() if isinstance(version, bytes) else version,
        (cuda // 1000, cuda % 1000 // 10),
    )


def kernel_driver(path: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Version of the NVIDIA driver in the running kernel; None if there is none."""
    try:
        match = re.search(r"\s(\d+(?:\.\d+)+)\s", path.read_text())
    except OSError:
        return None
    return match[1] if match else None


def torch_cuda() -> tuple[int, int] | None:
    """The CUDA that the installed torch was built for; None for a build without CUDA, or no torch.
    Does not load it."""
    torch = find_spec("torch")
    source = (
        Path(torch.origin).with_name("version.py")
        if torch is not None and torch.origin is not None
        else None
    )
    if source is None or not source.is_file():
        return None
    numbers = re.match(r"(\d+)\.(\d+)", runpy.run_path(str(source))["cuda"] or "")
    return (int(numbers[1]), int(numbers[2])) if numbers else None


def main() -> None:
    """Print what is wrong to standard error, and nothing where all is well."""
    for finding in environment():
        if finding.advice:
            print(
                f"fastload: {finding.name}: {finding.value}\n    {finding.advice}", file=sys.stderr
            )


if __name__ == "__main__":
    main()
