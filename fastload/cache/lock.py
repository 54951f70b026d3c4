"""An exclusive lock between processes that cannot go stale: the kernel drops it when its holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from fastload.errors import CacheError

__all__ = ["exclusive_lock"]

logger = logging.getLogger("fastload")


@contextlib.contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold `flock` on a file while the block runs; wait for whoever has it. The file is removed afterwards.

    Raises:
        CacheError: the file cannot be made, or the file system has no locks.
    """
    try:
        descriptor = _acquire(path)
    except OSError as error:
        raise CacheError(
            f"{path}: cannot be locked ({error.strerror}). Give a cache directory that is writable and on a file "
            "system with file locks."
        ) from error
    try:
        yield
    finally:
        # Removed while still held: who waits for it sees that its file has no name any more, and makes a new one.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        # Unlocked by hand, because a process forked meanwhile would keep the lock by its copy of the descriptor.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _acquire(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.info("waiting for another process that is building the cache behind %s", path)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_named(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_named(descriptor: int, path: Path) -> bool:
    """Whether the locked file is still the one of this name."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    held = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)
