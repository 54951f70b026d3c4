"""Operations under which rows do not stay rows: rotation, shear, perspective."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torchvision.transforms as v1
from torchvision.transforms import v2

from fastload.draws import BoolArray, Draws, Float64Array, Int64Array
from fastload.geometry import Fill, GeometryPlan, Interpolation, Padding, Resampling
from fastload.geometry.boxes import pick
from fastload.geometry.plan import LaterPlan, Warp, WarpSampling
from fastload.recipe import transforms as own
from fastload.recipe.attributes import (
    check,
    check_settings,
    read_fill,
    read_interpolation,
    read_mask_fill,
    read_pair,
)
from fastload.recipe.operation import (
    GeometryOperation,
    ImageState,
    NotLowerableError,
    Size,
    register,
)
from fastload.render.warp import warp_batch

Pair = tuple[float, float]

_SQUARE = np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
"""Corners (x, y), in order: upper left, upper right, lower right, lower left."""


@dataclass(frozen=True, kw_only=True)
class Warping(GeometryOperation):
    """The settings that all warps have."""

    warps = True
    clips = "nothing"  # before it: of boxes that reach out of the picture, all is moved
    fits_every_image = True

    interpolation: Interpolation = "nearest"
    """Of images; masks always take the nearest pixel."""
    fill: Fill = (0.0,)
    mask_fill: Fill = (0.0,)
    fades: bool = True
    """As of `WarpSampling`: whether images are tensors by then, and not PIL images."""

    def __post_init__(self) -> None:
        check_settings(self)
        known = self.interpolation not in ("bicubic", "lanczos")
        check(self, "interpolation", known, "'nearest' or 'bilinear'")

    @staticmethod
    def read_common(transform: Any, image: ImageState) -> dict[str, Any]:
        """Those settings of a transform."""
        interpolation = read_interpolation(transform.interpolation, image)
        if interpolation in ("bicubic", "lanczos"):
            raise NotLowerableError(
                f"interpolation {interpolation!r} is not among nearest, bilinear"
            )
        fill = read_fill(transform.fill, image)
        if fill is None:
            raise NotLowerableError("fill=None leaves it to the kind of image; give a number")
        return {
            "interpolation": "bilinear" if interpolation == "bilinear" else "nearest",
            "fill": fill,
            "mask_fill": read_mask_fill(transform.fill),
            "fades": image.tensor,
        }

    def padding_for(self, size: Size | None) -> Padding:
        return Padding("constant", self.fill, self.mask_fill)

    @property
    def warp_samplings(self) -> tuple[WarpSampling, WarpSampling]:
        return (
            WarpSampling(self.interpolation, self.fill, self.fades),
            WarpSampling("nearest", self.mask_fill),
        )

    def apply_to_masks(self, masks: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        return self.warped(masks, draws, stream, self.warp_samplings[1])

    def _render(
        self, pixels: torch.Tensor, draws: Draws, stream: int, resampling: Resampling
    ) -> torch.Tensor:
        return self.warped(pixels, draws, stream, self.warp_samplings[0])

    def warped(
        self,
        pixels: torch.Tensor,
        draws: Draws,
        stream: int,
        sampling: WarpSampling,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(B, C, H, W) pixels of a batch. `out`: as of `warp_batch`."""
        sizes = np.broadcast_to(np.array(pixels.shape[-2:]), (len(draws), 2))
        warp = self.warp(sizes, draws.uniform(stream, self.uniforms))
        return warp_batch(pixels, warp, sampling, out)

    def _plan(self, stream: int) -> GeometryPlan:
        images, masks = self.warp_samplings
        return GeometryPlan(later=LaterPlan(GeometryPlan(), (stream, self), images, masks))


class OpenCVWarping(Warping):
    """Pixels as OpenCV makes them: outside of the image lies the fill, which is interpolated as
    pixels are."""

    @property
    def warp_samplings(self) -> tuple[WarpSampling, WarpSampling]:
        images = WarpSampling(self.interpolation, self.fill, mixes=True)
        return images, WarpSampling("nearest", self.mask_fill)


