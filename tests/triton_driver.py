"""A stand-in for NVIDIA's driver, with which Triton's own one works as it does on a GPU, up to the
launch: it compiles its part in C, links and loads it, and compiles kernels, loads and launches
them; nothing runs.

`python -m tests.triton_driver FOLDER` prints as JSON what fastload makes of a machine for each of
`MACHINES`, in a process of its own each.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import deque
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload.cli import doctor
from fastload.draws import Draws
from fastload.recipe import Recipe
from fastload.render import fused, nvrtc
from fastload.sources.kinds import IMAGE
from tests.cuda_driver import Refused, driver_on_host
from tests.simulated_gpu import GPU, LazyGpu, OnGpu

_ANSWERS = """
#include <stddef.h>
int launches = 0;
int cuCtxGetCurrent(void **out) { *out = (void *)1; return 0; }
int cuCtxGetDevice(int *out) { *out = 0; return 0; }
int cuCtxGetLimit(size_t *out, int which) { *out = 1 << 20; return 0; }
int cuDeviceGet(int *out, int number) { *out = number; return 0; }
int cuDeviceGetAttribute(int *out, int which, int device) { *out = 65536; return 0; }
int cuDevicePrimaryCtxRetain(void **out, int device) { *out = (void *)1; return 0; }
int cuDriverGetVersion(int *out) { *out = 13000; return 0; }
int cuFuncGetAttribute(int *out, int which, void *f) { *out = which ? 0 : 1024; return 0; }
int cuModuleLoadData(void **out, const void *image) { *out = (void *)1; return image == NULL; }
int cuModuleGetFunction(void **out, void *m, const char *name) { *out = (void *)1; return 0; }
int cuPointerGetAttribute(void *out, int which, size_t at) { *(size_t *)out = at; return 0; }
int cuLaunchKernel() { launches += 1; return 0; }
int cuLaunchKernelEx() { launches += 1; return 0; }
"""
"""What some of its functions answer. All others say that all is well."""


def driver_without_gpu(folder: Path) -> ctypes.CDLL:
    """The library, compiled and loaded under the name by which Triton looks for NVIDIA's."""
    triton = find_spec("triton")
    assert triton is not None
    assert triton.origin is not None
    source = Path(triton.origin).parent / "backends" / "nvidia" / "driver.c"
    asked = set(re.findall(r"\b(cu[A-Z]\w+)\(", source.read_text()))
    others = sorted(asked - set(re.findall(r"cu[A-Z]\w+", _ANSWERS)))
    code, library = folder / "cuda.c", folder / "libcuda.so.1"
    code.write_text(_ANSWERS + "".join(f"int {name}() {{ return 0; }}\n" for name in others))
    command = ["gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{library.name}", "-o", str(library)]
    subprocess.run([*command, str(code)], check=True)
    return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


class _DoneAtOnce(deque[Callable[[], None]]):
    """A queue of a stream that leaves nothing for later."""

    def append(self, work: Callable[[], None]) -> None:
        work()


class Machine:
    """One without a GPU whose driver is `driver_without_gpu`; `torch.cuda` says what `LazyGpu`
    says."""

    def __init__(self, folder: Path, driver: ctypes.CDLL) -> None:
        self.folder, self.patch = folder, pytest.MonkeyPatch()
        self._launches = ctypes.c_int.in_dll(driver, "launches")
        self.patch.setenv("TRITON_CACHE_DIR", str(folder / "cache"))
        self.patch.setenv("TRITON_LIBCUDA_PATH", str(folder.parent))
        self.gpu = LazyGpu(self.patch)
        self.gpu.current.work = _DoneAtOnce()
        self.of_capability(9, 0)
        self.patch.setattr(torch.cuda, "device_count", lambda: GPU.index + 1)
        self.patch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0)
        # Without this package nothing is compiled by NVRTC.
        self.patch.setattr(nvrtc, "find_spec", lambda name: None)
        self.logged = list[str]()
        handler = logging.Handler()
        self.patch.setattr(handler, "emit", lambda record: self.logged.append(record.getMessage()))
        logging.getLogger("fastload").addHandler(handler)

    def of_capability(self, *number: int) -> None:
        self.patch.setattr(torch.cuda, "get_device_capability", lambda device=None: number)

    def answer(self) -> dict[str, Any]:
        """What fastload says and does."""
        found: dict[str, Any] = {"why_not": [fused.why_not(GPU) for _ in range(2)]}
        found |= {"launches": self._launches.value, "logged": list(self.logged)}
        images = self.gpu.copy(torch.from_numpy(np.full((2, 3, 4, 5), 51, np.uint8)))
        floats = [v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.1,), (0.5,))]
        (program,) = Recipe.from_transform(v2.Compose(floats)).split().programs
        draws, kinds = Draws(0, 0, np.arange(2)), {"image": IMAGE}
        made = program({"image": images}, kinds, draws)["image"]
        assert isinstance(made, OnGpu)
        found["made"] = made.as_subclass(torch.Tensor).unique().tolist()
        found["launches, of a batch too"] = self._launches.value
        with fastload.create_loader(
            (np.zeros((4, 8, 8, 3), np.uint8), np.arange(4)), 2, device=GPU
        ) as loader:
            found["explain"] = loader.explain()
        *_, last = doctor.kernels()
        return found | {"doctor": [last.status, last.name, last.value]}


