"""The images of a column of Parquet files, written one after the other to a file under
`~/.cache/fastload/parquet`, as they are: where an order asks for rows at random, which Parquet does
not give. From there they are read by offset, as members of a tar file are."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastload import stores
from fastload.errors import SourceError
from fastload.files import replacing
from fastload.locks import lock_until_closed
from fastload.machine import cache_home
from fastload.sources.buffers import Int64Array, PathTable
from fastload.sources.columns import EncodedFiles
from fastload.sources.index_file import read_index, write_index
from fastload.sources.parquet_pieces import Pieces

logger = logging.getLogger("fastload")

# Bytes that are looked at to tell a file from another one.
_END, _PIECE = 64 << 10, 512
# Bytes that are read at once, and are in memory.
_AT_ONCE = 64 << 20


def unpacked(
    files: Sequence[str],
    versions: Sequence[int],
    name: str,
    pieces: Pieces,
    views: Callable[[Int64Array], Sequence[stores.Data]],
    role: str,
) -> EncodedFiles:
    """The images of the column `name`, in a file of their bytes; made now if there is none.

    Args:
        versions: of the files when their data set was opened, of those in a store; 0: not known.
        views: gives the bytes of rows. Raises OSError.

    Raises:
        SourceError: one cannot be read, or there is no space.
    """
    folder = cache_home() / "parquet"
    data = folder / "none"
    try:
        states = [_state_of(*each) for each in zip(files, versions, strict=True)]
        key = hashlib.blake2b(repr((name, *states)).encode(), digest_size=16).hexdigest()
        data, table = (folder / f"{key}.{ending}" for ending in ("bytes", "index"))
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f"{key}.lock", "wb") as lock:
            lock_until_closed(lock)  # the other ranks wait for the one that unpacks
            ends = _ends(data, table)
            if ends is None:
                logger.info("%s: the images are written to %s, once.", files[0], data)
                _unpack(files[0], name, pieces, views, data, table)
                ends = _ends(data, table)
    except OSError as error:
        raise SourceError(
            f"{files[0]}: its images cannot be written to {data} "
            f"({error.strerror or error}); free some space, or set XDG_CACHE_HOME to a folder on "
            "another disk."
        ) from error
    assert ends is not None, "it was just written"
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    rows = np.bincount(pieces.file, np.diff(pieces.first), len(files)).astype(np.int64)
    names = PathTable.of(
        f"{os.path.basename(path)}:{name}[{row}]"
        for path, count in zip(files, rows.tolist(), strict=True)
        for row in range(count)
    )
    paths = PathTable.of([str(data)]).take(np.zeros(len(ends), dtype=np.int64))
    return EncodedFiles(paths, role, starts, ends - starts, names)


def _state_of(path: str, version: int) -> tuple[Any, ...]:
    """Identifies the file that was unpacked. Raises OSError."""
    size = stores.size_of(path)
    if stores.is_remote(path):
        return path, size, version, b"" if version else _some_of(path, size)
    # Not by its time alone: copies that keep it (rsync -t, cp -p) replace one file by another.
    return os.path.realpath(path), size, os.stat(path).st_mtime_ns, _some_of(path, size)


def _some_of(path: str, size: int) -> bytes:
    """Digest of a file's end, where Parquet says how large each part is and which numbers are in
    it, and of 32 pieces spread evenly over the rest. Raises OSError."""
    least = max(0, size - _END)
    starts = [least, *np.linspace(0, max(0, least - _PIECE), 32).astype(np.int64).tolist()]
    lengths = [size - least, *[min(_PIECE, least)] * 32]
    ranges = [stores.Range(path, *each) for each in zip(starts, lengths, strict=True)]
    return hashlib.blake2b(b"".join(stores.read_many(ranges)), digest_size=16).digest()


def _ends(data: Path, table: Path) -> Int64Array | None:
    """(N,) int64: where each image ends; None where it is not unpacked, or not whole."""
    try:
        _, arrays = read_index(table)
        size = data.stat().st_size
    except (OSError, SourceError):
        return None
    ends: Int64Array = arrays["ends"]
    return ends if size == (int(ends[-1]) if len(ends) else 0) else None


def _unpack(
    first: str,
    name: str,
    pieces: Pieces,
    views: Callable[[Int64Array], Sequence[stores.Data]],
    data: Path,
    table: Path,
) -> None:
    lengths: list[Int64Array] = []
    with replacing(data) as beside, open(beside, "xb") as out:
        for start, end in _stretches(pieces):
            try:
                some = views(np.arange(start, end))
            except OSError as error:
                raise SourceError(f"{first}: column {name!r} cannot be read ({error}).") from error
            lengths.append(np.array([len(view) for view in some], dtype=np.int64))
            out.writelines(some)
        out.flush()
        os.fsync(out.fileno())
    write_index(table, {}, {"ends": np.cumsum(np.concatenate(lengths))})


def _stretches(pieces: Pieces) -> Iterator[tuple[int, int]]:
    """(first row, row after the last) of pieces that follow each other, and are read at once."""
    number = np.cumsum(pieces.length) // _AT_ONCE
    ends = np.flatnonzero(np.diff(number, append=number[-1:] + 1)) + 1
    begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    yield from zip(pieces.first[begins].tolist(), pieces.first[ends].tolist(), strict=True)


def all_unpacked() -> list[Path]:
    """The files that hold unpacked images, of all data sets."""
    return sorted((cache_home() / "parquet").glob("*.bytes"))
