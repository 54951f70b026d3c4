"""Writes what was fetched into the local tier, in a thread of its own: who fetched it hands it on
to be decoded, and waits neither for the disk nor for pages of memory to copy it to.

Until it is written it is read from memory, and the locks on its ranges stay with the writer, so
that other processes wait for the file and do not fetch it, too.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from fastload.stores.base import Data

MOST = 256 << 20
"""Bytes that wait to be written, at most; what comes then is written by who brings it."""
_IDLE = 1.0
"""Seconds without work after which the thread ends."""
_AT_END = 10.0
"""Seconds for which the end of the program waits until all is written."""
_SLOW = 150e6
"""Bytes a second. What is written past the system's cache is read from the disk in the next epoch,
which a small network disk (125 MB/s) would hold up: there it is to find them in memory, where they
have room."""
_JUDGED = 64 << 20
"""Bytes by which the rate of a disk is judged."""
_SLOW_FOR = 600.0
"""Seconds until a disk that was slow, perhaps for others that wrote, is tried again."""
_DEVICES = "/sys/dev/block"
"""Of Linux: a link for each disk and partition, by its numbers."""


def is_hard_disk(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder lies on a disk that turns. That takes what is written into memory of its
    own, and reads ranges of 100 kB here and there at a tenth of the rate. False where it is not
    known: Linux says that disks of virtual machines (vda) turn, too."""
    with contextlib.suppress(OSError):
        number = os.stat(folder).st_dev
        place = Path(_DEVICES, f"{os.major(number)}:{os.minor(number)}").resolve()
        disk = place if (place / "queue").is_dir() else place.parent  # of a partition
        return disk.name.startswith("sd") and (disk / "queue/rotational").read_text() == "1\n"
    return False


class DiskRate:
    """Whether a disk is fast enough to write to it past the system's cache, by its kind and by how
    long it took before."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """`folder`: on the disk; it must be there at the first `is_fast`."""
        self._folder = folder
        self._turns: bool | None = None
        self._size, self._seconds, self._slow_until = 0, 0.0, -_SLOW_FOR

    def is_fast(self) -> bool:
        if self._turns is None:
            self._turns = is_hard_disk(self._folder)
        return not self._turns and time.monotonic() >= self._slow_until

    def took(self, size: int, seconds: float) -> None:
        """So many bytes were written past the cache."""
        self._size, self._seconds = self._size + size, self._seconds + seconds
        if self._size >= _JUDGED:
            if self._size < _SLOW * self._seconds:
                self._slow_until = time.monotonic() + _SLOW_FOR
            self._size, self._seconds = 0, 0.0


class Closes(Protocol):
    """Locks, which end when it is closed."""

    def close(self) -> None: ...


class _Task(NamedTuple):
    digests: Sequence[bytes]
    data: Sequence[Data]
    size: int
    """Bytes of memory that are held for it."""
    locks: Closes


def _memory_of(data: Sequence[Data]) -> int:
    """Bytes of memory that these hold: of a block of which several are parts all of it, once."""
    blocks = {}
    for each in data:
        block = each.obj if isinstance(each, memoryview) else each
        blocks[id(block)] = block
    return sum(memoryview(block).nbytes for block in blocks.values())


class TierWriter:
    """What is to be written, the oldest first. All methods may be called by any thread."""

    def __init__(
        self,
        write: Callable[[Sequence[bytes], Sequence[Data]], None],
        remove: Callable[[bytes], None],
        most: int = MOST,
    ) -> None:
        """`write`: keeps ranges, and never raises; `remove`: forgets one that was written."""
        self._write, self._remove, self._most = write, remove, most
        self._changed = threading.Condition()
        self._tasks: deque[_Task] = deque()
        self._waiting: dict[bytes, Data] = {}
        self._size = 0
        self._thread: threading.Thread | None = None
        self._registered = False
        self._process = os.getpid()

    def add(self, digests: Sequence[bytes], data: Sequence[Data], locks: Closes) -> bool:
        """Whether these ranges will be written, and `locks` be closed then; False where too much
        waits already, and where the system starts no thread."""
        size = _memory_of(data)
        with self._changed:
            if self._size + size > self._most or not self._started():
                return False
            self._size += size
            self._waiting.update(zip(digests, data, strict=True))
            self._tasks.append(_Task(digests, data, size, locks))
            if not self._registered:
                self._registered = True
                atexit.register(self.flush, _AT_END)
            self._changed.notify_all()
        return True

    def _started(self) -> bool:
        """Whether there is a thread now."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="fastload-tier-writer", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the limit of threads, or the end of the program
                return False
            self._thread = thread
        return True

    def get(self, digest: bytes) -> Data | None:
        """The bytes of a range that is not written yet."""
        return self._waiting.get(digest)

    def drop(self, digest: bytes) -> None:
        """A range is not to be kept."""
        with self._changed:
            self._waiting.pop(digest, None)

    def flush(self, seconds: float = float("inf")) -> bool:
        """Wait until all is written that was added. Whether it is, after so many seconds; at once
        in a forked child, which has no such thread."""
        if os.getpid() != self._process:
            return True
        until = time.monotonic() + seconds
        with self._changed:
            while self._thread is not None and self._size:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, 1.0))
        return True

    def _run(self) -> None:
        while (task := self._next()) is not None:
            digests, data, size, locks = task
            with self._changed:
                rows = [row for row, digest in enumerate(digests) if digest in self._waiting]
            with contextlib.suppress(Exception):  # it is fetched again in the next epoch
                self._write([digests[row] for row in rows], [data[row] for row in rows])
            with self._changed:
                gone = [digests[row] for row in rows if digests[row] not in self._waiting]
                for row in rows:
                    self._waiting.pop(digests[row], None)
                self._size -= size
                self._changed.notify_all()
            for digest in gone:
                self._remove(digest)
            locks.close()

    def _next(self) -> _Task | None:
        """The next task; None: there was none for a while, and this thread ends."""
        until = time.monotonic() + _IDLE
        with self._changed:
            while not self._tasks:
                left = until - time.monotonic()
                if left <= 0:
                    self._thread = None
                    return None
                self._changed.wait(left)
            return self._tasks.popleft()
