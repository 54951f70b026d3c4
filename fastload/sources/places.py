"""Numbers that say where something is in an image, and that nothing moves with its pixels: known by
the name of a column and the form of its rows. And what the user says that columns hold
(`open_source(roles=)`).

A column whose role says that it is of places (`boxes`, `keypoints`) is moved. One of another name
(`bbox`, `segmentation`) is served as plain numbers: whether these are left, top, width, height or
fractions of the image, nobody knows. Under a transform that moves pixels it is refused."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from numbers import Number
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors

from fastload.errors import ConfigurationError, SourceError
from fastload.fingerprint import fingerprint_of
from fastload.sources.base import Source
from fastload.sources.columns import ImageColumn, Values
from fastload.sources.kinds import JSON_NAME, PLACES, PixelKind, check_rows, kind_named
from fastload.sources.ragged import Ragged, rectangular

_WORDS = frozenset(
    {
        *("box", "boxes", "bbox", "bboxes", "bndbox", "bndboxes", "boundingbox", "boundingboxes"),
        *("rect", "rects", "roi", "rois", "obb", "obbs", "quad", "quads", "corners", "vertices"),
        *("xyxy", "xywh", "cxcywh", "ltrb", "ltwh"),
        *("polygon", "polygons", "poly", "polys", "contour", "contours", "outline", "outlines"),
        *("segmentation", "segmentations", "seg", "mask", "masks"),
        *("keypoint", "keypoints", "kpt", "kpts", "kps", "landmark", "landmarks", "joints"),
        *("point", "points"),
    }
)
"""Words in the names that data sets give to places in an image."""
_COORDINATE = re.compile(r"(?:c|min|max)?([xy])(?:min|max|c|center|centre)?")
_SAMPLED = 64
"""Rows of a column that are looked at, from its start to its end, where it is not one array."""


def says_places(name: str) -> bool:
    """Whether a name has a word for places in an image: bbox, gt_boxes, FaceLandmarks."""
    return not _WORDS.isdisjoint(_words(name))


def say_places(titles: Collection[str]) -> bool:
    """Whether the names of several numbers say places in an image: box_left and box_top, xmin and
    ymin, left_eye_x and left_eye_y."""
    words = [word for title in titles for word in _words(title)]
    axes = {match[1] for word in words if (match := _COORDINATE.fullmatch(word))}
    return len(titles) > 1 and (axes == {"x", "y"} or any(map(says_places, titles)))


def _words(name: str) -> list[str]:
    words: list[str] = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return [word.lower() for word in words]


def left_behind(source: Source) -> dict[str, str]:
    """The columns of plain numbers that are places in the images, as far as names and forms say,
    and what to do about each, for messages."""
    sizes = [column.fixed_size for column in source.images.values()]
    left = {}
    for name, column in source.grouped.items() if source.images else ():
        if column.role == JSON_NAME:
            if any(_is_place(name, value) for value in column.kind.objects(_spread(column))):
                left[name] = (
                    "Write them as lists of numbers in a field of their own, whose role is given "
                    "('boxes', 'keypoints')."
                )
            continue
        rows = _some_rows(column)
        if _are_pictures(rows, sizes):
            left[name] = "Give classes of pixels as an array 'mask' of uint8, which is moved."
        elif column.role == PLACES.name or (
            says_places(name) and _are_grouped(rows, whole=len(rows) >= len(column))
        ):
            left[name] = (
                f"Say what it holds: open_source(..., roles={{{name!r}: 'boxes'}}) for left, top, "
                "right, bottom in pixels, 'keypoints' for x, y in pixels: these are moved."
            )
    return left


def refuse_left_behind(source: Source, argument: str, what: str) -> None:
    """Raise ConfigurationError if places in the images would stay where they are.

    Args:
        argument: of the caller's, that moves pixels.
        what: it does to them, for the message.
    """
    for name, remedy in left_behind(source).items():
        stays = "json:unmoved" if source.columns[name].role == JSON_NAME else "unmoved"
        raise ConfigurationError(
            f"{argument}: it {what} the images of {source.name}, and column {name!r}, by its name "
            f"and form of places in them, would stay as it is. {remedy} If it is to stay so: "
            f"open_source(..., roles={{{name!r}: '{stays}'}})."
        )


def _some_rows(column: Values) -> Any:
    """Rows of a column: all that are in one array or Ragged, else some of them."""
    stored = column.in_array() if not column.ragged else None
    if stored is not None:
        return stored.array
    if isinstance(array := getattr(column, "array", None), Ragged):
        return array
    return _spread(column)


def _spread(column: Values) -> Any:
    """Some rows, from the first to the last."""
    return column.at(np.linspace(0, len(column) - 1, min(_SAMPLED, len(column))).astype(np.int64))


def _are_grouped(rows: Any, *, whole: bool) -> bool:
    """Whether rows hold numbers in fours, pairs and the like, and not one number each, as a class
    or a count is.

    Args:
        whole: whether these are all rows of the column. Where they are not, and are all empty, the
            others are taken to hold groups.
    """
    if not isinstance(rows, Ragged):
        return bool(rows.ndim > 1 and np.prod(rows.shape[1:]) > 1)
    lengths = rows.lengths
    if not whole and not lengths.any():
        return True
    if isinstance(rows.values, Ragged):
        return bool((rows.values.lengths > 1).any())
    if rows.values.ndim > 1:
        return bool(np.prod(rows.values.shape[1:]) > 1)
    # Lists of single numbers: x, y one after the other, or with a third one; else classes.
    return bool(lengths.any() and any(not (lengths % size).any() for size in (2, 3)))


def _are_pictures(rows: Any, sizes: list[tuple[int, int] | None]) -> bool:
    """Whether rows are as large as the images: maps of classes or depths in numbers that no mask
    has, such as int64."""
    if isinstance(rows, Ragged) or rows.ndim < 3:
        return False
    shape = tuple(rows.shape[1:])
    return any(
        size is not None and size in (shape, shape[1:], shape[:-1]) and min(size) > 1
        for size in sizes
    )


# -- Samples of Python's objects -------------------------------------------------------------------


def refuse_place(name: Any, source: str) -> None:
    """Raise ConfigurationError: this key of the samples of a data set would stay as it is. None:
    there is none such."""
    if name is not None:
        raise ConfigurationError(
            f"transform: it moves the pixels of the images of {source}, and {name!r} of its "
            "samples is or holds boxes, points or masks, by its type (torchvision's tv_tensors) "
            "or a name in it, which would stay where they are. Let the dataset apply the transform "
            "to both, or leave them out of its samples."
        )


def place_in_features(features: Mapping[str, Any]) -> str | None:
    """`place_in`, of the features of Hugging Face's data sets, which say what samples hold."""
    for name, feature in features.items():
        inner = feature
        while not isinstance(inner, Mapping) and hasattr(inner, "feature"):
            inner = inner.feature  # of a list
        if isinstance(inner, list):
            inner = inner[0]
        if isinstance(inner, Mapping):
            if place_in_features(inner) is not None:
                return name
        elif says_places(name) and type(feature).__name__ not in ("Value", "ClassLabel", "Image"):
            return name
    return None


