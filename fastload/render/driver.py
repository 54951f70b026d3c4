"""Kernels in CUDA C on a device: compiled by NVRTC, loaded and launched by NVIDIA's driver, through
`cuda-bindings`; on a CPU run by the native core, which is for tests."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import torch

from fastload import native
from fastload.errors import BackendUnavailableError
from fastload.render.nvrtc import kept_kernels
from fastload.render.transfer import stream_of


class Driver:
    """NVIDIA's driver, for a GPU, in the context of CUDA's runtime, which is torch's.

    Raises:
        BackendUnavailableError: the driver refuses; the message says what it says. Also of calls.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.calls = calls = import_module("cuda.bindings.driver")
        self.checked(calls.cuInit(0))
        handle = self.checked(calls.cuDeviceGet(device.index))
        # It is kept as long as the process lives.
        self._context = self.checked(calls.cuDevicePrimaryCtxRetain(handle))

    @contextmanager
    def current(self) -> Iterator[None]:
        """The device's context is the current one of this thread, as the driver's calls need it. In
        a thread that has not used CUDA none is, and `torch.cuda.device` makes none current where
        the number of the device is that of the thread's device already (pytorch#195256)."""
        self.checked(self.calls.cuCtxPushCurrent(self._context))
        try:
            yield
        finally:
            self.checked(self.calls.cuCtxPopCurrent())

    def checked(self, result: tuple[Any, ...]) -> Any:
        """What a call gives."""
        status, *found = result
        if int(status):
            raise BackendUnavailableError(f"the driver of {self.device} says {status.name}.")
        return found[0] if found else None


class Kernels(Driver):
    """A group of kernels on a GPU.

    Raises:
        BackendUnavailableError: this GPU, driver or NVRTC cannot; the message says why. Also of a
            launch.
    """

    def __init__(self, device: torch.device, group: str) -> None:
        """`group`: see `fastload.render.nvrtc`."""
        major, minor = torch.cuda.get_device_capability(device)
        code = kept_kernels(10 * major + minor, group).code
        super().__init__(device)
        self._functions = dict[str, Any]()
        with self.current():
            self._module = self.checked(self.calls.cuModuleLoadData(code))

    def launch(self, name: str, blocks: int, threads: int, arguments: ctypes.Structure) -> None:
        """Queue a kernel on torch's current stream of the device: its name, blocks, threads of
        each, and its arguments, which are copied."""
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        grid, block = (blocks, 1, 1), (threads, 1, 1)
        calls, stream = self.calls, stream_of(self.device)
        with self.current():
            if (function := self._functions.get(name)) is None:
                function = self.checked(calls.cuModuleGetFunction(self._module, name.encode()))
                self._functions[name] = function
            address = ctypes.addressof(parameters)
            self.checked(calls.cuLaunchKernel(function, *grid, *block, 0, stream, address, 0))


class KernelsOnHost:
    """All kernels, run by the native core; their memory is the host's."""

    def launch(self, name: str, blocks: int, threads: int, arguments: ctypes.Structure) -> None:
        """As `Kernels.launch`, done when it returns."""
        native.load().run_kernel_on_host(name, bytes(arguments), blocks)


@cache
def kernels_of(device: torch.device, group: str) -> Kernels | KernelsOnHost:
    """A group on a device, which has a number unless it is a CPU: compiled and loaded once."""
    return KernelsOnHost() if device.type == "cpu" else Kernels(device, group)
