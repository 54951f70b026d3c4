"""Samples decoded once and kept as tensors: memory-mapped `.npy` files and a JSON manifest, nothing pickled."""

from __future__ import annotations

from fastload.cache.build import build_cache
from fastload.sources.built_cache import open_cache
from fastload.sources.cache_manifest import is_cache

__all__ = ["build_cache", "is_cache", "open_cache"]
