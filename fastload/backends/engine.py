"""How a batch is made on the host: on the threads of the native core where it can, on Python's
where it cannot.

On the native core a batch is one call, and no Python runs for a sample that is sound. What it
cannot do (CMYK, GIF) or finds fault with goes through the shared Python code, which either makes
the pixels or gives the verdict, so that messages are the same whichever engine runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from fastload import native
from fastload.backends.assemble import Assembler, Buffers, settled_size
from fastload.backends.base import Context, Failure, HostBatch
from fastload.backends.host import Engine, PendingBatch, ThreadEngine, thread_failure
from fastload.cache.resident import is_mapped
from fastload.decode.libraries import core_formats, others_by_pillow
from fastload.draws import Draws
from fastload.errors import ConfigurationError, DecodeError, FastloadError, WorkerError, counted
from fastload.geometry import Geometry, GeometryPlan, View
from fastload.geometry.points import PointMap
from fastload.native.pool import Compressed, FusedGeometry, NativeFailure, NativePool, Pending, fuse
from fastload.recipe.views import view_column
from fastload.sources.base import Source
from fastload.sources.columns import EncodedImages

Pixels = npt.NDArray[np.uint8]
Started = list[tuple[int, "Pending | Future[Pending]"]]
"""First row, and the core's work on the rows from there."""
Placements = list["Geometry | FusedGeometry | None"]
"""Of each view; None where it is still to be resolved."""

_LITTLE = 1 << 20
"""Bytes of pixels that are copied in 100 microseconds, in which another thread would hardly have
started."""


def host_engine(
    context: Context,
    assembler: Assembler,
    backend: str,
    *,
    decoder: str = "auto",
    check_whole: bool = False,
    draft: bool = False,
) -> Engine:
    """The fastest engine for the source of a context, which has no objects; for the options see
    `TurboJpegOptions`.

    Raises BackendUnavailableError: the decoder asked for is not installed. ConfigurationError:
    decoder="native", and the native core does not serve this source.
    """
    if decoder == "native":
        native.load()  # complains if it is not there
    if decoder in ("auto", "native") and native.available():
        if NativeEngine.serves(context.source, context.recipe.geometries):
            return NativeEngine(context, assembler, backend, check_whole=check_whole, draft=draft)
        if decoder == "native":
            raise ConfigurationError(
                "options: decoder='native' serves one column of compressed images, to a size "
                "that the transform fixes; "
                f"{context.source.name} is not that. Use decoder='auto'."
            )
    return ThreadEngine(context, assembler, backend, decoder)


