"""Samples decoded once and kept as tensors: memory-mapped `.npy` files and a JSON manifest, nothing pickled."""

from __future__ import annotations

from fastload.cache.build import build_cache
from fastload.cache.writing import verify_cache
from fastload.sources.built_cache import is_cache, open_cache

__all__ = ["build_cache", "is_cache", "open_cache", "verify_cache"]
