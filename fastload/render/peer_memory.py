"""Memory of a device that other processes of the machine can read: allocated here, opened there by
a handle, at an address that kernels of the other device may be given.

On a GPU it is CUDA's interprocess memory: a handle is opened in the context of the device that is
to read, and the driver then enables access between the two devices (cuIpcOpenMemHandle with
CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS; the device that has the memory need not be visible). On the
host, for kernels that run there, it is files that are mapped.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fastload.errors import BackendUnavailableError
from fastload.render.driver import Driver

Bytes = npt.NDArray[np.uint8]

_HANDLE = 64
"""Bytes of a CUipcMemHandle (CU_IPC_HANDLE_SIZE)."""
_LAZY_ENABLE_PEER_ACCESS = 1
_GRANULE = 2 << 20
"""The driver may cut smaller allocations from one block, and a handle is of the whole block."""


class PeerMemory(Protocol):
    """Blocks of memory on a device, and those of other processes that were opened."""

    nbytes: int
    """Bytes that were allocated here."""
    handles: list[bytes]
    """Of each block that was allocated here, in order."""

    def hold(self, arrays: Sequence[Bytes]) -> int:
        """Copy arrays, one after the other, to a new block; its address. Raises
        BackendUnavailableError, OSError: it cannot be allocated."""
        ...

    def settle(self) -> None:
        """Returns when all that was copied here is there, and no kernel of this process runs."""
        ...

    def open(self, handle: bytes) -> int:
        """The address here of a block of another process. That process keeps it until it was
        closed here. Raises BackendUnavailableError, OSError: it cannot be opened."""
        ...

    def close_opened(self) -> None:
        """Close what was opened. Nothing may read it any more."""
        ...

    def free(self) -> None:
        """Free what was allocated here. No process may have it open any more."""
        ...


def peer_memory(device: torch.device, folder: Path) -> PeerMemory:
    """Of a GPU; of the host in files of a folder. Raises BackendUnavailableError: there is none."""
    return OnHost(folder) if device.type == "cpu" else OnGpu(device)


def why_no_peers(device: torch.device) -> str:
    """Why no process can read the memory of another one's device, for a person; empty where that is
    not known before it is tried."""
    if not sys.platform.startswith("linux"):
        return "processes share the memory of GPUs on Linux only"
    if device.type != "cuda":
        return ""
    here = torch.cuda.current_device() if device.index is None else device.index
    others = [number for number in range(torch.cuda.device_count()) if number != here]
    if others and not any(torch.cuda.can_device_access_peer(here, other) for other in others):
        return f"{device} cannot read the memory of another GPU of this machine (peer access)"
    return ""


class OnGpu(Driver):
    """See `PeerMemory`. Not from torch's allocator, whose blocks have other tensors in them, too,
    and may be of a kind that has no handle (expandable segments)."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.nbytes, self.handles = 0, list[bytes]()
        self._own, self._opened = list[int](), list[int]()

    def hold(self, arrays: Sequence[Bytes]) -> int:
        size = -(-max(1, sum(map(len, arrays))) // _GRANULE) * _GRANULE
        calls, checked = self.calls, self.checked
        if torch.cuda.mem_get_info(self.device)[0] < size:
            torch.cuda.empty_cache()  # what torch keeps of tensors that are gone
        with self.current():
            address = int(checked(calls.cuMemAlloc(size)))
            self._own.append(address)
            self.nbytes += size
            at = address
            for array in arrays:
                if len(array):
                    checked(calls.cuMemcpyHtoD(at, array.ctypes.data, len(array)))
                at += len(array)
            handle = checked(calls.cuIpcGetMemHandle(address))
        self.handles.append(ctypes.string_at(handle.getPtr(), _HANDLE))
        return address

    def settle(self) -> None:
        with self.current():
            self.checked(self.calls.cuCtxSynchronize())

    def open(self, handle: bytes) -> int:
        if len(handle) != _HANDLE:
            raise BackendUnavailableError(f"{len(handle)} bytes are no handle of a GPU's memory.")
        given: Any = self.calls.CUipcMemHandle()
        ctypes.memmove(given.getPtr(), handle, _HANDLE)
        with self.current():
            opened = self.calls.cuIpcOpenMemHandle(given, _LAZY_ENABLE_PEER_ACCESS)
            address = int(self.checked(opened))
        self._opened.append(address)
        return address

    def close_opened(self) -> None:
        with self.current():
            while self._opened:
                self.checked(self.calls.cuIpcCloseMemHandle(self._opened.pop()))

    def free(self) -> None:
        with self.current():
            while self._own:
                self.checked(self.calls.cuMemFree(self._own.pop()))
        self.nbytes = 0
        self.handles.clear()


class OnHost:
    """See `PeerMemory`: a file a block, whose handle is its name."""

    def __init__(self, folder: Path) -> None:
        self.nbytes, self.handles = 0, list[bytes]()
        self._folder = folder
        self._own, self._opened = list[Bytes](), list[Bytes]()

    def hold(self, arrays: Sequence[Bytes]) -> int:
        name = f"block-{os.getpid()}-{id(self)}-{len(self.handles)}"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        with open(self._folder / name, "xb") as file:
            for array in arrays:
                file.write(array.data)
        self.handles.append(name.encode())
        self._own.append(self._mapped(name))
        self.nbytes += len(self._own[-1])
        return int(self._own[-1].ctypes.data)

    def _mapped(self, name: str) -> Bytes:
        return np.memmap(self._folder / name, np.uint8, "r")

    def settle(self) -> None:
        """Kernels run before their launch returns."""

    def open(self, handle: bytes) -> int:
        self._opened.append(self._mapped(handle.decode()))
        return int(self._opened[-1].ctypes.data)

    def close_opened(self) -> None:
        self._opened.clear()

    def free(self) -> None:
        self._own.clear()
        for handle in self.handles:
            (self._folder / handle.decode()).unlink(missing_ok=True)
        self.nbytes = 0
        self.handles.clear()
