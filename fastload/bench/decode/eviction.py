"""Files out of the page cache, without privileges: what `posix_fadvise` allows for files that one can read."""

from __future__ import annotations

import os
from collections.abc import Iterable

__all__ = ["can_evict", "evict"]


def evict(paths: Iterable[str]) -> None:
    """Ask the system to forget the contents of these files. Raises OSError."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # what is not written yet is not dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def can_evict(paths: Iterable[str]) -> bool:
    """Whether the system really forgets them: not on tmpfs, not while another process maps them, not outside Linux."""
    if not hasattr(os, "posix_fadvise") or not hasattr(os, "RWF_NOWAIT"):
        return False
    some = list(paths)[:8]
    try:
        evict(some)
        return not any(_cached(path) for path in some)
    except OSError:
        return False


def _cached(path: str) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)  # fails rather than wait for the disk
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
