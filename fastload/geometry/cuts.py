"""Rows of a resolved geometry that do nothing but cut, and warps that are followed by that: then a
renderer makes no more than what is shown."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastload.draws import Float64Array
from fastload.geometry.plan import Geometry, Later

_ALL = slice(None)


def is_warped(geometry: Geometry, rows: Any = _ALL) -> Any:
    """Whether something later warps what the geometry makes, and changes it: of one row, or (n,) of
    several."""
    later, window = geometry.later, geometry.window[rows, 2:]
    if later is None or later.inverse is None:
        return np.zeros(window.shape[:-1], dtype=np.bool_)
    still = (later.inverse[rows] == np.eye(3)).all(axis=(-2, -1))
    return ~(still & (later.size[rows] == window).all(axis=-1))


def only_cuts(geometry: Geometry, rows: Any = _ALL) -> Any:
    """Likewise whether all of a geometry is to show a part of the image, mirrored or not."""
    unscaled = _is_unscaled(geometry, rows)
    return unscaled if geometry.later is None else unscaled & False


def shows_all(geometry: Geometry, rows: Any = _ALL) -> Any:
    """Likewise whether what comes before `geometry.later` only cuts a part out."""
    return _is_unscaled(geometry, rows) & ~geometry.flip[rows].any(axis=-1)


def _is_unscaled(geometry: Geometry, rows: Any) -> Any:
    extent, window = geometry.box[rows, 2:], geometry.window[rows]
    same = (geometry.size[rows] == extent) & (window[..., 2:] == extent) & (window[..., :2] == 0)
    return same.all(axis=-1)


def cut_inverse(later: Later, rows: Any = _ALL) -> Float64Array:
    """(3, 3), or (n, 3, 3): where the pixels are of what the geometry after a warp cuts out."""
    assert later.inverse is not None
    inverse = later.inverse[rows]
    shift = np.zeros_like(inverse) + np.eye(3)
    shift[..., :2, 2] = later.geometry.box[rows][..., 1::-1]
    moved: Float64Array = inverse @ shift
    return moved
