"""Samples of several images, made by the threads of the native core: a batch is one call, which
decodes the part of each image that is seen. Samples that the core cannot make, or whose files it
rejects, are made in Python by `composites.CompositeReader`, with the same pixels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fastload.backends.base import Context
from fastload.backends.composites import CompositeReader, fits_core
from fastload.backends.maker import BatchInWork, PixelMaker, Threads
from fastload.backends.needs import Abilities, Asked, lacking
from fastload.backends.pixels_native import CoreDecoding, LaterPart, bytes_for_core
from fastload.backends.rows import Buffers, RowReader
from fastload.draws import Draws
from fastload.exif import turned_sizes
from fastload.native.pool import Compressed, Pending
from fastload.native.seek import SeekIndexOption
from fastload.sources.columns import EncodedImages

_LEAST_SLICE = 32
"""Fewest samples of a task: numpy's calls take about as long for eight samples as for one."""


class CompositePixels(PixelMaker):
    """Serves composites that the core makes."""

    can = Abilities(moves_columns=True, draws_masks=True, resamples_again=True, joins_images=True)

    def __init__(
        self,
        context: Context,
        rows: RowReader,
        threads: Threads,
        *,
        check_whole: bool = False,
        seek_index: SeekIndexOption = False,
        **_: object,
    ) -> None:
        super().__init__(context, rows, threads)
        assert isinstance(rows.makes, CompositeReader)
        self._reader = rows.makes
        self._slice = threads.slice_of(context.batch_size, least=_LEAST_SLICE)
        self._core = CoreDecoding(threads.count, self._source, check_whole, seek_index)

    @classmethod
    def serves(cls, asked: Asked) -> bool:
        """Whether the core can make such batches."""
        return fits_core(asked.source, asked.recipe) and not lacking(cls.can, asked)

    def start(self, draws: Draws) -> BatchInWork:
        self._core.say()
        (plan,) = self._recipe.geometries
        assert plan.out_size is not None
        work = BatchInWork(draws, self._rows.buffers(len(draws), [plan.out_size], self._allocate))
        ((name, column),) = self._source.encoded.items()
        for first in range(0, len(draws), self._slice):
            rows = slice(first, min(first + self._slice, len(draws)))
            later = self._threads.submit(
                self._begin, name, column, draws.take(rows), work.buffers.take(rows)
            )
            work.parts.append(LaterPart(first, later, self._threads))
        return work

    def _begin(self, name: str, column: EncodedImages, draws: Draws, out: Buffers) -> Pending:
        """Read the images that samples are made of, compute where they go, and hand both to the
        core."""
        members = self._reader.members(draws)
        encoded: Compressed | None = column.in_files(members.indices)
        if encoded is None:
            looked = column.looked(members.indices)
            encoded = bytes_for_core(column, members.indices, looked)
        settings = self._rows.settings
        headers, failures = self._core.pool.read_headers(encoded, settings=settings, here=True)
        sizes = headers[:, :2].astype(np.int64)
        if settings.exif_orientation:
            sizes = turned_sizes(sizes, headers[:, 3])
        lost = [failure.row for failure in failures]
        sizes[lost] = 1
        points = self._rows.points(members, sizes)
        out.note(members, points)
        bad = {int(members.samples[row]) for row in lost}
        return self._core.pool.join(
            encoded,
            self._reader.for_core(draws, members, sizes, points, bad),
            out=out.images[name],
            settings=settings,
            check_whole=self._core.check_whole,
            index=self._core.index,
        )

    def close(self) -> None:
        self._core.close()

    def explain(self, decoded: Mapping[str, int]) -> Mapping[str, str]:
        return self._core.explain(decoded, self.depth)

    @property
    def decoded(self) -> Mapping[str, int]:  # type: ignore[override]
        return self._core.decoded
