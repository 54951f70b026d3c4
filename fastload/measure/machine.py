"""The machine and the libraries that something was measured on."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib import metadata

import msgspec

from fastload.errors import BackendUnavailableError, counted
from fastload.machine import (
    affinity_cores,
    cpu_model,
    dali_version,
    driver_gpus,
    libjpeg_turbo_of_pillow,
    memory_bytes,
    pillow_is_simd,
    quota_cores,
    simd_extensions,
    system_turbojpeg,
)

_PACKAGES = ("torch", "torchvision", "numpy", "simplejpeg", "PyTurboJPEG", "opencv-python-headless", "opencv-python")


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where it ran. Everything as text or numbers to show."""

    cpu: str
    cores: int
    """In the machine."""
    affinity_cores: int
    """That this process may use."""
    quota_cores: float | None
    """The cgroup's limit; None if there is none."""
    simd: tuple[str, ...]
    memory: int
    """RAM [bytes]; the cgroup's limit if that is less."""
    system: str
    python: str
    gpus: tuple[str, ...]
    libraries: Mapping[str, str]
    """Package or library: version. Only what is there."""

    def __str__(self) -> str:
        """In one line."""
        cores = f"{self.affinity_cores} of {counted(self.cores, 'core')}"
        if self.quota_cores is not None:
            cores += f", quota {self.quota_cores:g}"
        parts = [self.cpu, cores, " ".join(self.simd), f"{self.memory / (1 << 30):.0f} GiB", *self.gpus]
        return ", ".join(part for part in (*parts, f"Python {self.python}") if part)


def describe_machine() -> Machine:
    """Of this machine, now. Imports torch."""
    return Machine(
        cpu=cpu_model(),
        cores=os.cpu_count() or 1,
        affinity_cores=affinity_cores(),
        quota_cores=quota_cores(),
        simd=simd_extensions(),
        memory=memory_bytes(),
        system=platform.platform(terse=True),
        python=platform.python_version(),
        gpus=driver_gpus().names,
        libraries=_libraries(),
    )


def _libraries() -> dict[str, str]:
    """Versions of what decodes, resizes and loads, and what SIMD each chose, where it tells."""
    import PIL
    import torch

    found = {name: version for name in _PACKAGES if (version := _version(name)) is not None}
    found["torch CPU kernels"] = torch.backends.cpu.get_cpu_capability()
    if torch.version.cuda:
        found["CUDA of torch"] = torch.version.cuda
    found["Pillow-SIMD" if pillow_is_simd() else "Pillow"] = PIL.__version__
    found["libjpeg-turbo of Pillow"] = libjpeg_turbo_of_pillow() or "none"
    try:
        found["libturbojpeg"] = system_turbojpeg() or "none"
    except OSError as error:
        found["libturbojpeg"] = str(error)
    if dali := dali_version():
        found["DALI"] = dali
    if simd := _native_simd():
        found["native core"] = f"SIMD {simd}"
    if os.environ.get("JSIMD_FORCENONE") == "1":
        found["JSIMD_FORCENONE"] = "1: libjpeg-turbo without SIMD"
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _native_simd() -> str | None:
    from fastload.native import NativePool

    try:
        pool = NativePool(1)
    except BackendUnavailableError:
        return None
    try:
        return pool.simd
    finally:
        pool.close()
