"""Batches on the threads of the native core: arrays are checked here, pixels are made there."""

from __future__ import annotations

import enum
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fastload.draws import Draws
from fastload.errors import ConfigurationError, counted
from fastload.files import DecodeSettings
from fastload.geometry import Geometry, GeometryPlan, Interpolation, PaddingMode, Resampling, View
from fastload.geometry.plan import Composition, ImageColour
from fastload.geometry.points import PointMap
from fastload.native.composites import Composites, core_canvases
from fastload.native.extension import available, load
from fastload.sources.buffers import PathTable
from fastload.sources.columns import Buffer, EncodedFiles, PixelArray
from fastload.sources.ragged import Ragged
from fastload.stores import Kept

if TYPE_CHECKING:
    import fastload.native._core as _core
    from fastload.native.seek import SeekIndex

Compressed = EncodedFiles | PathTable | Kept | Sequence[Buffer | bytearray]
"""Images still compressed: files, ranges of files, buffers, or what is kept of remote objects."""

Simd = Literal["auto", "avx512", "avx2", "sse4.1", "neon", "plain"]
"""Which inner loops to use; all give the same pixels, so this is for tests and measurements."""

_UPRIGHT = np.zeros((1, 2), dtype=np.bool_)
_FILTERS: tuple[Interpolation, ...] = ("nearest", "nearest-exact", "bilinear", "bicubic", "lanczos")
_PADDINGS: tuple[PaddingMode, ...] = ("constant", "edge", "reflect", "symmetric")


class Status(enum.IntEnum):
    """What became of a sample (fastload/native/image.hpp)."""

    OK = 0
    DAMAGED = 1
    """libjpeg gave up, or warned that pixels are made up; also for PNG and WebP that are odd."""
    OTHER_FORMAT = 2
    """A format that the core does not read: other decoders may know it."""
    UNSUPPORTED = 3
    """A valid JPEG that the core does not convert (CMYK, YCCK): other decoders can."""
    TOO_LARGE = 4
    """More pixels than `DecodeSettings.max_pixels`."""
    UNREADABLE = 5
    """The system could not open or read the file."""
    BAD_GEOMETRY = 6
    """The box does not lie in the image, or the plan cannot be applied to one of its size."""
    CANCELLED = 7


class NativeFailure(NamedTuple):
    """A sample without pixels; its row of the output holds zeros."""

    row: int
    status: Status
    message: str
    """The words of libjpeg or of the operating system, without the file's name."""


@dataclass(frozen=True)
class FusedGeometry:
    """A plan and its draws, resolved by the core itself as soon as it knows the size of an image.
    Made by `fuse`."""

    native: _core.Geometries
    resamples: bool
    """Whether boxes are resampled to another size."""
    bicubic: npt.NDArray[np.bool_] | None = None
    """As of a `Geometry`; so is `colour`."""
    colour: ImageColour | None = None

    def __len__(self) -> int:
        return len(self.native)

    def resolve(self, sizes: npt.NDArray[np.int64]) -> Geometry:
        """What the core does for (B, 2) sizes; the same pixels as of `GeometryPlan.resolve`."""
        out = np.empty((len(self), 12), dtype=np.int32)
        self.native.resolve(np.ascontiguousarray(sizes, dtype=np.int64), out)
        return Geometry(
            out[:, :4],
            out[:, 4:6],
            out[:, 6:10],
            out[:, 10:].astype(np.bool_),
            bicubic=self.bicubic,
            colour=self.colour,
        )


