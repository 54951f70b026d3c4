"""Host buffers that are reused without anybody having to give them back.

A fresh 40 MB array for every batch costs page faults and, when pinned, a system call that stops the GPU. So buffers
are reused, but only when nothing refers to them any more: a trainer may keep a batch as long as it likes.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["BufferPool"]


class BufferPool:
    """uint8 arrays, page-locked if asked, that return to the pool when their last view is gone.

    Views count too: numpy slices, and torch tensors made from the array.
    """

    def __init__(self, *, pinned: bool = False) -> None:
        self.pinned = pinned
        self.allocated = 0
        """Bytes allocated so far, free or lent."""
        self._free: dict[int, list[torch.Tensor]] = defaultdict(list)
        self._lock = threading.Lock()

    def allocate(self, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        """An array of this shape, C-contiguous, contents undefined."""
        nbytes = int(np.prod(shape, dtype=np.int64))
        if nbytes == 0:
            return np.empty(shape, dtype=np.uint8)
        with self._lock:
            free = self._free[nbytes]
            memory = free.pop() if free else None
        if memory is None:
            memory = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=self.pinned)
            self.allocated += nbytes
        # numpy points the views of an array at the outermost array it finds. Through a memoryview that is `lease`
        # itself, so `lease` lives exactly as long as the last view.
        lease = np.frombuffer(memory.numpy().data, dtype=np.uint8)
        weakref.finalize(lease, self._free[nbytes].append, memory).atexit = False
        return lease.reshape(shape)
