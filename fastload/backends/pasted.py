"""Objects of samples whose pictures are put together of two, one over the other (CutMix,
CopyPaste): where the upper one is seen, and what becomes of boxes and masks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.backends.masks import MaskDrawer, box_of
from fastload.draws import BoolArray, Draws, Float64Array
from fastload.geometry.points import PointMap
from fastload.recipe import SplitRecipe
from fastload.recipe.composite import CompositeImages, CopyPaste, CutMix, SampleImages
from fastload.sources.base import Source
from fastload.sources.ragged import Ragged


@dataclass(frozen=True)
class Paster:
    """Puts pictures together for a recipe whose `Composite` has such an operation. Picklable; any
    thread may call it, several at once."""

    source: Source
    recipe: SplitRecipe
    masks: MaskDrawer | None = field(repr=False)
    """Draws the masks of objects; None: the source has no masks."""

    @property
    def _step(self) -> tuple[int, CutMix | CopyPaste]:
        pair = self.recipe.composite.pair
        assert pair is not None
        stream, op = pair
        assert isinstance(op, CutMix | CopyPaste)
        return stream, op

    @property
    def rectangular(self) -> bool:
        """Whether the partner is seen in a rectangle."""
        return isinstance(self._step[1], CutMix)

    def covered(
        self,
        draws: Draws,
        members: CompositeImages,
        points: Sequence[PointMap],
        failed: Collection[int],
    ) -> BoolArray:
        """(B, height, width): what `pasted` gives, of all samples; False of those that it leaves
        out."""
        covered = np.zeros((len(draws), *self._size), dtype=np.bool_)
        for sample, seen in self.pasted(draws, members, points, failed).items():
            covered[sample] = seen
        return covered

    def rectangles(self, draws: Draws, members: CompositeImages) -> npt.NDArray[np.int32]:
        """(B, 4) int32: top, left, height, width of the rectangle in which the partner is seen;
        zeros for samples without one."""
        mixed = np.unique(members.samples[members.layers == 1])
        rectangles = np.zeros((len(draws), 4), dtype=np.int32)
        if not len(mixed):
            return rectangles
        left, top, right, bottom = self._boxes(draws, mixed).astype(np.int32).T
        rectangles[mixed] = np.stack([top, left, bottom - top, right - left], axis=1)
        return rectangles

    def pasted(
        self,
        draws: Draws,
        members: CompositeImages,
        points: Sequence[PointMap],
        failed: Collection[int] = (),
    ) -> dict[int, BoolArray]:
        """By sample, (H, W) bool: where the partner is seen in its picture, as it is delivered;
        none of those without a partner, nor of the `failed` ones. `points`: of the T members,
        traced where masks are drawn; none where no column is moved."""
        _, op = self._step
        failing = np.isin(members.samples, list(failed))
        rows = np.flatnonzero((members.layers == 1) & ~failing)
        samples = members.samples[rows]
        if not len(rows):
            return {}
        if isinstance(op, CutMix):
            return self._cut_out(draws, members, np.unique(samples))
        assert self.masks is not None
        shapes = self.source.moved[self.source.drawn[0]].at(members.indices[rows])
        chosen = np.concatenate(self._chosen(draws, members, rows, shapes))
        # Masks that cannot be drawn are left out here: they are reported where all masks are drawn.
        drawn, _ = self.masks.draw(shapes.only(chosen), points[0].take(rows))
        pasted: dict[int, BoolArray] = {}
        for row, sample in enumerate(samples.tolist()):
            seen = drawn[row].any(axis=0) if len(drawn[row]) else np.zeros((), np.bool_)
            seen = np.broadcast_to(seen, drawn.values.shape[1:])
            pasted[sample] = pasted[sample] | seen if sample in pasted else seen
        return pasted

    def _cut_out(
        self, draws: Draws, members: CompositeImages, samples: npt.NDArray[np.int64]
    ) -> dict[int, BoolArray]:
        pasted: dict[int, BoolArray] = {}
        rectangles = self.rectangles(draws, members)
        for sample in samples.tolist():
            top, left, height, width = rectangles[sample].tolist()
            pasted[sample] = np.zeros(self._size, np.bool_)
            pasted[sample][top : top + height, left : left + width] = True
        return pasted

    @property
    def _size(self) -> tuple[int, int]:
        """Height, width of the pictures."""
        size = self.recipe.geometry.out_size
        assert size is not None, "`Composite.check_placed` has seen to it"
        return size

    def _boxes(self, draws: Draws, samples: npt.NDArray[np.int64]) -> Float64Array:
        """(n, 4): the rectangles of CutMix in these samples, mirrored as their pictures are."""
        stream, op = self._step
        assert isinstance(op, CutMix)
        own = draws.take(samples)
        points = PointMap.identity(np.tile(np.array(self._size), (len(samples), 1)))
        for later, step in self.recipe.view_steps[0]:
            if later > stream and step.moves_pixels:
                points = step.move(points, own, later)
        return points.boxes(op.boxes(own, stream, self._size).astype(np.float64))

    def _chosen(
        self, draws: Draws, members: CompositeImages, rows: npt.NDArray[np.int64], shapes: Ragged
    ) -> list[BoolArray]:
        """For each sample, which objects of the partner CopyPaste takes. `rows`: the partner's
        members; the objects of the members of a mosaic are counted one after the other."""
        stream, op = self._step
        assert isinstance(op, CopyPaste)
        crowds = self.source.moved.get("iscrowd")
        samples, first = np.unique(members.samples[rows], return_index=True)
        ends = np.append(first, len(rows))
        counts = np.array([shapes.lengths[a:b].sum() for a, b in pairwise(ends.tolist())], np.int64)
        chosen = op.chosen(draws.take(samples), stream, counts)
        if crowds is not None:
            kept = crowds.at(members.indices[rows])
            offsets = kept.offsets[ends]
            crowd = kept.values.astype(np.bool_)
            chosen = [
                one & ~crowd[a:b] for one, a, b in zip(chosen, offsets, offsets[1:], strict=False)
            ]
        return chosen

    def taken(self, draws: Draws, members: SampleImages, shapes: Ragged) -> Ragged:
        """Of the objects of all members, whether each may be in the picture: False for those of a
        partner that are not pasted. `shapes`: a row of objects for each member."""
        assert isinstance(members, CompositeImages)
        rows = np.flatnonzero(members.layers == 1)
        taken = np.ones(len(shapes.values), dtype=np.bool_)
        if isinstance(self._step[1], CopyPaste) and len(rows):
            of_pairs = np.isin(shapes.rows_of_values, rows)
            taken[of_pairs] = np.concatenate(self._chosen(draws, members, rows, shapes.take(rows)))
        return Ragged(taken, shapes.offsets)

    def hide(
        self,
        draws: Draws,
        members: SampleImages,
        columns: Mapping[str, Any],
        taken: Ragged,
        points: PointMap,
        failed: Collection[int],
    ) -> dict[str, Any]:
        """The columns of objects, rows of members, without what is hidden.

        Args:
            columns: by name, finished except for that; masks are changed in place.
            taken: as `taken` gives it, of the objects that are left by now.
            points: of the members, traced where masks are drawn.
            failed: samples that are not made; they have no objects any more.
        """
        _, op = self._step
        assert isinstance(members, CompositeImages)
        name = next(name for name, one in self.source.instances.items() if one.kind.drops_objects)
        boxes = columns[name].values.copy()
        of_member = taken.rows_of_values
        samples, own = members.samples[of_member], members.layers[of_member] == 0
        kept = taken.values.astype(np.bool_)
        drawn = columns[self.source.drawn[0]].values if self.source.drawn else None
        seen = {} if drawn is None else self.pasted(draws, members, [points], failed)
        if isinstance(op, CutMix):
            mixed = np.unique(members.samples[members.layers == 1])
            for sample, box in zip(mixed.tolist(), self._boxes(draws, mixed), strict=True):
                rows = np.flatnonzero(samples == sample)
                for chosen, cut in ((own[rows], _outside), (~own[rows], _inside)):
                    some = rows[chosen]
                    boxes[some], left = cut(boxes[some].astype(np.float64), box)
                    kept[some] &= left >= op.min_visibility
                    # An object that is hidden altogether is dropped, also with min_visibility=0.
                    kept[some] &= left > 0
        for number in np.flatnonzero(kept).tolist() if drawn is not None else ():
            assert drawn is not None
            hidden = seen.get(int(samples[number]))
            if hidden is None or (not own[number] and isinstance(op, CopyPaste)):
                continue
            hidden = hidden if own[number] else ~hidden
            mask = drawn[number]
            before = int(mask.sum())
            mask[hidden] = 0
            after = int(mask.sum())
            if after == before:
                continue
            if after == 0 or (isinstance(op, CopyPaste) and after < op.min_visibility * before):
                kept[number] = False
            elif isinstance(op, CopyPaste):
                boxes[number] = box_of(mask)
        moved = dict(columns) | {name: Ragged(boxes, columns[name].offsets)}
        return moved | {one: moved[one].only(kept) for one in self.source.instances}


def _inside(boxes: Float64Array, window: Float64Array) -> tuple[Float64Array, Float64Array]:
    """(n, 4) boxes as far as they are in a window; and (n,) what part of each is."""
    low, high = window[:2], window[2:]
    inside = np.concatenate([boxes[:, :2].clip(low, high), boxes[:, 2:].clip(low, high)], axis=1)
    return inside, _areas(inside) / np.maximum(_areas(boxes), np.finfo(np.float64).tiny)


def _outside(boxes: Float64Array, window: Float64Array) -> tuple[Float64Array, Float64Array]:
    """(n, 4) boxes around what of each a window does not hide; and (n,) what part of each that
    is."""
    _, hidden = _inside(boxes, window)
    outside = boxes.copy()
    for axis in range(2):
        low, high = window[axis], window[axis + 2]
        across = 1 - axis
        # The window is as wide as the box there.
        spans = (window[across] <= boxes[:, across]) & (boxes[:, across + 2] <= window[across + 2])
        start, end = boxes[:, axis], boxes[:, axis + 2]
        outside[:, axis] = np.where(spans & (low <= start) & (start < high), high, start)
        outside[:, axis + 2] = np.where(spans & (low < end) & (end <= high), low, end)
    outside[:, 2:] = np.maximum(outside[:, :2], outside[:, 2:])
    return outside, 1.0 - hidden


def _areas(boxes: Float64Array) -> Float64Array:
    areas: Float64Array = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    return areas