def fuse(plan: GeometryPlan, draws: Draws) -> FusedGeometry | None:
    """Let the core turn draws into boxes itself, so that a file is opened once.

    Returns:
        None where the core does not know the plan: then read the headers, `resolve`, and give the
            `Geometry`. It knows
        whole images, RandomCrop with padding, RandomResizedCrop, and Resize with or without
        CenterCrop, each followed by any flips.
    """
    if plan.later is not None:
        return None
    ops = list(plan.ops)
    mirrored = Composition(np.ones((len(draws), 2), dtype=np.int64))
    while ops and ops[-1][1].mirrors:
        stream, flip = ops.pop()
        flip.compose(mirrored, draws.uniform(stream, flip.uniforms))
    flips = np.ascontiguousarray(mirrored.mirror[:, ::-1])
    core: type[_core.Geometries] = load().Geometries
    colour = None if plan.colour is None else plan.colour.resolve(draws)
    if not ops:
        return FusedGeometry(core.whole(flips), resamples=False, colour=colour)
    (stream, first), *rest = ops
    then = tuple(op for _, op in rest)
    uniforms = draws.uniform(stream, first.uniforms or 1)
    geometries = first.native(core, uniforms, flips, then)
    return (
        None
        if geometries is None
        else FusedGeometry(geometries, plan.resamples, first.bicubic_rows(uniforms), colour)
    )


def resolve(plan: GeometryPlan, draws: Draws, sizes: npt.NDArray[np.int64]) -> Geometry:
    """`plan.resolve(draws, sizes)` in one call of the core, where it is built and knows the plan;
    the same pixels."""
    if available() and (fused := fuse(plan, draws)) is not None:
        geometry = fused.resolve(sizes)
        # A size of 0: the plan cannot be applied to some image. Python makes the message.
        if geometry.size.all():
            return geometry
    return plan.resolve(draws, sizes)


class Pending:
    """A batch in work. The arrays it reads and writes stay alive with it; dropping it waits for the
    rows in work."""

    def __init__(self, ticket: _core.Ticket) -> None:
        self._ticket = ticket

    def wait(self) -> list[NativeFailure]:
        """Block until every row was run or cancelled, without the GIL.

        Returns:
            The rows that failed, ascending; the second call returns none.

        Raises:
            RuntimeError: the process was forked since; the batch belongs to the parent.
        """
        return [
            NativeFailure(row, Status(status), message)
            for row, status, message in self._ticket.wait()
        ]

    def done(self) -> bool:
        return self._ticket.done()

    def cancel(self) -> None:
        """Rows not yet started fail with `Status.CANCELLED`. Returns at once; `wait` for the rows
        in work."""
        self._ticket.cancel()


