"""Rows of a batch, read and rendered in Python in the calling thread; what could not be read is
collected, one failure a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload import native
from fastload.backends.base import BufferAllocator, Failure, HostBatch
from fastload.backends.joined import JoinedReader
from fastload.backends.masks import MaskDrawer
from fastload.backends.pasted import Paster
from fastload.decode.image import EncodedReader, upright_size
from fastload.decode.libraries import get_decoder
from fastload.draws import Draws
from fastload.errors import ConfigurationError, DecodeError
from fastload.files import DecodeSettings
from fastload.geometry import Geometry, GeometryPlan, View
from fastload.geometry.points import POINT_COLUMNS, Objects, PointMap, PointStep
from fastload.recipe import SplitRecipe
from fastload.recipe.joined import Members
from fastload.recipe.outputs import SIZES, Outputs, Size
from fastload.render.host import EncodedRenderer, EncodedRow, PythonRenderer, render_row
from fastload.sources.base import Source
from fastload.sources.columns import EncodedImages, PixelImages
from fastload.sources.instances import move_together
from fastload.sources.kinds import Kind, kind_named
from fastload.sources.ragged import Ragged

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Buffers:
    """Where a batch is written to, row by row: all of it, or a slice."""

    images: dict[str, npt.NDArray[Any]]
    """(B, height, width, C), by column and view."""
    points: tuple[npt.NDArray[np.float64], ...] = ()
    """For each view the table of a `PointMap`; none where no column is moved by geometry."""

    def take(self, rows: slice) -> Buffers:
        """A slice of it, to be written to."""
        parts = {name: array[rows] for name, array in self.images.items()}
        return Buffers(parts, tuple(table[rows] for table in self.points))


@dataclass(frozen=True)
class Placed:
    """Where the pixels of some samples come from, before any is touched."""

    indices: Int64Array
    geometries: tuple[Geometry, ...]
    """One for each view; none where the source has no images."""
    failures: dict[int, DecodeError]
    """The samples that have no pixels, by row."""
    encoded: dict[str, dict[int, EncodedRow]] = field(default_factory=dict)
    """The compressed samples that were read, by column and row."""
    points: tuple[PointMap, ...] = ()
    """For each view, where points of the images go, if any column is moved with them."""

    def harmless(self, sizes: Sequence[Size]) -> list[Geometry]:
        """The geometries with rows that show one pixel and padding in place of those that failed,
        whatever they asked for; all windows are of these sizes, one a view."""
        rows, made = sorted(self.failures), []
        for geometry, size in zip(self.geometries, sizes, strict=True):
            box, grid, window = geometry.box.copy(), geometry.size.copy(), geometry.window.copy()
            box[rows], grid[rows], window[rows] = (0, 0, 1, 1), (1, 1), (0, 0, *size)
            made.append(replace(geometry, box=box, size=grid, window=window))
        return made if rows else list(self.geometries)


_TAKEN = ""
"""In place of a column: which objects of samples of several may be seen. No source has such a
name."""


@dataclass(frozen=True)
class _Pasted:
    """Objects of other samples that are pasted into those of a batch, and hide parts of theirs."""

    paster: Paster
    draws: Draws
    members: Members
    failed: list[int]
    """The samples that have no pixels."""

    def taken(self, shapes: Ragged) -> Ragged:
        """Which of these objects may be seen in their sample."""
        return Ragged(self.paster.taken(self.draws, self.members, shapes), shapes.offsets)

    def hidden(self, columns: dict[str, Any], taken: Any, points: PointMap) -> dict[str, Any]:
        """The columns without what is hidden."""
        return self.paster.hide(self.draws, self.members, columns, taken, points, self.failed)


class RowReader:
    """Reads rows by draws: whole batches, or slices of them. Picklable; any thread may call
    it, several at once."""

    def __init__(
        self,
        source: Source,
        recipe: SplitRecipe,
        *,
        settings: DecodeSettings,
        decoder: str = "auto",
        renderer: EncodedRenderer | None = None,
        threads: int = 0,
        allocate: BufferAllocator | None = None,
        padded: bool = False,
    ) -> None:
        """The source has no objects, and the recipe no opaque part. Without a renderer of their
        own, compressed images are decoded and rendered in Python, with that decoder. `threads`:
        that draw the masks of objects, into arrays of `allocate`; 0: the one that calls does.
        `padded`: see `Context`."""
        self._source, self._recipe, self._plans, self.settings = (
            source,
            recipe,
            recipe.geometries,
            settings,
        )
        self.outputs = Outputs.of(source, recipe, padded=padded)
        """The columns of its batches."""
        if renderer is None:
            if decoder != "auto":
                get_decoder(decoder)  # complains now rather than in a thread
            renderer = PythonRenderer(decoder, settings)
        self._renderer = renderer
        self._padded = padded
        self._boxes = next((c for c in source.instances.values() if c.kind.drops_objects), None)
        self._masks = MaskDrawer(threads, allocate) if source.drawn else None
        traced = self._masks is not None
        self._paster = None
        if recipe.joint is not None and recipe.joint.pastes:
            # The masks of pasted objects are drawn by the thread that makes the picture.
            self._paster = Paster(source, recipe, MaskDrawer() if source.drawn else None)
        self.joined = (
            None
            if recipe.joint is None
            else JoinedReader(source, recipe, settings, decoder, traced, self._paster)
        )
        """Who makes samples of several images; None: the recipe has none."""

    def buffers(
        self, count: int, sizes: Sequence[Size], allocate: BufferAllocator | None = None
    ) -> Buffers:
        """Uninitialised arrays for a batch."""
        take = allocate or partial(np.empty, dtype=np.uint8)
        images = {
            one.name: _array(take, (count, *sizes[one.view], one.channels), one.dtype)
            for one in self.outputs.images
            if one.dtype is not None
        }
        lines = [POINT_COLUMNS * len(steps) for steps in self._steps if self._source.images]
        shape = _table_shape if self.joined is None else self.joined.table_shape
        return Buffers(images, tuple(np.empty(shape(count, number)) for number in lines))

    @cached_property
    def _steps(self) -> list[tuple[PointStep, ...]]:
        """Of the `PointMap` of each view; none where no column is moved by geometry."""
        views = range(len(self._plans) if self._source.moved else 0)
        return [self._recipe.steps(view, traced=self._masks is not None) for view in views]

    def points(self, sizes: Int64Array, draws: Draws) -> tuple[PointMap, ...]:
        """For each view, where points of images of these (B, 2) sizes go; none where no column is
        moved with them."""
        objects = None
        if self._boxes is not None and any(plan.needs_objects for plan in self._plans):
            boxes = self._boxes.at(draws.indices)
            objects = Objects(boxes.values.astype(np.float64), boxes.rows_of_values)
        return tuple(
            self._recipe.points(view, sizes, draws, objects, traced=self._masks is not None)
            for view in range(len(self._plans))
            if self._source.moved
        )

    def fill(self, draws: Draws, out: Buffers) -> list[Failure]:
        """Write the images of `draws`, a slice of a batch or all of it, into rows of what `buffers`
        makes.

        Returns the rows (0 to n - 1) that could not be read, one failure each; their images hold
        zeros.
        """
        if self.joined is None:
            return self._render(self.place(draws), out)
        found = self.joined.fill(draws, out.images, out.points, self._found)
        return [Failure(row, found[row]) for row in sorted(found)]

    def fill_again(self, draws: Draws, out: Buffers, rows: Sequence[int]) -> list[Failure]:
        """`fill` for these rows of a batch alone; the failures are of these rows."""
        made = self.buffers(len(rows), self._sizes_in(out))
        failures = self.fill(draws.take(np.array(rows)), made)
        for name, pixels in made.images.items():
            out.images[name][rows] = pixels
        for table, points in zip(out.points, made.points, strict=True):
            table[rows] = points
        return [Failure(rows[failure.row], failure.error) for failure in failures]

    def fill_new(
        self, draws: Draws, allocate: BufferAllocator | None = None
    ) -> tuple[Buffers, list[Failure]]:
        """`fill` for a batch whose size is known only when its rows are. Raises ConfigurationError:
        its images differ in size."""
        if self.joined is not None:
            sizes = [plan.out_size for plan in self._plans if plan.out_size is not None]
            out = self.buffers(len(draws), sizes, allocate)
            return out, self.fill(draws, out)
        placed = self.place(draws)
        out = self.buffers(len(draws), self.sizes_of(placed), allocate)
        return out, self._render(placed, out)

    def batch(self, draws: Draws, allocate: BufferAllocator | None = None) -> HostBatch:
        """A whole batch in arrays of its own. Raises ConfigurationError: its images differ in
        size."""
        out, failures = self.fill_new(draws, allocate)
        return self.finish(draws, out.images, out.points, failures)

    def finish(
        self,
        draws: Draws,
        made: Mapping[str, Any],
        points: Sequence[npt.NDArray[np.float64]],
        failures: list[Failure],
    ) -> HostBatch:
        """The batch of the columns that are made, with those that are still to be read: values, and
        what is moved with the images by these tables of `PointMap`, one a view; of failed rows
        these hold zeros, or nothing where they are of variable length."""
        columns = dict(made)
        for name, column in self._source.values.items():
            if not column.kind.moves and name not in columns:
                columns[name] = column.at(draws.indices)
        bad: dict[int, str] = {}
        if self._source.moved:
            moved, bad = self._moved(draws, points, [failure.row for failure in failures])
            columns |= moved
        if self._padded:
            (table,), (steps,) = points, self._steps
            columns[SIZES] = PointMap(table, steps).sizes
        if bad:
            failures = self._without(draws, columns, failures, bad)
        return HostBatch(self._in_order(columns), failures)

    def _moved(
        self, draws: Draws, points: Sequence[npt.NDArray[np.float64]], failed: list[int]
    ) -> tuple[dict[str, Any], dict[int, str]]:
        """The columns that are moved with the images, see `finish`; and of images whose masks
        cannot be drawn, why not."""
        if self.joined is None:
            return self._moved_with(draws.indices, points, failed)
        members = self.joined.members(draws)
        of_members = [table[members.samples, members.slots] for table in points]
        lost = np.flatnonzero(np.isin(members.samples, failed)).tolist()
        pasted = None if self._paster is None else _Pasted(self._paster, draws, members, failed)
        columns, bad = self._moved_with(members.indices, of_members, lost, pasted)
        # A sample has the rows of its members. All are Ragged: `loader.objects` has checked that.
        columns = {
            name: Ragged(found.values, found.offsets[members.offsets])
            for name, found in columns.items()
        }
        return columns, {int(members.samples[row]): why for row, why in bad.items()}

    def _moved_with(
        self,
        indices: Int64Array,
        points: Sequence[npt.NDArray[np.float64]],
        failed: list[int],
        pasted: _Pasted | None = None,
    ) -> tuple[dict[str, Any], dict[int, str]]:
        """As `_moved`, of images of the source: one of each index, moved by the tables of one
        `PointMap` a view. `pasted`: hides parts of their objects."""
        moved = self._source.moved
        rows = {name: column.at(indices) for name, column in moved.items()}
        kinds: dict[str, Kind] = {name: column.kind for name, column in moved.items()}
        if pasted is not None:
            shapes = next(rows[name] for name, one in moved.items() if one is self._boxes)
            rows[_TAKEN], kinds[_TAKEN] = pasted.taken(shapes), kind_named("instances")
        moves = [PointMap(*one) for one in zip(points, self._steps, strict=bool(points))]
        if not moves:  # a source without images
            moves = [PointMap.identity(np.ones((len(indices), 2)))]
        columns: dict[str, Any] = {}
        bad: dict[int, str] = {}
        for view, one in enumerate(moves):
            for name, found in move_together(rows, kinds, one).items():
                if isinstance(found, Ragged):
                    found = found.emptied(failed)
                else:
                    found[failed] = 0
                if name in self._source.drawn:
                    assert self._masks is not None
                    found, undrawn = self._masks.draw(found, one)
                    bad |= undrawn
                columns[name if name == _TAKEN else self.outputs.names[name][view]] = found
            if pasted is not None:
                columns = pasted.hidden(columns, columns.pop(_TAKEN), one)
        return columns, bad

    def _without(
        self,
        draws: Draws,
        columns: dict[str, Any],
        failures: list[Failure],
        bad: Mapping[int, str],
    ) -> list[Failure]:
        """The failures, with those of images whose masks cannot be drawn: all their columns hold
        zeros, or nothing, too."""
        for name, column in columns.items():
            if isinstance(column, Ragged):
                columns[name] = column.emptied(sorted(bad))
            else:
                column[sorted(bad)] = 0
        return sorted(
            [*failures, *(self._undrawn(draws, row, why) for row, why in bad.items())],
            key=lambda failure: failure.row,
        )

    def _undrawn(self, draws: Draws, row: int, why: str) -> Failure:
        name = self._source.describe(int(draws.indices[row]))
        words = "correct its annotation and its size there, or leave the sample out"
        return Failure(row, DecodeError(f"{name}: no masks can be drawn: {why}; {words}."))

    def close(self) -> None:
        """Join the threads that draw masks. May be called twice."""
        if self._masks is not None:
            self._masks.close()

    def _in_order(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        return {one.name: columns[one.name] for one in self.outputs.all if one.name in columns}

    def _sizes_in(self, out: Buffers) -> list[Size]:
        """(height, width) of the images of each view."""
        first = next(iter(self._source.images))
        shapes = (out.images[name].shape for name in self.outputs.names[first])
        return [(height, width) for _, height, width, _ in shapes]

    def place(self, draws: Draws) -> Placed:
        """Read what must be decoded, and resolve the geometry for the sizes of all."""
        sizes, encoded, failures = self._found(draws.indices)
        # For pixels that are there already this is much of the work; the native core has the same
        # arithmetic.
        geometries: list[Geometry] = []
        points = () if sizes is None else self.points(sizes, draws)
        for view, plan in enumerate(() if sizes is None else self._plans):
            assert sizes is not None
            if encoded or plan.needs_objects:
                crops = points[view].crops if plan.needs_objects else None
                geometries.append(plan.resolve(draws, sizes, crops))
            else:
                geometries.append(native.resolve(plan, draws, sizes))
            for row, reason in geometries[-1].errors.items():
                if row not in failures:
                    failures[row] = DecodeError(
                        f"{self._source.describe(int(draws.indices[row]))}: {reason}"
                    )
        return Placed(draws.indices, tuple(geometries), failures, encoded, points)

    def _found(
        self, indices: Int64Array
    ) -> tuple[Int64Array | None, dict[str, dict[int, EncodedRow]], dict[int, DecodeError]]:
        """Read what must be decoded of these images: (n, 2) sizes, None where there are no images;
        the compressed ones by column and row; and those that cannot be read, by row."""
        failures: dict[int, DecodeError] = {}
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
        return sizes, encoded, failures

    def sizes_of(self, placed: Placed) -> list[Size]:
        """(height, width) of all outputs, for each view; of the largest, if they are padded. Raises
        ConfigurationError: they differ; names two samples."""
        return [self._size_of(placed, view) for view in range(len(self._plans))]

    def _size_of(self, placed: Placed, view: int) -> Size:
        known = self._plans[view].out_size
        if known is not None:
            return known
        good = np.array(
            [row for row in range(len(placed.indices)) if row not in placed.failures],
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
                f"{self._source.describe(int(placed.indices[row]))} ({windows[row][0]} x "
                f"{windows[row][1]})"
                for row in (first, int(others[0]))
            )
            raise ConfigurationError(
                "transform: the images of a batch must come out in one size (height x width), but "
                f"{one} and {other} differ. Add a Resize or a crop to a fixed (height, width), or "
                "use batch_size=1; of images with objects, collate='detr' or 'torchvision' takes "
                "several sizes."
            )
        return int(windows[first][0]), int(windows[first][1])

    def _read(
        self, column: EncodedImages, indices: Int64Array, failures: dict[int, DecodeError]
    ) -> tuple[dict[int, EncodedRow], Int64Array]:
        """The compressed samples by row, and (n, 2) int64 their sizes, upright; (1, 1) for those
        that failed."""
        reader = EncodedReader(column, self.settings)
        samples: dict[int, EncodedRow] = {}
        sizes = np.ones((len(indices), 2), dtype=np.int64)
        rows = [row for row in range(len(indices)) if row not in failures]
        for row, fetched in zip(rows, reader.fetch_many(indices[rows]), strict=True):
            if isinstance(fetched, DecodeError):
                failures[row] = fetched
                continue
            data, header, name = fetched
            samples[row] = EncodedRow(row, data, header, name, column.stored)
            sizes[row] = upright_size(header, self.settings)
        return samples, sizes

    def _mismatch(
        self, name: str, index: int, size: Int64Array, other_size: Int64Array
    ) -> DecodeError:
        columns = self._source.images
        first = next(iter(columns.values()))
        return DecodeError(
            f"{columns[name].describe(index)}: {size[1]} x {size[0]} pixels, but "
            f"{first.describe(index)}, which "
            f"belongs to it, has {other_size[1]} x {other_size[0]}. Save both in one size (see "
            "also exif_orientation), "
            'or skip such samples with on_error="substitute".'
        )

    def _render(self, placed: Placed, out: Buffers) -> list[Failure]:
        failures = dict(placed.failures)
        for table, points in zip(out.points, placed.points, strict=True):
            table[:] = points.table
        for name, column in self._source.images.items():
            outs = [out.images[view] for view in self.outputs.names[name]]
            if self._padded:
                for pixels in outs:
                    pixels[...] = 0
                outs = [
                    _UpperLeft(pixels, geometry.out_sizes)  # type: ignore[misc]
                    for pixels, geometry in zip(outs, placed.geometries, strict=True)
                ]
            views = [
                View(geometry, column.kind.resampling(plan), outs[view])
                for view, (plan, geometry) in enumerate(
                    zip(self._plans, placed.geometries, strict=True)
                )
            ]
            if name in placed.encoded:
                rows = [
                    sample for row, sample in placed.encoded[name].items() if row not in failures
                ]
                failures |= self._renderer.render(rows, views)
            else:
                failures |= _render_pixels(self._source.pixels[name], placed, views)
        for pixels in out.images.values():
            pixels[list(failures)] = 0
        return [Failure(row, failures[row]) for row in sorted(failures)]


@dataclass(frozen=True)
class _UpperLeft:
    """The rows of a batch without their padding."""

    pixels: npt.NDArray[np.uint8]
    sizes: npt.NDArray[np.int32]

    def __getitem__(self, row: int) -> npt.NDArray[np.uint8]:
        height, width = self.sizes[row]
        return self.pixels[row, :height, :width]


def _array(take: BufferAllocator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Uninitialised, in memory of `take`, which has bytes."""
    if dtype == np.uint8:
        return take(shape)
    return take((*shape[:-1], shape[-1] * dtype.itemsize)).view(dtype)


