"""Whether the files that a cache was built from are as they were.

Beside the arrays of a cache lies `stamps.bin`: for each image the size of its file, the times at
which that was written (mtime) and last changed in any way (ctime), as they were before it was read,
and a hash of what was read. A file whose size and times are the same is the same: programs set its
mtime, but not its ctime. Where times differ, as after a copy or a chmod, the bytes are read and
compared with the hash. Of an object in a store the version is all that it takes.

The file is an array (samples, columns, 4) of int64, little endian, and a CRC-32 of it in 8 bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import struct
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fastload.checksum import crc32
from fastload.errors import counted
from fastload.files import is_remote, read_regular, replacing
from fastload.sources.columns import EncodedImages
from fastload.stores.reads import ReaderPool, current

logger = logging.getLogger("fastload")

Int64Array = npt.NDArray[np.int64]

FILE_NAME = "stamps.bin"
_ROW, _END = struct.Struct("<4q"), struct.Struct("<Q")
_AT_ONCE = 512
"""Images of one task: some 4 ms on a local disk."""
_THREADS = 16
"""On a disk over a network a look at a file is a wait. On one of this machine it is a system call
of some 4 us, after each of which threads would wait for each other: one does it."""
_WAIT = 50e-6
"""Seconds that a look takes at least, to be a wait."""


class Stamp(NamedTuple):
    """The state of a file."""

    size: int
    """Bytes; of an object in a store its version; -1: it could not be read."""
    modified: int = 0
    """[ns]"""
    changed: int = 0
    """[ns]"""
    content: int = 0
    """Hash of what was read of it."""

    def of(self, data: bytes) -> Stamp:
        """With the hash of what was read; not of an object in a store."""
        return self._replace(content=hash_of(data)) if self.changed else self


UNREAD = Stamp(-1)


def hash_of(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)


def stamp_of(column: EncodedImages, index: int) -> Stamp:
    """The state of the file of a sample, as it is now; without the hash."""
    ranges = column.read_from(np.array([index]))
    if not ranges:
        return UNREAD
    path = ranges[0].name
    return Stamp(ranges[0].version) if is_remote(path) else Stamp(*_state_of(path))


def _state_of(path: str) -> tuple[int, int, int]:
    """The first three fields of its stamp."""
    try:
        status = os.stat(path)
    except OSError:
        return UNREAD[:3]
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


class StampWriter:
    """Writes the stamps of a cache while that is built."""

    def __init__(self, directory: Path, columns: int, rows: int = 0) -> None:
        """`rows`: that an earlier build has written and that stay."""
        path = directory / FILE_NAME
        self._file = open(path, "r+b" if rows else "w+b")  # noqa: SIM115 - closed by `close`
        self._file.truncate(rows * columns * _ROW.size)
        self._file.seek(0, os.SEEK_END)

    def append(self, stamps: Sequence[Stamp]) -> None:
        """Of one sample, of each column of images."""
        for stamp in stamps:
            self._file.write(_ROW.pack(*stamp))

    def flush(self) -> None:
        self._file.flush()

    def finish(self) -> None:
        self._file.flush()
        self._file.seek(0)
        checksum = crc32(self._file.read())
        self._file.write(_END.pack(checksum))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_stamps(
    directory: Path, samples: int, columns: int, *, whole: bool = True
) -> Int64Array | None:
    """(samples, columns, 4); None where they are not there, or damaged. `whole`: not the first ones
    of a build that was killed."""
    size = samples * columns * _ROW.size
    try:
        data = read_regular(directory / FILE_NAME)
    except OSError:
        return None
    if whole and data[size:] != _END.pack(crc32(data[:size])):
        return None
    if len(data) < size:
        return None
    return np.frombuffer(data[:size], "<i8").reshape(samples, columns, 4).astype(np.int64)


def is_damaged(directory: Path) -> bool:
    """Whether the stamps of a cache are there, and are not what was written."""
    try:
        data = read_regular(directory / FILE_NAME)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return data[-_END.size :] != _END.pack(crc32(data[: -_END.size]))


def _write(directory: Path, stamps: Int64Array) -> None:
    data = stamps.astype("<i8").tobytes()
    with replacing(directory / FILE_NAME) as beside:
        beside.write_bytes(data + _END.pack(crc32(data)))


class Look:
    """A look at the files of a source, in threads of its own: those of the samples that a cache, or
    the first part of one, has stamps of."""

    def __init__(
        self, columns: Mapping[int, EncodedImages], stamps: Int64Array, directory: Path | None
    ) -> None:
        """
        Args:
            columns: that are read from files or objects, by their place in the stamps.
            stamps: (samples, columns, 4).
            directory: of a cache, to which the times are written that files have by now and that
                have the same content; None: nowhere.
        """
        self.samples = len(stamps)
        self._columns, self._stamps, self._directory = columns, stamps, directory
        self._over = False
        self._began = time.time()
        self._pool = ReaderPool(_threads_for(columns, self.samples), "fastload-look")
        tasks = [
            self._pool.submit(self._look, place, slice(start, start + _AT_ONCE))
            for place in columns
            for start in range(0, self.samples, _AT_ONCE)
        ]
        self._end = self._pool.submit(self._finish, tasks)

    def within(self, seconds: float | None) -> str | None:
        """Which sample has another file than it had, for a person; "" for none. None: after so many
        seconds some were not looked at yet. Seconds None: wait for all."""
        try:
            changed = self._end.result(seconds)
        except NotYetError:
            self._note()  # the other ranks of the node need not look, too
            return None
        self._pool.shutdown(wait=False)
        return changed

    def close(self) -> None:
        """End it, if it is still under way."""
        self._over = True
        self._pool.give_up()

    def _look(self, place: int, rows: slice) -> tuple[str, bool]:
        """(the first sample that differs, whether times were noted that differ) of some rows of a
        column."""
        column, stamps = self._columns[place], self._stamps[rows, place]
        indices = np.arange(rows.start, rows.start + len(stamps))
        ranges = () if self._over else column.read_from(indices)
        if ranges and is_remote(ranges[0].name):
            versions = np.array([wanted.version for wanted in ranges], dtype=np.int64)
            known = (versions != 0) & (stamps[:, 0] != 0)
            for index in indices[known & (versions != stamps[:, 0])].tolist():
                return self._differs(column, index), False
            return "", False
        before_of = list(map(tuple, stamps[:, :3].tolist()))
        states, renewed = dict[str, tuple[int, int, int]](), False
        for row, (wanted, before) in enumerate(zip(ranges, before_of, strict=False)):
            state = states.get(wanted.name)
            if state is None:
                state = states[wanted.name] = _state_of(wanted.name)
            if state == before:
                continue
            current().check()
            # Of a whole file another size is another content.
            other = wanted.length is None and state[0] != before[0]
            if other or self._content_of(column, int(indices[row])) != stamps[row, 3]:
                return self._differs(column, int(indices[row])), renewed
            stamps[row, :3] = state
            renewed = True
        return "", renewed

    def _content_of(self, column: EncodedImages, index: int) -> int | None:
        try:
            return hash_of(column.read(index))
        except OSError:
            return None

    def _differs(self, column: EncodedImages, index: int) -> str:
        self._over = True
        return column.describe(index)

    def _finish(self, tasks: Sequence[Future[tuple[str, bool]]]) -> str:
        results = [task.result() for task in tasks]  # all of them have at least been started
        changed = next((words for words, _ in results if words), "")
        if not changed and not self._over and self._directory is not None:
            with contextlib.suppress(OSError):  # what cannot be written to is looked at again
                if any(renewed for _, renewed in results):
                    _write(self._directory, self._stamps)
            self._note()
        return changed

    def _note(self) -> None:
        """As `looked_at` reads it."""
        if self._directory is not None:
            with contextlib.suppress(OSError):
                os.utime(self._directory / FILE_NAME, (self._began, self._began))


def _threads_for(columns: Mapping[int, EncodedImages], samples: int) -> int:
    times = []
    rows = np.linspace(0, samples - 1, 16).astype(np.int64)
    for column in columns.values():
        for wanted in column.read_from(rows):
            began = time.perf_counter()
            if not is_remote(wanted.name):
                _state_of(wanted.name)
            times.append(time.perf_counter() - began)
    return _THREADS if sorted(times)[len(times) // 2] > _WAIT else 1


def looked_at(directory: Path) -> float:
    """When the last look at all files of a cache began [seconds since 1970]."""
    try:
        return os.stat(directory / FILE_NAME).st_mtime
    except OSError:
        return 0.0


def columns_with_files(images: Mapping[str, object]) -> dict[int, EncodedImages]:
    """Those of the columns of images that are read from files or objects, by place."""
    first = np.zeros(1, dtype=np.int64)
    return {
        place: column
        for place, column in enumerate(images.values())
        if isinstance(column, EncodedImages) and len(column) and column.read_from(first)
    }


def say_unknown(directory: Path, samples: int) -> None:
    """Log that a cache has no stamps."""
    logger.warning(
        "%s: the cache of %s has no times of their files (an older fastload built it): changes of "
        "files that keep their sizes may not be seen. To have it built again, delete it.",
        directory,
        counted(samples, "sample"),
    )
