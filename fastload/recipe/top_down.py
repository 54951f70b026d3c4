"""The affine map of top-down models of keypoints, which depends on the box of the one object of a
sample and on its keypoints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from fastload.draws import BoolArray, Draws, Float64Array, Int64Array
from fastload.geometry import Interpolation
from fastload.geometry.plan import Drawn, Warp
from fastload.geometry.points import Objects, PointMap
from fastload.recipe import transforms as own
from fastload.recipe.attributes import read_pair
from fastload.recipe.operation import ImageState, Size, register
from fastload.recipe.warps import OpenCVWarping, inverted, shifts

_OF_HALF_BODY = 1.5
"""How many times as large as what is around the keypoints of half a body is what is shown."""
_UPPER_BELOW = 0.5
"""It is the upper half where a number from the normal distribution is below this, as in HRNet and
mmpose: with a probability of 0.69."""
_COCO_POINTS, _COCO_UPPER = 17, tuple(range(11))
"""Of COCO's person: all, and from the nose to the wrists."""
_LEAST_POINTS = 2
"""An object of whose chosen half fewer keypoints are labelled is shown whole; the upper half is
taken, or the lower one in its place, only if more than these are."""
_LEAST = 1.0
"""Shortest width and height that is shown of the image [pixels]."""


@register
@dataclass(frozen=True, kw_only=True)
class TopDownAffine(OpenCVWarping):
    """See `fastload.recipe.transforms.TopDownAffine`."""

    transforms: ClassVar[tuple[type, ...]] = (own.TopDownAffine,)
    needs_objects = True
    of_one_object = True
    uniforms = 9
    """Whether half a body, which half; factor; whether turned, angle; whether mirrored; whether
    shifted, right and down."""

    size: Size
    enlarged: float = 1.25
    spread: float = 0.0
    degrees: float = 0.0
    p_rotate: float = 1.0
    p_flip: float = 0.0
    p_half_body: float = 0.0
    num_joints_half_body: int = 8
    upper_body: tuple[int, ...] | None = None
    shift: float = 0.0
    p_shift: float = 1.0
    unbiased: bool = False
    interpolation: Interpolation = "bilinear"

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> TopDownAffine:
        return cls(
            size=read_pair(transform.size),
            enlarged=transform.padding,
            spread=transform.scale,
            degrees=transform.degrees,
            p_rotate=transform.p_rotate,
            p_flip=transform.p_flip,
            p_half_body=transform.p_half_body,
            num_joints_half_body=transform.num_joints_half_body,
            upper_body=transform.upper_body,
            shift=transform.shift,
            p_shift=transform.p_shift,
            unbiased=transform.unbiased,
            **cls.read_common(transform, image),
        )

    @property
    def exchanges_sides(self) -> bool:
        return self.p_flip > 0

    @property
    def out_size(self) -> Size:
        return self.size

    def size_after(self, size: Size | None) -> Size:
        return self.size

    def fits_batches(self, size: Size | None) -> bool:
        return False  # what runs on batches does not know the objects

    def reason_not_placed(self, before: Any) -> str:
        return f"{self.describe()} (put it before what works on whole batches)"

    def lacks_points(self, count: int) -> str:
        if not self.p_half_body:
            return ""
        if self.upper_body is None and count != _COCO_POINTS:
            return (
                f"shows half bodies of COCO's {_COCO_POINTS} keypoints (give those of the upper "
                "half, or a probability of 0)"
            )
        if self.upper_body is not None and count <= max(self.upper_body, default=0):
            return f"shows half bodies by the keypoints {self.upper_body}, counted from 0"
        return ""

    def move(self, points: PointMap, draws: Draws, stream: int) -> PointMap:
        given = self._drawn(points.present, points.sizes, draws.uniform(stream, self.uniforms))
        drawn = replace(points, crops={**points.crops, stream: given})
        return super().move(drawn, draws, stream)

    def _drawn(self, objects: Objects, sizes: Int64Array, uniforms: Float64Array) -> Drawn:
        """(B, 6): x, y of the centre of what is shown, its width and height, in pixels of the image
        from the centre of the first one; the angle [degrees]; 1 where it is mirrored."""
        extent = sizes[:, ::-1].astype(np.float64)
        start = np.maximum(objects.boxes[:, :2], 0.0)
        sides = objects.boxes[:, 2:] - objects.boxes[:, :2]
        # Of the pixels in a box the first and the last, as HRNet has it.
        end = np.minimum(extent - 1.0, start + np.maximum(sides - 1.0, 0.0))
        whole = np.maximum(end - start, 0.0)
        centre, factor = start + 0.5 * whole, np.full(len(sizes), self.enlarged)
        shifted = uniforms[:, 6] < self.p_shift
        moved = self.shift * (2.0 * uniforms[:, 7:9] - 1.0) * whole
        centre = np.where(shifted[:, None], centre + moved, centre)
        if self.p_half_body and objects.points is not None:
            half, of_half, around = self._halves(objects.points, uniforms[:, 1])
            half &= uniforms[:, 0] < self.p_half_body
            centre = np.where(half[:, None], of_half, centre)
            whole = np.where(half[:, None], around, whole)
            factor = np.where(half, _OF_HALF_BODY, factor)
        ratio = self.size[1] / self.size[0]
        width = np.maximum(whole[:, 0], whole[:, 1] * ratio)
        shown = np.stack([width, width / ratio], axis=1) * factor[:, None]
        further, turned = standard_normal(uniforms[:, [2, 4]]).T
        shown *= np.clip(further * self.spread + 1.0, 1.0 - self.spread, 1.0 + self.spread)[:, None]
        most = 2.0 * self.degrees
        angle = np.clip(turned * self.degrees, -most, most) * (uniforms[:, 3] <= self.p_rotate)
        mirrored = uniforms[:, 5] < self.p_flip
        centre[mirrored, 0] = extent[mirrored, 0] - 1.0 - centre[mirrored, 0]
        shown = np.maximum(shown, _LEAST)
        return np.concatenate([centre, shown, angle[:, None], mirrored[:, None]], axis=1)

    def _halves(
        self, points: Float64Array, which: Float64Array
    ) -> tuple[BoolArray, Float64Array, Float64Array]:
        """Of (B, K, 3) keypoints: (B,) whether half a body can be shown, (B, 2) the mean of the
        keypoints of that half, and (B, 2) width and height around them."""
        labelled = points[..., 2] > 0
        above = _COCO_UPPER if self.upper_body is None else self.upper_body
        upper = labelled & np.isin(np.arange(points.shape[1]), above)
        lower = labelled & ~upper
        enough = (upper.sum(axis=1) > _LEAST_POINTS, lower.sum(axis=1) > _LEAST_POINTS)
        is_upper = ((standard_normal(which) < _UPPER_BELOW) & enough[0]) | ~enough[1]
        chosen = np.where(is_upper[:, None], upper, lower)
        count = chosen.sum(axis=1)
        can = (labelled.sum(axis=1) > self.num_joints_half_body) & (count >= _LEAST_POINTS)
        places, inside = points[..., :2], chosen[..., None]
        mean = np.where(inside, places, 0.0).sum(axis=1) / np.maximum(count, 1)[:, None]
        low = np.where(inside, places, np.inf).min(axis=1)
        high = np.where(inside, places, -np.inf).max(axis=1)
        around = np.where(can[:, None], high - low, 0.0)
        return can, mean, around

    def warp_given(self, sizes: Int64Array, given: Drawn | None) -> Warp:
        count = len(sizes)
        out = np.array(self.size[::-1], dtype=np.float64)
        size = np.broadcast_to(np.array(self.size, dtype=np.int32), (count, 2))
        if given is None:  # no objects are known where only the size of the output is asked for
            still = np.tile(np.eye(3), (count, 1, 1))
            return Warp(still, still, size, 0.5)
        centre, shown, angle = given[:, :2], given[:, 2:4], np.radians(given[:, 4])
        turn, mirror = (np.tile(np.eye(3), (count, 1, 1)) for _ in range(2))
        # OpenCV's matrix of `unbiased` turns the other way than the one without.
        across, down = np.cos(angle), np.sin(angle) * (1.0 if self.unbiased else -1.0)
        turn[:, :2, :2] = np.stack([across, -down, down, across], axis=-1).reshape(-1, 2, 2)
        scale = np.tile(np.eye(3), (count, 1, 1))
        if self.unbiased:
            scale[:, [0, 1], [0, 1]] = (out - 1.0) / shown
            middle = (out - 1.0) / 2.0
        else:
            scale[:, [0, 1], [0, 1]] = (out[0] / shown[:, 0])[:, None]
            middle = out / 2.0
        mirrored = given[:, 5] != 0
        mirror[mirrored, 0, 0], mirror[mirrored, 0, 2] = -1.0, sizes[mirrored, 1] - 1.0
        to_middle = shifts(np.broadcast_to(middle, (count, 2)))
        of_centres = to_middle @ scale @ turn @ shifts(-centre) @ mirror
        half = np.full((count, 2), 0.5)
        forward = shifts(half) @ of_centres @ shifts(-half)
        return Warp(inverted(forward), forward, size, 0.5)


def standard_normal(uniforms: Float64Array) -> Float64Array:
    """Numbers of the normal distribution, by its inverse; up to 9 deviations from 0."""
    numbers = torch.special.ndtri(torch.from_numpy(np.ascontiguousarray(uniforms)))
    within: Float64Array = np.clip(numbers.numpy(), -9.0, 9.0)
    return within
