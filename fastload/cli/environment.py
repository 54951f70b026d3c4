"""What a container or its host gives to a training run: NVIDIA driver, shared memory, a cache folder to write to.

Most of what goes wrong when an image is started goes wrong here, before the first batch. The image's entry point runs
this module each time: it takes a fraction of a second, since it imports neither torch nor a backend.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fastload.machine import cache_home

_GIB = 1 << 30
_MIB = 1 << 20
_DOCKER_DEFAULT_SHM = 64 * _MIB
_OLDEST_DRIVER = {11: "450", 12: "525", 13: "580"}
"""The oldest driver for any minor version of a CUDA major version (NVIDIA, CUDA Compatibility, table 1)."""
_TOOLKIT = (
    "If Docker then finds no device driver, the host lacks the NVIDIA Container Toolkit: sudo apt-get install -y "
    "nvidia-container-toolkit && sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
)

Status = Literal["ok", "note", "warning", "broken"]
"""`note`: something is absent that one can do without. `warning`: it costs speed or will fail later. `broken`: fastload
does not work like this."""


@dataclass(frozen=True)
class Finding:
    """One line of `fastload doctor`."""

    group: str
    """Heading under which it is listed."""
    name: str
    value: str
    status: Status = "ok"
    advice: str = ""
    """What to do; empty when all is well."""


def environment() -> Iterator[Finding]:
    """Everything below, for this process."""
    yield from nvidia(installed_driver(), kernel_driver(), torch_cuda(), os.environ.get("NVIDIA_VISIBLE_DEVICES"))
    yield from shared_memory()
    yield from cache_folder(cache_home())


def shared_memory(path: str = "/dev/shm") -> Iterator[Finding]:
    """The `torch` backend's workers hand batches over through it."""
    try:
        stat = os.statvfs(path)
    except OSError as error:
        yield Finding(
            "machine", path, f"absent ({error.strerror})", "warning", "Worker processes need it: mount a tmpfs there."
        )
        return
    total, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
    small = free < _GIB
    yield Finding(
        "machine",
        path,
        f"{_size(free)} free of {_size(total)}" + (", Docker's default" if total == _DOCKER_DEFAULT_SHM else ""),
        "warning" if small else "ok",
        "Worker processes pass batches through it and die when it is full: docker run --shm-size=8g "
        "(shm_size: 8g in a compose file; or --ipc=host)."
        if small
        else "",
    )


def _size(count: int) -> str:
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / _MIB:.0f} MiB"


