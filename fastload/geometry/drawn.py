"""Operations of geometry as numbers, for a kernel that draws where a batch's pixels come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class DrawnFlip:
    """A mirroring of those samples whose uniform number is below `p`."""

    axis: int
    """0: upside-down, 1: left-right."""
    p: float


@dataclass(frozen=True)
class DrawnCrop:
    """A window anywhere in an image with padding around it: `floor(u * count)` rows down, and by
    the next uniform number so many columns across."""

    size: tuple[int, int]
    before: tuple[int, int]
    """Rows above, columns on the left."""
    after: tuple[int, int]
    """Rows below, columns on the right."""


DrawnStep: TypeAlias = DrawnFlip | DrawnCrop
"""A flip takes one uniform number a sample, a crop two."""