@register
@dataclass(frozen=True, kw_only=True)
class RandomAffine(Warping):
    transforms: ClassVar[tuple[type, ...]] = (v1.RandomAffine, v2.RandomAffine)
    uniforms = 6

    degrees: Pair
    translate: Pair | None = None
    """Largest shifts right and down, as fractions of width and height."""
    scale: Pair | None = None
    shear: tuple[float, ...] | None = None
    """Bounds along x, or along x and then y [degrees]."""
    center: Pair | None = None
    """x, y [pixels]; None: of the image."""

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> RandomAffine:
        return cls(
            degrees=_floats(transform.degrees),
            translate=_floats(transform.translate),
            scale=_floats(transform.scale),
            shear=_floats(transform.shear),
            center=_floats(transform.center),
            **cls.read_common(transform, image),
        )

    def warp(self, sizes: Int64Array, uniforms: Float64Array) -> Warp:
        # Angle, right, down, scale, shear along x and y.
        extent = sizes[:, ::-1].astype(np.float64)
        shift = np.zeros_like(extent)
        if self.translate is not None:
            most = np.array(self.translate) * extent
            shift = np.rint(-most + uniforms[:, 1:3] * (2 * most))
        shear = np.zeros_like(extent)
        for axis in range(0 if self.shear is None else len(self.shear) // 2):
            assert self.shear is not None
            shear[:, axis] = between(self.shear[2 * axis :], uniforms[:, 4 + axis])
        return affine_warp(
            sizes,
            angle=between(self.degrees, uniforms[:, 0]),
            shift=shift,
            scale=np.ones(len(sizes))
            if self.scale is None
            else between(self.scale, uniforms[:, 3]),
            shear=shear,
            center=self.center,
        )


@register
@dataclass(frozen=True, kw_only=True)
class RandomRotation(Warping):
    transforms: ClassVar[tuple[type, ...]] = (v1.RandomRotation, v2.RandomRotation)
    uniforms = 1

    degrees: Pair
    """Counter-clockwise."""
    expand: bool = False
    """Whether the output is as large as the rotated image."""
    center: Pair | None = None
    """x, y [pixels]; None: of the image."""

    @property
    def draws_size(self) -> bool:  # type: ignore[override]
        return self.expand

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> RandomRotation:
        return cls(
            degrees=_floats(transform.degrees),
            expand=bool(transform.expand),
            center=_floats(transform.center),
            **cls.read_common(transform, image),
        )

    def warp(self, sizes: Int64Array, uniforms: Float64Array) -> Warp:
        zero = np.zeros((len(sizes), 2))
        return affine_warp(
            sizes,
            angle=-between(self.degrees, uniforms[:, 0]),
            shift=zero,
            scale=np.ones(len(sizes)),
            shear=zero,
            center=self.center,
            expand=self.expand,
        )


@register
@dataclass(frozen=True, kw_only=True)
class RandomPerspective(Warping):
    transforms: ClassVar[tuple[type, ...]] = (v1.RandomPerspective, v2.RandomPerspective)
    uniforms = 9

    distortion_scale: float = 0.5
    p: float = 0.5
    interpolation: Interpolation = "bilinear"

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> RandomPerspective:
        return cls(
            distortion_scale=float(transform.distortion_scale),
            p=float(transform.p),
            **cls.read_common(transform, image),
        )

    def clipped_rows(self, sizes: Int64Array, draws: Draws, stream: int) -> BoolArray:
        return draws.uniform(stream, self.uniforms)[:, 0] < self.p

    def warp(self, sizes: Int64Array, uniforms: Float64Array) -> Warp:
        extent = sizes[:, ::-1]
        bounds = (self.distortion_scale * (extent // 2)).astype(np.int64) + 1
        moved = pick(uniforms[:, 1:].reshape(-1, 4, 2), np.repeat(bounds[:, None], 4, axis=1))
        corners = _SQUARE * (extent - 1)[:, None]
        targets = _SQUARE * (extent - bounds)[:, None] + moved
        # No such map: of images one pixel wide, and where three corners come to lie in a line.
        applies = (uniforms[:, 0] < self.p) & (extent > 1).all(axis=1) & ~_in_line(targets)
        targets = np.where(applies[:, None, None], targets, _SQUARE)
        corners = np.where(applies[:, None, None], corners, _SQUARE)
        inverse = homographies(targets.astype(np.float64), corners.astype(np.float64))
        # Rounded as by torchvision's `_get_perspective_coeffs`.
        inverse = inverse.astype(np.float32).astype(np.float64)
        inverse[~applies] = np.eye(3)
        return Warp(inverse, inverted(inverse), sizes.astype(np.int32))


@register
@dataclass(frozen=True, kw_only=True)
class CanvasAffine(OpenCVWarping):
    """See `fastload.recipe.transforms.CanvasAffine`."""

    transforms: ClassVar[tuple[type, ...]] = (own.CanvasAffine,)
    uniforms = 6

    size: Size
    degrees: float = 0.0
    translate: float = 0.1
    scaling: float | Pair = 0.5
    shearing: float = 0.0
    corner: bool = field(default=False, repr=False)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> CanvasAffine:
        return cls(
            size=read_pair(transform.size),
            degrees=transform.degrees,
            translate=transform.translate,
            scaling=transform.scale,
            shearing=transform.shear,
            corner=transform.corner,
            **cls.read_common(transform, image)
            | {"mask_fill": read_fill(transform.mask_fill, image)},
        )

    @property
    def out_size(self) -> Size:
        return self.size

    def size_after(self, size: Size | None) -> Size:
        return self.size

    def warp(self, sizes: Int64Array, uniforms: Float64Array) -> Warp:
        """As OpenCV's matrices, whose (0, 0) is the centre of the first pixel: boxes go through the
        same matrix, from their corners."""
        angle, shear_x, shear_y = (
            (2.0 * drawn - 1.0) * np.radians(most)
            for drawn, most in zip(
                uniforms[:, [0, 2, 3]].T, (self.degrees, *[self.shearing] * 2), strict=True
            )
        )
        if isinstance(self.scaling, tuple):
            scale = between(self.scaling, uniforms[:, 1])
        else:
            scale = 1.0 + (2.0 * uniforms[:, 1] - 1.0) * self.scaling
        turn, shear = (np.tile(np.eye(3), (len(sizes), 1, 1)) for _ in range(2))
        across, down = scale * np.cos(angle), scale * np.sin(angle)
        turn[:, :2, :2] = np.stack([across, down, -down, across], axis=-1).reshape(-1, 2, 2)
        shear[:, 0, 1], shear[:, 1, 0] = np.tan(shear_x), np.tan(shear_y)
        extent = np.array(self.size[::-1], dtype=np.float64)
        middle = 0.0 if self.corner else 0.5
        about = (middle + self.translate * (2.0 * uniforms[:, 4:] - 1.0)) * extent
        of_canvas = -middle * sizes[:, ::-1].astype(np.float64)
        forward = shifts(about) @ shear @ turn @ shifts(of_canvas)
        half = np.full((len(sizes), 2), 0.5)
        inverse = shifts(half) @ inverted(forward) @ shifts(-half)
        shown = np.broadcast_to(np.array(self.size, dtype=np.int32), sizes.shape)
        return Warp(inverse, forward, shown)


@register
@dataclass(frozen=True, kw_only=True)
class CanvasJitter(Warping):
    """See `fastload.recipe.transforms.CanvasJitter`. A pixel is shown where its centre is in what
    was resized, so that the edge is repeated, as in resizing (`fades` is False)."""

    transforms: ClassVar[tuple[type, ...]] = (own.CanvasJitter,)
    uniforms = 4

    size: Size
    factors: Pair
    p_flip: float = 0.5
    interpolation: Interpolation = "bilinear"
    fades: bool = False

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> CanvasJitter:
        common = cls.read_common(transform, image)
        return cls(
            size=read_pair(transform.size),
            factors=transform.scale,
            p_flip=transform.p_flip,
            **common | {"fades": False, "mask_fill": read_fill(transform.mask_fill, image)},
        )

    @property
    def out_size(self) -> Size:
        return self.size

    def size_after(self, size: Size | None) -> Size:
        return self.size

    def warp(self, sizes: Int64Array, uniforms: Float64Array) -> Warp:
        # Factor, whether it is mirrored, down, right.
        factors = between(self.factors, uniforms[:, :1])
        resized = np.maximum((sizes * factors).astype(np.int64), 1)
        spare = np.maximum(resized - np.array(self.size), 1)
        start = pick(uniforms[:, 2:], spare)  # 0 to spare - 1, as YOLOX has it
        forward = np.tile(np.eye(3), (len(sizes), 1, 1))
        forward[:, [0, 1], [0, 1]] = (resized / sizes)[:, ::-1]
        mirrored = uniforms[:, 1] < self.p_flip
        forward[mirrored, 0, 0] *= -1.0
        forward[mirrored, 0, 2] = resized[mirrored, 1]
        forward[:, :2, 2] -= start[:, ::-1]
        shown = np.broadcast_to(np.array(self.size, dtype=np.int32), sizes.shape)
        return Warp(inverted(forward), forward, shown)


def affine_warp(
    sizes: Int64Array,
    *,
    angle: Float64Array,
    shift: Float64Array,
    scale: Float64Array,
    shear: Float64Array,
    center: Pair | None,
    expand: bool = False,
) -> Warp:
    """Torchvision's rotation, scale and shear about a centre, followed by a shift; its
    `_get_inverse_affine_matrix` has the formula: R(angle) S(scale) SHy(shear y) SHx(shear x).

    With `expand` the output is as large as the turned image, and that is in its middle; boxes and
    points are counted from its upper left corner, up to half a pixel from there, as torchvision
    has it.
    """
    count, extent = len(sizes), sizes[:, ::-1].astype(np.float64)
    middle = extent / 2 if center is None else np.broadcast_to(np.array(center), extent.shape)
    rotation, (sx, sy) = np.radians(angle), np.radians(shear).T
    a, c = np.cos(rotation - sy) / np.cos(sy), np.sin(rotation - sy) / np.cos(sy)
    b, d = -(a * np.tan(sx) + np.sin(rotation)), np.cos(rotation) - c * np.tan(sx)
    turn = np.zeros((count, 3, 3))
    turn[:, :2, :2] = np.stack([a, b, c, d], axis=-1).reshape(-1, 2, 2) * scale[:, None, None]
    turn[:, 2, 2] = 1.0
    forward = shifts(middle + shift) @ turn @ shifts(-middle)
    # The determinant of the matrix without its scale is 1.
    back = np.zeros((count, 3, 3))
    back[:, :2, :2] = np.stack([d, -b, -c, a], axis=-1).reshape(-1, 2, 2) / scale[:, None, None]
    back[:, 2, 2] = 1.0
    inverse = shifts(middle) @ back @ shifts(-middle - shift)
    if not expand:
        return Warp(inverse, forward, sizes.astype(np.int32))
    corners = np.array([[0, 0], [0, 1], [1, 1], [1, 0]]) * extent[:, None]
    ends = np.einsum("bij,bkj->bki", forward[:, :2, :2], corners) + forward[:, None, :2, 2]
    low = ends.min(axis=1)
    # Cut to multiples of 1e-4, so that a corner on the edge of a pixel takes no other pixel; of
    # corners relative to the centre of rotation as torchvision has them, without its shift.
    about = _turned_corners(back, extent, middle - extent / 2)
    first, last = (np.trunc(end * 1e4) * 1e-4 for end in (about.min(axis=1), about.max(axis=1)))
    out_extent = np.ceil(last) - np.floor(first)
    if center is None:
        # Torchvision turns by exact quarters without a matrix.
        quarter = np.remainder(angle, 180.0) == 90.0
        out_extent[quarter] = extent[quarter, ::-1]
    # From the middle of the output to the middle of the image.
    inverse = inverse @ shifts((extent - out_extent) / 2)
    size = out_extent[:, ::-1].astype(np.int32)
    return Warp(inverse, shifts(-low) @ forward, size)


def _turned_corners(back: Float64Array, extent: Float64Array, center: Float64Array) -> Float64Array:
    """(B, 4, 2): where torchvision has the corners of the turned image when it takes its size: by
    the inverse rotation. `center`: of that, from the middle of the image."""
    corners = (np.array([[0, 0], [0, 1], [1, 1], [1, 0]]) - 0.5) * extent[:, None]
    turned: Float64Array = np.einsum("bij,bkj->bki", back[:, :2, :2], corners - center[:, None])
    return turned + (center + extent / 2)[:, None]


def _in_line(corners: Int64Array) -> npt.NDArray[np.bool_]:
    """(B,): whether any three of four (B, 4, 2) points lie in one line."""
    in_line = np.zeros(len(corners), dtype=np.bool_)
    for number in range(4):
        first, second, third = (corners[:, (number + step) % 4] for step in range(3))
        (ax, ay), (bx, by) = (second - first).T, (third - first).T
        in_line |= ax * by == ay * bx
    return in_line


def homographies(points: Float64Array, onto: Float64Array) -> Float64Array:
    """(B, 3, 3): the projective maps of four (B, 4, 2) points onto others; their last number is
    1."""
    count = len(points)
    x, y = points[..., 0], points[..., 1]
    zero, one = np.zeros_like(x), np.ones_like(x)
    rows = []
    for axis, wanted in enumerate((onto[..., 0], onto[..., 1])):
        own, other = [x, y, one], [zero, zero, zero]
        numbers = [*(own if axis == 0 else other), *(other if axis == 0 else own)]
        rows.append(np.stack([*numbers, -wanted * x, -wanted * y], axis=-1))
    matrix = np.stack(rows, axis=2).reshape(count, 8, 8)
    coefficients = np.linalg.solve(matrix, onto.reshape(count, 8, 1))[..., 0]
    return np.concatenate([coefficients, np.ones((count, 1))], axis=1).reshape(count, 3, 3)


def inverted(matrix: Float64Array) -> Float64Array:
    """(B, 3, 3): of maps whose last number is 1, the inverse ones, likewise."""
    inverse = np.linalg.inv(matrix)
    result: Float64Array = inverse / inverse[:, 2:, 2:]
    return result


def shifts(by: Float64Array) -> Float64Array:
    """(B, 3, 3): shifts by (B, 2) x, y."""
    matrices = np.tile(np.eye(3), (len(by), 1, 1))
    matrices[:, :2, 2] = by
    return matrices


def between(bounds: Any, uniforms: Float64Array) -> Float64Array:
    result: Float64Array = bounds[0] + uniforms * (bounds[1] - bounds[0])
    return result


def _floats(values: Any) -> Any:
    return None if values is None else tuple(float(value) for value in values)