class NativePool:
    """Threads of the native core, started by the first batch; several batches may be in work, first
    come first served.

    A forked child gets threads of its own with its first batch. Any thread may call. With `here`, a
    batch is done by the calling thread before the method returns: sooner than threads are woken,
    where there is little to do, and with what it has in its caches.
    """

    def __init__(self, threads: int, *, simd: Simd = "auto", always_libjpeg: bool = False) -> None:
        """`always_libjpeg` leaves our own JPEG decoder out: for tests and measurements.

        Raises ConfigurationError (threads below 1, or SIMD that this processor lacks),
        BackendUnavailableError.
        """
        core = load()
        try:
            self._pool: _core.Pool = core.Pool(threads, simd, always_libjpeg)
        except ValueError as error:
            raise ConfigurationError(
                f"NativePool: {error}; use threads >= 1 and simd='auto'."
            ) from error

    @property
    def threads(self) -> int:
        return self._pool.threads

    @property
    def simd(self) -> str:
        """The inner loops in use: "avx512", "avx2", "sse4.1", "neon" or "plain"."""
        return self._pool.simd

    @property
    def decoded(self) -> dict[str, int]:
        """Images decoded so far: "png", "webp", and JPEGs: "own" by the core's own decoder, the
        rest by libjpeg-turbo, by the reason why.

        The reasons: "coding" (arithmetic or lossless), "components" (CMYK and the like), "layout"
        (rare samplings) and "unusual" (damaged, or anything that a plain file has not).
        """
        return self._pool.decoded

    @property
    def reduced(self) -> int:
        """How many JPEGs were decoded smaller than they are (`decode_batch(draft=True)`)."""
        return self._pool.reduced

    @property
    def indexed(self) -> int:
        """How many JPEGs were decoded by the points of a seek index."""
        return self._pool.indexed

    @property
    def narrowed(self) -> int:
        """How many PNGs had 16 bits, of which the upper 8 were kept."""
        return self._pool.narrowed

    @property
    def noted(self) -> int:
        """How many JPEGs had their points noted for a seek index."""
        return self._pool.noted

    def close(self) -> None:
        """Cancel what is in work and join the threads. May be called twice; a later batch starts
        threads again."""
        self._pool.close()

    def read_headers(
        self, images: Compressed, *, settings: DecodeSettings | None = None, here: bool = False
    ) -> tuple[npt.NDArray[np.int32], list[NativeFailure]]:
        """(N, 6) int32 of many images: height, width (as stored), components, orientation (0: in
        metadata that the core does not read), progressive (0 or 1), odd (1: a JPEG with headers
        that are not as a sound encoder writes them), zeros for rows that failed; and the
        failures."""
        encoded = _encoded(images)
        out = np.zeros((len(encoded), 6), dtype=np.int32)
        limit = (settings or DecodeSettings()).max_pixels
        return out, Pending(self._pool.read_headers(encoded, out, limit, here)).wait()

    def encode_jpeg(self, image: npt.NDArray[np.uint8], quality: int) -> bytes:
        """An (H, W, 3) image of at most 65,500 pixels a side as a JPEG of a quality from 1 to 100,
        the bytes that libjpeg-turbo's defaults give; in the calling thread."""
        return self._pool.encode_jpeg(image, quality)

    def decode_whole(
        self, image: Buffer, out: npt.NDArray[np.uint8], *, check_whole: bool = False
    ) -> list[NativeFailure]:
        """All of one image as it is stored, in the calling thread. A `decode_batch` of it would
        take 27 us more: 4% of what a photograph of 500 x 375 pixels takes.

        Args:
            out: (H, W, 3) uint8, C-contiguous, of the image's own size; (H, W, 1): the numbers in
                the file, as of views `as_stored`.
        """
        core, (height, width, channels) = load(), out.shape
        whole = np.array([[0, 0, height, width]], dtype=np.int32)
        placed = core.Geometries.given(whole, whole[:, 2:].copy(), whole, _UPRIGHT)
        view = core.View(placed, out[None], _plain(channels == 1), None, None, False)
        encoded = core.Encoded.buffers([np.frombuffer(image, dtype=np.uint8)])
        limit = height * width
        return Pending(
            self._pool.decode([(encoded, [view])], limit, False, check_whole, False, True, None)
        ).wait()

    def decode_batch(
        self,
        images: Compressed,
        *,
        geometry: Geometry | FusedGeometry,
        out: npt.NDArray[np.uint8],
        sampling: Resampling | None = None,
        settings: DecodeSettings | None = None,
        check_whole: bool = False,
        draft: bool = False,
        index: SeekIndex | None = None,
        here: bool = False,
    ) -> Pending:
        """`decode_views` with one view."""
        view = View(geometry, sampling or Resampling(), out)
        return self.decode_views(
            images,
            [view],
            settings=settings,
            check_whole=check_whole,
            draft=draft,
            index=index,
            here=here,
        )

    def decode_views(
        self,
        images: Compressed,
        views: Sequence[View],
        *,
        settings: DecodeSettings | None = None,
        check_whole: bool = False,
        draft: bool = False,
        index: SeekIndex | None = None,
        here: bool = False,
    ) -> Pending:
        """Decode each of B images once; crop, resize, cut and mirror it into one row of each view.

        Args:
            images: B files, byte ranges of files, or buffers, which must not change before `wait`.
            views: at least one. Rows that fail hold zeros in all of them.
            check_whole: also look for damage below the crops. Otherwise, of what lies below, it is
                only checked that the image's end marker is there.
            draft: decode a JPEG at 1/2, 1/4 or 1/8 where its boxes are at least so many times the
                sizes they are resized to, on both sides. The pixels of the smaller image are
                libjpeg-turbo's.
            index: decode JPEGs by its points, and add those that it lacks. The same pixels.
        """
        return self.decode_columns(
            [(images, views)],
            settings=settings,
            check_whole=check_whole,
            draft=draft,
            index=index,
            here=here,
        )

    def decode_columns(
        self,
        columns: Sequence[tuple[Compressed, Sequence[View]]],
        *,
        settings: DecodeSettings | None = None,
        check_whole: bool = False,
        draft: bool = False,
        index: SeekIndex | None = None,
        plans: Sequence[_core.DevicePlan] = (),
        here: bool = False,
    ) -> Pending:
        """`decode_views` of several columns, whose images belong together, row by row, and have one
        size.

        Those of views `as_stored` are masks: (B, height, width, 1) the numbers in the files, grey
        values or places in a palette of 8 bits, by "nearest". Rows of which an image fails hold
        zeros in all views of all columns.

        Args:
            plans: one for each view of one column, without `draft`: their share of the images is
                planned for a GPU by the points of the index in place of being decoded
                (`fastload.render.jpegs_on_device`). Their `left` then says of which this is not so:
                those are decoded.
        """
        settings = settings or DecodeSettings()
        made = [_column(images, views) for images, views in columns]
        limit, exif = settings.max_pixels, settings.exif_orientation
        seek = None if index is None else index.native
        return Pending(self._pool.decode(made, limit, exif, check_whole, draft, here, seek, plans))

    def gather_batch(
        self,
        images: PixelArray,
        indices: npt.NDArray[np.int64],
        *,
        geometry: Geometry | FusedGeometry,
        out: npt.NDArray[np.uint8],
        sampling: Resampling | None = None,
        here: bool = False,
    ) -> Pending:
        """Crop, resize, pad and mirror decoded images into `out`, (B, height, width, C) uint8,
        C-contiguous.

        C is the channels of the images: 1 to 4, and 1 or 3 where they are resampled.
        """
        if sampling is not None and sampling.coloured and images.channels not in (1, 3):
            raise ConfigurationError(
                f"transform: colour needs images of 1 or 3 channels, got {images.channels}; remove "
                "it from the transform, or give grey or RGB images."
            )
        view = _view(
            View(geometry, sampling or Resampling(), out),
            channels=images.channels,
            indices=len(indices),
        )
        if images.channels in (2, 4) and _resamples(geometry):
            raise ConfigurationError(
                "gather_batch resizes images of 1 or 3 channels, these have "
                f"{images.channels}; resize them before."
            )
        rows = np.ascontiguousarray(images.rows_of(indices), dtype=np.int64)
        return Pending(
            self._pool.gather(images.array, images.offsets, images.sizes, rows, view, here)
        )

    def join(
        self,
        images: Compressed,
        made: Composites,
        *,
        out: npt.NDArray[np.uint8],
        settings: DecodeSettings,
        check_whole: bool = False,
        index: SeekIndex | None = None,
    ) -> Pending:
        """Make B samples of several images each, into (B, height, width, 3) `out`. Rows that fail
        are samples.

        Args:
            images: T files or buffers, as of `decode_views`; so are `check_whole` and `index`.
        """
        return Pending(
            self._pool.join(
                _encoded(images),
                _geometries(made.parts),
                _resampling(made.sampling),
                np.ascontiguousarray(made.offsets, dtype=np.int64),
                None if made.canvases is None else core_canvases(made.canvases, made.parts),
                made.weights,
                made.rectangles,
                made.masks,
                out,
                settings.max_pixels,
                settings.exif_orientation,
                check_whole,
                None if index is None else index.native,
            )
        )

    def recolour(
        self,
        images: npt.NDArray[np.uint8],
        kinds: npt.NDArray[np.int32],
        numbers: npt.NDArray[np.float32],
        *,
        weights: npt.NDArray[np.float32] | None = None,
        bilinear: bool = False,
        fill: npt.NDArray[np.float32] | None = None,
        fused: bool = True,
        here: bool = False,
    ) -> Pending:
        """Steps of colour on (B, H, W, C) images, C-contiguous, in place; C = 1 or 3.

        Args:
            kinds, numbers, weights: of `fastload.render.steps`; with weights B times several rows.
            fill: (3,).
            fused: sums of products are rounded once, as torch does where the processor can
                (`can_fuse_colour`).
        """
        kinds, numbers = np.ascontiguousarray(kinds), np.ascontiguousarray(numbers)
        return Pending(
            self._pool.recolour(images, kinds, numbers, weights, bilinear, fill, fused, here)
        )

    def convert(
        self,
        images: npt.NDArray[np.uint8],
        scale: npt.NDArray[np.float32],
        offset: npt.NDArray[np.float32],
        out: npt.NDArray[np.float32],
        *,
        fused: bool = True,
        here: bool = False,
    ) -> Pending:
        """(B, H, W, 3) images, whose rows may lie apart, times (3,) numbers plus (3,) others, into
        `out`, C-contiguous. `fused`: as of `recolour`."""
        return Pending(self._pool.convert(images, scale, offset, out, fused, here))

    def blur(
        self,
        images: npt.NDArray[np.uint8],
        down: npt.NDArray[np.float32],
        across: npt.NDArray[np.float32],
        *,
        rows: npt.NDArray[np.bool_] | None = None,
        fused: bool = True,
    ) -> Pending:
        """Blur (B, H, W, C) images in place, with (taps, B) weights down and across."""
        down, across = np.ascontiguousarray(down), np.ascontiguousarray(across)
        return Pending(self._pool.blur(images, down, across, rows, fused))

    def convolve(
        self,
        images: npt.NDArray[np.uint8],
        kernels: npt.NDArray[np.float32],
        *,
        rows: npt.NDArray[np.bool_] | None = None,
        fused: bool = True,
        here: bool = False,
    ) -> Pending:
        """Weighted sums of the pixels of (B, H, W, C) images in place, by (B, side, side)
        kernels."""
        return Pending(
            self._pool.convolve(images, np.ascontiguousarray(kernels), rows, fused, here)
        )

    def median(
        self,
        images: npt.NDArray[np.uint8],
        sides: npt.NDArray[np.int32],
        *,
        here: bool = False,
    ) -> Pending:
        """Medians of squares of (B,) sides in (B, H, W, C) images, in place; of 1: nothing."""
        return Pending(self._pool.median(images, np.ascontiguousarray(sides), here))

    def clahe(
        self,
        images: npt.NDArray[np.uint8],
        limits: npt.NDArray[np.float64],
        tiles: tuple[int, int],
        *,
        here: bool = False,
    ) -> Pending:
        """CLAHE of (B, H, W, C) images in place, with (B,) limits, 0 for nothing, and so many tiles
        down and across; see `fastload.render.steps.ClaheSteps`."""
        return Pending(self._pool.clahe(images, np.ascontiguousarray(limits), *tiles, here))

    def add_noise(
        self,
        images: npt.NDArray[np.uint8],
        keys: npt.NDArray[np.uint64],
        scales: npt.NDArray[np.float32],
        shifts: npt.NDArray[np.float32],
        *,
        rows: npt.NDArray[np.bool_] | None = None,
        clips: bool = True,
        shared: bool = False,
        here: bool = False,
    ) -> Pending:
        """Add normal noise to (B, H, W, C) images of any C, in place; see
        `fastload.render.steps.NoiseSteps`."""
        return Pending(
            self._pool.add_noise(images, keys, scales, shifts, rows, clips, shared, here)
        )

    def normals(
        self, keys: npt.NDArray[np.uint64], out: npt.NDArray[np.float32], *, here: bool = False
    ) -> Pending:
        """Fill (B, N) `out` with the first normal numbers of each of (B,) keys."""
        return Pending(self._pool.normals(keys, out, here))

    def box_normals(
        self,
        keys: npt.NDArray[np.uint64],
        boxes: npt.NDArray[np.int64],
        out: npt.NDArray[np.float32],
        *,
        here: bool = False,
    ) -> Pending:
        """Fill `out` with the numbers of (N, 6) boxes, each of its key; see
        `fastload.render.noise.box_normals`. It has as many as the boxes have, which are not
        empty."""
        return Pending(self._pool.box_normals(keys, boxes, out, here))

    def change_floats(
        self,
        images: npt.NDArray[np.uint8] | npt.NDArray[np.float32],
        out: npt.NDArray[np.float32],
        *,
        channels_last: bool = False,
        scale: npt.NDArray[np.float32] | None = None,
        offset: npt.NDArray[np.float32] | None = None,
        matrices: npt.NDArray[np.float64] | None = None,
        turned: npt.NDArray[np.bool_] | None = None,
        kinds: npt.NDArray[np.int32],
        applies: npt.NDArray[np.bool_],
        numbers: npt.NDArray[np.float32],
        keys: npt.NDArray[np.uint64],
        mirrors: npt.NDArray[np.bool_] | None = None,
        here: bool = False,
    ) -> Pending:
        """What becomes of (B, C, H, W) images of any strides, into (B, C, h, w) `out`, or (B, h, w,
        C) with `channels_last`: `fastload.render.host_colour.HostColour.change_floats` and
        `fastload.render.floats.FloatSteps` have the rest."""
        return Pending(
            self._pool.change_floats(
                images,
                out,
                channels_last,
                scale,
                offset,
                matrices,
                turned,
                kinds,
                applies,
                numbers,
                keys,
                mirrors,
                here,
            )
        )

    def turn_masks(
        self,
        masks: npt.NDArray[Any],
        out: npt.NDArray[Any],
        matrices: npt.NDArray[np.float64],
        turned: npt.NDArray[np.bool_],
        *,
        here: bool = False,
    ) -> Pending:
        """(B, H, W) masks of classes, uint8 or uint16, into (B, h, w) `out`, turned as images
        are."""
        return Pending(self._pool.turn_masks(masks, out, matrices, turned, here))

    def recompress(
        self,
        images: npt.NDArray[np.uint8],
        qualities: npt.NDArray[np.int32],
        *,
        blue_first: bool = False,
        here: bool = False,
    ) -> Pending:
        """What (B, H, W, C) images are after JPEGs of (B,) qualities from 1 to 100, in place; C = 1
        or 3, with `blue_first` in that order. 0: an image stays as it is."""
        return Pending(self._pool.recompress(images, qualities, blue_first, here))

    def draw_masks(
        self, shapes: Ragged, points: PointMap, out: npt.NDArray[np.uint8], *, here: bool = False
    ) -> Pending:
        """Draw the masks of the objects in B images into `out`, (T, H, W) uint8, C-contiguous: 1 in
        the object, 0 beside it. Rows that fail are images, whose masks are all 0.

        Args:
            shapes: of each image its objects, of each its numbers (`fastload.sources.masks`).
            points: traced, of images of the size of `out` (`PointMap.identity`).
        """
        inner: Ragged = shapes.values
        numbers = np.ascontiguousarray(inner.values, dtype=np.float64)
        table = np.ascontiguousarray(points.table)
        steps = points.core_steps
        objects = np.ascontiguousarray(inner.offsets, dtype=np.int64)
        images = np.ascontiguousarray(shapes.offsets, dtype=np.int64)
        return Pending(self._pool.draw_masks(numbers, objects, images, table, steps, out, here))


