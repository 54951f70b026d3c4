"""Memory to decode into, again and again.

A fresh array per image is a fresh mapping per image: the system clears its pages, and threads queue for the address
space of the process. Two threads that decode photographs into kept memory are up to twice as fast.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

__all__ = ["Scratch"]

_KEEP = 64 << 20
"""Bytes kept; larger images get an array of their own, so that one of them does not hold its memory for ever."""


class Scratch:
    """One growing buffer. Each `take` reuses it, so it belongs to one thread and one image at a time."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, dtype=np.uint8)

    def take(self, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        """An uninitialised C-contiguous uint8 array; the one taken before is overwritten."""
        size = math.prod(shape)
        if size > _KEEP:
            return np.empty(shape, dtype=np.uint8)
        if size > len(self._buffer):
            self._buffer = np.empty(max(size, min(_KEEP, len(self._buffer) * 3 // 2)), dtype=np.uint8)
        return self._buffer[:size].reshape(shape)
