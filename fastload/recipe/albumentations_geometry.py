"""Geometry that albumentations has and torchvision has not, or otherwise.

Pixels are OpenCV's: no filter is widened when shrinking, and around a warp the fill is one of the
pixels that are interpolated. Random numbers come in the order in which albumentations 2.0.8 draws
them; the first says whether the operation is applied at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fastload.draws import Float64Array, Int64Array
from fastload.geometry import Fill, Interpolation, Padding, Resampling
from fastload.geometry.boxes import pick
from fastload.geometry.plan import Composition, Warp
from fastload.recipe.attributes import check_settings
from fastload.recipe.crops import PlacedCrop
from fastload.recipe.operation import GeometryOperation, Size
from fastload.recipe.warps import (
    OpenCVWarping,
    Pair,
    Warping,
    between,
    homographies,
    inverted,
    shifts,
)

Float32Array = npt.NDArray[np.float32]
Position = Literal["center", "top_left", "top_right", "bottom_left", "bottom_right", "random"]


@dataclass(frozen=True, kw_only=True)
class _Resizing(GeometryOperation):
    """Define `sizes`."""

    cuts = False

    interpolation: Interpolation = "bilinear"
    antialias: bool = False

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def resampling(self) -> Resampling:
        return Resampling(self.interpolation, self.antialias)

    def sizes(self, before: Int64Array, uniforms: Float64Array) -> Int64Array:
        """(B, 2) from (B, 2) sizes and (B, `uniforms`) random numbers."""
        raise NotImplementedError

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        composition.resize(self.sizes(composition.extent, uniforms))


@dataclass(frozen=True, kw_only=True)
class ScaledTo(_Resizing):
    """A resize that keeps the aspect ratio, both sides rounded half to even: to fit into a size
    (LongestMaxSize), or to cover it (SmallestMaxSize)."""

    uniforms = 1
    fits_every_image = True

    choices: tuple[tuple[int | None, int | None], ...]
    """Height, width, one of which may be free; one of the choices is drawn for each sample."""
    covers: bool = False

    @property
    def draws_size(self) -> bool:  # type: ignore[override]
        return len(self.choices) > 1

    def sizes(self, before: Int64Array, uniforms: Float64Array) -> Int64Array:
        free = -np.inf if self.covers else np.inf
        wanted = np.array(
            [[free if side is None else side for side in choice] for choice in self.choices]
        )[pick(uniforms[:, 0], np.full(len(before), len(self.choices)))]
        scales = wanted / before
        scale = scales.max(axis=1) if self.covers else scales.min(axis=1)
        rounded: Int64Array = np.rint(before * scale[:, None]).astype(np.int64)
        return np.maximum(rounded, 1)


@dataclass(frozen=True, kw_only=True)
class RandomScale(_Resizing):
    """A resize by a factor; sides are cut to whole numbers."""

    uniforms = 2
    draws_size = True

    scale: Pair
    """Bounds of the factor."""
    p: float = 0.5

    def sizes(self, before: Int64Array, uniforms: Float64Array) -> Int64Array:
        scaled = (before * between(self.scale, uniforms[:, 1])[:, None]).astype(np.int64)
        return np.where(uniforms[:, :1] < self.p, scaled, before)


@dataclass(frozen=True, kw_only=True)
class PadTo(GeometryOperation):
    """Padding up to a size, or to a multiple of one."""

    cuts = False
    fits_every_image = True

    least: tuple[int | None, int | None] = (None, None)
    """Height, width; None: `multiple` has it."""
    multiple: tuple[int | None, int | None] = (None, None)
    position: Position = "center"
    """Where the image is then; in the middle, an odd pixel goes after it."""
    exact: bool = False
    """Whether it is known that images are no larger than `least`, so that all have that size."""
    fill: Fill = (0.0,)
    mask_fill: Fill = (0.0,)

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def uniforms(self) -> int:  # type: ignore[override]
        return 2 if self.position == "random" else 0

    @property
    def out_size(self) -> Size | None:
        height, width = self.least
        return (height, width) if self.exact and height and width else None

    def padding_for(self, size: Size | None) -> Padding | None:
        if size is not None and not self._missing(np.array([size], dtype=np.int64)).any():
            return None
        return Padding("constant", self.fill, self.mask_fill)

    def _missing(self, extent: Int64Array) -> Int64Array:
        missing = np.zeros_like(extent)
        for axis, (least, multiple) in enumerate(zip(self.least, self.multiple, strict=True)):
            if least is not None:
                missing[:, axis] = np.maximum(least - extent[:, axis], 0)
            elif multiple is not None:
                missing[:, axis] = -extent[:, axis] % multiple
        return missing

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        missing = self._missing(composition.extent)
        if self.position == "random":
            before = pick(uniforms, missing + 1)
        elif self.position == "center":
            before = missing // 2
        else:
            vertical, horizontal = self.position.split("_")
            before = missing * np.array([vertical == "bottom", horizontal == "right"])
        if missing.any():
            composition.pad(before, missing - before)


@dataclass(frozen=True, kw_only=True)
class FixedCut(PlacedCrop):
    """A part of a size, at one place in all images: a central one, or from a corner on."""

    corner: Size | None = None
    """Top, left; None: in the middle, where an odd pixel is left out after it."""

    def start(self, space: Int64Array) -> Int64Array:
        return space // 2 if self.corner is None else np.broadcast_to(self.corner, space.shape)


@dataclass(frozen=True, kw_only=True)
class RandomSizedCrop(_Resizing):
    """A part of a drawn height, in one aspect ratio, resized."""

    uniforms = 3
    fits_every_image = True

    size: Size
    heights: tuple[int, int]
    """Bounds of the height [pixels], both included; what is more than the image has is cut off."""
    ratio_of_sides: float = 1.0
    """Width / height."""

    @property
    def out_size(self) -> Size:
        return self.size

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        low, high = self.heights
        tall = low + pick(uniforms[:, 0], np.full(len(uniforms), high - low + 1))
        wide = (tall * self.ratio_of_sides).astype(np.int64)
        extent = np.minimum(np.maximum(np.stack([tall, wide], axis=1), 1), composition.extent)
        composition.crop(pick(uniforms[:, 1:], composition.extent - extent + 1), extent)
        composition.resize(np.array([self.size], dtype=np.int64))


@dataclass(frozen=True, kw_only=True)
class AffineMap(OpenCVWarping):
    """About the centre of the image: scale, then rotation, then shear, then a shift."""

    uniforms: ClassVar[int] = 8

    rotation: Pair = (0.0, 0.0)
    """Bounds [degrees], counter-clockwise."""
    scaling: tuple[Pair, Pair] = ((1.0, 1.0), (1.0, 1.0))
    """Bounds along x and along y."""
    same_scale: bool = False
    """Whether y has the factor of x."""
    shearing: tuple[Pair, Pair] = ((0.0, 0.0), (0.0, 0.0))
    """Along x and along y [degrees]."""
    shifting: tuple[Pair, Pair] = ((0.0, 0.0), (0.0, 0.0))
    """To the right and down: whole pixels, bounds included, or parts of width and height."""
    in_pixels: bool = False
    p: float = 0.5
    interpolation: Interpolation = "bilinear"

    def warp(self, sizes: Int64Array, uniforms: Float64Array) -> Warp:
        extent = sizes[:, ::-1].astype(np.float64)
        shift = np.empty_like(extent)
        for axis, bounds in enumerate(self.shifting):
            drawn = uniforms[:, 1 + axis]
            if self.in_pixels:
                shift[:, axis] = bounds[0] + np.floor(drawn * (bounds[1] - bounds[0] + 1))
            else:
                shift[:, axis] = np.trunc(between(bounds, drawn) * extent[:, axis])
        angle = np.radians(between(self.rotation, uniforms[:, 7]))
        scale, shear, turn = (_identities(len(sizes)) for _ in range(3))
        for axis in range(2):
            sheared = -np.radians(between(self.shearing[axis], uniforms[:, 3 + axis]))
            shear[:, axis, 1 - axis] = np.tan(sheared)
            drawn = uniforms[:, 5 + (0 if self.same_scale else axis)]
            scale[:, axis, axis] = between(self.scaling[axis], drawn)
        turn[:, 0, 0], turn[:, 0, 1] = np.cos(angle), np.sin(angle)
        turn[:, 1, 0], turn[:, 1, 1] = -np.sin(angle), np.cos(angle)
        middle = extent / 2
        forward = shifts(middle + shift) @ shear @ turn @ scale @ shifts(-middle)
        forward[uniforms[:, 0] >= self.p] = np.eye(3)
        return Warp(inverted(forward), forward, sizes.astype(np.int32), centres=0.5)


@dataclass(frozen=True, kw_only=True)
class Perspective(OpenCVWarping):
    """Four points near the corners of the image, each moved inwards by the absolute values of two
    normal numbers in parts of width and height, become the corners."""

    uniforms: ClassVar[int] = 10

    scale: Pair = (0.05, 0.1)
    """Bounds of the standard deviation of those numbers, of which the remainder by 0.32 is
    taken."""
    keeps_size: bool = True
    """Whether the result is resized to the size of the image; else it has that of the part
    that it shows."""
    p: float = 0.5
    interpolation: Interpolation = "bilinear"

    @property
    def draws_size(self) -> bool:  # type: ignore[override]
        return not self.keeps_size

    def warp(self, sizes: Int64Array, uniforms: Float64Array) -> Warp:
        applies, extent = uniforms[:, 0] < self.p, sizes[:, ::-1]
        numbers = normal_pairs(uniforms[:, 2:].reshape(-1, 4, 2))
        parts = np.abs(numbers * between(self.scale, uniforms[:, 1])[:, None, None]) % 0.32
        points = np.where(_CORNERS, 1.0 - parts, parts) * extent[:, None]
        # Albumentations works in float32 from here on, and so cuts the same numbers.
        singles: Float32Array = points.astype(np.float32)
        upper_left, upper_right, lower_right, lower_left = (singles[:, k] for k in range(4))
        wide = np.maximum(_length(upper_right, upper_left), _length(lower_right, lower_left))
        high = np.maximum(_length(lower_right, upper_right), _length(lower_left, upper_left))
        shown = np.stack([wide, high], axis=1).astype(np.int64)
        corners = (_CORNERS * extent[:, None]).astype(np.float64)
        forward = homographies(singles.astype(np.float64), corners)
        if self.keeps_size:
            # Of the part that is shown, though the corners above are those of the image already.
            scale = _identities(len(sizes))
            scale[:, [0, 1], [0, 1]] = extent / shown
            forward, shown = scale @ forward, extent
        forward[~applies] = np.eye(3)
        out_sizes = np.where(applies[:, None], shown, extent)[:, ::-1].astype(np.int32)
        # Its pixels are counted from the centre of the first one, and boxes from its corner, both
        # with one matrix.
        half = np.full((len(sizes), 2), 0.5)
        return Warp(shifts(half) @ inverted(forward) @ shifts(-half), forward, out_sizes)


_CORNERS = np.array([[False, False], [True, False], [True, True], [False, True]])
"""Whether x and y are the largest: upper left, upper right, lower right, lower left."""


def normal_pairs(uniforms: Float64Array) -> Float64Array:
    """Normal numbers in place of uniform ones, two of two along the last axis (Box and Muller)."""
    radius = np.sqrt(-2.0 * np.log1p(-uniforms[..., 0]))
    angle = 2.0 * np.pi * uniforms[..., 1]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)


def _length(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> Float32Array:
    """(B,): between (B, 2) points. Where it is below 2, the points are moved apart first, as
    albumentations does; so it is in images of 5 pixels a side or fewer."""
    lengths: Float32Array = np.sqrt(((one - other) ** 2).sum(axis=1))
    short = lengths < 2.0
    if short.any():
        step = np.where(short, (np.float32(2.0) - lengths) / np.float32(2.0), np.float32(0.0))[
            :, None
        ]
        for sign, above in ((1.0, True), (-1.0, False)):
            for points, way in ((one, sign), (other, -sign)):
                moves = (one > other) if above else (one <= other)
                points += np.where(moves, np.float32(way) * step, np.float32(0.0))
        lengths = np.where(short, np.float32(2.0), lengths)
    return lengths


@dataclass(frozen=True, kw_only=True)
class QuarterTurns(Warping):
    """A turn by none to three quarters counter-clockwise, equally likely; or a mirroring along the
    diagonal."""

    uniforms: ClassVar[int] = 2

    transposes: bool = False
    p: float = 1.0

    @property
    def draws_size(self) -> bool:  # type: ignore[override]
        return True

    @property
    def exchanges_sides(self) -> bool:
        return self.transposes and self.p > 0

    def size_after(self, size: Size | None) -> Size | None:
        return size if size is not None and size[0] == size[1] else None

    def fits_batches(self, size: Size | None) -> bool:
        return size is not None and size[0] == size[1]

    def warp(self, sizes: Int64Array, uniforms: Float64Array) -> Warp:
        height, width = sizes.T.astype(np.float64)
        turns = (
            np.full(len(sizes), 4) if self.transposes else pick(uniforms[:, 1], 4 + 0 * sizes[:, 0])
        )
        turns = np.where(uniforms[:, 0] < self.p, turns, 0)
        inverse = _identities(len(sizes))
        # From output to input: x and y by the numbers of turns, and of the diagonal.
        across = np.array([[1, 0], [0, -1], [-1, 0], [0, 1], [0, 1]])[turns]
        down = np.array([[0, 1], [1, 0], [0, -1], [-1, 0], [1, 0]])[turns]
        inverse[:, 0, :2], inverse[:, 1, :2] = across, down
        inverse[:, 0, 2] = np.where((turns == 1) | (turns == 2), width, 0.0)
        inverse[:, 1, 2] = np.where((turns == 2) | (turns == 3), height, 0.0)
        swaps = np.isin(turns, [1, 3, 4])[:, None]
        out_sizes = np.where(swaps, sizes[:, ::-1], sizes).astype(np.int32)
        return Warp(inverse, inverted(inverse), out_sizes, centres=0.5)


def _identities(count: int) -> Float64Array:
    """(B, 3, 3)."""
    return np.tile(np.eye(3), (count, 1, 1))
