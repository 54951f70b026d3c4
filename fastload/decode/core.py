"""The native core as a decoder of whole images: it gives the verdict where another decoder refuses."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fastload import native
from fastload.geometry import Geometry
from fastload.machine import usable_cores

if TYPE_CHECKING:
    from fastload.native import NativePool

CORE = "native"


class CoreDecoder:
    name = CORE
    strict = True
    version = ""

    def decode(self, data: bytes, *, out: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.uint8]:
        headers, failures = core_pool().read_headers([data])
        if not failures:
            height, width = headers[0, :2].tolist()
            pixels = np.empty((1, height, width, 3), dtype=np.uint8)
            whole = np.array([[0, 0, height, width]], dtype=np.int32)
            placed = Geometry(box=whole, size=whole[:, 2:], window=whole, flip=np.zeros((1, 2), dtype=np.bool_))
            failures = core_pool().decode_batch([data], geometry=placed, out=pixels, check_whole=True).wait()
            if not failures:
                result: npt.NDArray[np.uint8] = pixels[0]
                return result
        raise ValueError(failures[0].message)


@cache
def core_pool() -> NativePool:
    """The threads of this process for single images, whoever asks for them."""
    return native.NativePool(usable_cores())
