"""How many cores this process may really use, which in a container is not what the machine has."""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["affinity_cores", "quota_cores", "usable_cores"]


def usable_cores() -> int:
    """Cores for one training process: by affinity and cgroup quota, shared by the processes of this machine.

    Launchers such as torchrun say in LOCAL_WORLD_SIZE how many processes they started here. At least 1.
    """
    cores = float(affinity_cores())
    quota = quota_cores()
    if quota is not None:
        cores = min(cores, quota)
    local_world_size = os.environ.get("LOCAL_WORLD_SIZE", "1")
    processes = int(local_world_size) if local_world_size.isdigit() else 1
    return max(1, math.floor(cores / max(1, processes)))


def affinity_cores() -> int:
    """Cores that the scheduler may put this process on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quota_cores(root: Path = Path("/")) -> float | None:
    """The cgroup's CPU bandwidth in cores, 1.5 for 150 ms of every 100 ms; None if it is not limited or not known.

    The limit of any parent applies as well. Reads cgroup v2 (`cpu.max`) and v1 (`cpu.cfs_quota_us`).
    """
    limits: list[float] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for folder in _upwards(root / "sys/fs/cgroup", path):
                limits += _ratio(*_read(folder / "cpu.max").split()[:2])
        elif "cpu" in controllers.split(","):
            for mount in (controllers, "cpu"):
                for folder in _upwards(root / "sys/fs/cgroup" / mount, path):
                    limits += _ratio(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))
    return min(limits, default=None)


def _upwards(mount: Path, path: str) -> list[Path]:
    """The cgroup's folder and its parents. Inside a container the path may be the host's; the mount itself counts."""
    parts = [part for part in path.split("/") if part and part != ".."]
    return [mount.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]


def _ratio(quota: str = "", period: str = "") -> list[float]:
    """[quota / period], or [] for "max", -1, and what cannot be read."""
    try:
        limit = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return []
    return [limit] if limit > 0 else []


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
