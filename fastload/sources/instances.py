"""What belongs to the objects in an image, element by element: their labels, areas, outlines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fastload.draws import BoolArray
from fastload.errors import SourceError
from fastload.geometry.points import PointMap
from fastload.sources.kinds import (
    AnyArray,
    Kind,
    Rows,
    register_kind,
    transformed,
)
from fastload.sources.ragged import Ragged


class Instances(Kind):
    """Numbers of the objects in an image, one element (of any shape) an object: labels, areas,
    crowd flags, ids. Geometry leaves them as they are, and drops those of a box that it drops."""

    name = "instances"
    keys = ("labels", "area", "iscrowd", "ids")
    moves = True
    of_instances = True
    only_ragged = True


class Polygons(Kind):
    """Outlines of the objects in an image: of each object its polygons, of each polygon its corners
    (n, 2), x and y in pixels of the source image; Ragged of Ragged of Ragged.

    Corners go through the geometry as those of boxes do, and keep their place outside of the
    picture. What is no floating point number is served as float32.
    """

    name = "polygons"
    keys = ("polygons",)
    moves = True
    of_instances = True
    only_ragged = True

    def check(self, rows: AnyArray, name: str) -> None:
        if rows.ndim != 2 or rows.shape[1] != 2 or rows.dtype.kind not in "iuf":
            raise SourceError(
                f"{name}: the corners of polygons must be numbers (n, 2), x and y in pixels; got "
                f"{rows.dtype} of shape {rows.shape}. Give the column another name if it holds "
                "something else."
            )

    def transform(self, rows: AnyArray, points: PointMap) -> AnyArray:
        dtype = rows.dtype if rows.dtype.kind == "f" else np.dtype(np.float32)
        return points.points(rows.astype(np.float64), clip=False).astype(dtype)


def move_together(
    columns: Mapping[str, Rows], kinds: Mapping[str, Kind], points: PointMap
) -> tuple[dict[str, Rows], BoolArray | None]:
    """The rows of all columns that go with the images of a batch, as they are for the images that
    the trainer gets; and (T,) of the objects whether each is there still, None where all are. An
    object that is dropped is dropped in all columns. Shapes of masks stay as they are: masks are
    drawn of those that are left.

    Args:
        columns: rows of the source images, by column.
        kinds: theirs.
        points: of the B images.
    """
    moved: dict[str, Rows] = {}
    kept: BoolArray | None = None
    for name, rows in columns.items():
        kind = kinds[name]
        if kind.drops_objects and isinstance(rows, Ragged) and not isinstance(rows.values, Ragged):
            values, own = kind.transform_and_kept(rows.values, points.take(rows.rows_of_values))
            moved[name] = Ragged(values, rows.offsets)
            if points.drops_boxes:
                kept = own if kept is None else kept & own
        else:
            moved[name] = rows if kind.drawn else transformed(kind, rows, points)
    if kept is not None:
        for name, rows in moved.items():
            if isinstance(rows, Ragged) and kinds[name].of_instances:
                moved[name] = rows.only(kept)
    return moved, kept


def check_instances(columns: Mapping[str, Any], name: str) -> None:
    """Raise SourceError if columns of objects have different numbers of them in a sample.

    Args:
        columns: the `RaggedArray` columns of a source whose kinds are of instances.
        name: of the source, for messages.
    """
    first: tuple[str, Any] | None = None
    for own, column in columns.items():
        lengths = column.lengths
        if first is None:
            first = own, lengths
            continue
        bad = np.flatnonzero(lengths != first[1])
        if len(bad):
            row = int(bad[0])
            raise SourceError(
                f"{name}: sample {row} has {first[1][row]} in {first[0]!r} and {lengths[row]} in "
                f"{own!r}; each object must have one element in both. Give a column that does not "
                "belong to the objects another name, or the role 'value'."
            )


register_kind(Instances())
register_kind(Polygons())
