"""Whose kernels run on a GPU: one is launched there, once a process and device.

Those in CUDA C need NVRTC and `cuda-bindings`, which torch's wheels for CUDA bring from 2.15 on. At
its first launch Triton compiles code in C, with the machine's compiler and Python's headers, and
keeps what it makes in a folder. Where one of these is missing, all launches fail, and an image that
is slim has none of the three.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sysconfig
import threading
from collections.abc import Sequence
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import torch

from fastload.render.transfer import on_device

logger = logging.getLogger(__name__)

OLDEST = (7, 0)
"""Compute capability from which on there is Triton: that of Volta. It may compile for older GPUs
(Pascal: 6.0 and 6.1), and does not say that the result is right."""
_COMPILER = (
    "Triton needs a C compiler (gcc or clang; the environment variable CC names another) and "
    "Python's headers: apt-get install gcc python3-dev"
)
_FOLDER = (
    "Triton keeps what it compiles in a folder that must be writable: set TRITON_CACHE_DIR=/folder"
)
_lock = threading.Lock()
_found: dict[tuple[torch.device, str], str] = {}
"""By device and way why its kernels do not run there."""
_warned: set[torch.device] = set()


def choice(device: torch.device, ways: Sequence[str]) -> tuple[str, str]:
    """The first of these ways (`fastload.render.fused.WAYS`) whose kernels run on a CUDA device,
    empty where none do; and why those before it do not, with the remedy, for a person.

    The first question about a device has a kernel launched there, and a failure of all logged as a
    warning; later ones have the answer of the first.
    """
    if device == torch.device(device.type):  # no number
        device = torch.device(device.type, torch.cuda.current_device())
    reasons = list[str]()
    with _lock:
        for way in ways:
            if (key := (device, way)) not in _found:
                _found[key] = _by_nvrtc(device) if way == "nvrtc" else _by_triton(device)
            if not _found[key]:
                return way, " ".join(reasons)
            reasons.append(f"Not {_NAMES[way]}: {_found[key].rstrip('.')}.")
        if device not in _warned:
            _warned.add(device)
            logger.warning(
                "%s: torch's operations make the batches, which is slower and rounds otherwise "
                "than on a CPU, since no kernels run. %s FASTLOAD_FUSED=0 chooses the operations "
                "without this warning.",
                *(device, " ".join(reasons)),
            )
        return "", " ".join(reasons)


_NAMES = {"nvrtc": "in CUDA C", "triton": "Triton's"}


def _by_nvrtc(device: torch.device) -> str:
    """Why the kernels in CUDA C do not run; one of them is launched."""
    if torch.version.cuda is None:
        return "this torch is not for CUDA"
    from fastload.errors import BackendUnavailableError
    from fastload.render import by_nvrtc

    out = on_device(np.zeros(1, dtype=np.int32), device)
    try:
        by_nvrtc.trial(out)
    except BackendUnavailableError as error:
        return str(error)
    except Exception as error:
        return _described(error)
    return ""


def _by_triton(device: torch.device) -> str:
    """Why Triton's kernels do not run; one of them is launched."""
    if find_spec("triton") is None:
        return "Triton is not installed: pip install triton"
    if torch.version.hip is None:
        capability = torch.cuda.get_device_capability(device)
        if capability < OLDEST:
            has, needs = ("{}.{}".format(*one) for one in (capability, OLDEST))
            return f"This GPU has compute capability {has}, Triton needs {needs} or newer"
    out = on_device(np.zeros(1, dtype=np.int32), device)
    try:
        _write_to_cache()
    except Exception as error:
        return f"{_described(error)}. {_FOLDER}"
    try:
        import_module("fastload.render.by_triton").trial(out)
    except Exception as error:
        compiles = isinstance(error, OSError | subprocess.CalledProcessError)
        remedy = f". {_COMPILER}" if compiles or "compiler" in str(error) else ""
        return _described(error) + remedy
    return ""


def _write_to_cache() -> None:
    """Raise what Triton raises where its cache cannot be written: the kernel of the trial may be
    there from another time, and others not."""
    cache = import_module("triton.runtime.cache")
    cache.get_cache_manager(sha256(b"fastload").hexdigest()).put("", "writable", binary=False)


def _described(error: Exception) -> str:
    """An exception, for a person."""
    if isinstance(error, subprocess.CalledProcessError):
        command = error.cmd if isinstance(error.cmd, str) else str(error.cmd[0])
        headers = sysconfig.get_paths()["include"]
        there = os.path.exists(os.path.join(headers, "Python.h"))
        missing = "" if there else f"; there is no Python.h in {headers}"
        return f"{command} ended with exit status {error.returncode}{missing}"
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300].rstrip('.')}"
