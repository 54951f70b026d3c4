"""Whether a cache of all pixels is worth filling while a trainer reads the compressed images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fastload.cache.manifest import is_cache
from fastload.decode.image import or_error, reader_of
from fastload.files import DecodeSettings, free_bytes
from fastload.machine import memory_bytes
from fastload.sources.base import Source

_SAMPLED = 64
"""Headers that are read to find out how large the cache would be."""
_OF_MEMORY, _OF_DISK = 0.5, 0.9
"""Shares of all memory, and of the disk's free space. A cache that the page cache does not hold is
read from the disk in each epoch, 3 bytes a pixel, where JPEGs are a tenth of that."""


def why_filled(source: Source, directory: Path, settings: DecodeSettings) -> tuple[bool, str]:
    """Whether it is worth filling, and the reason, for a person."""
    if is_cache(directory):
        return True, f"the cache of these samples is there, {directory}"
    if any(column.waits for column in source.encoded.values()):
        return False, "not filled: images of a store are kept as they are, in the local tier"
    needed, memory, free = decoded_bytes(source, settings), memory_bytes(), _free(directory)
    takes = f"the pixels take {needed / 1e9:,.1f} GB"
    if needed > _OF_MEMORY * memory:
        return False, f"not filled: {takes}, more than half of the memory ({memory / 1e9:,.1f} GB)"
    if needed > _OF_DISK * free:
        return False, f"not filled: {takes}, and {free / 1e9:,.1f} GB are free at {directory}"
    return True, f"filled while training: {takes}, the memory has {memory / 1e9:,.1f} GB"


def decoded_bytes(source: Source, settings: DecodeSettings) -> int:
    """About how many bytes the pixels of all images take, by the headers of some of them."""
    rows = np.unique(np.linspace(0, len(source) - 1, min(len(source), _SAMPLED)).astype(np.int64))
    total = 0.0
    for column in source.images.values():
        read = reader_of(column, settings).size
        sizes = [size for row in rows.tolist() if isinstance(size := or_error(read, row), tuple)]
        if sizes:
            mean = float(np.prod(np.array(sizes, dtype=np.float64), axis=1).mean())
            total += mean * column.channels * len(source)
    return round(total)


def _free(directory: Path) -> int:
    """Bytes, where the directory is or would be."""
    there = next(folder for folder in (directory, *directory.parents) if folder.exists())
    return free_bytes(there)
