"""Put the buffers of a source where worker processes can see them without a copy."""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import Any, TypeVar

import numpy as np

from fastload.sources.base import Source
from fastload.sources.buffers import PickledByReference, is_by_reference, shared_copy

__all__ = ["share"]

logger = logging.getLogger(__name__)

_SHARED_MEMORY = "/dev/shm"
_WORTH_SHARING = 1 << 16
"""Smaller arrays [bytes] are pickled: each shared one costs a file descriptor in every process."""

T = TypeVar("T")


def share(source: Source) -> Source:
    """The same source with its arrays in shared memory, to be pickled into spawned or forkserver workers.

    Paths, labels, offsets and pixels are moved; arrays in memory-mapped files stay where they are and travel by file
    name; the dataset of an `Objects` column is left to its own pickling. Forked workers need none of this: they
    share the parent's pages, and numpy buffers have no reference counts that would copy them.

    Where the system's shared memory has too little room (64 MB in a container by default), the source is returned
    as it is, workers receive copies, and a warning is logged.
    """
    needed = sum(array.nbytes for column in source.columns.values() for array in _unshared(column))
    if needed and os.path.isdir(_SHARED_MEMORY):
        system = os.statvfs(_SHARED_MEMORY)
        free = system.f_bavail * system.f_frsize
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
