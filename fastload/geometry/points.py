"""Where the points of source images are in the outputs: what moves boxes and other places that go
with an image.

A batch has one `PointMap`, composed of all geometry of the recipe, wherever that runs: all draws
are a function of (seed, epoch, index, operation), so that the crops which the device will make are
known on the host, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fastload.draws import BoolArray, Float64Array, Int64Array, native_core
from fastload.geometry.plan import Clips, Drawn, Geometry

_SCALE, _SHIFT, _LOW, _HIGH, _SIZE, _CENTRES = range(6)
_ROUNDING = 1e-6
"""A box may reach out of the image by this [pixels]: a resize of one that ends at its edge, in
float64, may come to 33.000000000000007 of 33."""
POINT_COLUMNS = 6
"""Pairs of numbers (x, y) that a step takes."""

PointStep = Literal["move", "warp", "drop", "within", "grid", "back"]
"""What is done to boxes and points, by the block of the table that says how:

- "move": output = clip(scale * input + shift, low, high), for x and for y. Crops, resizes, paddings
  and mirrorings compose to one such step exactly, the clipping at each crop included: clipping
  commutes with a scale and a shift, and two clippings make one. Example: an image 100 wide, cropped
  to x from 20 to 60 and resized to 80 wide: scale 2, shift -40, low 0, high 80; x = 30 becomes 20,
  x = 10 becomes 0.
- "warp": a projective map; of a box the corners, and around these a box with upright sides, clipped
  to the image. Where (0, 0) is the centre of the first pixel, points may be counted from the corner
  of the image for it (`Warp.centres`).
- "drop": boxes are dropped that are too small, or too little of which is seen.
- "within": boxes whose centre is not in a window become its upper left corner.
- "grid" and "back": which pixel of the image before each pixel shows, for masks. A "grid" is one
  `Geometry`: of x and of y the start and length of its box, the size that this is resampled to, the
  start and length of the window, and the sum of 1 where it is mirrored, 2 where the box was when it
  was resampled, and 4 for "nearest-exact". A "back" is the matrix of a warp, from output to
  input. Points and boxes have nothing to do with them.
