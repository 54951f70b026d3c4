"""The geometry part of a recipe: where each output pixel comes from, before any pixel is read.

A plan is static. Resolving it against the draws and the image sizes of a batch has its operations
add up in a `Composition`, and gives one `Geometry`: plain integer arrays that every backend
understands. `Resampling` says how pixels are made once it is known where they come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fastload.draws import BoolArray, Draws, Float64Array, Int64Array
from fastload.geometry.drawn import DrawnStep

Int32Array = npt.NDArray[np.int32]
Drawn = npt.NDArray[Any]
"""(B, n): what an operation that depends on objects has drawn: of a crop int64 top, left, height,
width."""

PaddingMode = Literal["constant", "edge", "reflect", "symmetric"]
"""What lies outside an image: a constant, its edge repeated, or its mirror image without or with
the edge row."""
Interpolation = Literal["nearest", "nearest-exact", "bilinear", "bicubic", "lanczos"]
"""Of images; the last, always antialiased, is Pillow's, of three lobes."""
Clips = Literal["nothing", "window", "both"]
"""What boxes that reach out of the image are clipped to: what is shown in the end, padding
included; or first to the image, or what is cut out of it, and then to that."""
MaskInterpolation = Literal["nearest", "nearest-exact"]
"""Of masks: torchvision resamples them with "nearest", or with "nearest-exact" where that is asked
for."""
Fill = tuple[float, ...]
"""One value for every channel, or one a channel, on the scale of the pixels that an operation
meets, as torchvision has it: 0..255 before a scaling ToDtype, 0..1 after it. (A `GeometryPlan`
always speaks of 0..255.)"""

# A side of as many pixels or more is refused: the native core cuts longer ones to this.
_TOO_LONG = np.iinfo(np.int32).max


class Padding(NamedTuple):
    """What lies around an image."""

    mode: PaddingMode = "constant"
    fill: Fill = (0.0,)
    """Of "constant" padding of images."""
    mask_fill: Fill = (0.0,)


@dataclass(frozen=True)
class Resampling:
    """How the pixels of one column are made; the same for every sample."""

    interpolation: Interpolation = "bilinear"
    antialias: bool = True
    """Widen the filter of "bilinear" and "bicubic" when shrinking."""
    padding_mode: PaddingMode = "constant"
    """How the part of a window outside its grid is made."""
    fill: Fill = (0.0,)
    """One value, or one a channel, of "constant" padding."""
    as_stored: bool = False
    """Whether compressed pixels are decoded to one channel, the numbers in the file (masks), and
    not to RGB."""
    later: LaterResampling | None = None
    """How the pixels of `Geometry.later` are made."""
    coloured: bool = False
    """Whether `Geometry.colour` is for this column."""
    of_masks: MaskInterpolation = "nearest"
    """How an operation on images resamples the masks that belong to them."""

    @property
    def overshoots(self) -> bool:
        """Whether the filter has negative weights: beside an edge it makes values beyond those of
        the pixels, which floats keep and 8 bits do not."""
        return self.interpolation in ("bicubic", "lanczos")

    @property
    def weighs(self) -> bool:
        """Whether pixels are weighted sums, and not the nearest ones."""
        return self.interpolation not in ("nearest", "nearest-exact")


@dataclass(frozen=True)
class WarpSampling:
    """How pixels are made where rows and columns do not stay rows and columns."""

    interpolation: Interpolation = "nearest"
    """"nearest" or "bilinear"; not widened when shrinking, as in torchvision."""
    fill: Fill = (0.0,)
    """One value, or one a channel, of what lies outside the image."""
    fades: bool = True
    """Whether "bilinear" goes over into the fill around the edge, as torchvision has it for
    tensors, and not to the edge of a pixel, as Pillow."""
    mixes: bool = False
    """Where it fades: whether the fill is one of the four pixels that are interpolated, with its
    weight, as OpenCV has it; torchvision blends the sum of the others with the fill once more."""


@dataclass(frozen=True)
class LaterResampling:
    """How the pixels of a `Later` are made."""

    warp: WarpSampling
    resampling: Resampling


