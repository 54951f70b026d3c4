"""Images made by the threads of the native core.

On the native core a batch is one call, for images and masks together, and no Python runs for a
sample that is sound. What the core cannot do (CMYK, GIF, masks in colour or of 16 bits) or finds
damaged it gives back: Python reads those rows again and makes the pixels or raises the error, so
that pixels and messages are the same as without the core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from fastload.backends.base import Context
from fastload.backends.maker import BatchInWork, Part, PixelMaker, Threads, waits
from fastload.backends.needs import CORE, Asked, lacking
from fastload.backends.rows import Buffers, RowReader, is_little, settled_size
from fastload.decode.libraries import core_formats, others_by_pillow
from fastload.draws import Draws
from fastload.errors import DecodeError, WorkerError, counted
from fastload.exif import turned_sizes
from fastload.geometry import Geometry, GeometryPlan, View
from fastload.geometry.points import PointMap
from fastload.narrowed import say_narrowed
from fastload.native.pool import Compressed, FusedGeometry, NativePool, Pending, fuse
from fastload.native.seek import SeekIndexOption, open_seek_index
from fastload.recipe.composite import SampleImages
from fastload.recipe.outputs import Size
from fastload.sources.base import Source
from fastload.sources.columns import Buffer, EncodedImages
from fastload.sources.kinds import PixelKind
from fastload.stores import Looked

Columns = dict[str, Compressed]
"""Of encoded images, by name; the first is what the sizes are of."""
Placements = list["Geometry | FusedGeometry | None"]
"""Of each view; None where it is still to be resolved."""

# Images of which each is read by itself where not all can be.
_FEW = 16
# Samples of a store that are one task, at most, after the first batch, which is read by smaller
# ones so that decoding begins sooner. Python took 104 us a sample by tasks of 16, and takes some 80
# by these (2 cores, beside other work); the core decodes the samples of a task by all its threads.
_LARGEST_TASK = 64


class CoreDecoding:
    """The threads of the native core, how thoroughly they decode, and the seek index they use."""

    def __init__(
        self,
        threads: int,
        source: Source,
        check_whole: bool,
        seek_index: SeekIndexOption,
        only_cheap: bool = True,
    ) -> None:
        """For the options see `TurboJpegOptions`; `only_cheap`: see `SeekIndex`."""
        self.pool = NativePool(threads)
        self.check_whole = check_whole
        self._encoded = bool(source.encoded)
        opened = (
            open_seek_index(seek_index, source, only_cheap=only_cheap) if self._encoded else None
        )
        self.index, self.no_index = opened or (None, "")

    def say(self) -> None:
        """Warn, once a process, that images lose bits."""
        if self.pool.narrowed:
            say_narrowed(f"{counted(self.pool.narrowed, 'image')} so far")

    def close(self) -> None:
        """As of `PixelMaker`."""
        self.say()
        self.pool.close()
        if self.index is not None:
            self.index.flush()

    def explain(self, decoded: Mapping[str, int], depth: int) -> dict[str, str]:
        """As of `PixelMaker`."""
        core = f"native core ({self.pool.simd})"
        flight = f"{counted(depth, 'batch')} in flight"
        rows = {"threads": f"{self.pool.threads} of the {core}, {flight}"}
        if self._encoded:
            whole = (
                "whole files are checked"
                if self.check_whole
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
                ", ".join(f"{what} {count}" for what, count in decoded.items()) or "nothing yet"
            )
            rows["seek index"] = self.no_index or self._about_index()
        return rows

    def _about_index(self) -> str:
        assert self.index is not None
        self.index.flush()
        more = "" if self.index.grows else "; no more are added"
        return (
            f"{self.index.contents}{more}, in {self.index.path}; {self.pool.indexed} decoded by "
            f"it so far, {self.pool.noted} noted"
        )

    @property
    def decoded(self) -> Mapping[str, int]:
        """As of `PixelMaker`."""
        counts = {
            **self.pool.decoded,
            "reduced": self.pool.reduced,
            "narrowed": self.pool.narrowed,
            "noted": self.pool.noted,
            "indexed": self.pool.indexed,
        }
        return {name: count for name, count in counts.items() if count}


class NativePixels(PixelMaker):
    """Serves compressed images, and masks that belong to them, to a size that is known in advance,
    or columns of pixels in arrays.

    Python's threads do what goes before and after the core: bytes that are not in files, sizes
    where it does not draw boxes itself, and odd samples.
    """

    can = CORE
    _sizes: Callable[[Geometry | FusedGeometry | None], npt.NDArray[np.int32]] | None = None
    """Makes `View.sizes` of a geometry."""
    only_cheap = True
    """Whether points are noted only of images of which they cost little."""

    def __init__(
        self,
        context: Context,
        rows: RowReader,
        threads: Threads,
        *,
        check_whole: bool = False,
        draft: bool = False,
        seek_index: SeekIndexOption = False,
    ) -> None:
        super().__init__(context, rows, threads)
        assert self.serves(context)
        source, plans = self._source, self._recipe.geometries
        self._draft = draft
        self._slice = threads.slice_of(context.batch_size)
        self._settled: dict[Size | None, list[Size | None]] = {}
        copied = None not in self._settled_for(None) and not any(plan.resamples for plan in plans)
        self.light = copied and is_little(source.pixels.values(), context.batch_size * len(plans))
        """Whether there is less to do than to hand it to other threads and to wait for them."""
        self._core = CoreDecoding(threads.count, source, check_whole, seek_index, self.only_cheap)
        self._pool = self._core.pool
        self._waits = waits(context)

    @classmethod
    def serves(cls, asked: Asked) -> bool:
        """Whether the core can make such batches."""
        source, plans = asked.source, asked.recipe.geometries
        if lacking(cls.can, asked):
            return False
        if not all(_goes_to_core(plan, compressed=bool(source.encoded)) for plan in plans):
            return False
        if source.encoded:
            known = asked.padded or all(plan.out_size is not None for plan in plans)
            kinds = [column.kind for column in source.encoded.values()]
            return known and not source.pixels and all(_fits_core(kind, plans) for kind in kinds)
        stored = [column.in_array() for column in source.pixels.values()]
        return bool(stored) and all(
            column is not None and column.array.flags.c_contiguous for column in stored
        )

    def start(self, draws: Draws) -> BatchInWork:
        self._core.say()
        return self._decode(draws) if self._source.encoded else self._gather(draws)

    def close(self) -> None:
        self._core.close()

    def explain(self, decoded: Mapping[str, int]) -> Mapping[str, str]:
        rows = self._core.explain(decoded, self.depth)
        if self._draft:
            rows["draft"] = (
                "JPEGs are decoded at 1/2, 1/4 or 1/8 where a crop is at least so many times its "
                f"output: not quite the pixels of other backends; {self._pool.reduced} so far"
            )
        return rows

    @property
    def decoded(self) -> Mapping[str, int]:  # type: ignore[override]
        return self._core.decoded

    # Compressed images

    def _decode(self, draws: Draws) -> BatchInWork:
        plans = self._recipe.of(draws).geometries
        sizes = [plan.out_size for plan in plans if plan.out_size is not None]  # all of them
        work = BatchInWork(draws, self._buffers(draws, sizes))
        if self._waits:
            work.parts.append(self._looked(work))
            return work
        files: Columns = {}
        for name, column in self._source.encoded.items():
            located = column.in_files(draws.indices)
            if located is None:
                work.parts += self._start_reading(work)
                return work
            files[name] = located
        fused = self._fused(draws)
        if None not in fused:
            pending = self._submit(draws, files, fused, work.buffers)
            work.parts.append(CorePart(0, pending, self._threads))
        else:
            later = self._threads.submit(self._measure, draws, files, work.buffers)
            work.parts.append(LaterPart(0, later, self._threads))
        return work

    def _fused(self, draws: Draws) -> Placements:
        """For each view its geometries, where the core resolves them itself. It keeps them to
        itself: where columns are moved with the images, Python resolves them."""
        plans = self._recipe.of(draws).geometries
        return [None if self._source.moved else fuse(plan, draws) for plan in plans]

    def _looked(self, work: BatchInWork) -> Part:
        look, first = partial(self._look, work), work.draws.waited_for
        return _LookedPart(self._threads.in_turn(look, _reads_of, first=first), self._threads)

    def _look(self, work: BatchInWork) -> list[Part]:
        """Bytes from a store: where the local tier has all of them it is one call of the core, as
        of local files; and where most of them were read with others before."""
        draws = work.draws
        looked = {
            name: column.looked(draws.indices) for name, column in self._source.encoded.items()
        }
        here = all(each is not None and each.here.all() for each in looked.values())
        if here or all(column.grouped for column in self._source.encoded.values()):
            pending = self._read(draws, work.buffers, looked)
            return [CorePart(0, pending, self._threads)]
        return self._start_reading(work, looked)

    def _start_reading(
        self, work: BatchInWork, looked: Mapping[str, Looked | None] | None = None
    ) -> list[Part]:
        """Bytes from anywhere: read by all threads, a slice each, and handed to the core as they
        come."""
        parts = list[Part]()
        size = self._slice
        if self._waits and not work.draws.waited_for:
            size = max(size, _LARGEST_TASK)
        for first in range(0, len(work.draws), size):
            rows = slice(first, min(first + size, len(work.draws)))
            some = {
                name: None if each is None else each.take(rows)
                for name, each in (looked or {}).items()
            }
            out = work.buffers.take(rows)
            later = self._threads.submit(self._read, work.draws.take(rows), out, some)
            parts.append(LaterPart(first, later, self._threads))
        return parts

    def _read(self, draws: Draws, out: Buffers, looked: Mapping[str, Looked | None]) -> Pending:
        data = {
            name: bytes_for_core(column, draws.indices, looked.get(name))
            for name, column in self._source.encoded.items()
        }
        fused = self._fused(draws)
        if None in fused:
            return self._measure(draws, data, out)
        return self._submit(draws, data, fused, out)

    def _measure(self, draws: Draws, images: Columns, buffers: Buffers) -> Pending:
        """Start a batch whose boxes Python resolves."""
        placed, members, points = self._place(draws, images)
        buffers.note(members, points)
        return self._submit(draws, images, placed, buffers)

    def _place(
        self, draws: Draws, images: Columns
    ) -> tuple[Placements, SampleImages, tuple[PointMap, ...]]:
        """Resolve the boxes that the core does not: they need the sizes of the images. Those of all
        columns are equal, or the core gives the sample back."""
        settings, plans = self._rows.settings, self._recipe.of(draws).geometries
        headers, failures = self._pool.read_headers(next(iter(images.values())), settings=settings)
        sizes = headers[:, :2].astype(np.int64)
        if settings.exif_orientation:
            sizes = turned_sizes(sizes, headers[:, 3])
        placed = self._fused(draws)
        unread = [failure.row for failure in failures]
        if settings.exif_orientation:
            unread += np.flatnonzero(headers[:, 3] == 0).tolist()
        self._measure_again(draws, sizes, sorted({*unread}))
        members = SampleImages(draws, draws.indices)
        points = self._rows.points(members, sizes)
        for view, plan in enumerate(plans):
            if placed[view] is None:
                crops = points[view].crops if plan.takes_crops else None
                geometry = placed[view] = plan.resolve(draws, sizes, crops)
                for row in geometry.errors:
                    # A box of nothing, which the core refuses: the RowReader has the words.
                    geometry.box[row] = 0
        return placed, members, points

    def _measure_again(self, draws: Draws, sizes: npt.NDArray[np.int64], rows: list[int]) -> None:
        """Images whose size the core cannot tell get one that fits every plan: decoding will find
        the same fault with them."""
        plans = self._recipe.of(draws).geometries
        sizes[rows] = np.max([plan.out_size or (1, 1) for plan in plans], axis=0)

    def _submit(
        self, draws: Draws, images: Columns, placed: Placements, buffers: Buffers
    ) -> Pending:
        columns, plans = [], self._recipe.of(draws).geometries
        for name, encoded in images.items():
            kind = self._source.encoded[name].kind
            outs = (buffers.images[view] for view in self._rows.outputs.names[name])
            views = [
                View(geometry, kind.resampling(plan), out, self._sizes and self._sizes(geometry))
                for geometry, plan, out in zip(placed, plans, outs, strict=True)
            ]
            columns.append((encoded, views))
        return self._pool.decode_columns(
            columns,
            settings=self._rows.settings,
            check_whole=self._core.check_whole,
            draft=self._draft,
            index=self._core.index,
            plans=buffers.plans,
        )

    def _buffers(self, draws: Draws, sizes: Sequence[Size]) -> Buffers:
        return self._rows.buffers(len(draws), sizes, self._allocate)

    # Pixels in arrays

    def _settled_for(self, size: Size | None) -> list[Size | None]:
        """`settled_size` of each view, in batches of a size (`Draws.size`)."""
        known = self._settled.get(size)
        if known is None:
            plans = (self._recipe if size is None else self._recipe.sized[size]).geometries
            known = self._settled[size] = [settled_size(self._source, plan) for plan in plans]
        return known

    def _gather(self, draws: Draws) -> BatchInWork:
        plans = self._recipe.of(draws).geometries
        if self.light and all(plan.is_identity for plan in plans) and not self._source.moved:
            return self._copy(draws)
        failures: dict[int, DecodeError] = {}
        placed, points = self._fused(draws), tuple[PointMap, ...]()
        members = SampleImages(draws, draws.indices)
        sizes = [size for size in self._settled_for(draws.size) if size is not None]
        if len(sizes) < len(plans) or None in placed:
            resolved = self._rows.images.place(draws)
            sizes, failures = self._rows.images.sizes_of(resolved), resolved.failures
            members, points = resolved.members, resolved.points
            placed = [*resolved.harmless(sizes)]
        work = BatchInWork(draws, self._rows.buffers(len(draws), sizes, self._allocate))
        work.failures.update(failures)
        work.buffers.note(members, points)
        for name, column in self._source.pixels.items() if len(draws) else ():
            stored = column.in_array()
            assert stored is not None
            outs = self._rows.outputs.names[name]
            for plan, geometry, out in zip(plans, placed, outs, strict=True):
                assert geometry is not None
                pending = self._pool.gather_batch(
                    stored,
                    draws.indices,
                    geometry=geometry,
                    out=work.buffers.images[out],
                    sampling=column.kind.resampling(plan),
                    here=self.light,
                )
                work.parts.append(CorePart(0, pending, self._threads))
        return work

    def _copy(self, draws: Draws) -> BatchInWork:
        """Rows of arrays as they are, in the calling thread."""
        sizes = [size for size in self._settled_for(draws.size) if size is not None]
        buffers = self._rows.buffers(len(draws), sizes, self._allocate)
        for name, column in self._source.pixels.items():
            stored = column.in_array()
            assert stored is not None
            for view in self._rows.outputs.names[name]:
                # mode: to leave `out` alone if an index were out of bounds, which none is, numpy
                # would copy twice.
                out = buffers.images[view]
                np.take(stored.array, stored.rows_of(draws.indices), axis=0, out=out, mode="clip")
        return BatchInWork(draws, buffers)


@dataclass(frozen=True)
class CorePart:
    """Rows that the core works on."""

    first: int
    pending: Pending
    threads: Threads

    def lost(self) -> Iterator[tuple[int, None]]:
        try:
            failures = self.pending.wait()
        except RuntimeError as error:
            raise WorkerError(
                f"backend {self.threads.backend!r}: the native core failed: {error}."
            ) from error
        for failure in failures:
            yield self.first + failure.row, None

    def cancel(self) -> None:
        self.pending.cancel()

    def wait(self) -> None:
        self.pending.cancel()
        self.pending.wait()


@dataclass(frozen=True)
class LaterPart:
    """Rows that Python's threads hand to the core, when they have read their bytes or sizes."""

    first: int
    later: Future[Pending]
    threads: Threads

    def lost(self) -> Iterator[tuple[int, None]]:
        pending = self.threads.result(self.later)
        yield from CorePart(self.first, pending, self.threads).lost()

    def cancel(self) -> None:
        self.later.cancel()

    def wait(self) -> None:
        # After either of these nothing was handed to the core.
        if not self.later.cancelled() and self.later.exception() is None:
            CorePart(self.first, self.later.result(), self.threads).wait()


