"""In place of NVIDIA's driver as `cuda.bindings.driver` has it: kernels are run by the native core,
on the host's memory."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import torch

from fastload import native

__all__ = ["Refused", "driver_on_host"]


class Contexts(threading.local):
    """Of each thread its own."""

    def __init__(self) -> None:
        self.stack = list[int]()


class Refused:
    """A status that is not success."""

    def __init__(self, name: str = "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", number: int = 222) -> None:
        self.name = name
        self._number = number

    def __int__(self) -> int:
        return self._number


class Handle:
    """A CUipcMemHandle: 64 bytes at an address."""

    def __init__(self) -> None:
        self.bytes = ctypes.create_string_buffer(64)

    def getPtr(self) -> int:  # noqa: N802 - as cuda-bindings has it
        return ctypes.addressof(self.bytes)


def driver_on_host() -> Any:
    """`launched` of it: name, blocks and threads of each launch; `contexts.stack`: those that are
    current in this thread, the last one in front; `used`: that of each launch. A module is its
    code, a function its name, a context its device's number. `allocated`: blocks of memory by their
    addresses, of which a handle has the address; `peers`: the devices that have read another one's,
    and that one's. An opened block is a copy: nothing that is written to it later is seen."""
    launched = list[tuple[str, int, int]]()
    contexts = Contexts()
    started, used = list[int](), list[int]()

    def init(flags: int) -> tuple[int]:
        started.append(flags)
        return (0,)

    def push(context: int) -> tuple[int]:
        contexts.stack.append(context)
        return (0,)

    def in_context(call: Any) -> Any:
        """As a driver refuses it: before `cuInit`, and in a thread without a current context."""

        def checked(*given: Any) -> Any:
            if not started:
                return (Refused("CUDA_ERROR_NOT_INITIALIZED", 3), None)
            if not contexts.stack:
                return (Refused("CUDA_ERROR_INVALID_CONTEXT", 201), None)
            return call(*given)

        return checked

    def launch(function: str, *given: Any) -> tuple[int]:
        (grid, *others), block, (shared, stream, parameters, extra) = (
            given[:3],
            given[3:6],
            given[6:],
        )
        assert (others, block[1:], shared, extra) == ([1, 1], (1, 1), 0, 0)
        assert stream == torch.cuda.current_stream().cuda_stream
        launched.append((function, grid, block[0]))
        used.append(contexts.stack[-1])
        address = ctypes.c_void_p.from_address(parameters).value
        assert address is not None
        core = native.load()
        size = core.kernel_argument_bytes(function)
        core.run_kernel_on_host(function, ctypes.string_at(address, size), grid)
        return (0,)

    allocated = dict[int, tuple[int, Any]]()
    opened = dict[int, tuple[int, Any]]()
    peers = list[tuple[int, int]]()
    invalid = Refused("CUDA_ERROR_INVALID_VALUE", 1)

    def allocate(size: int) -> tuple[Any, ...]:
        block = ctypes.create_string_buffer(size)
        allocated[ctypes.addressof(block)] = contexts.stack[-1], block
        return 0, ctypes.addressof(block)

    def copy(address: int, source: int, size: int) -> tuple[int]:
        ctypes.memmove(address, source, size)
        return (0,)

    def handle_of(address: int) -> tuple[Any, ...]:
        handle = Handle()
        ctypes.memmove(handle.bytes, address.to_bytes(8, "little"), 8)
        return 0, handle

    def open_handle(handle: Handle, flags: int) -> tuple[Any, ...]:
        address = int.from_bytes(handle.bytes.raw[:8], "little")
        if flags != 1 or address not in allocated:
            return invalid, None
        device, block = allocated[address]
        copied = ctypes.create_string_buffer(block.raw, len(block))
        opened[ctypes.addressof(copied)] = address, copied
        peers.append((contexts.stack[-1], device))
        return 0, ctypes.addressof(copied)

    def free(address: int) -> tuple[Any]:
        """What another process has open may not be freed."""
        if any(address == of for of, _ in opened.values()):
            return (invalid,)
        del allocated[address]
        return (0,)

    def close_handle(address: int) -> tuple[int]:
        del opened[address]
        return (0,)

    return SimpleNamespace(
        launched=launched,
        allocated=allocated,
        peers=peers,
        read=ctypes.string_at,
        cuMemAlloc=in_context(allocate),
        cuMemcpyHtoD=in_context(copy),
        cuMemFree=in_context(free),
        cuCtxSynchronize=in_context(lambda: (0,)),
        CUipcMemHandle=Handle,
        cuIpcGetMemHandle=in_context(handle_of),
        cuIpcOpenMemHandle=in_context(open_handle),
        cuIpcCloseMemHandle=in_context(close_handle),
        contexts=contexts,
        used=used,
        cuInit=init,
        cuDeviceGet=lambda number: (0, number),
        cuDevicePrimaryCtxRetain=lambda device: (0, device),
        cuCtxPushCurrent=push,
        cuCtxPopCurrent=lambda: (0, contexts.stack.pop()),
        cuModuleLoadData=in_context(lambda code: (0, code)),
        cuModuleGetFunction=in_context(lambda module, name: (0, name.decode())),
        cuLaunchKernel=in_context(launch),
    )
