"""The kernels in CUDA C (`fastload/native/cuda/`), compiled by NVRTC: at run time, without a
compiler or headers on the machine, and for any GPU on a machine without one.

NVRTC and `cuda-bindings`, which calls it, come with torch's wheels for CUDA from 2.15 on.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from fastload.distribution import install_command
from fastload.errors import BackendUnavailableError
from fastload.files import replacing
from fastload.machine import cache_home

logger = logging.getLogger(__name__)

_FOLDER = Path(__file__).parents[1] / "native" / "cuda"
JPEGS, IMAGES, COLOUR = "jpegs", "images", "colour"
"""Groups of kernels, which are compiled together when one of them is needed: those that decode
JPEGs, that make batches of decoded images, and that change their colours."""
_PARTS = {
    JPEGS: ("entropy.cuh", "samples.cuh", "pixels.cuh", "resize.cuh"),
    IMAGES: ("convert.cuh", "render.cuh"),
    COLOUR: ("blur.cuh", "colour.cuh"),
}
"""The files that have them."""
_OPTIONS = ("--std=c++17", "--fmad=false", "--ptxas-options=-v")


def _remedy() -> str:
    cuda_12 = (torch.version.cuda or "").startswith("12.")
    return f"To have it: {install_command('nvrtc' if cuda_12 else 'nvrtc-cuda130')}"


@dataclass(frozen=True)
class Compiled:
    """Kernels for one GPU."""

    code: bytes
    """A cubin; or PTX, for a GPU that is newer than this NVRTC, whose driver compiles it."""
    log: str
    """What the compiler says: registers, spilled bytes and shared memory of each kernel. Empty
    where they were compiled before."""


def sources() -> dict[str, bytes]:
    """The files of the kernels, by the name by which they include each other."""
    return {f"cuda/{path.name}": path.read_bytes() for path in sorted(_FOLDER.glob("*.cuh"))}


def why_not() -> str:
    """Why nothing can be compiled here, for a person; empty where it can."""
    try:
        _nvrtc()
    except BackendUnavailableError as error:
        return str(error)
    return ""


def compile_kernels(capability: int, group: str = JPEGS) -> Compiled:
    """Compile a group of kernels for a compute capability, such as 90 of the H100 (9.0).

    Raises:
        BackendUnavailableError: there is no NVRTC, or it does not take them; the message says why.
    """
    nvrtc = _nvrtc()
    files = sources()
    text = "".join(f'#include "cuda/{part}"\n' for part in _PARTS[group])
    known = _checked(nvrtc, nvrtc.nvrtcGetSupportedArchs())
    exact = capability in known
    older = [number for number in known if number <= capability]
    if not older:
        raise BackendUnavailableError(
            f"NVRTC compiles for compute capability {min(known)} and above, and this GPU has "
            f"{capability}."
        )
    options = (f"--gpu-architecture={'sm' if exact else 'compute'}_{max(older)}", *_OPTIONS)
    names = [name.encode() for name in files]
    program = _checked(
        nvrtc,
        nvrtc.nvrtcCreateProgram(
            text.encode(), b"fastload.cu", len(files), list(files.values()), names
        ),
    )
    try:
        (failed,) = nvrtc.nvrtcCompileProgram(
            program, len(options), [option.encode() for option in options]
        )
        log = _text(nvrtc, program, "ProgramLog").decode(errors="replace").rstrip("\0 \n")
        if int(failed):
            raise BackendUnavailableError(f"NVRTC does not compile fastload's kernels: {log}")
        return Compiled(_text(nvrtc, program, "CUBIN" if exact else "PTX"), log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def kept_kernels(capability: int, group: str = JPEGS) -> Compiled:
    """As `compile_kernels`, kept in the folder of fastload's caches."""
    nvrtc = _nvrtc()
    version = nvrtc.nvrtcVersion()[1:]
    known = (capability, group, version, _OPTIONS, sorted(sources().items()))
    about = sha256(repr(known).encode())
    path = cache_home() / "kernels" / f"{about.hexdigest()[:32]}.cubin"
    try:
        return Compiled(path.read_bytes(), "")
    except OSError:
        made = compile_kernels(capability, group)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as beside:
            beside.write_bytes(made.code)
    except OSError as error:
        logger.debug("kernels are not kept: %s", error)
    return made


@cache
def _nvrtc() -> Any:
    """The module of cuda-bindings, with its library loaded."""
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        raise BackendUnavailableError(f"cuda-bindings is not installed. {_remedy()}")
    for library in _libraries():  # cuda-bindings looks in fewer places; it takes what is loaded
        try:
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
            break
        except OSError as error:
            logger.debug("%s: %s", library, error)
    try:
        nvrtc = import_module("cuda.bindings.nvrtc")
        _checked(nvrtc, nvrtc.nvrtcVersion())
    except Exception as error:
        raise BackendUnavailableError(f"NVRTC cannot be loaded ({error}). {_remedy()}") from error
    return nvrtc


def _libraries() -> Iterator[Path]:
    """NVRTC in NVIDIA's wheels, wherever they are on the path of modules."""
    spec = find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for pattern in ("cu*/lib/libnvrtc.so.1*", "cuda_nvrtc/lib/libnvrtc.so.1*"):
            yield from sorted(Path(folder).glob(pattern))


def _checked(nvrtc: Any, result: tuple[Any, ...]) -> Any:
    """The results of a call without its status. Raises BackendUnavailableError."""
    status, *found = result
    if int(status):
        said = nvrtc.nvrtcGetErrorString(status)[1]
        raise BackendUnavailableError(f"NVRTC: {said.decode(errors='replace')}")
    return found[0] if len(found) == 1 else found


def _text(nvrtc: Any, program: Any, what: str) -> bytes:
    """The log, cubin or PTX of a program."""
    size = _checked(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program))
    found = bytearray(size)
    _checked(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, found))
    return bytes(found)
