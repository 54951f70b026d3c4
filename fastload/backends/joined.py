"""Samples of several images, made in the calling thread: each image of the source is decoded, by
the native core where that is built, to its place on a canvas; the canvas then is what a single
image is to other samples."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload import native
from fastload.decode.image import Scratch, decode_image
from fastload.decode.libraries import core_pool, get_decoder
from fastload.draws import Draws, Int64Array
from fastload.errors import DecodeError
from fastload.files import DecodeSettings
from fastload.geometry import Geometry, Resampling, View
from fastload.recipe import SplitRecipe
from fastload.recipe.joined import Joint, Members
from fastload.render.host import EncodedRow, render_into, render_row
from fastload.sources.base import Source

Pixels = npt.NDArray[np.uint8]
Failures = dict[int, DecodeError]
Found = tuple[Int64Array | None, dict[str, dict[int, EncodedRow]], Failures]
"""Of some images of the source: (n, 2) sizes, the compressed ones by column and row, and those that
cannot be read."""


class _ThreadBuffers(threading.local):
    def __init__(self) -> None:
        self.canvas, self.tile, self.decoded, self.other = (Scratch() for _ in range(4))


_local = _ThreadBuffers()


@dataclass(frozen=True)
class _Job:
    """The samples of one call."""

    draws: Draws
    members: Members
    sizes: Int64Array
    """(T, 2) of the members, which lie at (T,) `placed` where there is a Mosaic."""
    placed: Geometry | None
    geometries: Sequence[Geometry]
    """Of the canvases of each layer: B rows."""
    weights: npt.NDArray[np.float64] | None
    """(B,) of the first layer, where there are two."""


@dataclass(frozen=True)
class JoinedReader:
    """Makes the images of samples whose recipe has a `Joint`. Picklable; any thread may call it,
    several at once."""

    source: Source
    recipe: SplitRecipe
    settings: DecodeSettings
    decoder: str
    traced: bool
    """Whether steps of pixels are kept for masks."""

    @property
    def joint(self) -> Joint:
        assert self.recipe.joint is not None
        return self.recipe.joint

    def members(self, draws: Draws) -> Members:
        return self.joint.members(draws, len(self.source))

    def table_shape(self, batch: int, numbers: int) -> tuple[int, ...]:
        """Of the tables of a batch whose `PointMap` has so many pairs of numbers."""
        return batch, self.joint.most, numbers, 2

    def fill(
        self,
        draws: Draws,
        images: Mapping[str, Pixels],
        tables: Sequence[npt.NDArray[np.float64]],
        read: Callable[[Int64Array], Found],
    ) -> Failures:
        """Write B samples into (B, height, width, C) `images`, by column, and where their members'
        points go into `tables`.

        Args:
            read: reads images of the source.

        Returns:
            The samples without pixels, by row; their images hold zeros.
        """
        members = self.members(draws)
        sizes, encoded, bad = read(members.indices)
        assert sizes is not None, "the loader refuses sources without images"
        failures = {}
        for row in sorted(bad, reverse=True):  # of several the first stays
            failures[int(members.samples[row])] = self._explained(draws, members, row, bad[row])
        for table in tables:
            points = self.recipe.joined_points(
                members, sizes, draws, len(self.source), traced=self.traced
            )
            table[members.samples, members.slots] = points.table
        job = self._placed(draws, members, sizes, failures)
        for name in self.source.images:
            for sample in range(len(draws)):
                if sample not in failures:
                    try:
                        self._render(name, encoded.get(name), job, sample, images[name][sample])
                    except DecodeError as error:
                        failures[sample] = error
        for pixels in images.values():
            pixels[list(failures)] = 0
        return failures

    def _explained(
        self, draws: Draws, members: Members, row: int, error: DecodeError
    ) -> DecodeError:
        if not members.slots[row]:
            return error
        sample = self.source.describe(int(draws.indices[members.samples[row]]))
        return DecodeError(f"{error} (It was drawn as a part of the sample {sample}.)")

    def _placed(
        self, draws: Draws, members: Members, sizes: Int64Array, failures: Failures
    ) -> _Job:
        joint, (plan,) = self.joint, self.recipe.geometries
        geometries = []
        for number, layer in enumerate(joint.layers(draws, len(self.source))):
            if joint.mosaic is not None:
                canvases = np.tile(
                    np.array(joint.mosaic[1].canvas, dtype=np.int64), (len(draws), 1)
                )
            else:
                canvases = np.ones((len(draws), 2), dtype=np.int64)
                canvases[members.samples[members.layers == number]] = sizes[
                    members.layers == number
                ]
            geometries.append(plan.resolve(layer.draws, canvases))
            for row, reason in geometries[-1].errors.items():
                if layer.present[row]:
                    index = int(layer.first[row])
                    failures.setdefault(
                        row, DecodeError(f"{self.source.describe(index)}: {reason}")
                    )
        weights = None
        if joint.mixup is not None:
            weights = joint.mixup[1].weights(draws, joint.mixup[0])
        return _Job(draws, members, sizes, joint.placed(members, sizes), geometries, weights)

    def _render(
        self,
        name: str,
        encoded: Mapping[int, EncodedRow] | None,
        job: _Job,
        sample: int,
        out: Pixels,
    ) -> None:
        """One sample of a column. Raises DecodeError."""
        kind = self.source.images[name].kind
        (plan,) = self.recipe.geometries
        start, end = job.members.offsets[sample : sample + 2]
        layers = job.members.layers[start:end]
        for number in sorted(set(layers.tolist())):
            rows = start + np.flatnonzero(layers == number)
            picture = self._picture(name, encoded, job, rows.tolist())
            target = out if number == 0 else _local.other.take(out.shape)
            view = View(job.geometries[number], kind.resampling(plan), _Row(sample, target))  # type: ignore[arg-type]
            render_row(picture, sample, view)
            if number:
                assert job.weights is not None
                _blend(out, target, float(job.weights[sample]))

    def _picture(
        self,
        name: str,
        encoded: Mapping[int, EncodedRow] | None,
        job: _Job,
        rows: list[int],
    ) -> Pixels:
        """The members of these rows on their canvas, or the only one as it is."""
        if job.placed is None:
            (row,) = rows
            return self._pixels(name, encoded, job, row)
        mosaic = self.joint.mosaic
        assert mosaic is not None
        column = self.source.images[name]
        sampling = column.kind.resampling(mosaic[1].plan)
        canvas = _local.canvas.take((*mosaic[1].canvas, column.channels))
        canvas[...] = np.asarray(sampling.fill).astype(np.uint8)
        for row in rows:
            placed, where = _shown(job.placed, row)
            place = canvas[where]
            if encoded is not None and self._by_the_core(encoded[row], placed, sampling, place):
                continue
            render_into(
                self._pixels(name, encoded, job, row),
                box=placed.box[0],
                size=placed.size[0],
                window=placed.window[0],
                resampling=sampling,
                out=place,
            )
        return canvas

    def _pixels(
        self, name: str, encoded: Mapping[int, EncodedRow] | None, job: _Job, row: int
    ) -> Pixels:
        """A whole image, by Python."""
        if encoded is None:
            return self.source.pixels[name].pixels(int(job.members.indices[row]))
        return decode_image(
            encoded[row].data,
            name=encoded[row].name,
            decoder=get_decoder(self.decoder),
            settings=self.settings,
            as_stored=self.source.images[name].kind.as_stored,
            header=encoded[row].header,
            scratch=_local.decoded,
        )

    def _by_the_core(
        self, sample: EncodedRow, placed: Geometry, sampling: Resampling, place: Pixels
    ) -> bool:
        """Have the native core decode no more than is shown; False where it does not, or finds
        fault with the file: Python then has the verdict."""
        if sampling.as_stored or self.decoder != "auto" or not native.available():
            return False
        tile = _local.tile.take((1, *place.shape))
        done = core_pool().decode_views(
            [sample.data],
            [View(placed, sampling, tile)],
            settings=self.settings,
            check_whole=True,
            here=True,
        )
        if done.wait():
            return False
        np.copyto(place, tile[0])
        return True


@dataclass(frozen=True)
class _Row:
    """One row of a batch in place of all."""

    row: int
    pixels: Pixels

    def __getitem__(self, row: int) -> Pixels:
        assert row == self.row
        return self.pixels


def _shown(placed: Geometry, row: int) -> tuple[Geometry, tuple[slice, slice]]:
    """One row of a geometry whose window is a canvas, without what is padding there; and where on
    the canvas it lies."""
    top, left, height, width = (int(n) for n in placed.window[row])
    tall, wide = (int(n) for n in placed.size[row])
    first = max(top, 0), max(left, 0)
    last = min(top + height, tall), min(left + width, wide)
    window = np.array([[*first, last[0] - first[0], last[1] - first[1]]], dtype=np.int32)
    one: Any = slice(row, row + 1)
    alone = replace(
        placed, box=placed.box[one], size=placed.size[one], window=window, flip=placed.flip[one]
    )
    return alone, (slice(first[0] - top, last[0] - top), slice(first[1] - left, last[1] - left))


def _blend(out: Pixels, other: Pixels, weight: float) -> None:
    """weight * out + (1 - weight) * other, rounded half to even, into `out`."""
    total = np.multiply(out, np.float32(weight), dtype=np.float32)
    total += np.multiply(other, np.float32(1.0 - weight), dtype=np.float32)
    np.copyto(out, np.rint(total, out=total), casting="unsafe")