def cache_folder(path: Path) -> Iterator[Finding]:
    """Decoded caches go there unless a command names another directory."""
    nearest = next(parent for parent in (path, *path.parents) if os.path.isdir(parent))
    stat = os.statvfs(nearest)
    if os.access(nearest, os.W_OK | os.X_OK):
        yield Finding("machine", "cache folder", f"{path}, {_size(stat.f_bavail * stat.f_frsize)} free")
    elif stat.f_flag & os.ST_RDONLY:
        yield Finding(
            "machine",
            "cache folder",
            f"{path}: mounted read-only",
            "warning",
            f"Mount it without `:ro` (docker run -v fastload-cache:{nearest}), or name a folder that can be written: "
            "XDG_CACHE_HOME=/folder",
        )
    else:
        user = f"{os.geteuid()}:{os.getegid()}"
        yield Finding(
            "machine",
            "cache folder",
            f"{path}: user {user} may not write to {nearest}",
            "warning",
            f"Give the folder to that user (on the host of a container: sudo chown -R {user} FOLDER), run as its owner "
            '(docker run --user "$(id -u):$(id -g)"), or name another one: XDG_CACHE_HOME=/folder',
        )


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver as this process can load it (NVML)."""

    version: str | None
    """Such as "550.54.15"; None if there is none, or it does not answer."""
    cuda: tuple[int, int] | None = None
    """The newest CUDA that it runs, as (major, minor); None if it does not say."""
    reason: str = ""
    """Why there is no version."""
    mismatched: bool = False
    """Its library and its kernel module are of different versions."""


def nvidia(driver: Driver, kernel: str | None, built: tuple[int, int] | None, wanted: str | None) -> Iterator[Finding]:
    """What keeps torch from the GPU. Nothing is found where all is well, or where no GPU is expected.

    Args:
        driver: from `installed_driver`.
        kernel: version of the driver that runs in the kernel, which a container shares with its host.
        built: the CUDA that torch was built for; None for a build without.
        wanted: NVIDIA_VISIBLE_DEVICES. An image for GPUs sets it; "void" and "none" say that no GPU is wanted.
    """
    if built is None or wanted in ("void", "none"):
        return
    if driver.version is None:
        if driver.mismatched:
            yield Finding(
                "GPU",
                "NVIDIA driver",
                f"its library and its kernel module differ ({driver.reason})",
                "warning",
                "The driver was updated while it ran: sudo reboot, on the host.",
            )
        elif kernel is not None:
            yield Finding(
                "GPU",
                "NVIDIA driver",
                f"{kernel} runs on this machine, and cannot be loaded here ({driver.reason})",
                "warning",
                "In a container, start it with its GPUs: docker run --gpus all (podman run --device "
                f"nvidia.com/gpu=all). {_TOOLKIT}",
            )
        elif wanted:
            yield Finding(
                "GPU",
                "NVIDIA driver",
                f"none in this container (NVIDIA_VISIBLE_DEVICES={wanted}), so training runs on the CPU",
                "warning",
                f"On a machine with GPUs: docker run --gpus all. {_TOOLKIT}. On one without, say so: docker run -e "
                "NVIDIA_VISIBLE_DEVICES=void",
            )
    elif driver.cuda is not None and driver.cuda[0] < built[0]:
        # Within a major version of CUDA an older driver runs newer libraries.
        oldest = f"driver {_OLDEST_DRIVER[built[0]]} or newer" if built[0] in _OLDEST_DRIVER else "a newer driver"
        yield Finding(
            "GPU",
            "NVIDIA driver",
            f"{driver.version} is too old: it runs CUDA up to {_dotted(driver.cuda)}, torch was built for "
            f"{_dotted(built)}",
            "warning",
            f"Install {oldest} on the host, or take a torch for CUDA {driver.cuda[0]} (pytorch.org, Get Started; "
            "in an image: docker build --build-arg TORCH_INDEX_URL=...).",
        )


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def installed_driver() -> Driver:
    """The driver of this machine or container."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return Driver(None, reason="nvidia-ml-py is not installed")
    except pynvml.NVMLError as error:
        mismatched = error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
        return Driver(None, reason=str(error), mismatched=mismatched)
    try:
        version = pynvml.nvmlSystemGetDriverVersion()
        cuda: int = pynvml.nvmlSystemGetCudaDriverVersion()  # 12040 for 12.4
    except pynvml.NVMLError as error:
        return Driver(None, reason=str(error))
    finally:
        pynvml.nvmlShutdown()
    return Driver(version.decode() if isinstance(version, bytes) else version, (cuda // 1000, cuda % 1000 // 10))


def kernel_driver(path: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Version of the NVIDIA driver in the running kernel; None if there is none."""
    try:
        found = re.search(r"\s(\d+(?:\.\d+)+)\s", path.read_text())
    except OSError:
        return None
    return found[1] if found else None


def torch_cuda() -> tuple[int, int] | None:
    """The CUDA that the installed torch was built for; None for a build without CUDA, or no torch. Does not load it."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return None
    source = Path(torch.origin).with_name("version.py")
    spec = importlib.util.spec_from_file_location("_torch_version", source)
    if not source.is_file() or spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    numbers = re.match(r"(\d+)\.(\d+)", module.cuda or "")
    return (int(numbers[1]), int(numbers[2])) if numbers else None


def main() -> None:
    """Print what is wrong to standard error, and nothing where all is well."""
    for finding in environment():
        if finding.status in ("warning", "broken"):
            print(f"fastload: {finding.name}: {finding.value}\n    {finding.advice}", file=sys.stderr)


if __name__ == "__main__":
    main()