class ImageColour(Protocol):
    """What is done to the colours of the B images of a batch, each as a whole, before its
    geometry."""

    @property
    def table(self) -> tuple[Int32Array, npt.NDArray[np.float32]]:
        """Kinds and numbers of `fastload.render.steps.ColourSteps`."""

    def apply(self, pixels: npt.NDArray[np.uint8], row: int) -> npt.NDArray[np.uint8]:
        """One image, (H, W, C), C = 1 or 3; may be `pixels` itself, which are not changed."""


class ColourPlan(Protocol):
    """What is done to the colours of images before their geometry, before it is drawn."""

    def resolve(self, draws: Draws) -> ImageColour: ...


@dataclass(frozen=True)
class Geometry:
    """Crop, resize, crop, flip: resolved for the B samples of a batch, one row a sample.

    The pixels of row i are: the source image cropped to `box[i]`, resampled to `size[i]` (no
    resampling where it equals the box's size; the filter never looks outside the box), cut to
    `window[i]` (which may reach outside: that is padding), then mirrored by `flip[i]`.
    """

    box: Int32Array
    """(B, 4) int32: top, left, height, width in pixels of the source image."""
    size: Int32Array
    """(B, 2) int32: height, width that the box is resampled to."""
    window: Int32Array
    """(B, 4) int32: top, left, height, width in the resampled grid; rows and columns outside it are
    padding."""
    flip: BoolArray
    """(B, 2) bool: mirror left-right, mirror upside-down."""
    errors: dict[int, str] = field(default_factory=dict)
    """Rows that have no geometry (a crop larger than the image), and why. Their arrays hold a 1x1
    dummy."""
    bicubic: BoolArray | None = None
    """(B,) bool: the rows that are resampled with "bicubic" where the plan says "bilinear"; None:
    none of them."""
    later: Later | None = None
    """What is done to the images that this makes, pixel by pixel, before they are the outputs."""
    colour: ImageColour | None = None
    """What is done to the source images before all that, where `Resampling.coloured`."""
    flipped_first: BoolArray | None = None
    """(B, 2) bool, as `flip`: whether the box was mirrored when it was resampled; None: none of
    them. Only the nearest pixel is another one then: it is counted from the other end."""

    def __len__(self) -> int:
        return int(self.box.shape[0])

    def take(self, rows: Any) -> Geometry:
        """Some rows (a slice or an index array), of a geometry with nothing `later` and no
        `colour`, without their errors."""
        assert self.later is None
        assert self.colour is None
        bicubic, first = self.bicubic, self.flipped_first
        return Geometry(
            self.box[rows],
            self.size[rows],
            self.window[rows],
            self.flip[rows],
            bicubic=None if bicubic is None else bicubic[rows],
            flipped_first=None if first is None else first[rows],
        )

    @property
    def out_sizes(self) -> Int32Array:
        """(B, 2) int32: height, width of the outputs."""
        return self.window[:, 2:] if self.later is None else self.later.geometry.out_sizes

    @property
    def resamples(self) -> bool:
        """Whether any box is resampled to another size."""
        return bool((self.size != self.box[:, 2:]).any())

    @property
    def pads(self) -> bool:
        """Whether any window reaches outside its grid."""
        start = self.window[:, :2]
        return bool((start < 0).any() or (start + self.window[:, 2:] > self.size).any())


@dataclass(frozen=True)
class Warp:
    """Where the pixels of B outputs are in images of one `Geometry`, as a projective map."""

    inverse: Float64Array
    """(B, 3, 3): from output to input. Coordinates are (x, y) in pixels, (0, 0) the upper left
    corner of the image, so that the centre of the first pixel is (0.5, 0.5)."""
    forward: Float64Array
    """(B, 3, 3): from input to output, for boxes and points. It is the inverse of `inverse`, except
    where torchvision moves points in another way than pixels."""
    size: Int32Array
    """(B, 2) int32: height, width of the outputs."""
    centres: float = 0.0
    """What is added to points whose (0, 0) is the centre of the first pixel, before `forward`, and
    taken away after it [pixels]: 0.5, or 0 as torchvision has it."""


