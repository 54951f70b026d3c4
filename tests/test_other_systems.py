"""The ways without what Windows lacks (`fcntl`, forks, signals, `/proc` and the like), on a Python
that is made to lack it. Nothing of fastload has run on Windows or macOS (docs/support.md)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fastload import files, locks, native
from fastload.backends import torch_workers
from fastload.backends.torch_workers import TorchOptions
from fastload.errors import ConfigurationError
from tests.images import write_photo_folder

ROOT = Path(__file__).parents[1]

AS_ON_WINDOWS = """
import os, signal, socket, sys
import torch, torchvision.transforms.v2, psutil, filelock, PIL.Image, multiprocessing.util

for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None  # importing it raises ImportError
for name in (
    "fork", "register_at_fork", "sched_getaffinity", "pread", "preadv", "pwrite", "statvfs",
    "O_NONBLOCK", "O_CLOEXEC", "O_DIRECT", "memfd_create", "getuid", "geteuid", "posix_fadvise",
    "mkfifo", "killpg", "setpgid", "ST_RDONLY", "posix_spawn", "waitid",
):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGCHLD", "SIGKILL", "SIGHUP", "SIGUSR1", "pthread_sigmask", "sigtimedwait"):
    if hasattr(signal, name):
        delattr(signal, name)
if hasattr(socket, "AF_UNIX"):
    del socket.AF_UNIX

class Windows:
    LK_LOCK, LK_NBLCK = 1, 2

    @staticmethod
    def locking(descriptor, mode, count):
        assert count == 1

sys.modules["msvcrt"] = Windows
if sys.argv[2] == "no core":  # there is no wheel: Python's threads decode
    sys.modules["fastload.native._core"] = None
else:  # what the core has where CMake compiles it for Windows
    from fastload.native import _core
    for name in ("Fetcher", "crc32", "read_png16", "write_to_tier", "look_in_tier"):
        delattr(_core, name)
    _core.list_folders = lambda *_: None

import fastload
from fastload.backends.torch_workers import TorchOptions
from torchvision.transforms import v2

transform = v2.Compose([v2.RandomResizedCrop(16), v2.ToImage()])
folder = sys.argv[1]

threads = TorchOptions(threads=True)

def first(**given):
    with fastload.create_loader(folder, 4, shuffle=True, transform=transform, **given) as loader:
        images, labels = next(iter(loader))
        by_core = "decoder     native core" in loader.explain()
        assert by_core == (not given and sys.argv[2] != "no core")
    return images

images = first()
assert images.shape == (4, 3, 16, 16)
assert torch.equal(images, first(backend="torch"))
assert torch.equal(images, first(backend="torch", num_workers=2, options=threads))
try:
    first(backend="torch", num_workers=2)
except fastload.errors.ConfigurationError as error:
    assert "num_workers=0" in str(error), error
else:
    raise AssertionError("worker processes were started")
from fastload.stores import copies, tier, transfers
assert transfers.missing()
from fastload.sources import archive, parquet_unpacked, zip_members
from fastload.cli.doctor import descriptors
assert descriptors().value
print("all", len([name for name in sys.modules if name.startswith("fastload")]))
"""


@pytest.mark.whole
@pytest.mark.parametrize("core", ["no core", "core"])
def test_batches_come_without_what_windows_lacks(
    core: str, tmp_path: Path, own_cache: Path
) -> None:
    if core == "core" and not native.available():
        pytest.skip("the native core is not built")
    folder = write_photo_folder(tmp_path / "data")
    done = subprocess.run(
        [sys.executable, "-c", AS_ON_WINDOWS, str(folder), core],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("all ")


def test_bytes_are_read_at_a_place_without_pread(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(200)))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for position, count in ((0, 4), (100, 50), (3, 1), (198, 9), (300, 4)):
            wanted = os.pread(descriptor, count, position)
            assert files._read_there(descriptor, count, position) == wanted
        target = bytearray(10)
        assert files._read_into_there(descriptor, [memoryview(target)], 195) == 5
        assert target == bytes(range(195, 200)) + bytes(5)
    finally:
        os.close(descriptor)


def test_a_file_is_locked_for_one_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with open(path, "wb") as first:
        locks.lock_until_closed(first)
        assert locks.is_locked(path)
        with open(path, "wb") as second:
            waiter = threading.Thread(target=locks.lock_until_closed, args=(second,))
            waiter.start()
            waiter.join(0.05)
            assert waiter.is_alive()
            first.close()
            waiter.join(30)
            assert not waiter.is_alive()
            assert locks.is_locked(path)
    assert not locks.is_locked(path)


def test_a_system_without_worker_processes_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("signal.pthread_sigmask")
    there = torch_workers._workers_here
    assert there(None, TorchOptions()) == 0
    assert there(3, TorchOptions(threads=True)) == 3
    with pytest.raises(ConfigurationError, match="num_workers=0, or threads=True"):
        there(2, TorchOptions())


def test_whether_a_process_has_ended_is_known_without_proc() -> None:
    assert not torch_workers._is_gone(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert torch_workers._is_gone(child.pid)
