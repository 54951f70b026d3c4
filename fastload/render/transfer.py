"""Copies small host arrays to the device that works with them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def on_device(values: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """A host array as a tensor on `device`; on CUDA through pinned memory, without waiting for the
    copy."""
    # Arrays that may not be written to are copied: torch warns of them.
    host = torch.from_numpy(np.require(values, requirements=("C", "W")))
    # The caching host allocator keeps the pinned block until the copy is done.
    return (
        host.pin_memory().to(device, non_blocking=True)
        if device.type == "cuda"
        else host.to(device)
    )


def constants(values: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Numbers that belong to an operation, not to a batch, as a tensor on `device`: sent once. Not
    to be changed.

    On CUDA there is one copy for each stream: another stream could read it before it is there.
    """
    values = np.ascontiguousarray(values)
    return _constants(values.tobytes(), values.dtype.str, values.shape, device, stream_of(device))


def stream_of(device: torch.device) -> int:
    """The handle of the current stream of a GPU; 0 for other devices. For keys of what is kept on a
    device."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


@lru_cache(maxsize=256)
def _constants(
    data: bytes, dtype: str, shape: tuple[int, ...], device: torch.device, stream: int
) -> torch.Tensor:
    return on_device(np.frombuffer(bytearray(data), dtype=dtype).reshape(shape), device)
