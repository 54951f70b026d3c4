"""Memory for batches on the host: blocks used again, page-locked where a GPU reads them."""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import threading
import weakref
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

WORTH_KEEPING = 1 << 20
"""Bytes. Smaller arrays of ordinary memory come from malloc, which keeps and reuses such pieces
itself, and sooner."""
_LARGEST_FIT = 4
"""A block of a pool is used for arrays down to a quarter of its size. So the last batch of an epoch
needs none of its own, and labels do not take the blocks of images."""


_HUGE_PAGE = 2 << 20
"""Bytes."""
_SMALLEST_MAPPED = 1 << 17
"""Bytes. To clear fewer takes no longer than the rest of a batch of boxes."""
_MAPPED = 64 << 20
"""Bytes of a mapping for several arrays."""


@functools.cache
def has_huge_pages(setting: str = "/sys/kernel/mm/transparent_hugepage/enabled") -> bool:
    """Whether Linux gives memory in pages of 2 MiB where it is asked for them."""
    try:
        with open(setting) as file:
            return "[never]" not in file.read() and hasattr(mmap, "MADV_HUGEPAGE")
    except OSError:
        return False


class Zeros:
    """Arrays of zeros, of pages that nobody has used: the system clears these when they are first
    written. So large arrays cost nothing where they are only read.

    To map memory, to ask for huge pages and to give it back take as long as the rest of a batch of
    boxes, so one mapping serves many arrays. It is given back when the last of them is gone; until
    then pages that were written stay.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory = np.empty(0, dtype=np.bool_)
        """Of the mapping, what was not given out."""

    def allocate(self, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
        """False everywhere, C-contiguous."""
        nbytes = math.prod(shape)
        if nbytes < _SMALLEST_MAPPED or not has_huge_pages():
            # numpy clears memory that malloc has used before, and fresh pages of 4 KiB cost ten
            # times as much.
            return np.zeros(shape, dtype=np.bool_)
        with self._lock:
            if len(self._memory) < nbytes:
                self._memory = _fresh_zeros(max(nbytes, _MAPPED))
            zeros, self._memory = self._memory[:nbytes], self._memory[nbytes:]
        return zeros.reshape(shape)


def _fresh_zeros(nbytes: int) -> npt.NDArray[np.bool_]:
    """(nbytes,), of whole huge pages."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    pages = mmap.mmap(-1, (-(-nbytes // _HUGE_PAGE) + 1) * _HUGE_PAGE, flags=private)
    pages.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(pages, dtype=np.bool_)
    start = -memory.__array_interface__["data"][0] % _HUGE_PAGE
    return memory[start : start + nbytes]


class BufferPool:
    """uint8 arrays, page-locked if asked, that return to the pool when their last view is gone.

    A fresh 40 MB array for every batch costs page faults and, when page-locked, a system call that
    stops the GPU. A trainer may keep a batch as long as it likes: numpy slices, and torch tensors
    made from the array, are views as well.

    Page-locked blocks have the size that was asked for, in whole pages, and are registered once.
    (torch's own allocator rounds up to a power of two: 38 MB become 67.) A smaller batch takes a
    block of a larger one, so that after the first batches of a run nothing is registered any more:
    such calls would break the capture of a CUDA graph.
    """

    def __init__(
        self, *, pinned_for: torch.device | None = None, least: int = WORTH_KEEPING
    ) -> None:
        """`pinned_for`: the GPU that the buffers are page-locked for; `least`: bytes from which
        ordinary memory is kept."""
        self._pinned_for = pinned_for
        self._least = least
        self.allocated = 0
        """Bytes allocated so far, free or in use."""
        self._free: list[_Block] = []
        self._lock = threading.Lock()

    def allocate(self, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        """An array of this shape, C-contiguous, contents undefined."""
        nbytes = int(np.prod(shape, dtype=np.int64))
        if nbytes == 0 or (self._pinned_for is None and nbytes < self._least):
            return np.empty(shape, dtype=np.uint8)
        outgrown: _Block | None = None  # freed when this returns, not under the lock
        with self._lock:
            # A copy of the list: finalizers append to it at any moment. Of equal blocks the last
            # used: it is in caches.
            fitting = [
                b
                for b in reversed(list(self._free))
                if nbytes <= b.memory.numel() <= _LARGEST_FIT * nbytes
            ]
            block = min(fitting, key=lambda b: b.memory.numel(), default=None)
            if block is not None:
                self._free.remove(block)
            else:
                outgrown = self._outgrown_by(nbytes)
        if block is None:
            block = _Block(self._fresh(nbytes))
            self.allocated += block.memory.numel()
            self.allocated -= 0 if outgrown is None else outgrown.memory.numel()
        # numpy points the views of an array at the outermost array it finds. Through a memoryview
        # that is `lease` itself, so `lease` lives exactly as long as the last view.
        lease = np.frombuffer(block.memory.numpy().data, dtype=np.uint8, count=nbytes)
        weakref.finalize(lease, self._free.append, block).atexit = False
        return lease.reshape(shape)

    def _outgrown_by(self, nbytes: int) -> _Block | None:
        """The free block that a new one of so many bytes takes the place of, as it is a little too
        small: of batches of several sizes all blocks become as large as the largest, and they are
        no more than are in use at once. The lock is held."""
        free = list(self._free)
        small = [b for b in free if nbytes / _LARGEST_FIT <= b.memory.numel() < nbytes]
        least = min(small, key=lambda b: b.memory.numel(), default=None)
        if least is not None:
            self._free.remove(least)
        return least

    def _fresh(self, nbytes: int) -> torch.Tensor:
        if self._pinned_for is None:
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        # Page-locking opens a context on the current GPU if the process has none yet, and any
        # thread may be first.
        with torch.cuda.device(self._pinned_for):
            return _page_locked(nbytes)


@dataclass(eq=False)
class _Block:
    """Memory of a pool."""

    memory: torch.Tensor
    """(n,) uint8."""


def _page_locked(nbytes: int) -> torch.Tensor:
    """(n,) uint8, n rounded up to whole pages, page-locked for the current GPU until it is
    freed."""
    pages = mmap.mmap(-1, -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
    memory = torch.frombuffer(pages, dtype=torch.uint8)
    cuda = torch.cuda.cudart()
    if int(cuda.cudaHostRegister(memory.data_ptr(), memory.numel(), 0)) != 0:
        # Some systems allow no registering; torch's allocator has other ways, and says what it
        # lacks. CUDA keeps the error until somebody asks: the next launch of a kernel would.
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device="cuda")
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
    weakref.finalize(memory, cuda.cudaHostUnregister, memory.data_ptr()).atexit = False
    return memory
