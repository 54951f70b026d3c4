"""Rows of a batch, read and rendered in Python in the calling thread; what could not be read is
collected, one failure a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from fastload.backends.base import BufferAllocator, Failure, HostBatch
from fastload.decode.libraries import get_decoder
from fastload.draws import Draws, Int64Array
from fastload.errors import DecodeError
from fastload.files import DecodeSettings
from fastload.geometry import GeometryPlan
from fastload.geometry.points import PointMap
from fastload.recipe import SplitRecipe
from fastload.recipe.composite import SampleImages
from fastload.recipe.outputs import SIZES, Outputs, Size
from fastload.sources.base import Source
from fastload.sources.buffers import is_mapped
from fastload.sources.columns import PixelImages, Values
from fastload.sources.ragged import Ragged, concatenated

if TYPE_CHECKING:
    from fastload.backends.images import ImageReader
    from fastload.backends.moved import MovedColumns
    from fastload.render.host import EncodedRenderer

# Bytes that are copied in 100 microseconds, in which another thread would hardly have started.
_LITTLE = 1 << 20

Tables = Sequence[npt.NDArray[np.float64]]
"""For each view (B, `Composite.most`, n, 2): of B samples the tables of `PointMap`s."""


@dataclass(frozen=True)
class Buffers:
    """Where a batch is written to, row by row: all of it, or a slice."""

    images: dict[str, npt.NDArray[Any]]
    """(B, height, width, C), by column and view."""
    points: Tables = ()
    """Where points of the images go; none where no column is moved by geometry."""
    plans: ClassVar[tuple[()]] = ()
    """See `PlannedBuffers`."""

    def take(self, rows: slice) -> Buffers:
        """A slice of it, to be written to."""
        parts = {name: array[rows] for name, array in self.images.items()}
        return Buffers(parts, tuple(table[rows] for table in self.points))

    def note(self, members: SampleImages, points: Sequence[PointMap]) -> None:
        """Write where points of the members of all samples go, for each view."""
        for table, one in zip(self.points, points, strict=True):
            table[members.places] = one.table


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
        self._source, self._recipe, self.settings = source, recipe, settings
        self._decoder, self._padded = decoder, padded
        self.outputs = Outputs.of(source, recipe, padded=padded)
        """The columns of its batches."""
        self.moved: MovedColumns | None = None
        """None: no column is moved with the images, and their sizes are not asked for."""
        if source.moved or padded or recipe.looks_at:
            from fastload.backends.moved import MovedColumns

            self.moved = MovedColumns(
                source, recipe, self.outputs, settings, threads=threads, allocate=allocate
            )
        # Not a method of this reader, which would be kept by those that it makes, and they by it.
        self._points = _no_points if self.moved is None else self.moved.points
        if renderer is None and decoder != "auto":
            get_decoder(decoder)  # complains now rather than in a thread
        self._renderer = renderer

    @cached_property
    def images(self) -> ImageReader:
        """Reads the images of the source."""
        from fastload.backends.images import ImageReader
        from fastload.render.host import PythonRenderer

        return ImageReader(
            self._source,
            self._recipe,
            self.outputs,
            self._points,
            settings=self.settings,
            renderer=self._renderer or PythonRenderer(self._decoder, self.settings),
            padded=self._padded,
        )

    @cached_property
    def makes(self) -> Any:
        """Makes the images of samples: what reads those of the source, or puts them together."""
        if self._recipe.composite.most == 1:
            return self.images
        from fastload.backends.composites import CompositeReader

        paster = None if self.moved is None else self.moved.paster
        given = self.settings, self._decoder
        return CompositeReader(
            self._source, self._recipe, self.images.read, self._points, paster, *given
        )

    def points(self, members: SampleImages, sizes: Int64Array) -> tuple[PointMap, ...]:
        """For each view, where points of members go, images of these (T, 2) sizes; none where no
        column is moved."""
        return self._points(members, sizes)

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
        return Buffers(images, () if self.moved is None else self.moved.tables(count))

    def fill(self, draws: Draws, out: Buffers) -> list[Failure]:
        """Write the images of `draws`, a slice of a batch or all of it, into rows of what `buffers`
        makes.

        Returns the rows (0 to n - 1) that could not be read, one failure each; their images hold
        zeros.
        """
        return self._render(self.makes.place(draws), out)

    def fill_again(self, draws: Draws, out: Buffers, rows: Sequence[int]) -> list[Failure]:
        """`fill` for these rows of a batch alone; the failures are of these rows."""
        buffers = self.buffers(len(rows), self._sizes_in(out))
        failures = self.fill(draws.take(np.array(rows)), buffers)
        for name, pixels in buffers.images.items():
            out.images[name][rows] = pixels
        for table, points in zip(out.points, buffers.points, strict=True):
            table[rows] = points
        return [Failure(rows[failure.row], failure.error) for failure in failures]

    def fill_new(
        self, draws: Draws, allocate: BufferAllocator | None = None
    ) -> tuple[Buffers, list[Failure]]:
        """`fill` for a batch whose size is known only when its rows are. Raises ConfigurationError:
        its images differ in size."""
        placed = self.makes.place(draws)
        out = self.buffers(len(draws), self.makes.sizes_of(placed), allocate)
        return out, self._render(placed, out)

    def batch(self, draws: Draws, allocate: BufferAllocator | None = None) -> HostBatch:
        """A whole batch in arrays of its own. Raises ConfigurationError: its images differ in
        size."""
        out, failures = self.fill_new(draws, allocate)
        return self.finish(draws, out.images, out.points, failures)

    def finish(
        self, draws: Draws, rendered: Mapping[str, Any], points: Tables, failures: list[Failure]
    ) -> HostBatch:
        """The batch of the columns that are made, with those that are still to be read: values, and
        what is moved with the images by these tables; of failed rows these hold zeros, or nothing
        where they are of variable length."""
        columns = dict(rendered)
        for name, column in self._source.values.items():
            if column.kind.moves or name in columns:
                continue
            if column.in_array() is None:
                columns[name], failures = _read_late(column, draws.indices, failures)
                if columns[name] is None:
                    return HostBatch({}, failures)
            else:
                columns[name] = column.at(draws.indices)
        bad: dict[int, str] = {}
        if self.moved is not None:
            moved, bad = self.moved.columns(draws, points, [failure.row for failure in failures])
            columns |= moved
            if self._padded:
                columns[SIZES] = self.moved.sizes(points)
        if bad:
            failures = self._without(draws, columns, failures, bad)
        ordered = (one.name for one in self.outputs.all if one.name in columns)
        return HostBatch({name: columns[name] for name in ordered}, failures)

    def close(self) -> None:
        """Join the threads that draw masks. May be called twice."""
        if self.moved is not None:
            self.moved.close()

    def _render(self, placed: Any, out: Buffers) -> list[Failure]:
        out.note(placed.members, placed.points)
        failures = self.makes.render(placed, out.images)
        return [Failure(row, failures[row]) for row in sorted(failures)]

    def _sizes_in(self, out: Buffers) -> list[Size]:
        """(height, width) of the images of each view."""
        first = next(iter(self._source.images))
        shapes = (out.images[name].shape for name in self.outputs.names[first])
        return [(height, width) for _, height, width, _ in shapes]

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


def read_values(column: Values, indices: Int64Array) -> tuple[Any, dict[int, DecodeError]]:
    """Rows of values, decoded where they have to be; and those that cannot be read, by their place
    among the indices: they hold zeros, or nothing where rows are of variable length. None where no
    row can be read."""
    try:
        rows = column.at(indices)
        return column.kind.decoded(rows) if column.kind.decodes else (rows, {})
    except DecodeError as error:
        if len(indices) == 1:
            return None, {0: error}
    alone = [read_values(column, indices[place : place + 1]) for place in range(len(indices))]
    errors = {place: error for place, (_, one) in enumerate(alone) for error in one.values()}
    like = next((rows for rows, _ in alone if rows is not None), None)
    if like is None:
        return None, errors
    if isinstance(like, Ragged):
        nothing = like.emptied([0])
        return concatenated([nothing if rows is None else rows for rows, _ in alone]), errors
    zeros = np.zeros_like(like)
    return np.concatenate([zeros if rows is None else rows for rows, _ in alone]), errors


def _read_late(
    column: Values, indices: Int64Array, failures: list[Failure]
) -> tuple[Any, list[Failure]]:
    """What `read_values` gives, and all failures, by row."""
    rows, errors = read_values(column, indices)
    failed = {failure.row: failure for failure in failures}
    if rows is None:
        failed.clear()
    failed = {row: Failure(row, error) for row, error in errors.items()} | failed
    return rows, [failed[row] for row in sorted(failed)]


def _no_points(members: SampleImages, sizes: Int64Array) -> tuple[PointMap, ...]:
    return ()


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
    if size is None or plan.draws_size or plan.takes_crops:
        return plan.out_size if len(columns) == 1 and plan.fits_every_image else None
    one = plan.resolve(Draws(0, 0, np.zeros(1, dtype=np.int64)), np.array([size], dtype=np.int64))
    if one.errors:
        return None
    return plan.out_size or (int(one.out_sizes[0, 0]), int(one.out_sizes[0, 1]))


def is_little(columns: Iterable[PixelImages | Values], batch_size: int) -> bool:
    """Whether a batch of these columns is a few bytes that need not be read from a disk."""
    nbytes = 0
    for column in columns:
        stored = column.in_array()
        if stored is None or getattr(stored, "sizes", None) is not None or is_mapped(stored.array):
            return False
        nbytes += stored.array[:1].nbytes
    return nbytes * batch_size <= _LITTLE


def _array(take: BufferAllocator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Uninitialised, in memory of `take`, which has bytes."""
    if dtype == np.uint8:
        return take(shape)
    return take((*shape[:-1], shape[-1] * dtype.itemsize)).view(dtype)
