"""Where rows and columns come from: padding and nearest-neighbour resampling, along one axis."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastload.geometry import PaddingMode

__all__ = ["grid_rows", "nearest_rows"]

Rows = npt.NDArray[np.intp]


def grid_rows(start: int, length: int, limit: int, padding_mode: PaddingMode) -> Rows:
    """(length,) intp: which of `limit` rows each of `start`, `start + 1`... shows; -1 for constant padding.

    "reflect" mirrors without repeating the edge row, "symmetric" with it, both as often as needed.
    """
    rows = np.arange(start, start + length, dtype=np.intp)
    if padding_mode == "constant":
        return np.where((rows >= 0) & (rows < limit), rows, -1)
    if padding_mode == "edge":
        return np.clip(rows, 0, limit - 1)
    if padding_mode == "reflect":
        period = max(2 * (limit - 1), 1)
        rows = rows % period
        return np.minimum(rows, period - rows) if limit > 1 else np.zeros_like(rows)
    rows = rows % (2 * limit)
    return np.minimum(rows, 2 * limit - 1 - rows)


def nearest_rows(out_length: int, in_length: int, *, exact: bool) -> Rows:
    """(out_length,) intp: the source row of each output row, in torch's single-precision arithmetic.

    torch.nn.functional.interpolate: "nearest" takes floor(i * scale), "nearest-exact" floor((i + 0.5) * scale).
    """
    scale = np.float32(in_length) / np.float32(out_length)
    positions = np.arange(out_length, dtype=np.float32)
    if exact:
        positions += np.float32(0.5)
    rows: Rows = np.minimum(np.floor(positions * scale).astype(np.intp), in_length - 1)
    return rows
