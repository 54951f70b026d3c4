"""What goes with the images of a batch: boxes, keypoints, outlines and masks of objects, moved by
the geometry that the images have gone through."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastload.backends.base import BufferAllocator
from fastload.backends.masks import MaskDrawer
from fastload.draws import BoolArray, Draws, Int64Array
from fastload.files import DecodeSettings
from fastload.geometry.points import POINT_COLUMNS, Objects, PointMap, PointStep
from fastload.recipe import SplitRecipe
from fastload.recipe.composite import SampleImages
from fastload.recipe.outputs import Outputs
from fastload.sources.base import Source
from fastload.sources.instances import move_together
from fastload.sources.kinds import kind_named
from fastload.sources.ragged import Ragged

if TYPE_CHECKING:
    from fastload.backends.around import Around
    from fastload.backends.looked import MaskLooks
    from fastload.backends.pasted import Paster

Tables = Sequence[npt.NDArray[np.float64]]
"""See `fastload.backends.rows.Buffers`."""


class MovedColumns:
    """The columns of `source.moved`. Picklable; any thread may call it, several at once."""

    def __init__(
        self,
        source: Source,
        recipe: SplitRecipe,
        outputs: Outputs,
        settings: DecodeSettings | None = None,
        *,
        threads: int = 0,
        allocate: BufferAllocator | None = None,
    ) -> None:
        """`settings`, `threads`, `allocate`: see `RowReader`."""
        self._source, self._recipe, self._outputs = source, recipe, outputs
        self._boxes = next((n for n, c in source.instances.items() if c.kind.drops_objects), "")
        polygons = kind_named("polygons")
        self._polygons = next((n for n, c in source.instances.items() if c.kind is polygons), "")
        self._masks = MaskDrawer(threads, allocate) if source.drawn else None
        self._traced = bool(source.made) or self._masks is not None
        asked = [recipe.around_masks(view) for view in range(len(recipe.view_steps))]
        self._around: list[Around | None] = [None for _ in asked]
        """Of each view what puts boxes around masks; None: they stay as they are."""
        if any(one is not None for one in asked):
            from fastload.backends.around import Around

            self._around = [None if one is None else Around(*one) for one in asked]
        self._looks: MaskLooks | None = None
        """Chooses crops by masks of classes; None: no operation depends on these."""
        every = (op for plan in recipe.geometries for _, op in plan.all_ops)
        if any(op.needs_masks for op in every):
            from fastload.backends.looked import MaskLooks

            self._looks = MaskLooks(source, settings or DecodeSettings())
        self.paster: Paster | None = None
        """Says where one picture is put over another; None: pictures are blended, or there is only
        one."""
        if recipe.composite.pastes:
            from fastload.backends.pasted import Paster

            # The masks of pasted objects are drawn by the thread that makes the picture.
            self.paster = Paster(source, recipe, MaskDrawer() if source.drawn else None)

    @cached_property
    def _steps(self) -> list[tuple[PointStep, ...]]:
        """Of the `PointMap` of each view."""
        views = range(len(self._recipe.geometries))
        return [self._recipe.steps(view, traced=self._traced) for view in views]

    def tables(self, count: int) -> Tables:
        """Uninitialised, of so many samples; none where no column is moved by geometry."""
        most = self._recipe.composite.most
        numbers = [POINT_COLUMNS * len(steps) for steps in self._steps if self._source.images]
        return tuple(np.empty((count, most, number, 2)) for number in numbers)

    def points(self, members: SampleImages, sizes: Int64Array) -> tuple[PointMap, ...]:
        """For each view, where points of members go, images of these (T, 2) sizes."""
        objects, plans = None, self._recipe.geometries
        if any(plan.needs_objects for plan in plans):
            objects = self._objects(members.indices)
        own, looks = self._recipe.of(members.draws).geometries, self._looks
        return tuple(
            self._recipe.points(
                view,
                sizes,
                members,
                objects,
                traced=self._traced,
                crops=None if looks is None else looks.crops(own[view], members.draws, sizes),
            )
            for view in range(len(plans))
        )

    def _objects(self, indices: Int64Array) -> Objects:
        """The objects of these images, which the loader has made sure of that there are."""
        if self._boxes:
            boxes = self._source.instances[self._boxes].at(indices)
            return Objects(boxes.values.astype(np.float64), boxes.rows_of_values)
        from fastload.sources.by_object import objects_of

        return objects_of(self._source, indices)

    def columns(
        self, draws: Draws, tables: Tables, failed: Sequence[int]
    ) -> tuple[dict[str, Any], dict[int, str]]:
        """The columns of a batch, by the tables of its images; and of samples whose masks cannot be
        drawn, why not. Failed samples hold zeros, or nothing where rows are of variable length."""
        moved = self._source.moved
        members = self._recipe.composite.members(draws, len(self._source))
        lost = members.of_samples(failed)
        rows = {name: column.at(members.indices) for name, column in moved.items()}
        kinds = {name: column.kind for name, column in moved.items()}
        maps = [
            PointMap(table[members.places], steps)
            for table, steps in zip(tables, self._steps, strict=bool(tables))
        ]
        if not maps:  # a source without images
            maps = [PointMap.identity(np.ones((len(members.indices), 2)))]
        columns: dict[str, Any] = {}
        bad: dict[int, str] = {}
        for view, points in enumerate(maps):
            of_view, kept = move_together(rows, kinds, points)
            if self._recipe.hides_points:
                of_view = self._hidden(of_view, rows, kept, points)
            around, runs = self._around[view], None
            if around is not None:
                of_view, own, runs = self._fitted(around, of_view, points, rows, kept)
                kept = own if kept is None else _also(kept, own)
                runs = runs.emptied(lost)
            for name, own in of_view.items():
                if isinstance(own, Ragged):
                    of_view[name] = own.emptied(lost)
                else:
                    own[lost] = 0
            for name in self._source.drawn:
                assert self._masks is not None
                of_view[name], undrawn = self._masks.draw(of_view[name], points)
                bad |= undrawn
            seen: Ragged | None = None
            if self.paster is not None:
                seen = self.paster.taken(draws, members, rows[self._boxes])
                seen = (seen if kept is None else seen.only(kept)).emptied(lost)
            if around is not None and runs is not None and runs.values.any():
                drawn = of_view[self._source.drawn[0]].values
                boxes = around.of_masks(of_view[self._boxes].values, drawn, runs.values)
                whole = self._whole(around, rows, kept, points)
                own = ~runs.values | around.kept(boxes, whole)
                of_view = self._dropping(of_view, boxes, own)
                seen = None if seen is None else seen.only(own)
            if self.paster is not None and seen is not None:
                of_view = self.paster.hide(draws, members, of_view, seen, points, failed)
            for name, own in of_view.items():
                columns[self._outputs.names[name][view]] = members.grouped(own)
        return columns, {members.sample(row): why for row, why in bad.items()}

    def _hidden(
        self,
        columns: dict[str, Any],
        rows: dict[str, Any],
        kept: BoolArray | None,
        points: PointMap,
    ) -> dict[str, Any]:
        """The columns, of whose keypoints those are no longer labelled that are not shown."""
        from fastload.sources.keypoints import KeyPoints

        made = dict(columns)
        for name, column in self._source.instances.items():
            if isinstance(column.kind, KeyPoints):
                before = _there(rows[name], kept)
                of_each = points.take(before.rows_of_values)
                seen = of_each.shown(before.values[..., :2].astype(np.float64))
                values = column.kind.hidden(columns[name].values, seen, of_each)
                made[name] = Ragged(values, before.offsets)
        return made

    def _fitted(
        self,
        around: Around,
        columns: dict[str, Any],
        points: PointMap,
        rows: dict[str, Any],
        there: BoolArray | None,
    ) -> tuple[dict[str, Any], BoolArray, Ragged]:
        """The columns with boxes around polygons, without the objects that are dropped for it;
        which were kept; and of these whether each has run lengths, to be drawn first. `rows`: of
        the source, of whose objects only those that are `there` are in the columns."""
        before = columns[self._boxes]
        if self._source.drawn:
            boxes, runs = around.shapes(columns[self._source.drawn[0]], points)
        else:
            if "warp" in points.steps:
                given = _there(rows[self._polygons], there)
                boxes, cut = around.cut(given, before.values, points)
                columns = {**columns, self._polygons: cut}
            else:
                boxes = around.outlines(columns[self._polygons], before.values, points)
            runs = np.zeros(len(boxes), dtype=np.bool_)
        kept = runs | around.kept(boxes, self._whole(around, rows, there, points))
        return (
            self._dropping(columns, boxes, kept),
            kept,
            Ragged(runs, columns[self._boxes].offsets).only(kept),
        )

    def _whole(
        self, around: Around, rows: dict[str, Any], kept: BoolArray | None, points: PointMap
    ) -> npt.NDArray[np.float64] | None:
        """(T, 4): what the boxes would be that are kept if nothing were cut off; None: it is of no
        use."""
        if not around.min_visibility:
            return None
        given = _there(rows[self._boxes], kept)
        return points.take(given.rows_of_values).unclipped(given.values.astype(np.float64))

    def _dropping(
        self, columns: dict[str, Any], boxes: npt.NDArray[Any], kept: BoolArray
    ) -> dict[str, Any]:
        """The columns with these boxes, and of all objects those that are kept."""
        before = columns[self._boxes]
        given = Ragged(boxes.astype(before.values.dtype), before.offsets)
        columns = {**columns, self._boxes: given}
        left = () if kept.all() else self._source.instances
        return {**columns, **{name: columns[name].only(kept) for name in left}}

    def sizes(self, tables: Tables) -> Any:
        """(B, 2) of the images of one view as they are delivered."""
        (table,), (steps,) = tables, self._steps
        return PointMap(table[:, 0], steps).sizes

    def close(self) -> None:
        """Join the threads that draw masks. May be called twice."""
        if self._masks is not None:
            self._masks.close()


def _there(rows: Ragged, kept: BoolArray | None) -> Ragged:
    """The objects that are kept; None: all."""
    return rows if kept is None else rows.only(kept)


def _also(kept: BoolArray, own: BoolArray) -> BoolArray:
    """Which of all objects are kept, if of those that were kept only these are."""
    both = kept.copy()
    both[kept] = own
    return both
