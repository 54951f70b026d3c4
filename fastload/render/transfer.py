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


def taken(images: torch.Tensor, rows: npt.NDArray[np.int64]) -> torch.Tensor:
    """Some samples of a batch. On a CPU their channels lie as those of the batch do, which
    `index_select` does not see to."""
    chosen = on_device(rows, images.device)
    if images.device.type == "cpu" and _is_channels_last(images):
        return images.permute(0, 2, 3, 1).index_select(0, chosen).permute(0, 3, 1, 2)
    return images.index_select(0, chosen)


def replaced(images: torch.Tensor, rows: npt.NDArray[np.int64], some: torch.Tensor) -> torch.Tensor:
    """A copy of a batch with other samples in these rows. As `index_copy`, which takes ten times as
    long on a CPU: it copies value by value."""
    if images.device.type != "cpu" or images.dtype == torch.bfloat16 or images.dtype != some.dtype:
        return images.index_copy(0, on_device(rows, images.device), some)
    made = images.clone()
    out, values = made, some
    if _is_channels_last(made) and _is_channels_last(some):
        out, values = made.permute(0, 2, 3, 1), some.permute(0, 2, 3, 1)
    out.numpy()[rows] = values.numpy()
    return made


def _is_channels_last(images: torch.Tensor) -> bool:
    last = images.dim() == 4 and images.is_contiguous(memory_format=torch.channels_last)
    return last and not images.is_contiguous()


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
