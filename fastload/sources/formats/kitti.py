"""Objects in images as KITTI's benchmark of objects has them.

    kitti/
    └── training/
        ├── image_2/
        │   └── 000000.png
        └── label_2/
            └── 000000.txt    Pedestrian 0.00 0 -0.20 712.40 143.00 ...

Gives `image` (uint8), `boxes` (float32), `labels` (int64), `truncated` (float32) and `occluded`
(int64), sorted by name. Regions called DontCare are no objects, and are left out. What a line says
of an object in space is not served.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from fastload import stores
from fastload.errors import ConfigurationError, SourceError, and_more, counted
from fastload.sources import folders
from fastload.sources.annotations import Annotations, checked_box, ordered_classes
from fastload.sources.base import Opened, OpenOptions
from fastload.sources.formats import Format
from fastload.sources.image_files import LeftOut, is_image_name
from fastload.sources.names import split_of
from fastload.sources.pairing import by_stem
from fastload.sources.sizes import stored_sizes
from fastload.sources.texts import text_of_file
from fastload.stores.contents import contents, parts

_IMAGES, _LABELS = "image_2", "label_2"
_TRAINING = "training"
_CLASSES = ("Car", "Van", "Truck", "Pedestrian", "Person_sitting", "Cyclist", "Tram", "Misc")
_NO_OBJECT = "DontCare"
_FIELDS = 15
"""Class; truncated, occluded, angle; box; sizes and place in space, 3 each; rotation."""
_LARGEST = 1 << 22
"""Bytes of a file; thousands of objects are below that."""


def is_kitti(spec: object) -> bool:
    """A folder with `image_2` and `label_2` in it, or with `training`, which has these."""
    return isinstance(spec, str) and _place(spec) is not None


def _place(root: str) -> str | None:
    """The folder that has the images and the labels."""
    for place in (root, os.path.join(root, _TRAINING)):
        # In a store what is in a folder that is not there would be a request.
        parts_of_it = (os.path.join(place, name) for name in (_IMAGES, _LABELS))
        if stores.is_folder(place) and all(map(stores.is_folder, parts_of_it)):
            return place
    return None


def has_objects(root: str) -> bool:
    place = _place(root)
    names = [] if place is None else folders.files_in(os.path.join(place, _LABELS))
    return any(name.endswith(".txt") for name in names)


def open_kitti(root: str, options: OpenOptions) -> Opened:
    """Open annotated images: columns `image`, `boxes`, `labels`, `truncated`, `occluded`.

    Labels count from 0: in KITTI's order where all names are KITTI's, else by name;
    `options.classes` gives another order. Boxes are compared with the sizes of images on a disk;
    in a store each would have to be read.

    Raises:
        ConfigurationError: a split that has no labels.
        SourceError: an image without a file of labels, or the reverse; a line that is none of
            KITTI's; an object of no known class; a box outside of its image. The message names
            file and line.
    """
    place = _place(root)
    assert place is not None, "is_kitti said so"
    if options.split is not None and (place == root or split_of(options.split) != "train"):
        raise ConfigurationError(
            f"split={options.split!r}: labels are in {place} alone; leave split out, or, to have "
            "images without labels, open their folder with format='images'."
        )
    left_out = LeftOut(place, strict=options.strict)
    images = _images(place, left_out)
    stems = _stems(place)
    for there, wanted, folder, ending in (
        (stems, [*images], _LABELS, ".txt"),
        ([*images], stems, _IMAGES, ".*"),
    ):
        missing = sorted({*wanted} - {*there})
        if missing:
            raise SourceError(
                f"{os.path.join(place, folder, missing[0])}{ending}: is missing"
                f"{and_more(missing)}; add it (an empty file of labels where there is no object), "
                "or remove its partner."
            )
    if not images:
        raise SourceError(f"{os.path.join(place, _IMAGES)}: no images in it.")
    annotations = Annotations(numbers={"truncated": [], "occluded": []})
    names: list[str] = []
    known: set[str] = set()
    ignored = 0
    for (path, lines), size in zip(_lines(place, [*images]), _sizes(place, images), strict=True):
        before = len(annotations.boxes)
        for number, line in enumerate(lines, 1):
            name = next(iter(line.split()), None)
            if name is None:
                continue
            if name == _NO_OBJECT:
                ignored += 1
                continue
            known.add(name)
            if _add(annotations, line, size, f"{path}: line {number}"):
                names.append(name)
        annotations.counts.append(len(annotations.boxes) - before)
    classes = options.classes
    if classes is None:
        training = None if options.training is None else _place(options.training)
        theirs = None if training is None else (training, _classes_in(training))
        classes = ordered_classes(place, known, theirs, usual=_CLASSES)
    annotations.number(names, classes, place)
    notes = (f"left out: {counted(ignored, 'region')} called {_NO_OBJECT}",) if ignored else ()
    return annotations.source(
        [path.removeprefix(f"{_IMAGES}/") for path in images.values()],
        os.path.join(place, _IMAGES),
        name=place,
        format="KITTI objects",
        classes=classes,
        notes=(*notes, *left_out.notes()),
        strict=options.strict,
    )


def _images(place: str, left_out: LeftOut) -> dict[str, str]:
    """Path below the place by stem."""
    names = []
    for name in folders.files_in(os.path.join(place, _IMAGES), left_out):
        if is_image_name(name):
            names.append(f"{_IMAGES}/{name}")
        else:
            left_out.add(f"{_IMAGES}/{name}")
    return by_stem(place, _IMAGES, names)


def _sizes(place: str, images: Mapping[str, str]) -> list[tuple[int, int] | None]:
    if stores.is_remote(place):
        return [None] * len(images)
    return stored_sizes([os.path.join(place, path) for path in images.values()])


def _stems(place: str) -> list[str]:
    names = folders.files_in(os.path.join(place, _LABELS))
    return [name.removesuffix(".txt") for name in names if name.endswith(".txt")]


def _lines(place: str, stems: Sequence[str]) -> list[tuple[str, list[str]]]:
    """(path, lines) of the files of labels."""
    lines = []
    for some in parts([os.path.join(place, _LABELS, f"{stem}.txt") for stem in stems]):
        for path, data in zip(some, contents(some, _LARGEST), strict=True):
            lines.append((path, text_of_file(path, data or b"").splitlines()))
    return lines


def _classes_in(place: str) -> set[str]:
    lines = [line for _, each in _lines(place, _stems(place)) for line in each if line.strip()]
    return {line.split()[0] for line in lines} - {_NO_OBJECT}


def _add(annotations: Annotations, line: str, size: tuple[int, int] | None, where: str) -> bool:
    """Add the object of a line; False if its box is empty. `size`: of the image, if it is known."""
    fields = line.split()
    try:
        values = np.array([float(field) for field in fields[1:]])
        occluded = int(fields[2])
        if len(fields) != _FIELDS or not np.isfinite(values).all():
            raise ValueError
    except (ValueError, IndexError):
        raise SourceError(
            f"{where}: must be a class and 14 numbers, as KITTI's labels have them (results of a "
            f"detector have 15), the second of them whole; got {line[:80]!r}."
        ) from None
    left, top, right, bottom = values[3:7].tolist()
    box = checked_box((left, top, right, bottom), size, where)
    if box is None:
        annotations.empty += 1
        return False
    annotations.boxes.append(box)
    annotations.numbers["truncated"].append(float(values[0]))
    annotations.numbers["occluded"].append(occluded)
    return True


FORMAT = Format(
    name="kitti",
    title="images and labels of KITTI",
    recognise=is_kitti,
    open=open_kitti,
    options=("split", "classes"),
    remote=True,
    signs=("label_2", "training/label_2"),
    files=(),
    packages=(),
    parts=("image_2", "image_3"),
    fallback=True,
    certain=has_objects,
)
