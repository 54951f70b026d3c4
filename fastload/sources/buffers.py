"""How the arrays of a source travel to other processes: by reference where they can.

numpy pickles every array by content, memory maps too: a worker started by spawn or forkserver would receive, and hold,
its own copy of the data set. Here an array that lives in a file travels as the file's name and a position, and one in
shared memory as a handle. Everything else is pickled as numpy does it.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from fastload.sources.base import Source

AnyArray = npt.NDArray[Any]


@dataclass(frozen=True)
class _ArrayReference:
    """An array as a window of bytes that another process can open for itself."""

    buffer: str | torch.Tensor
    """Name of a file, or a uint8 tensor in shared memory, which torch's reductions send as a handle."""
    start: int
    """First byte of the array in the buffer."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def open(self) -> AnyArray:
        span = _span(self.shape, self.strides, self.dtype.itemsize)
        if isinstance(self.buffer, str):
            flat: AnyArray = np.memmap(self.buffer, np.uint8, mode="r", offset=self.start, shape=(span,))
        else:
            flat = self.buffer.numpy()[self.start : self.start + span]
        return np.ndarray(self.shape, self.dtype, buffer=flat, strides=self.strides)


def _span(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> int:
    """Bytes from the first to the last of a non-empty array with strides >= 0."""
    return itemsize + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))


def _reference_to(array: AnyArray) -> _ArrayReference | None:
    """The reference by which this array can travel, or None if only its content can."""
    if array.size == 0 or any(stride < 0 for stride in array.strides):
        return None
    root: AnyArray = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    address = array.__array_interface__["data"][0]
    buffer: str | torch.Tensor
    if isinstance(root, np.memmap):
        # A slice of a map keeps the `offset` of the whole map, so the position comes from the addresses. Mode "c" is
        # private to this process: what was written there is not in the file.
        if root.filename is None or root.mode == "c":
            return None
        buffer, start = str(root.filename), root.offset + address - root.__array_interface__["data"][0]
    else:
        owner: Any = root.base  # tensor.numpy() keeps the tensor here
        if not isinstance(owner, torch.Tensor) or owner.dtype != torch.uint8 or not owner.is_shared():
            return None
        buffer, start = owner, address - owner.data_ptr()
    return _ArrayReference(buffer, int(start), array.dtype, array.shape, array.strides)


def is_by_reference(array: AnyArray) -> bool:
    """Whether the array reaches other processes without its content being copied."""
    return _reference_to(array) is not None


def shared_copy(array: AnyArray) -> AnyArray:
    """The same array in shared memory; itself if it is there already, or in a file.

    Raises:
        RuntimeError: torch's own, when the system's shared memory is full.
    """
    if array.size == 0 or is_by_reference(array):
        return array
    # Bytes, because numpy has dtypes that torch cannot share.
    buffer = torch.empty(array.nbytes, dtype=torch.uint8).share_memory_()
    copy: AnyArray = np.ndarray(array.shape, array.dtype, buffer=buffer.numpy())
    np.copyto(copy, array)
    return copy


class PickledByReference:
    """Base of the frozen dataclasses that hold large arrays: see the module's own words."""

    def __reduce__(self) -> tuple[Any, ...]:
        state = {}
        for item in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name)
            if isinstance(value, np.ndarray):
                # np.memmap would pickle its content even through a plain view, hence asarray.
                value = _reference_to(value) or np.asarray(value)
            state[item.name] = value
        return _rebuild, (type(self), state)


def _rebuild(cls: type[Any], state: dict[str, Any]) -> Any:
    return cls(**{name: v.open() if isinstance(v, _ArrayReference) else v for name, v in state.items()})


logger = logging.getLogger(__name__)

_SHARED_MEMORY = "/dev/shm"
_WORTH_SHARING = 1 << 16
"""Smaller arrays [bytes] are pickled: each shared one costs a file descriptor in every process."""

T = TypeVar("T")


def free_shared_memory() -> float:
    """Free room in the system's shared memory [bytes]; infinite where it is of another kind."""
    try:
        system = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return float("inf")
    return float(system.f_bavail * system.f_frsize)


def share(source: Source) -> Source:
    """The same source with its arrays in shared memory, to be pickled into spawned or forkserver workers.

    Paths, labels, offsets and pixels are moved; arrays in memory-mapped files stay where they are and travel by file
    name; the dataset of an `Objects` column is left to its own pickling. Forked workers need none of this: they
    share the parent's pages, and numpy buffers have no reference counts that would copy them.

    Where the system's shared memory has too little room (64 MB in a container by default), the source is returned
    as it is, workers receive copies, and a warning is logged.
    """
    needed = sum(array.nbytes for column in source.columns.values() for array in _unshared(column))
    if needed:
        free = free_shared_memory()
        if free < needed:
            logger.warning(
                "%s: its metadata and pixels need %.0f MB of shared memory and %s has %.0f MB free, so each worker "
                "process gets its own copy. Give the machine more (docker run --shm-size=8g).",
                source.name,
                needed / 1e6,
                _SHARED_MEMORY,
                free / 1e6,
            )
            return source
    return dataclasses.replace(source, columns={name: _shared(column) for name, column in source.columns.items()})


def _unshared(holder: Any) -> list[np.ndarray[Any, Any]]:
    """The arrays in a column, and in the path tables it holds, that would be pickled by content."""
    found = []
    for item in dataclasses.fields(holder):
        value = getattr(holder, item.name)
        if isinstance(value, np.ndarray) and value.nbytes >= _WORTH_SHARING and not is_by_reference(value):
            found.append(value)
        elif isinstance(value, PickledByReference):
            found.extend(_unshared(value))
    return found


def _shared(holder: T) -> T:
    if not isinstance(holder, PickledByReference):
        return holder
    changes: dict[str, Any] = {}
    for item in dataclasses.fields(holder):  # type: ignore[arg-type]
        value = getattr(holder, item.name)
        if isinstance(value, np.ndarray) and value.nbytes >= _WORTH_SHARING:
            changes[item.name] = shared_copy(value)
        elif isinstance(value, PickledByReference):
            changes[item.name] = _shared(value)
    return dataclasses.replace(holder, **changes) if changes else holder  # type: ignore[type-var]
