"""A sample for each object in place of one for each image: `open_source(..., samples="objects")`.

Images come along as often as they have objects; what belongs to the objects (boxes, labels,
keypoints) becomes a row of its own for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fastload.draws import BoolArray, Int64Array
from fastload.errors import ConfigurationError, SourceError, counted
from fastload.fingerprint import fingerprint_of
from fastload.geometry.points import Objects
from fastload.sources.base import Opened, Source
from fastload.sources.columns import RaggedArray, ValueArray
from fastload.sources.keypoints import is_points
from fastload.sources.kinds import VALUE
from fastload.sources.ragged import Ragged

OBJECTS, POSES = "objects", "poses"


def by_object(opened: Opened, samples: str) -> Opened:
    """The same data with one object a sample.

    Args:
        opened: images with objects in rows of variable length.
        samples: "objects"; or "poses", those that are no crowd (`iscrowd`), have an `area`, if
            there is such a column, and at least one keypoint whose third number is above 0.

    Raises:
        ConfigurationError: `samples` is none of these; there are no objects; for poses no keypoints
            with a third number, or several columns of them; the data are a mix of several sources.
        SourceError: nothing is left.
    """
    source = opened.source
    if samples not in (OBJECTS, POSES):
        raise ConfigurationError(
            f"samples={samples!r}: must be 'images', {OBJECTS!r} or {POSES!r}."
        )
    if not source.instances:
        raise ConfigurationError(
            f"samples={samples!r}: {source.name} has no objects in rows of variable length "
            f"(columns: {', '.join(source.columns)}). Leave it out."
        )
    if source.mixture is not None:
        raise ConfigurationError(
            f"samples={samples!r}: {source.name} is a mix of several sources; open each with it."
        )
    every = np.arange(len(source))
    rows: dict[str, Ragged] = {name: one.at(every) for name, one in source.instances.items()}
    first = next(iter(rows.values()))
    kept, notes = _kept(source, rows, samples, len(first.rows_of_values))
    images = first.rows_of_values[kept]
    if not len(images):
        raise SourceError(
            f"{source.name}: samples={samples!r}, and it has none ({'; '.join(notes)})"
        )
    chosen = np.flatnonzero(kept)
    columns: dict[str, Any] = {}
    for name, column in source.columns.items():
        if name not in rows:
            columns[name] = column.take(images)
        elif isinstance(rows[name].values, Ragged):  # polygons, shapes: of each object several rows
            one = Ragged(rows[name].values.take(chosen), np.arange(len(chosen) + 1))
            columns[name] = RaggedArray(one, role=column.role)
        else:
            role = VALUE.name if column.kind.only_ragged else column.role
            columns[name] = ValueArray(rows[name].values[chosen], role=role)
    made = replace(
        source,
        columns=columns,
        fingerprint=fingerprint_of(source.fingerprint, "by object", samples),
    )
    what = f"a sample is one of {counted(len(chosen), 'object')} of {counted(len(source), 'image')}"
    return replace(opened, source=made, notes=(*opened.notes, "; ".join([what, *notes])))


def one_each(source: Source) -> tuple[str, str]:
    """The names of the columns of boxes (N, 4) and of keypoints (N, K, 3), where a sample is one
    object; empty: there is none such. Raises ConfigurationError: there are several."""
    boxes, points = list[str](), list[str]()
    for name, column in source.values.items():
        stored = column.in_array()
        shape = () if stored is None else stored.array.shape[1:]
        if shape == (4,) and column.kind.drops_objects:
            boxes.append(name)
        elif len(shape) == 2 and shape[1] == 3 and is_points(column):
            points.append(name)
    return _single(boxes, source, "boxes"), _single(points, source, "keypoints")


def _single(names: Sequence[str], source: Source, what: str) -> str:
    """The one of these columns; empty: there is none. Raises ConfigurationError: which one says
    where an object is, nobody knows."""
    if len(names) > 1:
        raise ConfigurationError(
            f"{source.name} has {what} of an object in several columns ({', '.join(names)}), and "
            "which of them counts is not said. Have the others served as they are: "
            f"open_source(..., roles={{{names[1]!r}: 'unmoved'}})."
        )
    return names[0] if names else ""


def objects_of(source: Source, indices: Int64Array) -> Objects:
    """Those of samples that are one object each, which have boxes."""
    boxes, points = one_each(source)

    def rows(name: str) -> Any:
        return source.values[name].at(indices).astype(np.float64)

    return Objects(rows(boxes), np.arange(len(indices)), rows(points) if points else None)


def _kept(
    source: Source, rows: dict[str, Ragged], samples: str, count: int
) -> tuple[BoolArray, list[str]]:
    """(T,) bool of the objects of all images; and how many are left out, for a person."""
    kept = np.ones(count, dtype=np.bool_)
    if samples == OBJECTS:
        return kept, []
    flagged = [
        name
        for name, one in source.instances.items()
        if is_points(one) and rows[name].values.ndim == 3 and rows[name].values.shape[-1] == 3
    ]
    posed = _single(flagged, source, "keypoints")
    if not posed:
        raise ConfigurationError(
            f"samples={samples!r}: {source.name} has no keypoints (N, K, 3) of objects, with a "
            f"number that says whether each is labelled (columns: {', '.join(source.columns)}). "
            "Open what has them (of COCO the file person_keypoints_train2017.json), or give "
            f"{OBJECTS!r}."
        )
    notes = []
    for what, bad in (
        ("crowd", rows["iscrowd"].values != 0 if "iscrowd" in rows else ~kept),
        ("object without area", rows["area"].values <= 0 if "area" in rows else ~kept),
        ("object without a labelled keypoint", ~(rows[posed].values[..., 2] > 0).any(axis=1)),
    ):
        left_out = int((kept & bad).sum())
        kept &= ~bad
        if left_out:
            first, space, rest = what.partition(" ")
            notes.append(f"left out: {counted(left_out, first)}{space}{rest}")
    return kept, notes
