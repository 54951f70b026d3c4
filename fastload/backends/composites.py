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
from fastload.backends.images import Columns, Failures, Found
from fastload.backends.pasted import Paster
from fastload.decode.image import Scratch, decode_image
from fastload.decode.libraries import core_pool, get_decoder
from fastload.draws import BoolArray, Draws, Float64Array, Int64Array
from fastload.errors import DecodeError
from fastload.files import DecodeSettings
from fastload.geometry import Geometry, GeometryPlan, Resampling, View
from fastload.geometry.cuts import cut_inverse, only_cuts, shows_all
from fastload.geometry.plan import WarpSampling
from fastload.geometry.points import PointMap
from fastload.native.composites import CompositeCanvases, Composites
from fastload.recipe import SplitRecipe
from fastload.recipe.composite import Composite, CompositeImages, SampleImages
from fastload.recipe.outputs import Size
from fastload.render.host import EncodedRow, looked_at, render_into, render_row
from fastload.sources.base import Source

Pixels = npt.NDArray[np.uint8]


class _ThreadBuffers(threading.local):
    def __init__(self) -> None:
        self.canvas, self.tile, self.decoded, self.other = (Scratch() for _ in range(4))


_local = _ThreadBuffers()


@dataclass(frozen=True)
class PlacedComposites:
    """Where the pixels of B samples come from, as of `images.Placed`."""

    draws: Draws
    members: CompositeImages
    placed: Geometry | None
    """Where the T members lie on their canvases; None: there is no Mosaic."""
    geometry: Geometry
    """Geometries of the canvases of P pictures."""
    second: Geometry | None
    """Of the canvases of the second of each two pictures, where these have their own."""
    seen: Int64Array
    """(P, 4) top, left, bottom, right of the parts of them that it reads."""
    weights: npt.NDArray[np.float64] | None
    """(B,) weights of the first layer, where two are blended."""
    failures: Failures
    encoded: Mapping[str, Mapping[int, EncodedRow]] = field(default_factory=dict)
    """The compressed members that were read, by column and row."""
    points: tuple[PointMap, ...] = ()
    """Where points of the members go, if any column is moved."""
    pasted: dict[int, BoolArray] = field(default_factory=dict)
    """Where the second layer is put over the first."""


