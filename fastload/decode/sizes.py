"""The sizes of all images of a source, from their headers: read once, and kept."""

from __future__ import annotations

import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from fastload import native
from fastload.decode.image import EncodedReader, or_error
from fastload.decode.libraries import core_pool
from fastload.draws import Int64Array
from fastload.errors import ConfigurationError, DecodeError, SourceError
from fastload.exif import turned_sizes
from fastload.files import DecodeSettings
from fastload.fingerprint import fingerprint_of
from fastload.locks import one_of_node
from fastload.machine import cache_home, usable_cores
from fastload.sources.base import Source
from fastload.sources.columns import EncodedImages, PixelImages
from fastload.sources.index_file import read_index, write_index

logger = logging.getLogger("fastload")

UNREADABLE = (1, 1)
"""The size of an image that cannot be read; who asks for its pixels gets the error."""
FEWEST_KEPT = 256
"""Of fewer images the sizes are read again in a moment."""
_AT_ONCE = 4096
"""Images whose headers are read by one call."""
_WAITING = 64
"""Threads that wait for a store."""


def image_sizes(source: Source, settings: DecodeSettings) -> Int64Array:
    """(samples, 2): height and width of the images of a source as they are decoded, with these
    settings; those of images that cannot be read are `UNREADABLE`.

    Kept in a file under `$XDG_CACHE_HOME/fastload/sizes`, by the fingerprint of the source.

    Raises:
        ConfigurationError: it has no images that fastload reads.
        DecodeError: a store gives no answer.
    """
    column = next(iter(source.images.values()), None)
    if column is None:
        raise ConfigurationError(
            f"order: it needs the sizes of images that fastload reads, and {source.name} has none; "
            "leave it out."
        )
    rows = np.arange(len(column), dtype=np.int64)
    if isinstance(column, PixelImages):
        return np.asarray(column.sizes_of(rows), dtype=np.int64)
    assert isinstance(column, EncodedImages)
    if len(column) < FEWEST_KEPT:
        return _read(column, rows, settings)
    key = fingerprint_of(source.fingerprint, len(column), repr(settings))
    path = cache_home() / "sizes" / f"{key}.sizes"
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    with one_of_node(path.with_suffix(".lock"), "is reading the sizes of images"):
        kept = _kept(path, len(column))
        if kept is None:
            kept = _read(column, rows, settings)
            with contextlib.suppress(OSError):  # A full disk does not stop training.
                write_index(path, {}, {"sizes": kept})
    return kept


def _kept(path: Path, count: int) -> Int64Array | None:
    try:
        sizes = read_index(path)[1].get("sizes")
    except (OSError, SourceError):
        return None
    good = sizes is not None and sizes.shape == (count, 2) and sizes.dtype == np.int64
    return sizes if good and sizes is not None and (sizes > 0).all() else None


def _read(column: EncodedImages, rows: Int64Array, settings: DecodeSettings) -> Int64Array:
    if column.waits or not native.available():
        return _by_python(column, rows, settings)
    sizes = np.empty((len(rows), 2), dtype=np.int64)
    for first in range(0, len(rows), _AT_ONCE):
        some = rows[first : first + _AT_ONCE]
        sizes[some] = _by_core(column, some, settings)
    return sizes


def _by_core(column: EncodedImages, rows: Int64Array, settings: DecodeSettings) -> Int64Array:
    try:
        images = column.in_files(rows) or list(column.views(rows))
    except OSError:
        return _by_python(column, rows, settings)
    headers, failures = core_pool().read_headers(images, settings=settings)
    sizes = headers[:, :2].astype(np.int64)
    others = np.zeros(len(rows), dtype=np.bool_)
    others[[failure.row for failure in failures]] = True
    if settings.exif_orientation:
        sizes = turned_sizes(sizes, headers[:, 3])
        others |= headers[:, 3] == 0  # in metadata that the core does not read
    if others.any():
        sizes[others] = _by_python(column, rows[others], settings)
    return sizes


def _by_python(column: EncodedImages, rows: Int64Array, settings: DecodeSettings) -> Int64Array:
    reader = EncodedReader(column, settings)

    def size(index: int) -> tuple[int, int]:
        size = or_error(reader.size, index)
        if isinstance(size, DecodeError):
            if column.waits and not size.read:
                raise size  # Of a store that fails for a while: another rank may get an answer.
            return UNREADABLE
        return size

    with ThreadPoolExecutor(_WAITING if column.waits else usable_cores()) as pool:
        return np.array([*pool.map(size, rows.tolist())], dtype=np.int64).reshape(-1, 2)
