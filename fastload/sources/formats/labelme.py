"""Objects in images as LabelMe writes them: a JSON file beside each image.

    street/
    ├── 0001.jpg
    ├── 0001.json    {"shapes": [{"label": "car", "points": ...}], ...}
    ├── 0002.jpg
    └── 0002.json

Gives `image` (uint8), `boxes` (float32), `labels` (int64), and `polygons` (float32) where any shape
is one, sorted by the name of the JSON file. Rectangles have no polygon. Polygons of one label and
one `group_id` are one object.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fastload import stores
from fastload.errors import SourceError, counted
from fastload.sources import folders
from fastload.sources.annotations import Annotations, checked_box, ordered_classes
from fastload.sources.base import Opened, OpenOptions
from fastload.sources.formats import Format
from fastload.sources.image_files import LeftOut, is_image_name
from fastload.stores.contents import contents

_SHAPES = b'"shapes"'
_MARKS = (b'"imagePath"', b'"shape_type"')
"""One of these is in a file, too; the name of the image comes after all shapes."""
_LOOKED_AT = 1 << 16
_LOOKED_INTO = 16
_LARGEST = 1 << 28
"""Bytes of a file, which may have the image in it."""
_AT_ONCE = 16
"""Files in memory."""
_RECTANGLE, _POLYGON = "rectangle", "polygon"
_LEAST_CORNERS = 3


def is_labelme(spec: object) -> bool:
    """A folder of images, with a file of LabelMe among the first JSON files in it."""
    if not isinstance(spec, str) or not stores.is_folder(spec):
        return False
    names = folders.files_in(spec)
    if not any(map(is_image_name, names)):
        return False
    files = [os.path.join(spec, name) for name in names if _is_json(name)]
    return any(map(looks_like_labelme, files[:_LOOKED_INTO]))


def looks_like_labelme(path: str) -> bool:
    """Whether a JSON file has shapes in an image."""
    text = stores.look(path, _LOOKED_AT)
    return _SHAPES in text and any(mark in text for mark in _MARKS)


def _is_json(name: str) -> bool:
    return name.lower().endswith(".json")


class _Others(LeftOut):
    """What is neither an image nor a JSON file."""

    def add(self, path: str) -> None:
        if not _is_json(path):
            super().add(path)


def open_labelme(root: str, options: OpenOptions) -> Opened:
    """Open annotated images: columns `image`, `boxes`, `labels`, and `polygons` where any shape is
    one.

    Labels count from 0, by name; `options.classes` gives another order. Images without a JSON file
    are left out, which the notes say.

    Raises:
        SourceError: a JSON file that is none of LabelMe's; a shape that is neither a rectangle nor
            a polygon; a box outside of its image; an object of no known class; a missing image. The
            message names the file and the shape.
    """
    left_out = _Others(root, strict=options.strict)
    names = folders.files_in(root, left_out)
    there = [name for name in names if is_image_name(name)]
    for name in names:
        if not is_image_name(name):
            left_out.add(name)
    annotations = Annotations(polygons=[])
    images: list[str] = []
    labels: list[str] = []
    known: set[str] = set()
    taken: dict[str, str] = {}
    stems: dict[str, list[str]] = {}
    for name in there:
        stems.setdefault(os.path.splitext(name)[0], []).append(name)
    for path, document in _documents(root, names):
        image = _image_of(path, document, stems)
        other = taken.setdefault(image, path)
        if other != path:
            raise SourceError(
                f"{path}: its image {image} is that of {other}, too; remove one of the two."
            )
        images.append(image)
        labels += _add(annotations, document, path)
        known |= _classes_in(path, document)
    classes = options.classes
    if classes is None:
        training, theirs = options.training, None
        if training is not None and is_labelme(training):
            documents = _documents(training, folders.files_in(training))
            theirs = training, set[str]().union(*(_classes_in(*each) for each in documents))
        classes = ordered_classes(root, known, theirs)
    annotations.number(labels, classes, root)
    if not any(annotations.polygons or ()):
        annotations.polygons = None
    alone = len(there) - len(images)
    if alone and options.strict:
        raise SourceError(
            f"{root}: {counted(alone, 'image')} without a JSON file; add them, or leave out "
            "strict=True, with which they are left out."
        )
    notes = (f"left out: {counted(alone, 'image')} without a JSON file",) if alone else ()
    return annotations.source(
        images,
        root,
        name=root,
        format="LabelMe annotations",
        classes=classes,
        notes=(*notes, *left_out.notes()),
        strict=options.strict,
    )


def _documents(root: str, names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(path, content) of the JSON files in a folder."""
    paths = [os.path.join(root, name) for name in names if _is_json(name)]
    for start in range(0, len(paths), _AT_ONCE):
        some = paths[start : start + _AT_ONCE]
        for path, data in zip(some, contents(some, _LARGEST), strict=True):
            yield path, _document(path, data)


