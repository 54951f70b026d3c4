"""Samples decoded once and kept as tensors: memory-mapped `.npy` files and a JSON manifest, nothing
pickled."""

from __future__ import annotations

from fastload.cache.build import build_cache
from fastload.cache.manifest import is_cache
from fastload.cache.reading import open_cache
from fastload.cache.writing import verify_cache

__all__ = ["build_cache", "is_cache", "open_cache", "verify_cache"]
