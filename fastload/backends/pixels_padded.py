"""Images of several sizes in one batch, made by the threads of the native core: each is the upper
left part of its row, and the rest is not written to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fastload.backends.images import Placed
from fastload.backends.maker import BatchInWork, waits
from fastload.backends.needs import CORE, Asked
from fastload.backends.pixels_composite import CompositePixels
from fastload.backends.pixels_native import (
    Columns,
    LaterPart,
    NativePixels,
    Placements,
    bytes_for_core,
)
from fastload.backends.rows import Buffers
from fastload.draws import Draws
from fastload.errors import DecodeError
from fastload.geometry import Geometry
from fastload.native.pool import FusedGeometry, Pending


class PaddedPixels(NativePixels):
    """Serves compressed images, and masks that belong to them, that are not in a store."""

    can = replace(CORE, pads_images=True)

    def _decode(self, draws: Draws) -> BatchInWork:
        work = BatchInWork(draws, Buffers({}))
        work.parts.append(LaterPart(0, self._threads.submit(self._begin, work), self._threads))
        return work

    def _begin(self, work: BatchInWork) -> Pending:
        """Start a batch, whose buffers can be made when the sizes of its images are known."""
        draws, images = work.draws, Columns()
        for name, column in self._source.encoded.items():
            located = column.in_files(draws.indices)
            if located is None:
                images[name] = bytes_for_core(column, draws.indices, None)
            else:
                images[name] = located
        placed, members, points = self._place(draws, images)
        geometries = tuple(one for one in placed if isinstance(one, Geometry))  # all of them
        lost = {row: DecodeError(why) for one in geometries for row, why in one.errors.items()}
        sizes = self._rows.images.sizes_of(Placed(members, geometries, lost, points=points))
        work.buffers = self._rows.buffers(len(draws), sizes, self._allocate)
        work.buffers.note(members, points)
        return self._submit(draws, images, placed, work.buffers)

    def _fused(self, draws: Draws) -> Placements:
        """None: the sizes of what is made must be known before it is made."""
        return [None] * len(self._recipe.of(draws).geometries)

    def _measure_again(self, draws: Draws, sizes: npt.NDArray[np.int64], rows: list[int]) -> None:
        """By Python, which will be given these back: there must be room for what it makes."""
        if rows:
            found = self._rows.images.read(draws.indices[rows]).sizes
            assert found is not None
            sizes[rows] = found

    def _sizes(self, geometry: Geometry | FusedGeometry | None) -> npt.NDArray[np.int32]:
        assert isinstance(geometry, Geometry)
        return geometry.out_sizes


def composite_or_padded(asked: Asked) -> type[CompositePixels | PaddedPixels] | None:
    """Who makes samples of several images, or images of several sizes; None where the core does
    not."""
    if asked.recipe.composite.most > 1 and CompositePixels.serves(asked):
        return CompositePixels
    here = bool(asked.source.encoded) and not waits(asked)
    return PaddedPixels if asked.padded and here and PaddedPixels.serves(asked) else None
