"""Cores by affinity, cgroup quota and the processes that share the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

import fastload.machine
from fastload.machine import quota_cores, usable_cores


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        # the tightest of the group and its parents
        (
            {
                "proc/self/cgroup": "0::/user/job\n",
                "sys/fs/cgroup/user/job/cpu.max": "max 100000\n",
                "sys/fs/cgroup/user/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/cpu.max": "800000 100000\n",
            },
            4.0,
        ),
        # in a container the path is the host's, and the mount is the group
        (
            {"proc/self/cgroup": "0::/../docker/abc\n", "sys/fs/cgroup/cpu.max": "200000 100000"},
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "5:memory:/a\n4:cpu,cpuacct:/a\n",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
            },
            3.0,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/a\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
    ],
    ids=["none", "v2", "v2 unlimited", "v2 parent", "v2 container", "v1", "v1 unlimited"],
)
def test_quota(files: dict[str, str], cores: float | None, tmp_path: Path) -> None:
    assert quota_cores(write(tmp_path, files)) == cores


@pytest.mark.parametrize(
    ("affinity", "quota", "local_world_size", "expected"),
    [
        (16, None, None, 16),
        (16, 3.5, None, 3),
        (2, 3.5, None, 2),
        (16, None, "8", 2),
        (16, None, "32", 1),
        (4, 0.5, None, 1),
        (4, None, "not a number", 4),
    ],
)
def test_usable_cores(
    affinity: int,
    quota: float | None,
    local_world_size: str | None,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fastload.machine, "affinity_cores", lambda: affinity)
    monkeypatch.setattr(fastload.machine, "quota_cores", lambda: quota)
    if local_world_size is None:
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local_world_size)
    assert usable_cores() == expected


def test_this_machine() -> None:
    assert 1 <= usable_cores() <= fastload.machine.affinity_cores()


class Libraries:
    """ctypes, of a machine with these libraries."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def CDLL(self, name: str) -> object:  # noqa: N802
        if name not in self.names:
            raise OSError(f"{name}: cannot open shared object file")
        return type("Library", (), {"tj3Init": None})()


def test_a_library_that_only_the_loader_finds_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By LD_LIBRARY_PATH, where neither gcc nor ld are, which `find_library` asks."""
    monkeypatch.setattr(fastload.machine, "find_library", lambda name: None)
    monkeypatch.setattr(fastload.machine, "ctypes", Libraries("libturbojpeg.so.0"))
    assert fastload.machine.system_turbojpeg() == "libturbojpeg.so.0, version 3 or newer"
    monkeypatch.setattr(fastload.machine, "ctypes", Libraries())
    assert fastload.machine.system_turbojpeg() is None
