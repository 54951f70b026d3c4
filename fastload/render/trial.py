"""Whether Triton's kernels run on a GPU: one of them is launched there, once a process and device.

At its first launch Triton compiles code in C, with the machine's compiler and Python's headers, and
keeps what it makes in a folder. Where one of these is missing, all launches fail, and an image that
is slim has none of the three.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sysconfig
import threading
from collections.abc import Callable
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
_found: dict[torch.device, str] = {}
"""By device what `failure` gives."""


def failure(device: torch.device, launch: Callable[[torch.Tensor], None]) -> str:
    """Why Triton's kernels do not run on a CUDA device, and the remedy, for a person; empty where
    they do.

    The first question about a device has a kernel launched there, and a failure logged as a
    warning; later ones have the answer of the first.

    Args:
        launch: launches a kernel that writes to this tensor of one int32.
    """
    if device == torch.device(device.type):  # no number
        device = torch.device(device.type, torch.cuda.current_device())
    with _lock:
        if device not in _found:
            _found[device] = why = _tried(device, launch)
            if why:
                logger.warning(
                    "%s: torch's operations make the batches, which is slower and rounds otherwise "
                    "than on a CPU, since Triton's kernels do not run. %s. FASTLOAD_FUSED=0 "
                    "chooses the operations without this warning.",
                    *(device, why),
                )
        return _found[device]


def _tried(device: torch.device, launch: Callable[[torch.Tensor], None]) -> str:
    """As `failure`, of a kernel that is launched now."""
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
        launch(out)
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
