"""Samples of several images, made in the calling thread: each image of the source is decoded, by
the native core where that is built, to its place on a canvas; the canvas then takes the place of
the single image of other samples."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from fastload import native
from fastload.backends.pasted import Pasted, Paster
from fastload.decode.image import Scratch, decode_image
from fastload.decode.libraries import core_pool, get_decoder
from fastload.draws import Draws, Int64Array
from fastload.errors import DecodeError
from fastload.files import DecodeSettings
from fastload.geometry import Geometry, Resampling, View
from fastload.geometry.plan import WarpSampling
from fastload.geometry.points import PointMap
from fastload.native.pool import Joined
from fastload.recipe import SplitRecipe
from fastload.recipe.joined import Joint, Members
from fastload.render.host import (
    EncodedRow,
    cut_inverse,
    looked_at,
    only_cuts,
    render_into,
    render_row,
    shows_all,
)
from fastload.sources.base import Source

Pixels = npt.NDArray[np.uint8]
Failures = dict[int, DecodeError]
Found = tuple[Int64Array | None, dict[str, dict[int, EncodedRow]], Failures]
"""What was read of n images of the source: their (n, 2) sizes, the compressed images by column and
row, and the errors of those that cannot be read."""


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
    """Geometries of the canvases of each layer: B rows."""
    weights: npt.NDArray[np.float64] | None
    """(B,) weights of the first layer, where two are blended."""
    pasted: Pasted = field(default_factory=dict)
    """Where the second layer is put over the first."""


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
    paster: Paster | None = None
    """Says where one picture is put over another; None: pictures are blended, or there is only
    one."""

    @property
    def joint(self) -> Joint:
        assert self.recipe.joint is not None
        return self.recipe.joint

    def members(self, draws: Draws) -> Members:
        return self.joint.members(draws, len(self.source))

    def table_shape(self, batch: int, numbers: int) -> tuple[int, ...]:
        """The shape of the tables of a batch whose `PointMap` has so many pairs of numbers."""
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
        self.fill_tables(tables, draws, members, sizes)
        job = self._placed(draws, members, sizes, failures)
        if self.paster is not None:
            points = self._points(draws, members, sizes)
            pasted = self.paster.pasted(draws, members, points, failures)
            job = replace(job, pasted=pasted)
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

    def fill_tables(
        self,
        tables: Sequence[npt.NDArray[np.float64]],
        draws: Draws,
        members: Members,
        sizes: Int64Array,
    ) -> None:
        """Write where the points of members go, which are images of these (T, 2) sizes."""
        for table in tables:
            table[members.samples, members.slots] = self._points(draws, members, sizes).table

    def _points(self, draws: Draws, members: Members, sizes: Int64Array) -> PointMap:
        count = len(self.source)
        return self.recipe.joined_points(members, sizes, draws, count, traced=self.traced)

    @property
    def fits_core(self) -> bool:
        """Whether the native core is built and knows samples such as these (`for_core`): mosaics of
        colour images, then a bilinear warp or none, then cuts and mirrorings; two of them blended
        (MixUp), or one with a rectangle of another (CutMix)."""
        (plan,) = self.recipe.geometries
        columns = list(self.source.images)
        if (
            (self.paster is not None and not self.paster.rectangular)
            or self.joint.mosaic is None
            or columns != list(self.source.encoded)
            or len(columns) != 1
        ):
            return False
        if not native.available():
            return False
        column = self.source.images[columns[0]]
        if column.kind.as_stored or not column.plain:
            return False
        if any(op.resampling is not None for _, op in plan.all_ops):
            return False
        if plan.later is None:
            return True
        then = plan.later
        return (
            then.warp is not None
            and then.sampling.interpolation == "bilinear"
            and then.plan.later is None
        )

    def for_core(self, draws: Draws, members: Members, sizes: Int64Array, bad: set[int]) -> Joined:
        """The samples of `draws` as the native core takes them. `bad`: rows that it is to leave to
        Python; those that it cannot make are added."""
        failures: Failures = {}
        job = self._placed(draws, members, sizes, failures)
        assert self.joint.mosaic is not None
        assert job.placed is not None
        mosaic, (plan,) = self.joint.mosaic[1], self.recipe.geometries
        ((_, column),) = self.source.images.items()
        sampling = column.kind.resampling(plan)
        layers, count = len(job.geometries), len(draws)
        seen = np.zeros((count, layers, 4), dtype=np.int32)
        inverse = np.tile(np.eye(3), (count, layers, 1, 1))
        flips = np.zeros((count, layers, 2), dtype=np.bool_)
        for layer, geometry in enumerate(job.geometries):
            for sample in np.unique(members.samples[members.layers == layer]).tolist():
                found = _warped(geometry, sample, mosaic.canvas)
                if found is None:
                    bad.add(sample)
                    continue
                inverse[sample, layer], flips[sample, layer] = found
                top, left, bottom, right = looked_at(geometry, sample)
                seen[sample, layer] = top, left, bottom - top, right - left
        bad |= failures.keys()
        pictures = members.samples * layers + members.layers
        parts, corners = _parts(job.placed, seen.reshape(-1, 4)[pictures])
        parts.box[np.isin(members.samples, sorted(bad))] = 0  # which the core refuses
        weights = None
        if job.weights is not None:
            weights = np.stack([job.weights, 1.0 - job.weights], axis=1).astype(np.float32)
        rectangles = None if self.paster is None else self.paster.rectangles(draws, members)
        return Joined(
            parts,
            corners,
            np.searchsorted(pictures, np.arange(count * layers + 1)),
            seen.reshape(-1, 4),
            inverse.reshape(-1, 3, 3),
            flips.reshape(-1, 2),
            weights,
            rectangles,
            mosaic.canvas,
            column.kind.resampling(mosaic.plan),
            WarpSampling("bilinear") if sampling.later is None else sampling.later.warp,
        )

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
        if joint.pair is not None and self.paster is None:
            stream, op = joint.pair
            blended = np.unique(members.samples[members.layers > 0])
            weights = np.ones(len(draws))
            weights[blended] = op.weights(draws.take(blended), stream)
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
            seen = looked_at(job.geometries[number], sample)
            picture = self._picture(name, encoded, job, rows.tolist(), seen)
            target = out if number == 0 else _local.other.take(out.shape)
            view = View(job.geometries[number], kind.resampling(plan), _Row(sample, target))  # type: ignore[arg-type]
            render_row(picture, sample, view)
            if number and job.weights is not None:
                _blend(out, target, float(job.weights[sample]))
            elif number:
                np.copyto(out, target, where=job.pasted[sample][:, :, None])

    def _picture(
        self,
        name: str,
        encoded: Mapping[int, EncodedRow] | None,
        job: _Job,
        rows: list[int],
        seen: tuple[int, int, int, int],
    ) -> Pixels:
        """The members of these rows on their canvas, as far as it is seen (top, left, bottom,
        right), or the only one as it is."""
        if job.placed is None:
            (row,) = rows
            return self._pixels(name, encoded, job, row)
        mosaic = self.joint.mosaic
        assert mosaic is not None
        column = self.source.images[name]
        sampling = column.kind.resampling(mosaic[1].plan)
        canvas = _local.canvas.take((*mosaic[1].canvas, column.channels))
        top, left, bottom, right = seen
        canvas[top:bottom, left:right] = np.asarray(sampling.fill).astype(np.uint8)
        windows = np.array([[top, left, bottom - top, right - left]] * len(rows), dtype=np.int32)
        parts, corners = _parts(job.placed, windows, rows)
        for number, row in enumerate(rows):
            placed = _one(parts, number)
            (_, _, tall, wide), (y, x) = parts.window[number].tolist(), corners[number].tolist()
            # What is not seen is decoded all the same, so that a damaged file is noticed.
            place = canvas[y : y + tall, x : x + wide]
            if y < 0:
                place = np.empty((1, 1, column.channels), dtype=np.uint8)
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
        """Have the native core decode no more than is shown; False where it cannot, or rejects the
        file: Python then decides whether it is damaged."""
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
    """Takes the place of a batch of which only one row is asked for."""

    row: int
    pixels: Pixels

    def __getitem__(self, row: int) -> Pixels:
        assert row == self.row
        return self.pixels


def _parts(
    placed: Geometry, seen: npt.NDArray[np.int32], rows: list[int] | None = None
) -> tuple[Geometry, npt.NDArray[np.int32]]:
    """The parts of T images that are shown, without padding, and (T, 2) where each lies on its
    canvas. The canvas is the window of an image's geometry, of which the (T, 4) top, left, height,
    width `seen` are shown. An image that is not shown at all has one pixel, at -1."""
    take = slice(None) if rows is None else rows
    box, size = placed.box[take].copy(), placed.size[take]
    start = placed.window[take, :2]  # of the canvas, in the grid of the image
    low = np.maximum(start + seen[:, :2], 0)
    high = np.minimum(start + seen[:, :2] + seen[:, 2:], size)
    hidden = (high <= low).any(axis=1)
    low[hidden], high[hidden] = 0, 1
    corners = low - start
    corners[hidden] = -1
    return (
        replace(
            placed,
            box=box,
            size=size,
            window=np.concatenate([low, high - low], axis=1),
            flip=placed.flip[take],
        ),
        corners,
    )


def _one(geometry: Geometry, row: int) -> Geometry:
    """One row."""
    one = slice(row, row + 1)
    return replace(
        geometry,
        box=geometry.box[one],
        size=geometry.size[one],
        window=geometry.window[one],
        flip=geometry.flip[one],
        flipped_first=None if geometry.flipped_first is None else geometry.flipped_first[one],
    )


def _warped(
    geometry: Geometry, row: int, canvas: tuple[int, int]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]] | None:
    """A row of a geometry of canvases as one bilinear warp, (3, 3) its inverse, and (2,) flips
    after it, which makes the same pixels; None where it is not one."""
    top, left, height, width = geometry.box[row].tolist()
    if geometry.later is None:
        if not only_cuts(geometry, row):
            return None
        shift = np.eye(3)  # whole pixels: each is one of the canvas
        shift[:2, 2] = left, top
        return shift, geometry.flip[row]
    later = geometry.later
    whole = (top, left, height, width) == (0, 0, *canvas) and shows_all(geometry, row)
    if later.inverse is None or not whole or not only_cuts(later.geometry, row):
        return None
    return cut_inverse(later, row), later.geometry.flip[row]


def _blend(out: Pixels, other: Pixels, weight: float) -> None:
    """weight * out + (1 - weight) * other, rounded half to even, into `out`."""
    total = np.multiply(out, np.float32(weight), dtype=np.float32)
    total += np.multiply(other, np.float32(1.0 - weight), dtype=np.float32)
    np.copyto(out, np.rint(total, out=total), casting="unsafe")
