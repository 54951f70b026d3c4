"""Points in an image: a column that geometry moves."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fastload.draws import BoolArray
from fastload.errors import ConfigurationError, SourceError
from fastload.fingerprint import fingerprint_of
from fastload.geometry.points import PointMap
from fastload.sources.base import Source
from fastload.sources.kinds import AnyArray, Kind, check_rows, register_kind

Pairs = tuple[tuple[int, int], ...]
"""Which points change places in a mirrored picture: COCO's 1 is a left eye, and 2 a right one."""

COCO_PERSON: Pairs = tuple((number, number + 1) for number in range(1, 17, 2))
"""Of COCO's 17 points of a person: the nose, and eyes, ears, shoulders, elbows, wrists, hips, knees
and ankles, left and right."""
GIVE_PAIRS = (
    "Give the pairs that change places: open_source(..., keypoint_pairs=[(1, 2), (3, 4)]), or "
    "fastload look --keypoint-pairs 1-2,3-4; [] and none say that there are none."
)
"""The remedy where a transform mirrors points whose pairs are not known."""
_NONE = "none"
_SIDES = {"left": "right", "right": "left", "l": "r", "r": "l"}


class KeyPoints(Kind):
    """(..., 2) x, y, or (..., 3) x, y and a number that goes along (COCO's visibility), in pixels
    of the source image.

    They go through the geometry as torchvision's kernels for `tv_tensors.KeyPoints` have it: (0, 0)
    is the centre of the first pixel, and what leaves the picture keeps its place outside of it. NaN
    stays NaN. What is no floating point number is served as float32.

    In a mirrored picture the left eye of a person looks like a right one. Of a column with the role
    "keypoints:1-2,3-4" (see `role_of`) the points 1 and 2, and 3 and 4, counted from 0 in the last
    but one dimension, change places where a picture is mirrored, by whichever axis; mirrored by
    both it is turned, and they do not. As in torchvision's reference, a point of such a column
    whose third number is 0, which in COCO is not labelled, becomes (0, 0, 0). With the role
    "keypoints:none" all keep their order. With "keypoints" it is not known which are left and
    right, and objects of several points are not mirrored."""

    name = "keypoints"
    keys = ("keypoints",)
    moves = True
    of_instances = True
    rectangular = True

    def __init__(self, pairs: Pairs | None = None) -> None:
        """`pairs`: () for none, None where they are not known."""
        self.pairs = pairs

    def of(self, setting: str) -> KeyPoints:
        return _of(setting)

    def check(self, rows: AnyArray, name: str) -> None:
        if rows.ndim < 2 or rows.shape[-1] not in (2, 3) or rows.dtype.kind not in "iuf":
            raise SourceError(
                f"{name}: keypoints must be numbers (N, 2), (N, K, 2) or, with visibility, (N, K, "
                f"3): x and y in pixels; got {rows.dtype} of shape {rows.shape}. Give the column "
                "another name if it holds something else."
            )
        count = _points_of_each(rows)
        beyond = [pair for pair in self.pairs or () if max(pair) >= count]
        if beyond:
            raise SourceError(
                f"{name}: the pair {beyond[0]} names a point that is not there: an object has "
                f"{count}, counted from 0. Correct keypoint_pairs."
            )

    def transform(self, rows: AnyArray, points: PointMap) -> AnyArray:
        result = rows.astype(rows.dtype if rows.dtype.kind == "f" else np.dtype(np.float32))
        result[..., :2] = points.points(rows[..., :2].astype(np.float64), clip=False, centres=True)
        if self.pairs is None and _points_of_each(rows) > 1 and points.mirrored.any():
            # By an operation that does not say that it mirrors; see `unpaired`.
            raise ConfigurationError(
                "transform: it has mirrored an image, and it is not known which keypoints are left "
                f"and right. {GIVE_PAIRS}"
            )
        if not self.pairs:
            return result
        self._exchange(result, points)
        if rows.shape[-1] == 3:
            result[result[..., 2] == 0] = 0
        return result

    def hidden(self, moved: AnyArray, seen: BoolArray, points: PointMap) -> AnyArray:
        """(N, K, 3): what `transform` gives, of which points are (0, 0, 0) that are not `seen`, (N,
        K) of the points in their order before; those without visibility get 1."""
        seen = seen[..., None].copy()
        if self.pairs:
            self._exchange(seen, points)
        shape = (*moved.shape[:-1], 1)
        labelled = moved[..., 2:] if moved.shape[-1] == 3 else np.ones(shape, moved.dtype)
        result = np.concatenate([moved[..., :2], labelled * seen], axis=-1)
        result[result[..., 2] == 0] = 0
        return result

    def _exchange(self, rows: AnyArray, points: PointMap) -> None:
        """Let left and right of (N, K, ...) change places where a picture is mirrored."""
        order = np.arange(rows.shape[-2])
        for first, second in self.pairs or ():
            order[[first, second]] = second, first
        mirrored = points.mirrored
        rows[mirrored] = rows[mirrored][..., order, :]


