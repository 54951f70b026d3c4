"""Rows of a batch that share an operation, and the small tensors of their parameters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from fastload.render.device import on_device

__all__ = ["map_groups"]

Kernel = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]


def map_groups(
    pixels: torch.Tensor, kinds: npt.NDArray[np.int64], parameters: npt.NDArray[np.float64], kernel: Kernel
) -> torch.Tensor:
    """Apply to each row of a batch the operation drawn for it: one call for all rows of a kind.

    Rows, kinds and parameters are known on the host, so nothing waits for the device; two small copies in all.

    Args:
        pixels: (B, C, H, W).
        kinds: (B,) int64: the kind of operation for each row; rows with a negative kind stay as they are.
        parameters: (B, P) float64.
        kernel: called as kernel(kind, rows (n, C, H, W), their parameters (n, P) on the device); returns (n, C, H, W)
            of the same dtype, and may return its input.

    Returns:
        (B, C, H, W); `pixels` itself if there is nothing to do.
    """
    found = np.unique(kinds)
    if found.size == 0 or found[-1] < 0:
        return pixels
    # Planar: the kernels work channel by channel, and whole samples are copied in one piece.
    pixels = pixels.contiguous()
    if found.size == 1:
        return kernel(int(found[0]), pixels, on_device(parameters, pixels.device))
    order = np.argsort(kinds, kind="stable")
    rows, back = on_device(np.stack([order, np.argsort(order)]), pixels.device)
    sorted_parameters = on_device(parameters[order], pixels.device)
    grouped = pixels.index_select(0, rows)
    bounds = np.searchsorted(kinds[order], [*found.tolist(), np.iinfo(np.int64).max]).tolist()
    parts = []
    for kind, start, stop in zip(found.tolist(), bounds, bounds[1:], strict=False):
        part = grouped[start:stop]
        parts.append(part if kind < 0 else kernel(kind, part, sorted_parameters[start:stop]))
    return torch.cat(parts).index_select(0, back)