def _document(path: str, data: bytes | None) -> dict[str, Any]:
    try:
        document = json.loads((data or b"").decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: is no JSON ({error}); correct or remove it.") from None
    shapes = document.get("shapes") if isinstance(document, dict) else None
    if not isinstance(shapes, list) or not all(isinstance(shape, dict) for shape in shapes):
        raise SourceError(
            f"{path}: is no file of LabelMe, as it has no list of shapes; correct it, or move it "
            "out of the folder."
        )
    assert isinstance(document, dict)
    return document


def _classes_in(path: str, document: dict[str, Any]) -> set[str]:
    """The classes of all shapes, also of those without area: another split may have some."""
    shapes = enumerate(document["shapes"])
    return {_label_of(shape, f"{path}: shape {number}") for number, shape in shapes}


def _image_of(path: str, document: dict[str, Any], there: dict[str, list[str]]) -> str:
    """The image of the file's own name, or the one that it names. Raises SourceError: there is
    none, or they are two."""
    said = str(document.get("imagePath") or "").replace("\\", "/").rpartition("/")[2]
    own = there.get(os.path.splitext(os.path.basename(path))[0], [])
    named = said in there.get(os.path.splitext(said)[0], [])
    if named and (not own or said in own):
        return said
    if len(own) == 1 and not named:
        return own[0]
    if own:
        raise SourceError(
            f"{path}: its image may be any of {', '.join(dict.fromkeys([*own, said]))}; correct "
            "its imagePath, or remove the others."
        )
    raise SourceError(
        f"{path}: its image {said or 'of the same name'} is missing beside it; add it, or remove "
        "the JSON file."
    )


def _label_of(shape: dict[str, Any], where: str) -> str:
    label = shape.get("label")
    if not isinstance(label, str) or not label:
        raise SourceError(f"{where}: has no label; add the name of its class.")
    return label


def _add(annotations: Annotations, document: dict[str, Any], path: str) -> list[str]:
    """Add the objects of an image, and their count; the names of their classes."""
    size = _size(document)
    annotations.sizes.append(size)
    names: list[str] = []
    outlines: list[list[Any]] = []
    boxes: list[tuple[float, float, float, float]] = []
    groups: dict[tuple[str, Any], int] = {}
    for number, shape in enumerate(document["shapes"]):
        where = f"{path}: shape {number}"
        label = _label_of(shape, where)
        corners = _corners(shape, where)
        outline = [corners] if shape.get("shape_type", _POLYGON) == _POLYGON else []
        low, high = corners.min(axis=0).tolist(), corners.max(axis=0).tolist()
        box = checked_box((*low, *high), size, where)
        if box is None:
            annotations.empty += 1
            continue
        group = shape.get("group_id")
        same = len(names) if group is None else groups.setdefault((label, str(group)), len(names))
        if same == len(names):
            names.append(label)
            outlines.append(outline)
            boxes.append(box)
        elif not outline or not outlines[same]:
            raise SourceError(
                f"{where}: a rectangle has the group_id {group!r} and the label {label!r} of "
                "another shape, so that it is not known whether they are one object; give each "
                "object a group_id of its own, or none."
            )
        else:
            outlines[same] += outline
            left, top, right, bottom = boxes[same]
            (x, y), (to_x, to_y) = low, high
            boxes[same] = min(left, x), min(top, y), max(right, to_x), max(bottom, to_y)
    annotations.boxes += boxes
    annotations.counts.append(len(boxes))
    assert annotations.polygons is not None
    annotations.polygons += outlines
    return names


def _corners(shape: dict[str, Any], where: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    form = shape.get("shape_type", _POLYGON)
    if form not in (_RECTANGLE, _POLYGON):
        raise SourceError(
            f"{where}: is a {str(form)[:40]}, and rectangles and polygons are read; draw it as one "
            "of these, or remove it."
        )
    try:
        corners = np.array(shape.get("points"), dtype=np.float64)
    except (TypeError, ValueError):
        corners = np.zeros(0)
    good = corners.ndim == 2 and corners.shape[1] == 2 and bool(np.isfinite(corners).all())
    if good and form == _POLYGON:
        good = len(corners) >= _LEAST_CORNERS
    elif good and len(corners) != 2:
        # Some programs write all four corners.
        good = len(corners) == 4 and all(len({*axis}) == 2 for axis in corners.T.tolist())
    if not good:
        wanted = "two opposite corners" if form == _RECTANGLE else "three corners or more"
        raise SourceError(
            f"{where}: the points of a {form} must be x and y of {wanted}, got "
            f"{str(shape.get('points'))[:60]}; correct or remove it."
        )
    return corners


def _size(document: dict[str, Any]) -> tuple[int, int] | None:
    """(height, width) as the file says."""
    height, width = (document.get(name) for name in ("imageHeight", "imageWidth"))
    if type(height) is int and type(width) is int and height > 0 and width > 0:
        return height, width
    return None


FORMAT = Format(
    name="labelme",
    title="images and LabelMe annotations",
    recognise=is_labelme,
    open=open_labelme,
    options=("classes",),
    remote=True,
    signs=("*.json",),
    files=(),
    packages=(),
    fallback=True,
    certain=is_labelme,
    annotates=looks_like_labelme,
    documents=(".json",),
)
