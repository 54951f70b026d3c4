"""To how many patches an image of a size is resized."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastload.draws import Int64Array

_EPS = 1e-5
_HALVINGS = 24
"""100 / 2**24 is the first below `_EPS`."""


def patch_grids(sizes: Int64Array, patch: int, most: int, max_ratio: float | None) -> Int64Array:
    """(n, 2): rows and columns of patches for images of (n, 2) height and width.

    The rule of timm's `get_image_size_for_seq`, which is that of SigLIP2's image processor in
    transformers: both sides are multiplied by the largest ratio, up to 100, and divided by the side
    of a patch, rounded up, so that there are at most `most` patches. The ratio is bisected to 1e-5
    in the same floating-point numbers. `max_ratio`: the largest ratio that is taken.
    """
    keys, places = np.unique((sizes[:, 0] << 32) | sizes[:, 1], return_inverse=True)
    sides = np.stack([keys >> 32, keys & 0xFFFFFFFF], axis=1)

    def grids(ratio: Any) -> Int64Array:
        rounded = np.ceil(sides * ratio[:, None] / patch)
        return np.asarray(np.maximum(rounded, 1), dtype=np.int64)

    low, high = np.full(len(sides), _EPS / 10.0), np.full(len(sides), 100.0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        fits = grids(middle).prod(axis=1) <= most
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    ratio = low if max_ratio is None else np.minimum(low, max_ratio)
    served: Int64Array = grids(ratio)[places.reshape(-1)]
    return served