def _encoded(images: Compressed) -> _core.Encoded:
    kind: type[_core.Encoded] = load().Encoded
    if isinstance(images, PathTable):
        images = EncodedFiles(images)
    if isinstance(images, Kept):
        return kind.tier(os.fsencode(images.folder), images.digests, images.memory)
    if not isinstance(images, EncodedFiles):
        return kind.buffers(images)
    paths = images.paths
    rows = np.arange(len(paths.ends), dtype=np.int64) if paths.rows is None else paths.rows
    root = paths.root.encode("utf-8", "surrogateescape")
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    return kind.files(root, paths.blob, paths.ends, rows, images.offsets, images.lengths)


def _column(images: Compressed, views: Sequence[View]) -> tuple[_core.Encoded, list[_core.View]]:
    encoded = _encoded(images)
    core_views = [
        _view(view, channels=1 if view.resampling.as_stored else 3, images=len(encoded))
        for view in views
    ]
    return encoded, core_views


def _view(view: View, *, channels: int, **lengths: int) -> _core.View:
    """A view as the extension takes it, which relies on what is checked here."""
    core, out, sampling = load(), view.out, view.resampling
    good = out.dtype == np.uint8 and out.ndim == 4 and out.shape[3] == channels
    if not (good and out.flags.c_contiguous and out.flags.writeable):
        raise ConfigurationError(
            f"out must be a writable C-contiguous uint8 array (B, height, width, {channels}), "
            f"got {out.dtype} of shape "
            f"{out.shape}{'' if out.flags.c_contiguous else ', not contiguous'}"
            f"{'' if out.flags.writeable else ', read-only'}."
        )
    for name, length in (lengths | {"geometry": len(view.geometry)}).items():
        if length != len(out):
            raise ConfigurationError(
                f"{name} has {counted(length, 'row')} and out has {len(out)}; they must be equal."
            )
    colour = view.geometry.colour if sampling.coloured else None
    kinds, numbers = (None, None) if colour is None else map(np.ascontiguousarray, colour.table)
    later, later_sampling, warped = _later(view)
    core_view: _core.View = core.View(
        _geometries(view.geometry),
        out,
        _resampling(sampling),
        kinds,
        numbers,
        colour is not None and fuses(),
        later,
        later_sampling,
        None if view.sizes is None else np.ascontiguousarray(view.sizes, dtype=np.int32),
        warped,
    )
    return core_view