@functools.cache
def _of(setting: str) -> KeyPoints:
    try:
        return KeyPoints(pairs_of(setting))
    except ConfigurationError as error:
        raise SourceError(f"role 'keypoints:{setting}': {error}") from error


def pairs_of(text: str) -> Pairs:
    """The pairs that a text such as "1-2,3-4" stands for, as in a role; "none": none. Raises
    ConfigurationError: it is no such text."""
    if text == _NONE:
        return ()
    numbers = [[int(one) for one in re.findall(r"[0-9]+", pair)] for pair in text.split(",")]
    pairs = tuple((pair[0], pair[-1]) for pair in numbers if pair)
    if not pairs or ",".join(f"{one}-{other}" for one, other in pairs) != text:
        raise ConfigurationError(
            f"keypoint pairs {text!r}: must be numbers of points, such as 1-2,3-4; none for none."
        )
    role_of(pairs)  # complains of a point that is in two
    return pairs


def role_of(pairs: Sequence[Any] | None) -> str:
    """The role of a column of points of which these change places in a mirrored picture; () for
    none, None where it is not known. Raises ConfigurationError: they are no pairs."""
    if pairs is None:
        return KeyPoints.name
    given = [tuple(pair) if isinstance(pair, list | tuple) else (pair,) for pair in pairs]
    every = [number for pair in given for number in pair]
    fits = all(len(pair) == 2 for pair in given) and len(set(every)) == len(every)
    if not fits or not all(isinstance(number, int) and number >= 0 for number in every):
        raise ConfigurationError(
            f"keypoint_pairs={list(pairs)!r}: must be pairs of numbers of points, counted from 0, "
            "each point at most once, such as [(1, 2), (3, 4)]; [] for none."
        )
    return f"{KeyPoints.name}:" + (",".join(f"{one}-{other}" for one, other in given) or _NONE)


def with_pairs(source: Source, pairs: Sequence[Any]) -> Source:
    """The source with keypoints of which these pairs change places in a mirrored picture.

    Raises:
        ConfigurationError: they are no pairs; it has no keypoints.
        SourceError: they name a point that there is not.
    """
    role = role_of(pairs)
    points = [name for name, column in source.values.items() if is_points(column)]
    if not points:
        raise ConfigurationError(
            f"keypoint_pairs: {source.name} has no keypoints (columns: "
            f"{', '.join(source.columns)}). Leave it out."
        )
    columns = dict(source.columns)
    for name in points:
        column: Any = source.values[name]
        paired = replace(column, role=role)
        check_rows(paired.kind, paired.at(np.arange(len(source))), f"{source.name}: {name}")
        columns[name] = paired
    return replace(source, columns=columns, fingerprint=fingerprint_of(source.fingerprint, role))


def unpaired(source: Source) -> str | None:
    """The first column with several points of each object of which it is not known which are left
    and right; None: there is none such, and pictures may be mirrored."""
    for name, column in source.values.items():
        if is_points(column) and column.kind.pairs is None:  # type: ignore[attr-defined]
            some: Any = column.at(np.arange(min(1, len(source))))
            if _points_of_each(some.values if column.ragged else some) > 1:
                return name
    return None


def is_points(column: Any) -> bool:
    return isinstance(column.kind, KeyPoints)


def _points_of_each(rows: AnyArray) -> int:
    """Points of an object; a single one has no counterpart."""
    return int(rows.shape[-2]) if rows.ndim > 2 else 1


def pairs_of_names(names: Sequence[str]) -> Pairs | None:
    """The pairs of points by their names, "left_eye" and "right_eye", "LeftEye", "L_Eye"; None
    where the names do not say it: no point has a side, or one has no counterpart."""
    words = [
        tuple(word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name))
        for name in names
    ]
    places = {one: place for place, one in enumerate(words)}
    pairs = set()
    for place, own in enumerate(words):
        mirrored = tuple(_SIDES.get(word, word) for word in own)
        if mirrored == own:
            continue
        if mirrored not in places:
            return None
        pairs.add((min(place, places[mirrored]), max(place, places[mirrored])))
    return tuple(sorted(pairs)) or None


register_kind(KeyPoints())
