"""Cached columns in the host's memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.errors import CacheError
from fastload.sources.base import Column, Source
from fastload.sources.columns import PixelArray, ValueArray

__all__ = ["available_memory", "in_memory", "is_mapped", "with_rows_contiguous"]


def in_memory(source: Source) -> Source:
    """The same source with its memory maps read into memory.

    Raises:
        CacheError: there is not enough of it.
    """
    columns = {n: c for n, c in source.columns.items() if isinstance(c, PixelArray | ValueArray) and is_mapped(c.array)}
    _check_room(source.name, sum(column.array.nbytes for column in columns.values()))
    return _with_arrays(source, {name: np.array(column.array) for name, column in columns.items()})


def with_rows_contiguous(source: Source) -> Source:
    """The same source with every image array C-contiguous, copied where it was not (images given as (N, C, H, W)).

    Raises:
        CacheError: there is not enough memory for the copy.
    """
    columns = {
        name: column
        for name, column in source.columns.items()
        if isinstance(column, PixelArray) and not column.array.flags.c_contiguous
    }
    _check_room(source.name, sum(column.array.nbytes for column in columns.values()))
    return _with_arrays(source, {name: np.ascontiguousarray(column.array) for name, column in columns.items()})


def is_mapped(array: npt.NDArray[Any]) -> bool:
    """Whether an array is, or is a view of, a memory-mapped file."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            return True
        base = base.base
    return False


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes that can be allocated without swapping, as the kernel estimates; None where it does not say."""
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _check_room(name: str, needed: int) -> None:
    free = available_memory()
    if free is not None and needed > free:
        raise CacheError(
            f"{name}: needs {needed:,} bytes ({needed / 1e9:.1f} GB) of memory, {free:,} ({free / 1e9:.1f} GB) are "
            "available. Use storage='disk', which needs none, or a smaller short_side."
        )


def _with_arrays(source: Source, arrays: dict[str, npt.NDArray[Any]]) -> Source:
    columns: dict[str, Column] = dict(source.columns)
    for name, array in arrays.items():
        column = columns[name]
        assert isinstance(column, PixelArray | ValueArray)
        columns[name] = replace(column, array=array)
    return replace(source, columns=columns)
