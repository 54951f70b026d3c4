"""CPU time and memory of this process and its descendants, as the Linux kernel counts them."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["birth", "cpu_seconds", "descendants", "peak_memory", "reset_peak_memory", "resident_memory"]

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """User and system time so far: of this process, of its ended children, of its living descendants.

    The kernel adds a child's time to its parent's only when it has ended; loader workers live on, so they are read one
    by one. Resolution of those: 10 ms.
    """
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    for pid in descendants(os.getpid()):
        fields = _stat(pid)
        if fields:
            total += sum(int(value) for value in fields[11:15]) / _TICKS  # utime, stime, cutime, cstime
    return total


def resident_memory() -> int:
    """Of this process, and the proportional share (PSS) of its descendants [bytes]; 0 where it is not known."""
    return _status("VmRSS") + _descendants_memory()


def peak_memory() -> int:
    """As `resident_memory`, but the largest of this process since `reset_peak_memory` [bytes]."""
    return _status("VmHWM") + _descendants_memory()


def reset_peak_memory() -> None:
    """Give freed memory back to the system, and let the kernel's high-water mark start again.

    Otherwise one contestant's leftovers would be the next one's free memory, and its peak hide all later ones.
    """
    with suppress(AttributeError):  # not glibc: then memory that was freed may be counted again
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):  # some containers forbid it: then the peak is that of the whole run
        (_PROC / "self/clear_refs").write_text("5")


def _descendants_memory() -> int:
    return sum(_proportional(pid) for pid in descendants(os.getpid()))


def descendants(pid: int) -> Iterator[int]:
    """Ids of what the process has started and what those have, as far as they live."""
    try:
        tasks = os.listdir(_PROC / str(pid) / "task")
    except OSError:
        return  # ended meanwhile, or not Linux
    for task in tasks:
        for child in _read(_PROC / str(pid) / "task" / task / "children").split():
            yield int(child)
            yield from descendants(int(child))


def birth(pid: int) -> int | None:
    """When the process began, in the kernel's ticks; None if there is none. With the id, which the kernel gives again
    to others, it tells one process from all."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def _stat(pid: int) -> list[str]:
    """Fields of /proc/pid/stat after the command's name, which may hold spaces; [] if the process ended."""
    return _read(_PROC / str(pid) / "stat").rpartition(")")[2].split()


def _proportional(pid: int) -> int:
    return _kilobytes(_read(_PROC / str(pid) / "smaps_rollup"), "Pss")


def _status(name: str) -> int:
    return _kilobytes(_read(_PROC / "self/status"), name)


def _kilobytes(text: str, name: str) -> int:
    """A line such as `VmRSS:   1234 kB` in bytes."""
    for line in text.splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
