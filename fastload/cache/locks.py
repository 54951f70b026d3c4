"""Locks of caches between processes: one builds, one of a node looks at the files; the others
wait."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import filelock
import psutil

from fastload.cache.stamps import looked_at
from fastload.errors import BeingBuiltError, CacheError

logger = logging.getLogger("fastload")

_SILENT_WAIT = 3.0
"""Seconds after which a process that waits for another says so."""


def is_being_built(directory: Path) -> bool:
    """Whether a process is building the cache of this directory. False where its lock cannot be
    tried: building then raises the reason."""
    with contextlib.suppress(OSError), open(lock_of(directory), "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def lock_of(target: Path) -> Path:
    return target.with_name(target.name + ".lock")


@contextlib.contextmanager
def one_of_node(target: Path) -> Iterator[bool]:
    """Of the ranks of a node one at a time is in the block. Gives whether another one has been
    there since this process started."""
    with contextlib.ExitStack() as stack:
        ranks = os.environ.get("LOCAL_WORLD_SIZE", "1") not in ("", "1")
        if ranks:
            with contextlib.suppress(CacheError):  # nothing can be written there: each looks
                stack.enter_context(exclusive_lock(target.with_name(target.name + ".look")))
        yield ranks and looked_at(target) >= psutil.Process().create_time()


@contextlib.contextmanager
def exclusive_lock(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock between processes while the block runs; wait while another process has it.
    The file is removed afterwards.

    The kernel drops it when its holder dies, so that it cannot go stale. Raises CacheError: there
    can be none. BeingBuiltError: another process has it, and that is not waited for.
    """
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
                        "waiting for another process, which is building the cache of the lock %s",
                        path,
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
