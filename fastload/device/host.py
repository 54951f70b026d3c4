"""The host's side: buffers that are reused, and how many threads torch's own kernels use in one of our threads.

A fresh 40 MB array for every batch costs page faults and, when pinned, a system call that stops the GPU. So buffers
are reused, but only when nothing refers to them any more: a trainer may keep a batch as long as it likes, and nobody
has to give one back.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import threading
import weakref
from collections import defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

_WORTH_KEEPING = 1 << 20
"""Bytes. Smaller arrays of ordinary memory come from malloc, which keeps and reuses such pieces itself, and sooner."""
_OPENMP = re.compile(r"/lib(gomp|iomp5|omp)[^/]*\.so[^/]*$")


class BufferPool:
    """uint8 arrays, page-locked if asked, that return to the pool when their last view is gone.

    Views count too: numpy slices, and torch tensors made from the array.
    """

    def __init__(self, *, pinned_for: torch.device | None = None, least: int = _WORTH_KEEPING) -> None:
        """
        Args:
            pinned_for: the GPU that the buffers are page-locked for; None: ordinary memory.
            least: bytes from which ordinary memory is kept for reuse.
        """
        self._pinned_for = pinned_for
        self._least = least
        self.allocated = 0
        """Bytes allocated so far, free or lent."""
        self._free: dict[int, list[torch.Tensor]] = defaultdict(list)
        self._lock = threading.Lock()

    def allocate(self, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        """An array of this shape, C-contiguous, contents undefined."""
        nbytes = int(np.prod(shape, dtype=np.int64))
        if nbytes == 0 or (self._pinned_for is None and nbytes < self._least):
            return np.empty(shape, dtype=np.uint8)
        with self._lock:
            free = self._free[nbytes]
            memory = free.pop() if free else None
        if memory is None:
            memory = self._fresh(nbytes)
            self.allocated += nbytes
        # numpy points the views of an array at the outermost array it finds. Through a memoryview that is `lease`
        # itself, so `lease` lives exactly as long as the last view.
        lease = np.frombuffer(memory.numpy().data, dtype=np.uint8)
        weakref.finalize(lease, self._free[nbytes].append, memory).atexit = False
        return lease.reshape(shape)

    def _fresh(self, nbytes: int) -> torch.Tensor:
        if self._pinned_for is None:
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        # Page-locking opens a context on the current GPU if the process has none yet, and any thread may be first.
        with torch.cuda.device(self._pinned_for):
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)


def use_one_thread_here() -> None:
    """Let torch's CPU kernels run on the calling thread alone; other threads are not affected.

    Otherwise each kernel wakes a team of OpenMP threads that wait for each other by spinning. Beside threads that
    decode, which leave no core free, that made batches of 32 photographs four times slower (2 cores).

    `torch.set_num_threads` would change the whole process. OpenMP keeps the number for each thread ("nthreads-var",
    OpenMP 5.2, section 2.4), so it is set there, in every OpenMP library that is loaded. Where there is none, or it
    cannot be found, nothing happens.
    """
    torch.get_num_threads()  # torch sets this thread's number at its first use: let it have been
    for library in _loaded_openmp():
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_NOW).omp_set_num_threads(1)


def _loaded_openmp() -> list[str]:
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:  # not Linux
        return []
    paths = {line.split(maxsplit=5)[-1] for line in maps.splitlines()}
    return sorted(path for path in paths if _OPENMP.search(path))
