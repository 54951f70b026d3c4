"""The geometry part of a recipe: where each output pixel comes from, before any pixel is read.

A plan is static. Resolving it against the draws and the image sizes of a batch gives one
`Geometry`: plain integer arrays that every backend understands. `Resampling` says how pixels are
made once it is known where they come from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fastload.draws import BoolArray, Draws, Float64Array
from fastload.geometry.boxes import Composition, PaddingMode

Int32Array = npt.NDArray[np.int32]

Interpolation = Literal["nearest", "nearest-exact", "bilinear", "bicubic"]
Fill = tuple[float, ...]
"""One value for every channel, or one a channel, on the scale of the pixels that an operation
meets, as torchvision has it: 0..255 before a scaling ToDtype, 0..1 after it. (A `GeometryPlan`
always speaks of 0..255.)"""


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

    def __len__(self) -> int:
        return int(self.box.shape[0])

    @property
    def resamples(self) -> bool:
        """Whether any box is resampled to another size."""
        return bool((self.size != self.box[:, 2:]).any())

    @property
    def pads(self) -> bool:
        """Whether any window reaches outside its grid."""
        start = self.window[:, :2]
        return bool((start < 0).any() or (start + self.window[:, 2:] > self.size).any())


class GeometryStep:
    """What a plan asks of an operation (`fastload.recipe.GeometryOperation`). Define `compose`; the
    defaults are those of a crop without random numbers."""

    uniforms: ClassVar[int] = 0
    """How many random numbers it takes for each sample."""
    mirrors: ClassVar[bool] = False
    """Whether it does nothing but mirror."""
    cuts: ClassVar[bool] = True
    """Whether it may leave out pixels of what it is given or, if it resizes, has resized."""
    mixes_filters: ClassVar[bool] = False
    """Whether each sample is resampled with "bilinear" or "bicubic", drawn at random."""
    fits_every_image: ClassVar[bool] = False
    """Whether there is no image that it cannot be applied to."""

    @property
    def out_size(self) -> tuple[int, int] | None:
        """(height, width) of every output, or None where it depends on the image. It never depends
        on the draws."""
        return None

    @property
    def resampling(self) -> Resampling | None:
        """Interpolation and antialiasing, if it resizes."""
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

    def bicubic_rows(self, uniforms: Float64Array) -> BoolArray | None:
        """(B,) bool: the rows that are resampled with "bicubic" if it `mixes_filters`, else
        None."""
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
    """Of the one resampling, for images; masks are always resampled with "nearest"."""
    antialias: bool = True
    padding_mode: PaddingMode = "constant"
    """How rows and columns of the window outside the grid are made; reflections are about the edges
    of the grid."""
    fill: Fill = (0.0,)
    """Whole numbers 0..255, one or one a channel: the constant outside the grid, in uint8 pixels of
    images."""
    mask_fill: Fill = (0.0,)

    @property
    def resampling(self) -> Resampling:
        """How it makes the pixels of images."""
        return Resampling(self.interpolation, self.antialias, self.padding_mode, self.fill)

    @property
    def mask_resampling(self) -> Resampling:
        """How it makes those of the masks that belong to them: nearest, with a fill of their
        own."""
        return Resampling("nearest", False, self.padding_mode, self.mask_fill, as_stored=True)

    @property
    def is_identity(self) -> bool:
        return not self.ops

    @property
    def resamples(self) -> bool:
        """Whether there is a resampling; if not, outputs are crops of source pixels, and
        padding."""
        return any(op.resampling is not None for _, op in self.ops)

    @property
    def mixes_filters(self) -> bool:
        return any(op.mixes_filters for _, op in self.ops)

    @property
    def shows_whole_grids(self) -> bool:
        """Whether each window is the whole grid, without cuts and padding."""
        return not any(op.cuts or op.padding_for(None) for _, op in self.ops)

    @property
    def fits_every_image(self) -> bool:
        """Whether `resolve` never gives errors."""
        return all(op.fits_every_image for _, op in self.ops)

    def resolve(self, draws: Draws, sizes: npt.NDArray[np.integer[Any]]) -> Geometry:
        """Where the pixels of each output come from, given the (B, 2) sizes of the source images,
        at least 1 pixel. `errors` names the rows that an operation cannot be applied to; never
        raises for these."""
        composition = Composition(sizes.astype(np.int64), self.padding_mode)
        for stream, op in self.ops:
            op.compose(
                composition,
                draws.uniform(stream, op.uniforms) if op.uniforms else np.empty((len(draws), 0)),
            )
        composition.close()
        return Geometry(
            box=np.concatenate([composition.box_start, composition.box_size], axis=1).astype(
                np.int32
            ),
            size=composition.grid.astype(np.int32),
            window=np.concatenate([composition.start, composition.extent], axis=1).astype(np.int32),
            flip=composition.mirror[:, ::-1].copy(),
            errors=composition.errors,
            bicubic=composition.bicubic,
        )


@dataclass(frozen=True)
class View:
    """One image to make of each sample of a batch. A renderer may make several of one decoding."""

    geometry: Any
    """A `Geometry` of B rows; for the native core also what it resolves itself
    (`fastload.native.FusedGeometry`)."""
    resampling: Resampling
    out: npt.NDArray[np.uint8]
    """(B, H, W, C) uint8: where the pixels go."""
