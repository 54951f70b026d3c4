"""A source for worker processes that do not share the parent's memory: its arrays in shared memory,
not copied."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, TypeVar

import numpy as np

from fastload.files import free_bytes
from fastload.sources.base import Source
from fastload.sources.buffers import (
    AnyArray,
    PickledByReference,
    is_by_reference,
    shared_copy,
    values_of,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SHARED_MEMORY = "/dev/shm"
# Smaller arrays [bytes] are pickled: each shared one costs a file descriptor in every process.
_WORTH_SHARING = 1 << 16


def free_shared_memory() -> float:
    """Free space in the system's shared memory [bytes]; infinite where it is of another kind."""
    try:
        return float(free_bytes(_SHARED_MEMORY))
    except OSError:
        return float("inf")


def share(source: Source) -> Source:
    """The same source with its arrays in shared memory, to be pickled into spawned or forkserver
    workers.

    Arrays in memory-mapped files stay where they are and travel by file name. Forked workers need
    none of this: they share the parent's pages. Where the system's shared memory has too little
    room (64 MB in a container by default), workers receive copies, and a warning is logged.
    """
    needed = sum(array.nbytes for column in source.columns.values() for array in _unshared(column))
    free = free_shared_memory() if needed else 0
    if free < needed:
        logger.warning(
            f"{source.name}: its metadata and pixels need {needed / 1e6:.0f} MB of shared memory "
            f"and {_SHARED_MEMORY} has {free / 1e6:.0f} MB free, so each worker process gets its "
            "own copy. Give the machine more (docker run --shm-size=8g)."
        )
        return source
    return dataclasses.replace(
        source, columns={name: _shared(column) for name, column in source.columns.items()}
    )


def _unshared(holder: Any) -> list[AnyArray]:
    """The arrays in a column, and in the path tables it holds, that would be pickled by content;
    those that can be shared."""
    if not isinstance(holder, PickledByReference):
        return []
    arrays = []
    for value in values_of(holder).values():
        if (
            isinstance(value, np.ndarray)
            and value.nbytes >= _WORTH_SHARING
            and not is_by_reference(value)
        ):
            arrays.append(value)
        else:
            arrays.extend(_unshared(value))
    return arrays


def _shared(holder: T) -> T:
    if not isinstance(holder, PickledByReference):
        return holder
    changes: dict[str, Any] = {}
    for name, value in values_of(holder).items():
        if isinstance(value, np.ndarray) and value.nbytes >= _WORTH_SHARING:
            changes[name] = shared_copy(value)
        elif isinstance(value, PickledByReference):
            changes[name] = _shared(value)
    return dataclasses.replace(holder, **changes) if changes else holder  # type: ignore[type-var]
