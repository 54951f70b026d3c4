"""What a batch of cached images will look like, before any pixel is touched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastload import native
from fastload.draws import Draws
from fastload.errors import ConfigurationError, DecodeError
from fastload.geometry import Geometry, GeometryPlan
from fastload.sources.base import Source
from fastload.sources.columns import PixelArray

if TYPE_CHECKING:
    from fastload.native import FusedGeometry

__all__ = ["PlacedBatch", "place_batch", "settled_size"]

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PlacedBatch:
    """The geometry of a batch and the samples that it cannot serve."""

    geometry: Geometry | FusedGeometry
    """For every row, failed ones too (theirs is harmless)."""
    size: tuple[int, int]
    """(height, width) of all outputs."""
    failures: dict[int, DecodeError]
    """By row; their pixels are to be zeroed."""


def settled_size(source: Source, plan: GeometryPlan) -> tuple[int, int] | None:
    """(height, width) of every output, where that and all else is known before any draw; else None.

    It is where all images could be decoded, and either are of one size, so that what the plan can do to one it can do
    to all, or the plan can be applied to any image.
    """
    columns = [column for column in source.images.values() if isinstance(column, PixelArray)]
    if len({column.fixed_size for column in columns}) != 1 or any(column.failed for column in columns):
        return None
    size = columns[0].fixed_size
    if size is None:
        return plan.out_size if len(columns) == 1 and plan.fits_every_image else None
    one = plan.resolve(Draws(0, 0, np.zeros(1, dtype=np.int64)), np.array([size], dtype=np.int64))
    if one.errors:
        return None
    return plan.out_size or (int(one.window[0, 2]), int(one.window[0, 3]))


def place_batch(source: Source, plan: GeometryPlan, draws: Draws) -> PlacedBatch:
    """Resolve the geometry of a batch.

    Raises:
        ConfigurationError: the outputs would differ in size; names two samples and the remedy.
    """
    failures: dict[int, DecodeError] = {}
    columns = [column for column in source.images.values() if isinstance(column, PixelArray)]
    sizes: npt.NDArray[Any] | None = None
    for column in columns:
        failures = column.failures_of(draws.indices) | failures
        own = column.sizes_of(draws.indices).astype(np.int64)
        if sizes is None:
            sizes = own
        for row in np.flatnonzero((own != sizes).any(axis=1)).tolist():
            failures.setdefault(row, _mismatch(columns[0], column, int(draws.indices[row]), sizes[row], own[row]))
    assert sizes is not None, "called for sources that have images"
    geometry = native.resolve(plan, draws, sizes)
    for row, reason in geometry.errors.items():
        failures.setdefault(row, DecodeError(f"{source.describe(int(draws.indices[row]))}: {reason}"))
    size = plan.out_size or _common_size(source, geometry, draws, failures)
    return PlacedBatch(_harmless(geometry, sorted(failures), size), size, failures)


def _mismatch(
    first: PixelArray, other: PixelArray, index: int, size: Int64Array, other_size: Int64Array
) -> DecodeError:
    return DecodeError(
        f"{other.describe(index)}: {other_size[1]} x {other_size[0]} pixels, but {first.describe(index)}, which "
        f"belongs to it, has {size[1]} x {size[0]}. Save both in one size (see also exif_orientation), or skip such "
        'samples with on_error="substitute".'
    )


def _common_size(source: Source, geometry: Geometry, draws: Draws, failures: dict[int, DecodeError]) -> tuple[int, int]:
    windows = geometry.window[:, 2:]
    good = np.array([row for row in range(len(draws)) if row not in failures], dtype=np.int64)
    if not len(good):
        return 1, 1
    first = int(good[0])
    other = good[(windows[good] != windows[first]).any(axis=1)]
    if len(other):
        one, two = (
            f"{source.describe(int(draws.indices[row]))} ({windows[row][0]} x {windows[row][1]})"
            for row in (first, int(other[0]))
        )
        raise ConfigurationError(
            f"transform: the images of a batch must come out in one size (height x width), but {one} and {two} differ. "
            "Add a Resize or a crop to a fixed (height, width), or use batch_size=1."
        )
    return int(windows[first][0]), int(windows[first][1])


def _harmless(geometry: Geometry, rows: list[int], size: tuple[int, int]) -> Geometry:
    """The same geometry with rows that show one pixel and padding, whatever they asked for."""
    if not rows:
        return geometry
    box, grid, window = geometry.box.copy(), geometry.size.copy(), geometry.window.copy()
    box[rows], grid[rows], window[rows] = (0, 0, 1, 1), (1, 1), (0, 0, *size)
    return Geometry(box, grid, window, geometry.flip)
