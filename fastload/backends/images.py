"""Images of a source, read and rendered in Python in the calling thread, one a sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload import native
from fastload.decode.image import EncodedReader, upright_size
from fastload.draws import Draws, Int64Array
from fastload.errors import ConfigurationError, DecodeError
from fastload.files import DecodeSettings
from fastload.geometry import Geometry, GeometryPlan, View
from fastload.geometry.points import PointMap
from fastload.recipe import SplitRecipe
from fastload.recipe.composite import SampleImages
from fastload.recipe.outputs import Outputs, Size
from fastload.render.host import EncodedRenderer, EncodedRow, render_row
from fastload.sources.base import Source
from fastload.sources.columns import EncodedImages, PixelImages

Failures = dict[int, DecodeError]
"""Samples that have no pixels, by row."""
Columns = Mapping[str, npt.NDArray[Any]]
"""(B, height, width, C) images, by column and view."""


@dataclass(frozen=True)
class Found:
    """What was read of n images of the source."""

    sizes: Int64Array | None
    """(n, 2), upright; (1, 1) for those that cannot be read. None: the source has no images."""
    encoded: dict[str, dict[int, EncodedRow]]
    """The compressed images, by column and row."""
    failures: Failures
    """Those that cannot be read."""


@dataclass(frozen=True)
class Placed:
    """Where the pixels of some samples come from, before any is touched."""

    members: SampleImages
    """One a sample: itself."""
    geometries: tuple[Geometry, ...]
    """One for each view; none where the source has no images."""
    failures: Failures
    encoded: dict[str, dict[int, EncodedRow]] = field(default_factory=dict)
    """The compressed samples that were read, by column and row."""
    points: tuple[PointMap, ...] = ()
    """For each view, where points of the images go, if any column is moved with them."""

    def harmless(self, sizes: Sequence[Size]) -> list[Geometry]:
        """The geometries with rows that show one pixel and padding in place of those that failed,
        whatever they asked for; all windows are of these sizes, one a view."""
        rows, geometries = sorted(self.failures), []
        for geometry, size in zip(self.geometries, sizes, strict=True):
            box, grid, window = geometry.box.copy(), geometry.size.copy(), geometry.window.copy()
            box[rows], grid[rows], window[rows] = (0, 0, 1, 1), (1, 1), (0, 0, *size)
            geometries.append(replace(geometry, box=box, size=grid, window=window))
        return geometries if rows else list(self.geometries)


class ImageReader:
    """Makes the images of samples that are one image each. Picklable; any thread may call it,
    several at once."""

    def __init__(
        self,
        source: Source,
        recipe: SplitRecipe,
        outputs: Outputs,
        points: Callable[[SampleImages, Int64Array], tuple[PointMap, ...]],
        *,
        settings: DecodeSettings,
        renderer: EncodedRenderer,
        padded: bool,
    ) -> None:
        """`points`, `renderer`, `padded`: see `RowReader`."""
        self._source, self._recipe, self._outputs = source, recipe, outputs
        self._points, self._settings = points, settings
        self._renderer, self._padded = renderer, padded

    def place(self, draws: Draws) -> Placed:
        """Read what must be decoded, and resolve the geometry for the sizes of all."""
        read = self.read(draws.indices)
        sizes, failures = read.sizes, read.failures
        members = SampleImages(draws, draws.indices)
        # For pixels that are there already this is much of the work; the native core has the same
        # arithmetic.
        geometries: list[Geometry] = []
        points = () if sizes is None else self._points(members, sizes)
        for view, plan in enumerate(() if sizes is None else self._recipe.of(draws).geometries):
            assert sizes is not None
            if read.encoded or plan.takes_crops:
                crops = points[view].crops if plan.takes_crops else None
                geometries.append(plan.resolve(draws, sizes, crops))
            else:
                geometries.append(native.resolve(plan, draws, sizes))
            for row, reason in geometries[-1].errors.items():
                if row not in failures:
                    failures[row] = DecodeError(
                        f"{self._source.describe(int(draws.indices[row]))}: {reason}"
                    )
        return Placed(members, tuple(geometries), failures, read.encoded, points)

    def read(self, indices: Int64Array) -> Found:
        """Read what must be decoded of these images."""
        failures: Failures = {}
        encoded: dict[str, dict[int, EncodedRow]] = {}
        sizes: Int64Array | None = None
        for name in self._source.images:
            if name in self._source.encoded:
                encoded[name], own = self._read(self._source.encoded[name], indices, failures)
            else:
                own = _sizes_of(self._source.pixels[name], indices, failures)
            if sizes is None:
                sizes = own
            for row in np.flatnonzero((own != sizes).any(axis=1)).tolist():
                if row not in failures:
                    failures[row] = self._mismatch(name, int(indices[row]), own[row], sizes[row])
        return Found(sizes, encoded, failures)

    def sizes_of(self, placed: Placed) -> list[Size]:
        """(height, width) of all outputs, for each view; of the largest, if they are padded. Raises
        ConfigurationError: they differ; names two samples."""
        plans = self._recipe.of(placed.members.draws).geometries
        return [self._size_of(placed, view, plan) for view, plan in enumerate(plans)]

    def _size_of(self, placed: Placed, view: int, plan: GeometryPlan) -> Size:
        known = plan.out_size
        if known is not None:
            return known
        good = np.array(
            [row for row in range(len(placed.members.indices)) if row not in placed.failures],
            dtype=np.int64,
        )
        if not placed.geometries or not len(good):
            return 1, 1
        windows = placed.geometries[view].out_sizes
        if self._padded:
            height, width = windows[good].max(axis=0).tolist()
            return height, width
        first = int(good[0])
        others = good[(windows[good] != windows[first]).any(axis=1)]
        if len(others):
            one, other = (
                f"{self._source.describe(int(placed.members.indices[row]))} ({windows[row][0]} x "
                f"{windows[row][1]})"
                for row in (first, int(others[0]))
            )
            raise ConfigurationError(
                "transform: the images of a batch must come out in one size (height x width), but "
                f"{one} and {other} differ. Add a Resize or a crop to a fixed (height, width), or "
                "use batch_size=1; of images with objects, collate_fn='detr' or 'torchvision' "
                "takes several sizes."
            )
        return int(windows[first][0]), int(windows[first][1])

    def _read(
        self, column: EncodedImages, indices: Int64Array, failures: Failures
    ) -> tuple[dict[int, EncodedRow], Int64Array]:
        """The compressed samples by row, and (n, 2) int64 their sizes, upright; (1, 1) for those
        that failed."""
        reader = EncodedReader(column, self._settings)
        samples: dict[int, EncodedRow] = {}
        sizes = np.ones((len(indices), 2), dtype=np.int64)
        rows = [row for row in range(len(indices)) if row not in failures]
        for row, fetched in zip(rows, reader.fetch_many(indices[rows]), strict=True):
            if isinstance(fetched, DecodeError):
                failures[row] = fetched
                continue
            data, header, name = fetched
            samples[row] = EncodedRow(row, data, header, name, column.stored)
            sizes[row] = upright_size(header, self._settings)
        return samples, sizes

    def _mismatch(
        self, name: str, index: int, size: Int64Array, other_size: Int64Array
    ) -> DecodeError:
        columns = self._source.images
        first = next(iter(columns.values()))
        return DecodeError(
            f"{columns[name].describe(index)}: {size[1]} x {size[0]} pixels, but "
            f"{first.describe(index)}, which belongs to it, has {other_size[1]} x {other_size[0]}. "
            "Save both in one size (see also exif_orientation), or skip such samples with "
            'on_error="substitute".'
        )

    def render(self, placed: Placed, out: Columns) -> Failures:
        """Write the images; returns the samples without pixels, whose images hold zeros."""
        failures, plans = dict(placed.failures), self._recipe.of(placed.members.draws).geometries
        for name, column in self._source.images.items():
            outs = [out[view] for view in self._outputs.names[name]]
            if self._padded:
                outs = [
                    _UpperLeft(pixels, geometry.out_sizes)  # type: ignore[misc]
                    for pixels, geometry in zip(outs, placed.geometries, strict=True)
                ]
            views = [
                View(geometry, column.kind.resampling(plan), outs[view])
                for view, (plan, geometry) in enumerate(zip(plans, placed.geometries, strict=True))
            ]
            if name in placed.encoded:
                rows = [
                    sample for row, sample in placed.encoded[name].items() if row not in failures
                ]
                failures |= self._renderer.render(rows, views)
            else:
                failures |= _render_pixels(self._source.pixels[name], placed, views)
        for pixels in out.values():
            pixels[list(failures)] = 0
        return failures


@dataclass(frozen=True)
class _UpperLeft:
    """The rows of a batch without their padding, which nobody sees (`Traits.pads_images`) and
    nothing is written to."""

    pixels: npt.NDArray[np.uint8]
    sizes: npt.NDArray[np.int32]

    def __getitem__(self, row: int) -> npt.NDArray[np.uint8]:
        height, width = self.sizes[row]
        return self.pixels[row, :height, :width]


def _sizes_of(column: PixelImages, indices: Int64Array, failures: Failures) -> Int64Array:
    """(n, 2) int64; notes which samples could not be decoded when they were stored."""
    for row, error in column.failures_of(indices).items():
        failures.setdefault(row, error)
    return column.sizes_of(indices).astype(np.int64)


def _render_pixels(
    column: PixelImages, placed: Placed, views: Sequence[View]
) -> dict[int, DecodeError]:
    """Write the rows of a column; returns those that turn out to have no pixels."""
    failures: dict[int, DecodeError] = {}
    for row, index in enumerate(placed.members.indices.tolist()):
        if row not in placed.failures:
            try:
                pixels = column.pixels(index)
            except DecodeError as error:
                failures[row] = error
            else:
                for view in views:
                    render_row(pixels, row, view)
    return failures
