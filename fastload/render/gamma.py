"""Bytes raised to a power on the scale 0..1, as albumentations' `gamma_transform`: by a table of
256 numbers, cut to whole ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from fastload.render.transfer import on_device

_PARTS = np.arange(256) * (1.0 / 255.0)


def gamma_tables(exponents: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """(B, 256): what becomes of each byte, of (B,) exponents above 0."""
    # One exponent at a time, as albumentations does: numpy computes powers of 1, 2 and 0.5 in other
    # ways.
    tables = [(_PARTS ** float(exponent) * 255).astype(np.uint8) for exponent in exponents]
    return np.stack(tables) if tables else np.zeros((0, 256), np.uint8)


def adjust_gamma(images: torch.Tensor, tables: npt.NDArray[np.uint8]) -> torch.Tensor:
    """(B, C, H, W) uint8 by (B, 256) tables."""
    adjusted = on_device(tables, images.device).gather(1, images.flatten(1).long())
    return adjusted.view(images.shape)