@dataclass(frozen=True)
class Later:
    """What does not fit into one `Geometry`: first a warp, if there is one, then another
    geometry."""

    inverse: Float64Array | None
    """Of a `Warp`, as the next two; None where there is none."""
    forward: Float64Array | None
    size: Int32Array
    """(B, 2) int32: height, width after the warp."""
    geometry: Geometry
    """Of images of this size."""
    centres: float
    """As of a `Warp`."""


class Composition:
    """Crops, paddings, one resize and mirrorings of B samples so far: a box, a grid, a window and a
    mirroring each.

    Operations come in the coordinates of the image as displayed after the operations before them;
    what is kept is in coordinates that no mirroring has touched. Arrays are (B, 2): vertical axis,
    horizontal axis. What does not compose (a second resize, a resize of padding, padding around a
    cut in a resampled grid, padding of two kinds) is kept out by `fastload.recipe.recipe`.
    """

    def __init__(self, sizes: Int64Array, padding_mode: PaddingMode = "constant") -> None:
        """`sizes`: (B, 2) int64, height and width of the source images; `padding_mode`: of all
        padding."""
        self._mode = padding_mode
        self.box_start = np.zeros_like(sizes)
        """Top, left of the box in the source image; its size is `box_size`."""
        self.box_size = sizes.copy()
        self.grid = self.box_size
        """Size that the box is resampled to."""
        self.start = np.zeros_like(sizes)
        """Top, left of the window in the grid; its size is `extent`. It may reach outside."""
        self.extent = sizes.copy()
        self.mirror: BoolArray = np.zeros(sizes.shape, dtype=np.bool_)
        """Upside-down, left-right."""
        self.errors: dict[int, str] = {}
        self.bicubic: BoolArray | None = None
        """(B,) bool: which rows are resampled with "bicubic", where rows differ in that."""
        self.given: Int64Array | None = None
        """(B, 4) top, left, height, width: the crop that the next operation makes, where that
        depends on the objects in the image."""
        self.mirrored_first: BoolArray | None = None
        """(B, 2): left-right, upside-down: what was mirrored before the resize; None: nothing."""
        self._resized = False

    def fail(self, rows: npt.ArrayLike, message: str) -> None:
        """Note an error for these (B,) rows, with their present size for {height} and {width}. The
        first one stays."""
        for row in np.flatnonzero(np.asarray(rows)).tolist():
            height, width = self.extent[row].tolist()
            self.errors.setdefault(row, message.format(height=height, width=width))

    def crop(self, start: Int64Array, extent: Int64Array) -> None:
        """Cut out (B, 2) `extent` at (B, 2) `start`, which may reach outside as padding already
        made does."""
        self.start = self.start + np.where(self.mirror, self.extent - start - extent, start)
        self.extent = np.broadcast_to(extent, self.start.shape)

    def pad(self, before: Int64Array, after: Int64Array) -> None:
        """Add (B, 2) rows and columns before and after. Reflections wider than the image are
        errors."""
        mode = self._mode
        if mode in ("reflect", "symmetric"):
            widest = self.extent - (mode == "reflect")
            self.fail(
                ((before > widest) | (after > widest)).any(axis=1),
                f"{mode!r} padding is wider than the image of {{height}}x{{width}} pixels has "
                "pixels to mirror; resize the image first, pad less, or use padding_mode='edge'.",
            )
        self._fold()
        self.start = self.start - np.where(self.mirror, after, before)
        self.extent = self.extent + before + after

    def resize(self, size: Int64Array) -> None:
        """Resample to (B, 2) `size`."""
        assert not self._resized, "the plan holds one resize"
        self.fail(
            ((size < 1) | (size >= _TOO_LONG)).any(axis=1),
            "an image of {height}x{width} pixels is too long and narrow to be resized as asked: a "
            "side of the result would be empty or too large; leave it out of the data set, or "
            "resize to a (height, width).",
        )
        self._fold()
        self._resized = True
        if self.mirror.any():
            self.mirrored_first = self.mirror[:, ::-1].copy()
        # `start` is 0: padding is not resized.
        self.grid = np.broadcast_to(size, self.start.shape)
        self.extent = self.grid

    def flip(self, rows: BoolArray, axis: int) -> None:
        """Mirror these (B,) rows along axis 0 (upside-down) or 1 (left-right)."""
        self.mirror[:, axis] ^= rows

    def close(self) -> None:
        """After the last operation: boxes as small as they can be, and 1x1 dummies for failed
        rows."""
        self._fold()
        if self.errors:
            failed = np.zeros(self.start.shape, dtype=np.bool_)
            failed[list(self.errors)] = True
            self.box_start, self.start = (
                np.where(failed, 0, a) for a in (self.box_start, self.start)
            )
            self.box_size, self.grid, self.extent = (
                np.where(failed, 1, a) for a in (self.box_size, self.grid, self.extent)
            )

    def _fold(self) -> None:
        """Without a resampling, shrink the box to the pixels that the window shows: fewer are
        decoded, and later padding refers to the edges of what was cut out."""
        if self._resized:
            return
        end = self.start + self.extent
        low = np.clip(self.start, 0, self.grid - 1)
        high = np.maximum(np.minimum(end, self.grid), low + 1)
        if self._mode in ("reflect", "symmetric"):
            # What lies outside mirrors pixels that the window itself may not show.
            inside = (self.start >= 0) & (end <= self.grid)
            low, high = np.where(inside, low, 0), np.where(inside, high, self.grid)
        self.box_start = self.box_start + low
        self.box_size = self.grid = high - low
        self.start = self.start - low


