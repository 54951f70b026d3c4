"""The native core as a decoder of whole images: it gives the verdict where another decoder refuses."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fastload import native
from fastload.geometry import Geometry

if TYPE_CHECKING:
    from fastload.native import NativePool

CORE = "native"


class CoreDecoder:
    name = CORE
    strict = True
    version = ""

    def decode(self, data: bytes, *, out: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.uint8]:
        failures: list[native.NativeFailure] = []
        if out is None:
            headers, failures = core_pool().read_headers([data], here=True)
            out = np.empty((*headers[0, :2].tolist(), 3), dtype=np.uint8)
        if not failures:
            whole = np.array([[0, 0, *out.shape[:2]]], dtype=np.int32)
            placed = Geometry(box=whole, size=whole[:, 2:], window=whole, flip=np.zeros((1, 2), dtype=np.bool_))
            pending = core_pool().decode_batch([data], geometry=placed, out=out[None], check_whole=True, here=True)
            failures = pending.wait()
        if failures:
            raise ValueError(failures[0].message)
        return out


def core_formats() -> Mapping[str, str]:
    """The formats beside JPEG that the core reads, by Pillow's names, and with which library; none without the core."""
    return native.load().formats() if native.available() else {}


@cache
def core_pool() -> NativePool:
    """Of this process, for single images, whoever asks for them. The thread that asks decodes them: none is started."""
    return native.NativePool(1)