def place_in(sample: Mapping[Any, Any]) -> Any:
    """The first key of a sample whose value is, or holds, boxes, points or masks of its image;
    None: there is none."""
    return next((name for name, value in sample.items() if _is_place(name, value)), None)


def _is_place(name: Any, value: Any) -> bool:
    if isinstance(value, tv_tensors.BoundingBoxes | tv_tensors.KeyPoints | tv_tensors.Mask):
        return True
    if isinstance(value, Mapping):
        return place_in(value) is not None
    if isinstance(value, list | tuple) and any(_is_place("", each) for each in value):
        return True
    return isinstance(name, str) and says_places(name) and not _is_single(value)


def _is_single(value: Any) -> bool:
    """Whether it is a text, a number, or an array of one number: a class, a count."""
    if isinstance(value, np.ndarray | np.generic | torch.Tensor):
        return int(np.prod(value.shape)) == 1
    return value is None or isinstance(value, str | bytes | Number)


# -- On the user's word ----------------------------------------------------------------------------


def with_roles(source: Source, roles: Mapping[str, str]) -> Source:
    """The source whose columns hold what the user says.

    Args:
        roles: names of kinds (`Column.role`), by column.

    Raises:
        ConfigurationError: no such column; a role of pixels for numbers, or the other way round.
        SourceError: no such role, or the rows cannot be of it.
    """
    if not isinstance(roles, Mapping):
        raise ConfigurationError(
            f"roles={roles!r}: expected a dict from columns to what they hold, such as "
            "{'bbox': 'boxes'}."
        )
    columns: dict[str, Any] = dict(source.columns)
    for name, role in roles.items():
        column = columns.get(name)
        if column is None:
            raise ConfigurationError(
                f"roles: {source.name} has no column {name!r}; there are {', '.join(columns)}."
            )
        where = f"roles: column {name!r} of {source.name}"
        kind = kind_named(role)
        if kind.decodes:
            from fastload.sources.image_lists import listed

            columns[name] = listed(column, role, where)
            continue
        fits = isinstance(column, ImageColumn) == isinstance(kind, PixelKind)
        if not fits or not isinstance(column, ImageColumn | Values):
            what = "images" if isinstance(column, ImageColumn) else "numbers"
            what = what if isinstance(column, ImageColumn | Values) else "objects"
            raise ConfigurationError(f"{where} holds {what}, which cannot be {role!r}.")
        ragged = isinstance(column, Values) and column.ragged
        given: Any = column
        try:
            if ragged and kind.rectangular:
                given = replace(given, array=rectangular(given.array))
            columns[name] = replace(given, role=role)
        except SourceError as error:
            raise SourceError(f"{where}: {error}") from None
        except TypeError:  # no dataclass, or one without such a field
            raise ConfigurationError(
                f"{where} is a {type(column).__name__}, which says itself what it holds; correct "
                "its role there."
            ) from None
        if not ragged and kind.only_ragged:
            raise ConfigurationError(
                f"{where} has rows of one length, and {role!r} is for rows of variable length; "
                "give it as a fastload.Ragged."
            )
        if isinstance(column, Values):
            check_rows(kind, columns[name].at(np.arange(len(column))), where)
    said = fingerprint_of(source.fingerprint, *(part for pair in roles.items() for part in pair))
    return replace(source, columns=columns, fingerprint=said)