class NativeEngine(Engine):
    """Serves one column of compressed images to a size that is known in advance, or columns of
    pixels in arrays.

    Python's threads do what goes before and after the core: bytes that are not in files, sizes
    where it does not draw boxes itself, and odd samples.
    """

    def __init__(
        self,
        context: Context,
        assembler: Assembler,
        backend: str,
        *,
        check_whole: bool = False,
        draft: bool = False,
    ) -> None:
        super().__init__(context, assembler, backend)
        source, plans = self._source, self._plans
        assert self.serves(source, plans)
        self._check_whole = check_whole
        self._draft = draft
        self._slice = max(1, -(-context.batch_size // self._threads))
        self._settled = [settled_size(source, plan) for plan in plans]
        copied = None not in self._settled and not any(plan.resamples for plan in plans)
        self.light = copied and _is_little(source, context.batch_size * len(plans))
        """Whether there is less to do than to hand it to other threads and to wait for them."""
        self._pool = NativePool(self._threads)
        self._remade = 0
        """Samples that the core gave back and Python could read."""

    @staticmethod
    def serves(source: Source, plans: Sequence[GeometryPlan]) -> bool:
        """Whether the core can make the batches of this source."""
        if source.encoded:
            one = len(source.images) == 1 and not any(
                column.kind.as_stored for column in source.encoded.values()
            )
            return one and all(plan.out_size is not None for plan in plans)
        stored = [column.in_array() for column in source.pixels.values()]
        return bool(stored) and all(
            column is not None and column.array.flags.c_contiguous for column in stored
        )

    def start(self, draws: Draws) -> PendingBatch:
        return self._decode(draws) if self._source.encoded else self._gather(draws)

    def close(self) -> None:
        super().close()
        self._pool.close()

    def explain(self) -> Mapping[str, str]:
        core = f"native core ({self._pool.simd})"
        rows = {
            "threads": f"{self._threads} of the {core}, {counted(self.depth, 'batch')} in flight"
        }
        if self._source.encoded:
            whole = (
                "whole files are checked"
                if self._check_whole
                else "damage outside a crop is not looked for"
            )
            formats = {"JPEG": "libjpeg-turbo where it is not baseline", **core_formats()}
            known = (
                ", ".join(f"{name} ({library})" for name, library in formats.items())
                + "; "
                + others_by_pillow()
            )
            rows["decoder"] = f"{core}: decodes only what a crop needs; {whole}; reads {known}"
            rows["decoded"] = (
                ", ".join(f"{what} {count}" for what, count in self.decoded.items())
                or "nothing yet"
            )
        if self._draft:
            rows["draft"] = (
                "JPEGs are decoded at 1/2, 1/4 or 1/8 where a crop is at least so many times "
                "its output: not quite the "
                f"pixels of other backends; {self._pool.reduced} so far"
            )
        return rows

    @property
    def decoded(self) -> Mapping[str, int]:  # type: ignore[override]
        counts = {**self._pool.decoded, "reduced": self._pool.reduced, "python": self._remade}
        return {name: count for name, count in counts.items() if count}

    def finish(self, task: _NativeBatch, failed: list[int]) -> HostBatch:
        """The batch, the rows that the core gave back made in Python on all threads."""
        failures = [Failure(row, error) for row, error in task.failures.items()]
        for out in task.buffers.images.values():
            out[list(task.failures)] = 0
        if failed:
            parts = [
                part.tolist()
                for part in np.array_split(np.array(failed), min(self._threads, len(failed)))
            ]
            for found in self._executor().map(
                partial(self._again, task.draws, task.buffers), parts
            ):
                failures += found
            self._remade += len(failed) + len(task.failures) - len(failures)
        return self._assembler.finish(
            task.draws, task.buffers, sorted(failures, key=lambda f: f.row)
        )

    def _again(self, draws: Draws, out: Buffers, rows: list[int]) -> list[Failure]:
        """Make the pixels of some rows in Python; returns those that fail there as well."""
        made = self._assembler.buffers(len(rows), self._assembler.sizes_in(out))
        failures = self._assembler.fill(draws.take(np.array(rows)), made)
        for name, pixels in made.images.items():
            out.images[name][rows] = pixels
        for table, points in zip(out.points, made.points, strict=True):
            table[rows] = points
        return [Failure(rows[failure.row], failure.error) for failure in failures]

    # Compressed images

    def _decode(self, draws: Draws) -> PendingBatch:
        sizes = [plan.out_size for plan in self._plans if plan.out_size is not None]  # all of them
        buffers = self._assembler.buffers(len(draws), sizes, self._allocate)
        ((name, column),) = self._source.encoded.items()
        files = column.in_files(draws.indices)
        if files is None:
            return _NativeBatch(
                self, draws, buffers, self._begin_reading(name, column, draws, buffers)
            )
        fused = self._fused(draws)
        if None not in fused:
            return _NativeBatch(
                self, draws, buffers, [(0, self._submit(files, fused, self._outs(name, buffers)))]
            )
        measured = self._executor().submit(self._measure, name, draws, files, buffers)
        return _NativeBatch(self, draws, buffers, [(0, measured)])

    def _outs(self, name: str, buffers: Buffers) -> list[Pixels]:
        """Where the images of a column go, for each view."""
        return [buffers.images[view_column(name, view)] for view in range(len(self._plans))]

    def _fused(self, draws: Draws) -> Placements:
        """For each view its geometries, where the core resolves them itself. It keeps them to
        itself: where columns are moved with the images, Python resolves them."""
        return [None if self._source.moved else fuse(plan, draws) for plan in self._plans]

    def _begin_reading(
        self, name: str, column: EncodedImages, draws: Draws, buffers: Buffers
    ) -> Started:
        """Bytes from anywhere: read by all threads, a slice each, and handed to the core as they
        come."""
        started: Started = []
        for start in range(0, len(draws), self._slice):
            rows = slice(start, min(start + self._slice, len(draws)))
            part = buffers.take(rows)
            started.append(
                (start, self._executor().submit(self._read, name, column, draws.take(rows), part))
            )
        return started

    def _read(self, name: str, column: EncodedImages, draws: Draws, out: Buffers) -> Pending:
        try:
            data = list(column.read_many(draws.indices))
        except OSError:
            # Of which sample, and in which words, the Assembler finds out: the core refuses an
            # image of no bytes.
            data = [_bytes_or_none(column, index) for index in draws.indices.tolist()]
        fused = self._fused(draws)
        if None in fused:
            return self._measure(name, draws, data, out)
        return self._submit(data, fused, self._outs(name, out))

    def _measure(self, name: str, draws: Draws, images: Compressed, buffers: Buffers) -> Pending:
        """Begin a batch whose boxes Python resolves: it needs to know the sizes of the images
        first."""
        settings = self._assembler.settings
        headers, failures = self._pool.read_headers(images, settings=settings)
        sizes = headers[:, :2].astype(np.int64)
        if settings.exif_orientation:
            turned = headers[:, 3] >= 5
            sizes[turned] = sizes[turned][:, ::-1]
        placed, outs = self._fused(draws), self._outs(name, buffers)
        for view, (plan, out) in enumerate(zip(self._plans, outs, strict=True)):
            if placed[view] is None:
                # Whatever has no size gets one that fits every plan; decoding will find the same
                # fault with it.
                for failure in failures:
                    sizes[failure.row] = out.shape[1:3]
                geometry = placed[view] = plan.resolve(draws, sizes)
                for row in geometry.errors:
                    geometry.box[row] = (
                        0  # a box of nothing, which the core refuses: the Assembler has the words
                    )
        for table, points in zip(buffers.points, self._assembler.points(sizes, draws), strict=True):
            table[:] = points.table
        return self._submit(images, placed, outs)

    def _submit(self, images: Compressed, placed: Placements, outs: list[Pixels]) -> Pending:
        views = [
            View(geometry, plan.resampling, out)
            for geometry, plan, out in zip(placed, self._plans, outs, strict=True)
        ]
        settings, whole = self._assembler.settings, self._check_whole
        return self._pool.decode_views(
            images, views, settings=settings, check_whole=whole, draft=self._draft
        )

    # Pixels in arrays

    def _gather(self, draws: Draws) -> PendingBatch:
        if self.light and all(plan.is_identity for plan in self._plans) and not self._source.moved:
            return self._copy(draws)
        failures: dict[int, DecodeError] = {}
        placed, points = self._fused(draws), tuple[PointMap, ...]()
        sizes = [size for size in self._settled if size is not None]
        if len(sizes) < len(self._plans) or None in placed:
            found = self._assembler.place(draws)
            sizes, failures, points = self._assembler.sizes_of(found), found.failures, found.points
            placed = [*found.harmless(sizes)]
        buffers = self._assembler.buffers(len(draws), sizes, self._allocate)
        for table, moves in zip(buffers.points, points, strict=True):
            table[:] = moves.table
        started: Started = []
        for name, column in self._source.pixels.items() if len(draws) else ():
            stored = column.in_array()
            assert stored is not None
            for view, (plan, geometry) in enumerate(zip(self._plans, placed, strict=True)):
                assert geometry is not None
                pending = self._pool.gather_batch(
                    stored,
                    draws.indices,
                    geometry=geometry,
                    out=buffers.images[view_column(name, view)],
                    sampling=column.kind.resampling(plan),
                    here=self.light,
                )
                started.append((0, pending))
        return _NativeBatch(self, draws, buffers, started, failures)

    def _copy(self, draws: Draws) -> PendingBatch:
        """Rows of arrays as they are, in the calling thread."""
        sizes = [size for size in self._settled if size is not None]
        buffers = self._assembler.buffers(len(draws), sizes, self._allocate)
        for name, column in self._source.pixels.items():
            stored = column.in_array()
            assert stored is not None
            for view in range(len(self._plans)):
                # mode: to leave `out` alone if an index were out of bounds, which none is, numpy
                # would copy twice.
                out = buffers.images[view_column(name, view)]
                np.take(stored.array, stored.rows_of(draws.indices), axis=0, out=out, mode="clip")
        return _NativeBatch(self, draws, buffers, [])


@dataclass(frozen=True)
class _NativeBatch(PendingBatch):
    engine: NativeEngine
    draws: Draws
    buffers: Buffers
    started: Started
    failures: dict[int, DecodeError] = field(default_factory=dict)
    """What was known to have no pixels before the core began."""

    def result(self) -> HostBatch:
        failed: set[int] = set()
        try:
            for start, work in self.started:
                failed.update(
                    start + failure.row for failure in _outcome(self.engine.backend, work)
                )
        except BaseException:
            self.cancel()
            self.wait()
            raise
        return self.engine.finish(self, sorted(failed - self.failures.keys()))

    def cancel(self) -> None:
        for _, work in self.started:
            work.cancel()

    def wait(self) -> None:
        for _, work in self.started:
            if isinstance(work, Pending):
                pending = work
            elif work.cancelled() or work.exception() is not None:
                continue  # never handed to the core
            else:
                pending = work.result()
            pending.cancel()
            pending.wait()


def _is_little(source: Source, batch_size: int) -> bool:
    """Whether a batch of these arrays is a few bytes that need not be read from a disk."""
    stored = [column.in_array() for column in source.pixels.values()]
    held = [
        one.array
        for one in stored
        if one is not None and one.sizes is None and not is_mapped(one.array)
    ]
    return (
        len(held) == len(stored) and sum(array[:1].nbytes for array in held) * batch_size <= _LITTLE
    )


def _outcome(backend: str, work: Pending | Future[Pending]) -> list[NativeFailure]:
    """The rows that the core gave back."""
    try:
        pending = work if isinstance(work, Pending) else work.result()
    except FastloadError:
        raise
    except Exception as error:  # of a column's own code
        raise thread_failure(backend, error) from error
    try:
        return pending.wait()
    except RuntimeError as error:
        raise WorkerError(f"backend {backend!r}: the native core failed: {error}.") from error


def _bytes_or_none(column: EncodedImages, index: int) -> bytes:
    try:
        return column.read(index)
    except OSError:
        return b""