@dataclass(frozen=True)
class CompositeReader:
    """Makes the images of composites. Picklable; any thread may call it, several at once."""

    source: Source
    recipe: SplitRecipe
    read: Callable[[Int64Array], Found]
    """Reads images of the source."""
    points: Callable[[SampleImages, Int64Array], tuple[PointMap, ...]]
    """See `RowReader`."""
    paster: Paster | None
    """Says where one picture is put over another; None: pictures are blended, or there is only
    one."""
    settings: DecodeSettings
    decoder: str

    @property
    def composite(self) -> Composite:
        return self.recipe.composite

    def members(self, draws: Draws) -> CompositeImages:
        return self.composite.composed(draws, len(self.source))

    def place(self, draws: Draws) -> PlacedComposites:
        """Read the images that samples are made of, and compute where they go."""
        members = self.members(draws)
        read = self.read(members.indices)
        assert read.sizes is not None, "the loader refuses sources without images"
        failures: Failures = {}
        for row in sorted(read.failures, reverse=True):  # of several the first stays
            failures[int(members.samples[row])] = self._explained(
                draws, members, row, read.failures[row]
            )
        points = self.points(members, read.sizes)
        placed = self._placed(draws, members, read.sizes, failures)
        placed = replace(placed, encoded=read.encoded, points=points)
        if self.paster is None:
            return placed
        return replace(placed, pasted=self.paster.pasted(draws, members, points, failures))

    def sizes_of(self, placed: PlacedComposites) -> list[Size]:
        """(height, width) of all outputs, for each view."""
        return [plan.out_size for plan in self.recipe.geometries if plan.out_size is not None]

    def render(self, placed: PlacedComposites, out: Columns) -> Failures:
        """Write the images; returns the samples without pixels, whose images hold zeros."""
        failures = dict(placed.failures)
        for name in self.source.images:
            for sample in range(len(placed.draws)):
                if sample not in failures:
                    try:
                        self._render(name, placed, sample, out[name][sample])
                    except DecodeError as error:
                        failures[sample] = error
        for pixels in out.values():
            pixels[list(failures)] = 0
        return failures

    def for_core(
        self,
        draws: Draws,
        members: CompositeImages,
        sizes: Int64Array,
        points: Sequence[PointMap],
        bad: set[int],
    ) -> Composites:
        """The samples of `draws` as the native core takes them. `points`: of the members. `bad`:
        rows that it is to leave to Python; those that it cannot make are added."""
        failures: Failures = {}
        job = self._placed(draws, members, sizes, failures)
        (plan,) = self.recipe.geometries
        ((_, column),) = self.source.images.items()
        bad |= failures.keys()
        canvases, sampling = None, column.kind.resampling(plan)
        if self.composite.mosaic is None:
            parts = job.geometry.take(members.pictures)
        else:
            sampling = column.kind.resampling(self.composite.mosaic[1].plan)
            parts, canvases, unknown = self._on_canvases(job)
            bad |= unknown
        parts.box[np.isin(members.samples, sorted(bad))] = 0  # The core refuses an empty box.
        ends = np.arange(len(members.of.first) + 1)
        composites = Composites(parts, np.searchsorted(members.pictures, ends), canvases, sampling)
        if job.weights is not None:
            weights = np.stack([job.weights, 1.0 - job.weights], axis=1).astype(np.float32)
            return replace(composites, weights=weights)
        if self.paster is None:
            return composites
        if self.paster.rectangular:
            return replace(composites, rectangles=self.paster.rectangles(draws, members))
        return replace(composites, masks=self.paster.covered(draws, members, points, bad))

    def _on_canvases(self, job: PlacedComposites) -> tuple[Geometry, CompositeCanvases, set[int]]:
        """The parts of members of mosaics that are shown, where they lie, and the samples that the
        core cannot make."""
        assert self.composite.mosaic is not None
        assert job.placed is not None
        members, mosaic, (plan,) = job.members, self.composite.mosaic[1], self.recipe.geometries
        inverse, flips, known = _warped(job.geometry, mosaic.canvas)
        partner, later, others = self.composite.partner, self.recipe.partner, None
        if partner is not None and later is not None and job.second is not None:
            inverse[1::2], flips[1::2], known[1::2] = _warped(job.second, partner.canvas)
            others = partner.canvas, _warp_of(later)
        start, end = job.seen[:, :2], job.seen[:, 2:]
        seen = np.concatenate([start, end - start], axis=1).astype(np.int32)
        seen[~members.of.present] = 0
        parts, corners = _parts(job.placed, seen[members.pictures])
        warp = _warp_of(plan)
        canvases = CompositeCanvases(mosaic.canvas, corners, seen, inverse, flips, warp, others)
        return parts, canvases, set(members.samples[~known[members.pictures]].tolist())

    def _explained(
        self, draws: Draws, members: CompositeImages, row: int, error: DecodeError
    ) -> DecodeError:
        if not members.slots[row]:
            return error
        sample = self.source.describe(int(draws.indices[members.samples[row]]))
        return DecodeError(f"{error} (It was drawn as a part of the sample {sample}.)")

    def _placed(
        self, draws: Draws, members: CompositeImages, sizes: Int64Array, failures: Failures
    ) -> PlacedComposites:
        composite, (plan,) = self.composite, self.recipe.geometries
        canvases = np.ones((len(members.of.first), 2), dtype=np.int64)
        if composite.mosaic is not None:
            canvases[:] = composite.mosaic[1].canvas
        else:
            canvases[members.pictures] = sizes
        geometry = plan.resolve(members.of.draws, canvases)
        for picture, reason in sorted(geometry.errors.items()):
            if members.of.present[picture]:
                name = self.source.describe(int(members.of.first[picture]))
                failures.setdefault(picture // composite.layers, DecodeError(f"{name}: {reason}"))
        weights = None
        if composite.pair is not None and self.paster is None:
            stream, op = composite.pair
            blended = np.unique(members.samples[members.layers > 0])
            weights = np.ones(len(draws))
            weights[blended] = op.weights(draws.take(blended), stream)
        placed, seen, second = composite.placed(members, sizes), looked_at(geometry), None
        if composite.partner is not None and self.recipe.partner is not None:
            own = members.of.draws.take(slice(1, None, 2))
            second = self.recipe.partner.resolve(
                own, np.tile(np.array(composite.partner.canvas), (len(own), 1))
            )
            seen[1::2] = looked_at(second)
        return PlacedComposites(draws, members, placed, geometry, second, seen, weights, failures)

    def _render(
        self,
        name: str,
        job: PlacedComposites,
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
            row = sample * self.composite.layers + number
            picture = self._picture(name, job, rows.tolist(), job.seen[row], number)
            target = out if number == 0 else _local.other.take(out.shape)
            geometry, how = job.geometry, kind.resampling(plan)
            if number and job.second is not None and self.recipe.partner is not None:
                row, geometry, how = sample, job.second, kind.resampling(self.recipe.partner)
            view = View(geometry, how, _Row(row, target))  # type: ignore[arg-type]
            render_row(picture, row, view)
            if number and job.weights is not None:
                _blend(out, target, float(job.weights[sample]))
            elif number:
                np.copyto(out, target, where=job.pasted[sample][:, :, None])

    def _picture(
        self,
        name: str,
        job: PlacedComposites,
        rows: list[int],
        seen: Int64Array,
        layer: int,
    ) -> Pixels:
        """The members of these rows on their canvas, as far as it is seen (top, left, bottom,
        right), or the only one as it is. `layer`: which picture of its sample it is."""
        if job.placed is None:
            (row,) = rows
            return self._pixels(name, job, row)
        mosaic, encoded = self.composite.mosaic, job.encoded.get(name)
        assert mosaic is not None
        column = self.source.images[name]
        puts = self.composite.partner if layer else None
        of = mosaic[1] if puts is None else puts
        sampling = column.kind.resampling(of.plan)
        canvas = _local.canvas.take((*of.canvas, column.channels))
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
                self._pixels(name, job, row),
                box=placed.box[0],
                size=placed.size[0],
                window=placed.window[0],
                resampling=sampling,
                out=place,
            )
        return canvas

    def _pixels(self, name: str, job: PlacedComposites, row: int) -> Pixels:
        """A whole image, by Python."""
        encoded = job.encoded.get(name)
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


def _warp_of(plan: GeometryPlan) -> WarpSampling:
    """How a plan that `_core_makes` makes the pixels of its warp."""
    return WarpSampling("bilinear") if plan.later is None else plan.later.sampling


def _blend(out: Pixels, other: Pixels, weight: float) -> None:
    """weight * out + (1 - weight) * other, rounded half to even, into `out`."""
    total = np.multiply(out, np.float32(weight), dtype=np.float32)
    total += np.multiply(other, np.float32(1.0 - weight), dtype=np.float32)
    np.copyto(out, np.rint(total, out=total), casting="unsafe")


def fits_core(source: Source, recipe: SplitRecipe) -> bool:
    """Whether the native core is built and makes these composites (`CompositeReader.for_core`): of
    one column of colour images, with a mosaic and then a bilinear warp or none, cuts and
    mirrorings; or without one and with crops and one resize."""
    composite, plan, columns = recipe.composite, recipe.geometry, list(source.images)
    if columns != list(source.encoded) or len(columns) != 1:
        return False
    if not native.available() or source.images[columns[0]].kind.as_stored:
        return False
    if composite.mosaic is None:
        return plan.later is None
    partner = composite.partner
    if partner is not None:
        # The core resamples all members alike.
        kind = source.images[columns[0]].kind
        first, second = (kind.resampling(of.plan) for of in (composite.mosaic[1], partner))
        if recipe.partner is None or first != second or not _core_makes(recipe.partner):
            return False
    return _core_makes(plan)


def _core_makes(plan: GeometryPlan) -> bool:
    """Whether the native core makes a picture of a canvas by it."""
    if any(op.resampling is not None for _, op in plan.all_ops):
        return False
    then = plan.later
    if then is None:
        return True
    return (
        then.warp is not None
        and then.sampling.interpolation == "bilinear"
        and then.plan.later is None
    )
