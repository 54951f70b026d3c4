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
from fastload.draws import BoolArray, Draws, Float64Array, Int64Array
from fastload.errors import DecodeError
from fastload.files import DecodeSettings
from fastload.geometry import Geometry, Resampling, View
from fastload.geometry.plan import WarpSampling
from fastload.geometry.points import PointMap
from fastload.native.joined import Canvases, Joined
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
    geometry: Geometry
    """Geometries of the canvases of P pictures."""
    seen: Int64Array
    """(P, 4) top, left, bottom, right of the parts of them that it reads."""
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
        points = self.points(members, sizes, tables)
        job = self._placed(draws, members, sizes, failures)
        if self.paster is not None:
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

    def points(
        self, members: Members, sizes: Int64Array, tables: Sequence[npt.NDArray[np.float64]]
    ) -> PointMap | None:
        """Where the points of members go, which are images of these (T, 2) sizes; it is written to
        the tables of a batch, too. None: there are none, and no column is moved."""
        if not tables:
            return None
        points = self.recipe.joined_points(members, sizes, traced=self.traced)
        for table in tables:
            table[members.samples, members.slots] = points.table
        return points

    @property
    def fits_core(self) -> bool:
        """Whether the native core is built and knows samples such as these (`for_core`): of one
        column of colour images, with a mosaic and then a bilinear warp or none, cuts and
        mirrorings; or without one and with crops and one resize."""
        (plan,) = self.recipe.geometries
        columns = list(self.source.images)
        if columns != list(self.source.encoded) or len(columns) != 1:
            return False
        if not native.available():
            return False
        column = self.source.images[columns[0]]
        if column.kind.as_stored:
            return False
        if self.joint.mosaic is None:
            return plan.later is None
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

    def for_core(
        self,
        draws: Draws,
        members: Members,
        sizes: Int64Array,
        points: PointMap | None,
        bad: set[int],
    ) -> Joined:
        """The samples of `draws` as the native core takes them. `points`: of the members. `bad`:
        rows that it is to leave to Python; those that it cannot make are added."""
        failures: Failures = {}
        job = self._placed(draws, members, sizes, failures)
        (plan,) = self.recipe.geometries
        ((_, column),) = self.source.images.items()
        bad |= failures.keys()
        canvases, sampling = None, column.kind.resampling(plan)
        if self.joint.mosaic is None:
            parts = job.geometry.take(members.pictures)
        else:
            sampling = column.kind.resampling(self.joint.mosaic[1].plan)
            parts, canvases, unknown = self._on_canvases(job)
            bad |= unknown
        parts.box[np.isin(members.samples, sorted(bad))] = 0  # The core refuses an empty box.
        ends = np.arange(len(members.of.first) + 1)
        made = Joined(parts, np.searchsorted(members.pictures, ends), canvases, sampling)
        if job.weights is not None:
            weights = np.stack([job.weights, 1.0 - job.weights], axis=1).astype(np.float32)
            return replace(made, weights=weights)
        if self.paster is None:
            return made
        if self.paster.rectangular:
            return replace(made, rectangles=self.paster.rectangles(draws, members))
        return replace(made, masks=self.paster.covered(draws, members, points, bad))

    def _on_canvases(self, job: _Job) -> tuple[Geometry, Canvases, set[int]]:
        """The parts of members of mosaics that are shown, where they lie, and the samples that the
        core cannot make."""
        assert self.joint.mosaic is not None
        assert job.placed is not None
        members, mosaic, (plan,) = job.members, self.joint.mosaic[1], self.recipe.geometries
        inverse, flips, known = _warped(job.geometry, mosaic.canvas)
        start, end = job.seen[:, :2], job.seen[:, 2:]
        seen = np.concatenate([start, end - start], axis=1).astype(np.int32)
        seen[~members.of.present] = 0
        parts, corners = _parts(job.placed, seen[members.pictures])
        warp = WarpSampling("bilinear") if plan.later is None else plan.later.sampling
        canvases = Canvases(mosaic.canvas, corners, seen, inverse, flips, warp)
        return parts, canvases, set(members.samples[~known[members.pictures]].tolist())

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
        canvases = np.ones((len(members.of.first), 2), dtype=np.int64)
        if joint.mosaic is not None:
            canvases[:] = joint.mosaic[1].canvas
        else:
            canvases[members.pictures] = sizes
        geometry = plan.resolve(members.of.draws, canvases)
        for picture, reason in sorted(geometry.errors.items()):
            if members.of.present[picture]:
                name = self.source.describe(int(members.of.first[picture]))
                failures.setdefault(picture // joint.layers, DecodeError(f"{name}: {reason}"))
        weights = None
        if joint.pair is not None and self.paster is None:
            stream, op = joint.pair
            blended = np.unique(members.samples[members.layers > 0])
            weights = np.ones(len(draws))
            weights[blended] = op.weights(draws.take(blended), stream)
        placed, seen = joint.placed(members, sizes), looked_at(geometry)
        return _Job(draws, members, sizes, placed, geometry, seen, weights)

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
            row = sample * self.joint.layers + number
            picture = self._picture(name, encoded, job, rows.tolist(), job.seen[row])
            target = out if number == 0 else _local.other.take(out.shape)
            view = View(job.geometry, kind.resampling(plan), _Row(row, target))  # type: ignore[arg-type]
            render_row(picture, row, view)
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
        seen: Int64Array,
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
        top, left, bottom, right = seen.tolist()
        canvas[top:bottom, left:right] = np.asarray(sampling.fill).astype(np.uint8)
        windows = np.array([[top, left, bottom - top, right - left]] * len(rows), dtype=np.int32)
        parts, corners = _parts(job.placed, windows, rows)
        for number, row in enumerate(rows):
            placed = parts.take(slice(number, number + 1))
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
    parts = placed.take(slice(None) if rows is None else rows)
    start = parts.window[:, :2]  # of the canvas, in the grid of the image
    low = np.maximum(start + seen[:, :2], 0)
    high = np.minimum(start + seen[:, :2] + seen[:, 2:], parts.size)
    hidden = (high <= low).any(axis=1)
    low[hidden], high[hidden] = 0, 1
    corners = low - start
    corners[hidden] = -1
    window = np.concatenate([low, high - low], axis=1)
    return replace(parts, box=parts.box.copy(), window=window), corners


def _warped(
    geometry: Geometry, canvas: tuple[int, int]
) -> tuple[Float64Array, BoolArray, BoolArray]:
    """The P rows of a geometry of canvases as bilinear warps, (P, 3, 3) their inverses, and (P, 2)
    flips after them, which make the same pixels; and (P,) whether such a warp does."""
    if geometry.later is None:
        shift = np.tile(np.eye(3), (len(geometry), 1, 1))  # whole pixels: each is one of the canvas
        shift[:, :2, 2] = geometry.box[:, 1::-1]
        return shift, geometry.flip, only_cuts(geometry)
    later = geometry.later
    flips = later.geometry.flip
    if later.inverse is None:
        return np.tile(np.eye(3), (len(geometry), 1, 1)), flips, np.zeros(len(geometry), np.bool_)
    whole = (geometry.box == (0, 0, *canvas)).all(axis=1)
    known = whole & shows_all(geometry) & only_cuts(later.geometry)
    return cut_inverse(later), flips, known


def _blend(out: Pixels, other: Pixels, weight: float) -> None:
    """weight * out + (1 - weight) * other, rounded half to even, into `out`."""
    total = np.multiply(out, np.float32(weight), dtype=np.float32)
    total += np.multiply(other, np.float32(1.0 - weight), dtype=np.float32)
    np.copyto(out, np.rint(total, out=total), casting="unsafe")