"""
CORE_STEPS: dict[PointStep, int] = {
    "move": 1,
    "warp": 2,
    "grid": 3,
    "back": 4,
    "drop": 5,
    "within": 6,
}
"""As the native core counts them (fastload/native/masks.hpp)."""
_MATRIX = [0, 1, 2, 3, 5]
"""Rows of a block of "warp" or "back" that hold the nine numbers of its matrix, and `Warp.centres`.
"""


@dataclass(frozen=True)
class Objects:
    """The boxes of the objects in B source images, for crops that depend on them."""

    boxes: Float64Array
    """(T, 4) left, top, right, bottom [pixels]."""
    rows: Int64Array
    """(T,): which image each is in."""
    points: Float64Array | None = None
    """(T, K, 3) x, y, and above 0 where the point is labelled; (0, 0) is the centre of the first
    pixel. None: they have none, or none are needed."""


@dataclass(frozen=True)
class PointMap:
    """For each of B samples, the steps that move points from the source image to the output."""

    table: Float64Array
    """(B, 6 * steps, 2) float64, x and y. The block of a "move": scale; shift, low, high, size of
    the output, shift of pixel centres [pixels]; of a "drop": smallest width and height [pixels],
    (smallest part that is seen, smallest area [square pixels]), (longest side in parts of the other
    one, 1: what is seen counts from here on); of a "within": upper left and lower right of the
    window; of a "grid": see `PointStep`. The size is at one place in all."""
    steps: tuple[PointStep, ...] = ("move",)
    objects: Objects | None = field(default=None, compare=False)
    """Of the source images, where a crop depends on them."""
    crops: Mapping[int, Drawn] = field(default_factory=dict, compare=False)
    """By stream what operations that depend on objects or masks have drawn."""

    @classmethod
    def identity(
        cls,
        sizes: npt.NDArray[Any],
        objects: Objects | None = None,
        *,
        traced: bool = False,
        crops: Mapping[int, Int64Array] | None = None,
    ) -> PointMap:
        """The map of images of these (B, 2) sizes (height, width) that nothing is done to; nothing
        is clipped. `traced`: keep the steps of pixels too, for masks. `crops`: that are known."""
        extent = sizes[:, ::-1].astype(np.float64)
        unmoved = _unmoved(extent)
        if not traced:
            return cls(unmoved, objects=objects, crops=crops or {})
        table = np.concatenate([_still(extent), unmoved], axis=1)
        return cls(table, ("grid", "move"), objects, crops or {})

    def __len__(self) -> int:
        return len(self.table)

    @property
    def drops_boxes(self) -> bool:
        """Whether there is a "drop" step."""
        return "drop" in self.steps

    @property
    def mirrored(self) -> npt.NDArray[np.bool_]:
        """(B,) bool: whether left and right have changed places. An image mirrored along both axes
        is only turned. A projective map is judged at its centre."""
        sign = np.ones(len(self))
        for step, block in self._blocks:
            if step == "move":
                sign *= np.sign(block[:, _SCALE]).prod(axis=1)
            elif step == "warp":
                matrix = block[:, _MATRIX].reshape(-1, 10)[:, :9].reshape(-1, 3, 3)
                sign *= np.sign(np.linalg.det(matrix))
        return sign < 0

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """(B, 2) int64: height, width of the outputs."""
        return self._last[:, _SIZE, ::-1].astype(np.int64)

    @property
    def source_sizes(self) -> npt.NDArray[np.int64]:
        """(B, 2) int64: height, width of the source images; of a traced map."""
        assert self._traced, "no other knows them"
        return self.table[:, _SIZE, ::-1].astype(np.int64)

    @property
    def corners(self) -> npt.NDArray[np.int64]:
        """(B, 2) int64: top and left of the outputs in the images that are resized, and mirrored,
        as they are [pixels]; of a traced map without projective steps."""
        extent = self.source_sizes[:, ::-1].astype(np.float64)
        ends = self.points(np.stack([np.zeros_like(extent), extent], axis=1), clip=False)
        corners: Int64Array = -np.rint(ends.min(axis=1)[:, ::-1]).astype(np.int64)
        return corners

    @property
    def seen(self) -> tuple[Float64Array, Float64Array]:
        """(B, 2) upper left and (B, 2) lower right of what boxes are clipped to, in the outputs
        [pixels]; infinite where that is nothing. Of a map without projective steps."""
        unbounded = np.full((len(self), 2), np.inf)
        return self._rectangle(-unbounded, unbounded)

    @property
    def pictures(self) -> npt.NDArray[np.int64]:
        """(B, 4) int64: top, left, bottom, right of the rectangle of the outputs in which the
        source image is shown [pixels]; of a traced map without projective steps."""
        extent = self.source_sizes[:, ::-1].astype(np.float64)
        size = self._last[:, _SIZE]
        ends = [np.clip(end, 0, size) for end in self._rectangle(np.zeros_like(extent), extent)]
        corners = np.concatenate([end[:, ::-1] for end in ends], axis=1)
        rectangles: Int64Array = np.rint(corners).astype(np.int64)
        return rectangles

    def _rectangle(
        self, low: Float64Array, high: Float64Array
    ) -> tuple[Float64Array, Float64Array]:
        """Upper left and lower right of a rectangle, after all steps."""
        for step, block in self._blocks:
            if step == "move":
                ends = [end * block[:, _SCALE] + block[:, _SHIFT] for end in (low, high)]
                low, high = (
                    np.clip(end, block[:, _LOW], block[:, _HIGH])
                    for end in (np.minimum(*ends), np.maximum(*ends))
                )
        return low, high

    def take(self, rows: npt.NDArray[np.int64]) -> PointMap:
        """The maps of these rows."""
        return PointMap(self.table[rows], self.steps)

    def then(
        self,
        geometry: Geometry,
        *,
        clips: Clips = "window",
        applies: npt.NDArray[np.bool_] | None = None,
        exact: bool = False,
    ) -> PointMap:
        """This map, and after it a geometry of images of the size that this one makes.

        Args:
            clips: what boxes are clipped to by the first part of it.
            applies: (B,), which rows it clips; None: all.
            exact: whether its first part resamples masks with "nearest-exact".
        """
        moved = self._moved(geometry, clips, applies, exact)
        later = geometry.later
        if later is None:
            return moved
        if later.forward is not None:
            block = _matrix_block(later.forward, later.size, later.centres)
            moved = moved._with("warp", block)
            if self._traced and later.inverse is not None:
                moved = moved._with("back", _matrix_block(later.inverse, later.size))
        return moved.then(later.geometry, applies=applies)

    def only(self, rows: Int64Array, moved: PointMap) -> PointMap:
        """This map, and for these rows `moved`, which goes on from it and keeps all sizes."""
        own = self if moved.steps == self.steps else self._open
        still = _still(own._last[:, _SIZE])
        grids = [still] * (len(moved.steps) - len(own.steps))
        table = np.concatenate([own.table[:, :-POINT_COLUMNS], *grids, own._last], axis=1)
        table[rows] = moved.table
        return replace(self, table=table, steps=moved.steps)

    @classmethod
    def joined(
        cls, parts: Sequence[PointMap], order: Int64Array, sizes: npt.NDArray[Any]
    ) -> PointMap:
        """One map of the rows of several, which drop no boxes: row n is the next one of
        `parts[order[n]]`, and the steps of the other parts do nothing to it. `sizes`: (B, 2) of the
        source images."""
        opened = [part._open for part in parts]
        tables = []
        for number, part in enumerate(opened):
            begin = sizes[order == number][:, ::-1].astype(np.float64)
            blocks = [
                part.table
                if other == number
                else _doing_nothing(begin if other < number else part._last[:, _SIZE], one.steps)
                for other, one in enumerate(opened)
            ]
            tables.append(np.concatenate(blocks, axis=1))
        rows = np.argsort(np.argsort(order, kind="stable"), kind="stable")
        steps = tuple(step for part in opened for step in part.steps)
        return cls(np.concatenate(tables)[rows], steps)

    def clamped(self) -> PointMap:
        """This map, and after it boxes are clipped to the image as it is by now."""
        scale, shift, low, high, size, centres = self._open._last.swapaxes(0, 1)
        low, high = np.clip(low, 0, size), np.clip(high, 0, size)
        return self._open._replaced([scale, shift, low, high, size, centres])

    def dropping(
        self,
        min_size: float | tuple[float, float],
        min_area: float,
        min_visibility: float = 0.0,
        *,
        max_ratio: float = np.inf,
        visibility_from_here: bool = False,
    ) -> PointMap:
        """This map, and after it boxes are dropped that are not in the image as it is by now, or
        have a side below `min_size` (or width and height below two numbers) [pixels] or an area
        below `min_area` [square pixels], or of whose area less than the part `min_visibility` is
        left, or one of whose sides is more than `max_ratio` times as long as the other.
        `visibility_from_here`: for later "drop" steps the area of a box is what is left here."""
        block = self._last.copy()
        block[:, 0], block[:, 1] = min_size, (min_visibility, min_area)
        block[:, 2] = max_ratio, visibility_from_here
        return self._with("drop", block)

    def within(self, crops: Int64Array, applies: npt.NDArray[np.bool_], stream: int) -> PointMap:
        """This map, and before the crop (B, 4) of a stream, which is still to follow: boxes whose
        centre is not in it become its corner, where it `applies`."""
        block = self._last.copy()
        start, extent = crops[:, 1::-1].astype(np.float64), crops[:, :1:-1]
        block[:, 0], block[:, 1] = start, start + extent
        block[:, 2] = applies[:, None]
        moved = self._with("within", block)
        return replace(moved, crops={**self.crops, stream: crops})

    @property
    def present(self) -> Objects:
        """The objects that no "drop" step has dropped so far, as they are by now."""
        assert self.objects is not None, "the loader gives them to recipes that need them"
        of_each = self.take(self.objects.rows)
        boxes, kept = of_each.boxes_and_kept(self.objects.boxes)
        points = self.objects.points
        if points is not None:
            places = of_each.points(points[..., :2], clip=False, centres=True)
            points = np.concatenate([places, points[..., 2:]], axis=-1)[kept]
        return Objects(boxes[kept], self.objects.rows[kept], points)

    def points(
        self, points: Float64Array, *, clip: bool = True, centres: bool = False
    ) -> Float64Array:
        """(B, ..., 2) float64 points (x, y) of the source images, in the outputs.

        Args:
            clip: move those outside to the nearest point of what is shown.
            centres: whether (0, 0) is the centre of the first pixel, as torchvision has it for
                `tv_tensors.KeyPoints`: mirroring takes x to width - 1 - x (while a resize
                multiplies x, as there). Else it is the corner of the image, and mirroring takes x
                to width - x.
        """
        for step, block in self._blocks:
            if step in ("move", "warp"):
                points = _placed(step, block, points, clip, centres)
        return points

    def by_corners(self) -> PointMap:
        """This map, in which all points are counted from the corner of the image, as boxes are:
        what `points(..., centres=True)` gives is what it gives without that."""
        moved = self._open
        table = moved.table.copy()
        for number, step in enumerate(moved.steps):
            block = table[:, number * POINT_COLUMNS :][:, :POINT_COLUMNS]
            if step == "move":
                block[:, _CENTRES] = block[:, _SHIFT]
            elif step == "warp":
                block[:, _MATRIX[-1], 1] = 0.0
        return replace(moved, table=table)

    def shown(self, points: Float64Array) -> BoolArray:
        """(B, ...) bool: which of the (B, ..., 2) points are in what is shown of the image, after
        each step; of maps that count from corners."""
        seen = np.ones(points.shape[:-1], dtype=np.bool_)
        for step, block in self._blocks:
            if step in ("move", "warp"):
                free = _placed(step, block, points, False, False)
                points = _placed(step, block, points, True, False)
                seen &= np.asarray((np.abs(free - points) <= _ROUNDING).all(axis=-1))
        return seen

    def outlines(
        self, corners: Float64Array, offsets: Int64Array, rows: Int64Array
    ) -> tuple[Float64Array, Int64Array, Float64Array, Float64Array]:
        """The corners and offsets of polygons in the outputs, cut off where boxes are clipped
        before a projective step, so that nothing comes into the picture that had left it; and (P,
        2) upper left and (P, 2) lower right of what is shown of the image of each in the end.

        Args:
            corners: (N, 2) x and y of all polygons in the source images, one after the other.
            offsets: (P + 1,) at which corner those of each polygon begin.
            rows: (P,) in which image each is.
        """
        from fastload.geometry.clipped import cut_off

        unbounded = np.full((len(rows), 2), np.inf)
        low, high = -unbounded, unbounded
        for step, block in self._blocks:
            if step not in ("move", "warp"):
                continue
            own = block[rows]
            if step == "warp":
                corners, offsets = cut_off(corners, offsets, low, high)
            of_each = np.repeat(np.arange(len(rows)), np.diff(offsets))
            corners = _placed(step, own[of_each], corners, False, False)
            if step == "warp":
                clips = ~_does_nothing(own)[:, None]
                low, high = np.where(clips, 0.0, low), np.where(clips, own[:, _SIZE], high)
            else:
                ends = [end * own[:, _SCALE] + own[:, _SHIFT] for end in (low, high)]
                low, high = (
                    np.clip(end, own[:, _LOW], own[:, _HIGH])
                    for end in (np.minimum(*ends), np.maximum(*ends))
                )
        return corners, offsets, low, high

    def boxes(self, boxes: Float64Array) -> Float64Array:
        """(B, ..., 4) float64 boxes (left, top, right, bottom), likewise; clipped to what is shown
        of the image."""
        return self.boxes_and_kept(boxes)[0]

    def boxes_and_kept(self, boxes: Float64Array) -> tuple[Float64Array, BoolArray]:
        """What `boxes` gives; and (B, ...) which of them no "drop" step drops.

        As torchvision's `sanitize_bounding_boxes` has it: sides and areas of exactly the threshold
        are enough. The native core, where it is built, does what `boxes_and_kept_by_numpy` does.
        """
        core = native_core()
        if core is None:
            return self.boxes_and_kept_by_numpy(boxes)
        moved = boxes.reshape(len(boxes), math.prod(boxes.shape[1:-1]), 4).astype(np.float64)
        kept = np.empty(moved.shape[:2], dtype=np.bool_)
        core.move_boxes(np.ascontiguousarray(self.table), self.core_steps, moved, kept)
        return moved.reshape(boxes.shape), kept.reshape(boxes.shape[:-1])

    @property
    def core_steps(self) -> npt.NDArray[np.int32]:
        """(steps,): see `CORE_STEPS`."""
        return np.array([CORE_STEPS[step] for step in self.steps], dtype=np.int32)

    def boxes_and_kept_by_numpy(self, boxes: Float64Array) -> tuple[Float64Array, BoolArray]:
        """As `boxes_and_kept`."""
        return self._boxes_kept_and_whole(boxes)[:2]

    def unclipped(self, boxes: Float64Array) -> Float64Array:
        """(B, 4): what (B, 4) boxes would be if nothing had been clipped, since a "drop" step that
        says that it counts from there on."""
        return self._boxes_kept_and_whole(boxes)[2]

    def _boxes_kept_and_whole(
        self, boxes: Float64Array
    ) -> tuple[Float64Array, BoolArray, Float64Array]:
        if boxes.ndim > 2:
            each = math.prod(boxes.shape[1:-1])
            of_each = self.take(np.repeat(np.arange(len(boxes)), each))
            moved, kept, whole = of_each._boxes_kept_and_whole(boxes.reshape(-1, 4))
            return moved.reshape(boxes.shape), kept.reshape(boxes.shape[:-1]), whole
        whole = boxes  # as they would be if nothing had been clipped
        kept = np.ones(len(boxes), dtype=np.bool_)
        for step, block in self._blocks:
            if step == "drop":
                kept &= _enough(block, boxes, whole)
                whole = np.where(block[:, 2, 1:] == 1, boxes, whole)
            elif step == "within":
                boxes = _kept_within(block, boxes)
            elif step in ("move", "warp"):
                boxes = _box_placed(step, block, boxes, clip=True)
                whole = _box_placed(step, block, whole, clip=False)
        return boxes, kept, whole

    # The steps

    @property
    def _blocks(self) -> list[tuple[PointStep, Float64Array]]:
        return [
            (step, self.table[:, number * POINT_COLUMNS :][:, :POINT_COLUMNS])
            for number, step in enumerate(self.steps)
        ]

    @property
    def _traced(self) -> bool:
        return self.steps[0] == "grid"

    @property
    def _last(self) -> Float64Array:
        return self.table[:, -POINT_COLUMNS:]

    @property
    def _open(self) -> PointMap:
        """The same, with a "move" at the end."""
        if self.steps[-1] == "move":
            return self
        return self._with("move", _unmoved(self._last[:, _SIZE]))

    def _with(self, step: PointStep, block: Float64Array) -> PointMap:
        """Another step, which no "move" that does nothing comes before."""
        return replace(
            self, table=np.concatenate([self.table, block], axis=1), steps=(*self.steps, step)
        )

    def _replaced(self, parts: list[Float64Array]) -> PointMap:
        """Another block in place of the last."""
        table = self.table.copy()
        table[:, -POINT_COLUMNS:] = np.stack(parts, axis=1)
        return replace(self, table=table)

    def _moved(
        self,
        geometry: Geometry,
        clips: Clips,
        applies: npt.NDArray[np.bool_] | None,
        exact: bool,
    ) -> PointMap:
        """The first part of a geometry: all that is one "move"."""
        last = self._open._last
        box, grid, window = (
            part.astype(np.float64) for part in (geometry.box, geometry.size, geometry.window)
        )
        ratio = (grid / box[:, 2:])[:, ::-1]
        start, shown = window[:, 1::-1], window[:, :1:-1]
        shift, low, high, centres = (
            (last[:, part] - box[:, 1::-1]) * ratio - start
            for part in (_SHIFT, _LOW, _HIGH, _CENTRES)
        )
        scale = last[:, _SCALE] * ratio
        bounds: list[tuple[Any, Float64Array]] = [] if clips == "nothing" else [(0.0, shown)]
        if clips == "both":
            bounds.insert(0, (-start, grid[:, ::-1] - start))
        for least, most in bounds:
            clipped = np.clip(low, least, most), np.clip(high, least, most)
            if applies is not None:
                ends = zip(clipped, (low, high), strict=True)
                clipped = tuple(np.where(applies[:, None], *end) for end in ends)  # type: ignore[assignment]
            low, high = clipped
        mirrored = geometry.flip
        low, high = np.where(mirrored, shown - high, low), np.where(mirrored, shown - low, high)
        scale, shift = np.where(mirrored, -scale, scale), np.where(mirrored, shown - shift, shift)
        centres = np.where(mirrored, shown - 1.0 - centres, centres)
        moved = self._open._replaced([scale, shift, low, high, shown, centres])
        if not self._traced:
            return moved
        how = 1 * mirrored + 4 * exact
        if geometry.flipped_first is not None:
            how = how + 2 * geometry.flipped_first
        parts = [box[:, 1::-1], box[:, :1:-1], grid[:, ::-1], start, shown, how]
        block = np.stack(parts, axis=1).astype(np.float64)
        steps = (*moved.steps[:-1], "grid", "move")
        before, last = moved.table[:, :-POINT_COLUMNS], moved._last
        return replace(moved, table=np.concatenate([before, block, last], axis=1), steps=steps)


def _unmoved(sizes: Float64Array) -> Float64Array:
    """(B, 6, 2): the block of a "move" that does nothing. `sizes`: (B, 2) width, height."""
    block = np.empty((len(sizes), POINT_COLUMNS, 2))
    block[:, _SCALE], block[:, _SHIFT], block[:, _CENTRES] = 1.0, 0.0, 0.0
    block[:, _LOW], block[:, _HIGH] = -np.inf, np.inf
    block[:, _SIZE] = sizes
    return block


def _doing_nothing(sizes: Float64Array, steps: Sequence[PointStep]) -> Float64Array:
    """(B, 6 * steps, 2): the blocks of steps that do nothing. `sizes`: (B, 2) width, height."""
    assert not {*steps} & {"drop", "within"}
    still = np.tile(np.eye(3), (len(sizes), 1, 1))
    blocks = {
        "move": _unmoved(sizes),
        "grid": _still(sizes),
        "warp": _matrix_block(still, sizes[:, ::-1]),
    }
    return np.concatenate([blocks.get(step, blocks["warp"]) for step in steps], axis=1)


def _still(sizes: Float64Array) -> Float64Array:
    """(B, 6, 2): the block of a "grid" that does nothing. `sizes`: (B, 2) width, height."""
    zero = np.zeros_like(sizes)
    return np.stack([zero, sizes, sizes, zero, sizes, zero], axis=1)


def _matrix_block(
    matrix: Float64Array, sizes: npt.NDArray[Any], centres: float = 0.0
) -> Float64Array:
    """(B, 6, 2): the block of a "warp" or "back", of (B, 3, 3) matrices to images of these (B, 2)
    sizes (height, width)."""
    block = np.zeros((len(matrix), POINT_COLUMNS, 2))
    last = np.full((len(matrix), 1), centres)
    block[:, _MATRIX] = np.concatenate([matrix.reshape(-1, 9), last], axis=1).reshape(-1, 5, 2)
    block[:, _SIZE] = sizes[:, ::-1]
    return block


def _does_nothing(block: Float64Array) -> BoolArray:
    """(B,): which rows of a "warp" change nothing."""
    matrix = block[:, _MATRIX].reshape(-1, 10)[:, :9]
    return np.asarray((matrix == np.eye(3).ravel()).all(axis=1))


def _placed(
    step: PointStep, block: Float64Array, points: Float64Array, clip: bool, centres: bool
) -> Float64Array:
    """(B, ..., 2) points after a "move" or a "warp"."""
    ones = [1] * (points.ndim - 2)
    if step == "move":
        parts = (_SCALE, _CENTRES if centres else _SHIFT, _LOW, _HIGH)
        scale, shift, low, high = (block[:, part].reshape(-1, *ones, 2) for part in parts)
        moved: Float64Array = points * scale + shift
    else:
        matrix = block[:, _MATRIX].reshape(-1, 10)
        m = [matrix[:, n].reshape(-1, *ones) for n in range(10)]
        shift = m[9] if centres else np.zeros(())
        x, y = points[..., 0] + shift, points[..., 1] + shift
        scale = m[6] * x + m[7] * y + m[8]
        across, down = m[0] * x + m[1] * y + m[2], m[3] * x + m[4] * y + m[5]
        moved = np.stack([across / scale - shift, down / scale - shift], axis=-1)
        # A map that changes nothing may not have been made: what comes after it clips, or not.
        beyond = np.where(_does_nothing(block), np.inf, 0.0)[:, None]
        low = np.broadcast_to(-beyond, (len(beyond), 2)).reshape(-1, *ones, 2)
        high = (block[:, _SIZE] + beyond).reshape(-1, *ones, 2)
    return np.clip(moved, low, high) if clip else moved


def _box_placed(
    step: PointStep, block: Float64Array, boxes: Float64Array, *, clip: bool
) -> Float64Array:
    """(B, 4) boxes after a "move" or a "warp"."""
    corners = boxes if step == "move" else boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]]
    corners = corners.reshape(len(boxes), corners.shape[1] // 2, 2)
    ends = _placed(step, block, corners, clip, False)
    return np.concatenate([ends.min(axis=1), ends.max(axis=1)], axis=1)


def _enough(block: Float64Array, boxes: Float64Array, whole: Float64Array) -> BoolArray:
    """(B,) bool: which boxes a "drop" keeps, that would be the `whole` ones if nothing had been
    clipped."""
    least, (visible, smallest), ratio = block[:, 0], block[:, 1].T, block[:, 2, 0]
    corners = boxes.reshape(-1, 2, 2)
    inside = (corners >= -_ROUNDING) & (corners <= block[:, _SIZE][:, None] + _ROUNDING)
    sides = corners[:, 1] - corners[:, 0]
    areas, whole_sides = sides.prod(axis=1), whole[:, 2:] - whole[:, :2]
    # Products of thresholds, as a box without any area has no part of it.
    seen = areas >= visible * whole_sides.prod(axis=1)
    longest = sides.min(axis=1) * np.where(np.isinf(ratio), 1.0, ratio)
    fits = np.isinf(ratio) | (sides.max(axis=1) <= longest)
    large = (sides >= least).all(axis=1) & (areas >= smallest)
    return np.asarray(inside.all(axis=(1, 2)) & large & seen & fits)


def _kept_within(block: Float64Array, boxes: Float64Array) -> Float64Array:
    """(B, 4) boxes after a "within"."""
    low, high, applies = block[:, 0], block[:, 1], block[:, 2, :1]
    centres = 0.5 * (boxes[:, :2] + boxes[:, 2:])
    good = ((low < centres) & (centres < high)).all(axis=1, keepdims=True)
    return np.where(good | (applies == 0), boxes, np.concatenate([low, low], axis=1))