class GeometryStep:
    """What a plan asks of an operation (`fastload.recipe.GeometryOperation`). Define `compose`; the
    defaults are those of a crop without random numbers."""

    uniforms: ClassVar[int] = 0
    """How many random numbers it takes for each sample."""
    draws_with: ClassVar[int] = 0
    """How many places before it in the recipe the operation is whose random numbers it takes; 0: it
    has its own."""
    mirrors: ClassVar[bool] = False
    """Whether it does nothing but mirror."""
    cuts: ClassVar[bool] = True
    """Whether it may leave out pixels of what it is given or, if it resizes, has resized."""
    mixes_filters: ClassVar[bool] = False
    """Whether each sample is resampled with "bilinear" or "bicubic", drawn at random."""
    fits_every_image: ClassVar[bool] = False
    """Whether there is no image that it cannot be applied to."""

    clips: ClassVar[Clips] = "window"
    """What boxes are clipped to by it: as torchvision's crops, paddings and warps do, and its
    resizes and mirrorings do not."""
    draws_size: ClassVar[bool] = False
    """Whether the size of what it makes depends on the draws."""
    needs_objects: ClassVar[bool] = False
    """Whether it depends on the boxes of the objects in an image: `compose` then finds in
    `composition.given` the crops that its `move` has drawn (`PointMap.crops`), and `warp_given` is
    called with them in place of `warp`."""
    of_one_object: ClassVar[bool] = False
    """Whether it needs samples that are one object each, in place of any number."""
    needs_masks: ClassVar[bool] = False
    """Whether it depends on the classes in the mask of an image: `compose` then finds in
    `composition.given` the crops that were chosen by them (`fastload.recipe.crop_by_classes`)."""
    warps: ClassVar[bool] = False
    """Whether it has a `warp`, and no `compose`."""

    @property
    def out_size(self) -> tuple[int, int] | None:
        """(height, width) of every output, or None where it depends on the image, or on the
        draws."""
        return None

    @property
    def resampling(self) -> Resampling | None:
        """Interpolation and antialiasing, if it resizes."""
        return None

    def clipped_rows(self, sizes: Int64Array, draws: Draws, stream: int) -> BoolArray | None:
        """(B,): in which of B images of these (B, 2) sizes it clips boxes; None: in all."""
        return None

    def padding_for(self, size: tuple[int, int] | None) -> Padding | None:
        """What lies around the image where it may show more than there is of images of this size
        (None: of any)."""
        return None

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        """Draw the parameters and add them to what the B samples went through so far.

        Args:
            composition: `extent` holds the present sizes; `crop`, `pad`, `resize`, `flip` add to
                it, and `fail` notes the samples that the operation cannot be applied to.
            uniforms: (B, `uniforms`) random numbers in [0, 1).
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not define compose(composition, uniforms)"
        )

    def warp(self, sizes: Int64Array, uniforms: Float64Array) -> Warp:
        """Draw the parameters for images of these (B, 2) sizes."""
        raise NotImplementedError(f"{type(self).__name__} does not define warp(sizes, uniforms)")

    def warp_given(self, sizes: Int64Array, given: Drawn | None) -> Warp:
        """The same where it needs objects, of what its `move` has drawn; None: only the sizes of
        the outputs are asked for."""
        raise NotImplementedError(f"{type(self).__name__} does not define warp_given(sizes, given)")

    def lacks_points(self, count: int) -> str:
        """Why so many keypoints of an object are too few; empty: they are not."""
        return ""

    def bicubic_rows(self, uniforms: Float64Array) -> BoolArray | None:
        """(B,) bool: the rows that are resampled with "bicubic" if it `mixes_filters`, else
        None."""
        return None

    def drawn(self) -> DrawnStep | None:
        """What `compose` does, as numbers for a kernel that draws; None where it does more."""
        return None

    def native(
        self, core: Any, uniforms: Float64Array, flips: BoolArray, then: tuple[Any, ...]
    ) -> Any:
        """A `Geometries` of the native core that draws and composes this and the steps of `then`,
        followed by (B, 2) `flips`; None where the core has no such plan. Boxes are then resolved in
        Python, at some cost, and rendered by the core all the same."""
        return None


@dataclass(frozen=True)
class GeometryPlan:
    """Geometry operations that compose into one `Geometry` per sample (`Recipe.split` knows which
    do), and how pixels are made along the way."""

    ops: tuple[tuple[int, GeometryStep], ...] = ()
    """(stream of its draws, operation), in order."""
    out_size: tuple[int, int] | None = None
    """(height, width) of every output, or None where it depends on the image."""
    interpolation: Interpolation = "bilinear"
    """Of the one resampling, for images."""
    antialias: bool = True
    padding_mode: PaddingMode = "constant"
    """How rows and columns of the window outside the grid are made; reflections are about the edges
    of the grid."""
    fill: Fill = (0.0,)
    """Whole numbers 0..255, one or one a channel: the constant outside the grid, in uint8 pixels of
    images."""
    mask_fill: Fill = (0.0,)
    later: LaterPlan | None = None
    """What the composed operations are followed by, where that does not compose with them."""
    colour: ColourPlan | None = None
    """What is done to the colours of whole images before."""
    mask_interpolation: MaskInterpolation = "nearest"

    @property
    def resampling(self) -> Resampling:
        """How it makes the pixels of images."""
        resampling = Resampling(
            self.interpolation,
            self.antialias,
            self.padding_mode,
            self.fill,
            coloured=self.colour is not None,
        )
        if self.later is None:
            return resampling
        return replace(
            resampling, later=LaterResampling(self.later.sampling, self.later.plan.resampling)
        )

    @property
    def mask_resampling(self) -> Resampling:
        """How it makes the masks that belong to them: by the nearest pixel, with a fill of their
        own."""
        resampling = Resampling(
            self.mask_interpolation,
            padding_mode=self.padding_mode,
            fill=self.mask_fill,
            as_stored=True,
        )
        if self.later is None:
            return resampling
        return replace(
            resampling,
            later=LaterResampling(self.later.mask_sampling, self.later.plan.mask_resampling),
        )

    @property
    def all_ops(self) -> tuple[tuple[int, GeometryStep], ...]:
        """All operations, in order, the later ones included."""
        if self.later is None:
            return self.ops
        warp = () if self.later.warp is None else (self.later.warp,)
        return (*self.ops, *warp, *self.later.plan.all_ops)

    @property
    def draws_size(self) -> bool:
        """Whether the sizes of outputs depend on the draws."""
        return any(op.draws_size for _, op in self.all_ops)

    @property
    def needs_objects(self) -> bool:
        return any(op.needs_objects for _, op in self.all_ops)

    @property
    def takes_crops(self) -> bool:
        """Whether `resolve` needs crops: an operation depends on objects or masks."""
        return any(op.needs_objects or op.needs_masks for _, op in self.all_ops)

    @property
    def is_identity(self) -> bool:
        return not self.ops and self.later is None and self.colour is None

    @property
    def resamples(self) -> bool:
        """Whether there is a resampling; if not, outputs are crops of source pixels, and
        padding."""
        return self.later is not None or any(op.resampling is not None for _, op in self.ops)

    @property
    def mixes_filters(self) -> bool:
        return any(op.mixes_filters for _, op in self.ops)

    @property
    def shows_whole_grids(self) -> bool:
        """Whether each window is the whole grid, without cuts and padding."""
        return self.later is None and not any(op.cuts or op.padding_for(None) for _, op in self.ops)

    @property
    def fits_every_image(self) -> bool:
        """Whether `resolve` never gives errors."""
        return all(op.fits_every_image for _, op in self.all_ops)

    def resolve(
        self,
        draws: Draws,
        sizes: npt.NDArray[np.integer[Any]],
        crops: Mapping[int, Drawn] | None = None,
    ) -> Geometry:
        """Where the pixels of each output come from, given the (B, 2) sizes of the source images,
        at least 1 pixel, and `PointMap.crops` where it takes them. `errors` names the rows that
        an operation cannot be applied to; never raises for these."""
        composition = Composition(sizes.astype(np.int64), self.padding_mode)
        for stream, op in self.ops:
            composition.given = None if crops is None else crops.get(stream)
            op.compose(composition, _uniforms(draws, stream, op))
        composition.close()
        geometry = Geometry(
            box=np.concatenate([composition.box_start, composition.box_size], axis=1).astype(
                np.int32
            ),
            size=composition.grid.astype(np.int32),
            window=np.concatenate([composition.start, composition.extent], axis=1).astype(np.int32),
            flip=composition.mirror[:, ::-1].copy(),
            errors=composition.errors,
            bicubic=composition.bicubic,
            colour=None if self.colour is None else self.colour.resolve(draws),
            flipped_first=composition.mirrored_first,
        )
        return geometry if self.later is None else self.later.after(geometry, draws, crops)


def _uniforms(draws: Draws, stream: int, op: GeometryStep) -> Float64Array:
    if not op.uniforms:
        return np.empty((len(draws), 0))
    return draws.uniform(stream - op.draws_with, op.uniforms)


@dataclass(frozen=True)
class LaterPlan:
    """What comes after the operations of a plan: an operation that warps, if there is one, and the
    plan of those after it."""

    plan: GeometryPlan
    warp: tuple[int, GeometryStep] | None = None
    """(stream of its draws, operation)."""
    sampling: WarpSampling = WarpSampling()
    """How it makes the pixels of images, with a fill from 0 to 255."""
    mask_sampling: WarpSampling = WarpSampling()

    def after(
        self, geometry: Geometry, draws: Draws, crops: Mapping[int, Drawn] | None
    ) -> Geometry:
        """A geometry with what comes after it."""
        sizes, inverse, forward, centres = geometry.window[:, 2:], None, None, 0.0
        if self.warp is not None:
            stream, op = self.warp
            if op.needs_objects:
                warped = op.warp_given(sizes.astype(np.int64), (crops or {}).get(stream))
            else:
                warped = op.warp(sizes.astype(np.int64), _uniforms(draws, stream, op))
            sizes, inverse, forward = warped.size, warped.inverse, warped.forward
            centres = warped.centres
        then = self.plan.resolve(draws, sizes, crops)
        errors = then.errors | geometry.errors
        later = Later(inverse, forward, sizes, then, centres)
        return replace(geometry, later=later, errors=errors)


@dataclass(frozen=True)
class View:
    """One image to make of each sample of a batch. A renderer may make several of one decoding."""

    geometry: Any
    """A `Geometry` of B rows; for the native core also what it resolves itself
    (`fastload.native.FusedGeometry`)."""
    resampling: Resampling
    out: npt.NDArray[np.uint8]
    """(B, H, W, C) uint8: where the pixels go."""
    sizes: Int32Array | None = None
    """(B, 2) int32, for the native core: height, width of each output, which is the upper left part
    of its place in `out`; the rest is not written to. None: all fill their places."""
