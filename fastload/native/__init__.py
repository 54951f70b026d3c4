"""The native core: whole batches from compressed bytes to pixels in one call, on threads that never
hold the GIL.

It is an optional C++ extension, imported at the first use and never by `import fastload`.

    pool = NativePool(threads=8)
    pending = pool.decode_batch(images, geometry=geometry, sampling=plan.resampling, out=out)
    for failure in pending.wait(): ...
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fastload.native.extension import available, load

if TYPE_CHECKING:
    from fastload.native.pool import (
        FusedGeometry,
        NativeFailure,
        NativePool,
        Pending,
        Status,
        fuse,
        resolve,
    )

__all__ = [
    "FusedGeometry",
    "NativeFailure",
    "NativePool",
    "Pending",
    "Status",
    "available",
    "fuse",
    "load",
    "resolve",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(importlib.import_module("fastload.native.pool"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
