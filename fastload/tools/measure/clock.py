"""Processor time and memory of this process and of all that it started (loader workers live on
between rounds)."""

from __future__ import annotations

import ctypes
import resource
from contextlib import suppress
from pathlib import Path

import psutil

_SELF = Path("/proc/self")


def cpu_seconds() -> float:
    """User and system time so far: of this process, of its ended children, of its living
    descendants.

    The kernel adds a child's time to its parent's only when it has ended: the living are read one
    by one, to 10 ms.
    """
    # getrusage counts microseconds, where /proc, which psutil reads, counts ticks of 10 ms.
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    total = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    for process in descendants():
        with suppress(psutil.Error):
            # User, system, and those of its own ended children.
            total += sum(process.cpu_times()[:4])
    return total


def resident_memory() -> int:
    """Memory of this process, and the proportional share (PSS) of its descendants [bytes]."""
    return psutil.Process().memory_info().rss + _descendants_memory()


def peak_memory() -> int:
    """As `resident_memory`, but the largest of this process since `reset_peak_memory` [bytes]."""
    with suppress(OSError):
        for line in (_SELF / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):  # psutil has no peak that can be reset
                return (int(line.split()[1]) << 10) + _descendants_memory()
    return resident_memory()


def reset_peak_memory() -> None:
    """Return freed memory to the system, and restart the kernel's high-water mark: else the next
    contestant would use memory that this one freed, and this one's peak would hide all later
    ones."""
    with suppress(AttributeError):  # not glibc: then memory that was freed may be counted again
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):  # some containers forbid it: then the peak is that of the whole run
        (_SELF / "clear_refs").write_text("5")


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """The living descendants of a process (None: of this one)."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def _descendants_memory() -> int:
    total = 0
    for process in descendants():
        with suppress(psutil.Error):  # ended meanwhile
            total += process.memory_full_info().pss
    return total