def _later(view: View) -> tuple[Any, Any, Any]:
    """What the core is to do to the images that a geometry makes, if anything: the second geometry,
    its sampling, and the warp before it."""
    geometry, sampling = view.geometry, view.resampling
    later = None if isinstance(geometry, FusedGeometry) else geometry.later
    if later is None:
        return None, None, None
    assert sampling.later is not None, "both are of one plan"
    if later.geometry.later is not None:
        raise ConfigurationError("NativePool resamples images no third time.")
    last, warped = later.geometry, None
    if later.inverse is not None:
        from fastload.native.warps import core_warps

        last, warped = core_warps(geometry, sampling.later.warp)
    return _geometries(last), _resampling(sampling.later.resampling), warped


@cache
def fuses() -> bool:
    """Whether torch's CPU kernels multiply and add in one rounding here, which the core then does
    too."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    known = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") if x86 else True
    return known and bool(load().can_fuse_colour())


@cache
def _plain(as_stored: bool) -> _core.Resampling:
    return _resampling(Resampling("nearest" if as_stored else "bilinear"))


def _resampling(sampling: Resampling) -> _core.Resampling:
    fill = [min(max(round(value), 0), 255) for value in sampling.fill]
    fill = fill * 4 if len(fill) == 1 else [*fill, 0, 0, 0][:4]
    filter_code, padding_code = (
        _FILTERS.index(sampling.interpolation),
        _PADDINGS.index(sampling.padding_mode),
    )
    for_core: _core.Resampling = load().Resampling(
        filter_code, sampling.antialias, padding_code, fill
    )
    return for_core


def _geometries(geometry: Geometry | FusedGeometry) -> _core.Geometries:
    if isinstance(geometry, FusedGeometry):
        return geometry.native
    kind: type[_core.Geometries] = load().Geometries
    return kind.given(
        np.ascontiguousarray(geometry.box, dtype=np.int32),
        np.ascontiguousarray(geometry.size, dtype=np.int32),
        np.ascontiguousarray(geometry.window, dtype=np.int32),
        np.ascontiguousarray(geometry.flip, dtype=np.bool_),
        geometry.bicubic,
        geometry.flipped_first,
    )


def _resamples(geometry: Geometry | FusedGeometry) -> bool:
    if isinstance(geometry, FusedGeometry):
        return geometry.resamples
    return bool((geometry.box[:, 2:] != geometry.size).any())
