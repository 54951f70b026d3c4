"""CRC-32 as zlib computes it, of what is stored: tiers, caches and shards are checked by it."""

from __future__ import annotations

import functools
import importlib
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np


def crc32(data: Any, value: int = 0) -> int:
    """Of a buffer, after bytes whose CRC-32 is `value`: what `zlib.crc32` says."""
    return _function()(data, value)


@functools.cache
def _function() -> Callable[[Any, int], int]:
    """That of the native core, where it is built and has one: 113 kB take 2.5 us, and 19.5 us by
    zlib 1.2.13."""
    try:
        core: Any = importlib.import_module("fastload.native._core")
    except ImportError:
        return zlib.crc32
    if not hasattr(core, "crc32"):
        return zlib.crc32
    return lambda data, value: int(core.crc32(np.frombuffer(data, np.uint8), value))