def _whole(machine: Machine) -> None:
    """Nothing is missing."""


def _no_compiler(machine: Machine) -> None:
    machine.patch.setenv("PATH", str(machine.folder))


def _no_headers(machine: Machine) -> None:
    paths = sysconfig.get_paths() | {"include": str(machine.folder)}
    machine.patch.setattr(sysconfig, "get_paths", lambda *given, **named: paths)


def _no_cache(machine: Machine) -> None:
    """Where its folder would be there is a file, as no user may write there."""
    machine.patch.setenv("TRITON_CACHE_DIR", str(Path(__file__) / "cache"))


def _a_cache_that_is_not_written_to(machine: Machine) -> None:
    """It has the kernel of the trial from another time, and takes no other."""
    shutil.copytree(machine.folder.with_name("0") / "cache", machine.folder / "cache")
    (known,) = (machine.folder / "cache").glob("*/writable")
    shutil.rmtree(known.parent)
    known.parent.touch()


def _pascal(machine: Machine) -> None:
    machine.of_capability(6, 1)


def _switched_off(machine: Machine) -> None:
    machine.patch.setenv(fused.SWITCH, "0")


def _nvrtc(machine: Machine) -> None:
    """NVRTC compiles, the native core runs what it is to launch, and there is no compiler."""
    _no_compiler(machine)
    _with_nvrtc(machine, driver_on_host())


def _nvrtc_too_new(machine: Machine) -> None:
    """The driver does not take what it makes; Triton's kernels run."""
    driver = driver_on_host()
    driver.cuModuleLoadData = lambda code: (Refused(),)
    _with_nvrtc(machine, driver)


def _with_nvrtc(machine: Machine, driver: Any) -> None:
    machine.patch.setattr(nvrtc, "find_spec", find_spec)
    machine.patch.setenv("XDG_CACHE_HOME", str(machine.folder))
    assert not nvrtc.why_not()  # which imports the real driver
    machine.patch.setitem(sys.modules, "cuda.bindings.driver", driver)


MACHINES: dict[str, Callable[[Machine], None]] = {
    "whole": _whole,
    "no compiler": _no_compiler,
    "no headers": _no_headers,
    "no cache": _no_cache,
    "a cache that is not written to": _a_cache_that_is_not_written_to,
    "Pascal": _pascal,
    "switched off": _switched_off,
    "NVRTC": _nvrtc,
    "an NVRTC that is too new": _nvrtc_too_new,
}


def main(folder: Path) -> None:
    driver, answers = driver_without_gpu(folder), dict[str, Any]()
    import_module("fastload.render.kernels")  # imports Triton, once for all
    for number, (name, of_kind) in enumerate(MACHINES.items()):
        place = folder / str(number)
        place.mkdir()
        if (child := os.fork()) == 0:
            machine = Machine(place, driver)
            of_kind(machine)
            (place / "answer.json").write_text(json.dumps(machine.answer()))
            os._exit(0)
        os.waitpid(child, 0)
        answers[name] = json.loads((place / "answer.json").read_text())
    print(json.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
