"""In place of NVIDIA's driver as `cuda.bindings.driver` has it: kernels are run by the native core,
on the host's memory."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import torch

from fastload import native

__all__ = ["Refused", "driver_on_host"]


class Refused:
    """A status that is not success."""

    name = "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"

    def __int__(self) -> int:
        return 222


def driver_on_host() -> Any:
    """`launched` of it: name, blocks and threads of each launch. A module is its code, a function
    its name."""
    launched = list[tuple[str, int, int]]()

    def launch(function: str, *given: Any) -> tuple[int]:
        (grid, *others), block, (shared, stream, parameters, extra) = (
            given[:3],
            given[3:6],
            given[6:],
        )
        assert (others, block[1:], shared, extra) == ([1, 1], (1, 1), 0, 0)
        assert stream == torch.cuda.current_stream().cuda_stream
        launched.append((function, grid, block[0]))
        address = ctypes.c_void_p.from_address(parameters).value
        assert address is not None
        core = native.load()
        size = core.kernel_argument_bytes(function)
        core.run_kernel_on_host(function, ctypes.string_at(address, size), grid)
        return (0,)

    return SimpleNamespace(
        launched=launched,
        cuModuleLoadData=lambda code: (0, code),
        cuModuleGetFunction=lambda module, name: (0, name.decode()),
        cuLaunchKernel=launch,
    )