def _table_shape(batch: int, numbers: int) -> tuple[int, ...]:
    """Of the table of a `PointMap`."""
    return batch, numbers, 2


def settled_size(source: Source, plan: GeometryPlan) -> tuple[int, int] | None:
    """(height, width) of every output of a source of pixels, where it is known before any draw that
    every sample can be made.

    All images could be decoded, and either they are of one size, so that what the plan can do to
    one it can do to all, or the plan can be applied to any image. None otherwise.
    """
    columns = [column.in_array() for column in source.pixels.values()]
    if source.encoded or not all(column is not None and not column.failed for column in columns):
        return None
    if len({column.fixed_size for column in source.pixels.values()}) != 1:
        return None
    size = next(iter(source.pixels.values())).fixed_size
    if size is None or plan.draws_size or plan.needs_objects:
        return plan.out_size if len(columns) == 1 and plan.fits_every_image else None
    one = plan.resolve(Draws(0, 0, np.zeros(1, dtype=np.int64)), np.array([size], dtype=np.int64))
    if one.errors:
        return None
    return plan.out_size or (int(one.out_sizes[0, 0]), int(one.out_sizes[0, 1]))


def _sizes_of(
    column: PixelImages, indices: Int64Array, failures: dict[int, DecodeError]
) -> Int64Array:
    """(n, 2) int64; notes which samples could not be decoded when they were stored."""
    for row, error in column.failures_of(indices).items():
        failures.setdefault(row, error)
    return column.sizes_of(indices).astype(np.int64)


def _render_pixels(
    column: PixelImages, placed: Placed, views: Sequence[View]
) -> dict[int, DecodeError]:
    """Write the rows of a column; returns those that turn out to have no pixels."""
    failures: dict[int, DecodeError] = {}
    for row, index in enumerate(placed.indices.tolist()):
        if row not in placed.failures:
            try:
                pixels = column.pixels(index)
            except DecodeError as error:
                failures[row] = error
            else:
                for view in views:
                    render_row(pixels, row, view)
    return failures