@dataclass(frozen=True)
class _LookedPart:
    """A batch whose parts one of Python's threads makes, when it has looked where the bytes are."""

    later: Future[list[Part]]
    threads: Threads

    def lost(self) -> Iterator[tuple[int, Exception | None]]:
        for part in self.threads.result(self.later):
            yield from part.lost()

    def cancel(self) -> None:
        if not self.later.cancel():
            for part in self._made():
                part.cancel()

    def wait(self) -> None:
        if not self.later.cancelled():
            wait([self.later])
        for part in self._made():
            part.cancel()
            part.wait()

    def _made(self) -> list[Part]:
        done = self.later.done() and not self.later.cancelled()
        return self.later.result() if done and self.later.exception() is None else []


def _reads_of(parts: list[Part]) -> list[Future[Pending]]:
    """The tasks that read these."""
    return [part.later for part in parts if isinstance(part, LaterPart)]


def _goes_to_core(plan: GeometryPlan, *, compressed: bool) -> bool:
    """Whether the core makes all of a plan: of compressed images what their geometry makes may be
    warped, and go through another one."""
    if plan.later is None:
        return True
    return compressed and plan.later.plan.later is None


def _fits_core(kind: PixelKind, plans: Sequence[GeometryPlan]) -> bool:
    """Whether the core makes such pixels: images in colour, and masks by the nearest pixel."""
    samplings = [kind.resampling(plan) for plan in plans]
    if any(sampling.as_stored != kind.as_stored for sampling in samplings):
        return False
    if not kind.as_stored:
        return kind.channels == 3
    later = [sampling.later.resampling for sampling in samplings if sampling.later is not None]
    filters = {sampling.interpolation for sampling in (*samplings, *later)}
    return kind.channels == 1 and filters <= {"nearest", "nearest-exact"}


def bytes_for_core(
    column: EncodedImages, indices: npt.NDArray[np.int64], looked: Looked | None
) -> Compressed:
    """Compressed images of a column, read here or, from the local tier, by the core.

    Args:
        looked: what the column said of the same indices.
    """
    try:
        return list(column.views(indices)) if looked is None else looked.kept()
    except OSError:
        if len(indices) > _FEW:
            data: list[Buffer | bytearray] = []
            for at in range(0, len(indices), _FEW):
                data += bytes_for_core(column, indices[at : at + _FEW], None)  # type: ignore[arg-type]
            return data
        # Of which sample, and in which words, the RowReader finds out: the core refuses an image of
        # no bytes.
        return [_bytes_or_none(column, index) for index in indices.tolist()]


def _bytes_or_none(column: EncodedImages, index: int) -> bytes:
    try:
        return column.read(index)
    except OSError:
        return b""
