"""Locks between processes of a machine: one builds a cache, one lists a folder; the others wait."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from fastload.errors import BeingBuiltError, CacheError
from fastload.machine import ranks_here

logger = logging.getLogger("fastload")

_SILENT_WAIT = 3.0
"""Seconds after which a process that waits for another says so."""


def is_locked(path: Path) -> bool:
    """Whether a process holds this lock. False where it cannot be tried: `exclusive_lock` then
    raises the reason."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return not try_lock(file, shared=True)
    return False


def try_lock(file: IO[Any], *, shared: bool = False, wait: bool = False) -> bool:
    """Whether this open file is locked now, until it is closed. Raises OSError."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        windows: Any = msvcrt
        try:
            # Waits for 10 seconds at most; what is locked is the first byte.
            windows.locking(file.fileno(), windows.LK_LOCK if wait else windows.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    try:
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(file, how if wait else how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_until_closed(file: IO[Any]) -> None:
    """Wait until no other process has locked this open file. Raises OSError: it cannot be
    locked."""
    while not try_lock(file, wait=True):
        pass


@contextlib.contextmanager
def one_of_node(path: Path, work: str) -> Iterator[bool]:
    """Of the ranks of a machine one at a time is in the block. Gives whether there are several.
    Where nothing can be written at that place, each works for itself.

    Args:
        work: what the one does, for the log of the others: "is listing the folder".
    """
    with contextlib.ExitStack() as stack:
        ranks = ranks_here() > 1
        if ranks:
            with contextlib.suppress(CacheError):
                stack.enter_context(exclusive_lock(path, work=work))
        yield ranks


@contextlib.contextmanager
def exclusive_lock(
    path: Path, *, wait: bool = True, work: str = "is building the cache"
) -> Iterator[None]:
    """Hold a lock between processes while the block runs; wait while another process has it.
    The file is removed afterwards. `work`: what the holder does, for the log of those that wait.

    The kernel drops it when its holder dies, so that it cannot go stale. Raises CacheError: there
    can be none. BeingBuiltError: another process has it, and that is not waited for.
    """
    import filelock

    lock = filelock.FileLock(path, fallback_to_soft=False)
    waiting = False
    try:
        while not lock.is_locked:
            # filelock tries for ever where the file cannot be made, because another process may
            # have just removed it.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o644))
            try:
                lock.acquire(timeout=_SILENT_WAIT if wait else 0, poll_interval=0.1)
            except filelock.Timeout:
                if not wait:
                    raise BeingBuiltError(f"{path}: another process has this lock.") from None
                if not waiting:
                    logger.warning(
                        "waiting for another process, which %s of the lock %s", work, path
                    )
                waiting = True
    except BeingBuiltError:
        raise
    except OSError as error:
        raise CacheError(
            f"{path}: cannot be locked ({error.strerror}). Give a cache directory that is writable "
            "and on a file system with file locks."
        ) from error
    try:
        yield
    finally:
        # Removed while still held: who waits for it sees that its file has no name any more, and
        # makes a new one.
        path.unlink(missing_ok=True)
        lock.release()
