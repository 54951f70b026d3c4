"""A cache directory that `build_cache` made."""

from __future__ import annotations

import json
import os

from fastload.sources.opening import Opened, OpenOptions

__all__ = ["is_built_cache", "open_built_cache"]

_MANIFEST = "manifest.json"


def is_built_cache(spec: object) -> bool:
    """A folder with a manifest.json that says it is a fastload cache, or that cannot be read, beside `.npy` files."""
    if not isinstance(spec, str) or not os.path.isfile(os.path.join(spec, _MANIFEST)):
        return False
    try:
        with open(os.path.join(spec, _MANIFEST), encoding="utf-8") as file:
            manifest = json.load(file)
    except (OSError, ValueError):
        return any(name.endswith(".npy") for name in os.listdir(spec))
    return isinstance(manifest, dict) and manifest.get("format") == "fastload-cache"


def open_built_cache(directory: str, options: OpenOptions) -> Opened:
    """Open it. Raises CacheError if it is damaged."""
    # Here, because the cache is built from sources.
    from fastload.cache import open_cache

    return Opened(open_cache(directory))
