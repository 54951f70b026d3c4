"""Operations that make a pixel of those around it: weighted sums and medians, by torch. The native
core has the same bits (fastload/native/neighbours.inl.hpp)."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import pad

from fastload.render.steps import FilterSteps, MedianSteps
from fastload.render.transfer import on_device


def convolved(images: torch.Tensor, steps: FilterSteps) -> torch.Tensor:
    """(B, C, H, W) uint8 images. Tap by tap, and not as a convolution, whose sums depend on how
    many samples there are."""
    if steps.rows is not None and not steps.rows.all():
        rows = np.flatnonzero(steps.rows)
        if not len(rows):
            return images
        chosen = on_device(rows, images.device)
        some = convolved(images.index_select(0, chosen), FilterSteps(steps.kernels[rows]))
        return images.index_copy(0, chosen, some)
    count, side, _ = steps.kernels.shape
    (height, width), half = images.shape[2:], side // 2
    pixels = images.contiguous().to(torch.float32)
    pixels = pad(pixels, (half,) * 4, mode="reflect")
    weights = on_device(steps.kernels.reshape(count, -1), images.device)
    total = torch.zeros_like(images, dtype=torch.float32, memory_format=torch.contiguous_format)
    for tap in np.flatnonzero(steps.kernels.any(axis=0)).tolist():
        top, left = divmod(tap, side)
        # A row of each weight: with one number a sample beside the pixels, the CPU's multiply-add
        # is not vectorised.
        row = weights[:, tap].view(-1, 1, 1, 1).repeat(1, 1, 1, width)
        total.addcmul_(pixels[:, :, top : top + height, left : left + width], row)
    return total.round_().clamp_(0.0, 255.0).to(torch.uint8)


def medians(images: torch.Tensor, steps: MedianSteps) -> torch.Tensor:
    """(B, C, H, W) uint8 images."""
    for side in np.unique(steps.sides).tolist():
        if side > 1:
            rows = on_device(np.flatnonzero(steps.sides == side), images.device)
            images = images.index_copy(0, rows, _median(images.index_select(0, rows), side))
    return images


def _median(images: torch.Tensor, side: int) -> torch.Tensor:
    """The largest number that more than half of the neighbours are not below, bit by bit from the
    highest on: so no sorted neighbours are kept, side * side times as much as the images."""
    (height, width), half = images.shape[2:], side // 2
    # Floats, as torch repeats borders of no others.
    padded = pad(images.to(torch.float32), (half,) * 4, mode="replicate").to(torch.uint8)
    median = torch.zeros_like(images)
    for bit in (128, 64, 32, 16, 8, 4, 2, 1):
        tried = median | bit
        count = torch.zeros_like(images)
        for tap in range(side * side):
            top, left = divmod(tap, side)
            count += padded[:, :, top : top + height, left : left + width] >= tried
        median = torch.where(count > side * side // 2, tried, median)
    return median
