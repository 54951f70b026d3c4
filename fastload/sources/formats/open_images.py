"""Objects in images as Open Images lists them: `oidv6-train-annotations-bbox.csv` or
`validation-annotations-bbox.csv`, the names of the classes, and a folder of images called by their
ids.

    openimages/                               or as FiftyOne downloads it:
    ├── oidv6-train-annotations-bbox.csv      openimages/
    ├── class-descriptions-boxable.csv        └── train/
    └── train/                                    ├── data/000002b66c9c498e.jpg
        └── 000002b66c9c498e.jpg                  ├── labels/detections.csv
                                                  └── metadata/classes.csv

Gives `image`, `boxes`, `labels`, `iscrowd`, and `is_occluded`, `is_truncated`, `is_depiction` and
`is_inside` where the file has them.

Also as FiftyOne downloads it: `train/labels/detections.csv`, `train/metadata/classes.csv` and
`train/data/*.jpg`.
"""

from __future__ import annotations

import csv
import os
from typing import NamedTuple

from fastload import stores
from fastload.errors import ConfigurationError, SourceError, counted
from fastload.sources import folders
from fastload.sources.annotations import Annotations, checked_box
from fastload.sources.base import Opened, OpenOptions
from fastload.sources.formats import Format
from fastload.sources.names import split_named, split_of
from fastload.sources.sizes import upright_sizes
from fastload.stores.contents import open_text

_BOXES = "annotations-bbox.csv"
_OF_FIFTYONE = os.path.join("labels", "detections.csv")
_CLASSES = ("*class-descriptions-boxable.csv", "*class-descriptions.csv", "classes.csv")
"""Lines of an id and a name: /m/011k07,Tortoise."""
_NUMBERS = {
    "IsGroupOf": "iscrowd",
    "IsOccluded": "is_occluded",
    "IsTruncated": "is_truncated",
    "IsDepiction": "is_depiction",
    "IsInside": "is_inside",
}
_CORNERS = ("XMin", "XMax", "YMin", "YMax")
_MARGIN = 1e-3
"""Fractions may be outside of 0 to 1 by this, from rounding."""


class _Row(NamedTuple):
    line: int
    label: int
    corners: tuple[float, ...]
    """XMin, XMax, YMin, YMax, fractions of the image."""
    flags: tuple[int, ...]


def is_open_images(spec: object) -> bool:
    """A folder with such a file of boxes, or the file itself."""
    return isinstance(spec, str) and any(
        _has_boxes(path) for paths in _files_of(spec).values() for path in paths
    )


def open_open_images(spec: str, options: OpenOptions) -> Opened:
    """Open the annotated images of a split, by id: columns `image`, `boxes`, `labels`, `iscrowd`
    (IsGroupOf), and `is_occluded`, `is_truncated`, `is_depiction`, `is_inside` as far as the file
    has them (-1: not known).

    Fractions become pixels by the size in the image's header. Labels are in the order of the file
    of class names. Annotations of images that are not there are left out and counted, as downloads
    are parts of the data set; so are images that the file does not name, of which it is not known
    what is in them.

    Raises:
        SourceError: no such split; no names of classes; a row that is no box, of no class,
        reversed,
            or with numbers outside of 0 to 1; an image that cannot be read or that its EXIF data
            turn; two images of one id; no image at all. The message names file and line.
    """
    path = _of_split(spec, options.split)
    if stores.is_web(path):
        raise SourceError(
            f"{path}: its images are found by their ids in a folder, and a web server does not "
            "list what is in one; put the files into an object store, or download them."
        )
    names = _names(path)
    images = _images(path)
    numbers = {own: label for label, own in enumerate(names)}
    rows, flags, absent = _read(path, numbers, images)
    if not rows:
        raise SourceError(
            f"{path}: none of the images that it names is in {_places(path)}; put them there, "
            "called by their ids."
        )
    alone = len(images) - len(rows)
    for count, what in (
        (absent, f"annotations of {counted(absent, 'image')} that are not there"),
        (alone, f"{counted(alone, 'image')} that {os.path.basename(path)} does not name"),
    ):
        if count and options.strict:
            raise SourceError(
                f"{path}: {what}; complete the images and annotations, or leave out strict=True, "
                "with which they are left out."
            )
    annotations = Annotations(numbers={name: [] for name in flags})
    order = sorted(rows)
    files = [images[own] for own in order]
    sizes = upright_sizes(files, [path] * len(files))
    for own, (height, width) in zip(order, sizes, strict=True):
        before = len(annotations.boxes)
        for row in rows[own]:
            left, right, top, bottom = row.corners
            box = (left * width, top * height, right * width, bottom * height)
            checked = checked_box(box, (height, width), f"{path}: line {row.line}")
            if checked is None:
                annotations.empty += 1
                continue
            annotations.boxes.append(checked)
            annotations.labels.append(row.label)
            for name, flag in zip(flags, row.flags, strict=True):
                annotations.numbers[name].append(max(flag, 0) if name == "iscrowd" else flag)
        annotations.counts.append(len(annotations.boxes) - before)
    store = stores.top_of(files[0])
    root = store + os.path.commonpath([os.path.dirname(image[len(store) :]) for image in files])
    root = root.rstrip("/") if store else root
    notes = []
    if absent:
        notes.append(f"left out: annotations of {counted(absent, 'image')} that are not there")
    if alone:
        notes.append(f"left out: {counted(alone, 'image')} without annotations")
    return annotations.source(
        [image.removeprefix(root).lstrip("/") for image in files],
        root,
        name=path,
        format="Open Images annotations",
        classes=list(names.values()),
        details={"class_ids": tuple(names)},
        notes=tuple(notes),
        strict=options.strict,
    )


def _read(
    path: str, numbers: dict[str, int], images: dict[str, str]
) -> tuple[dict[str, list[_Row]], list[str], int]:
    """The rows of each image that is there, by id; the names of the flags; and how many images are
    not there."""
    rows_of: dict[str, list[_Row]] = {}
    absent: set[str] = set()
    try:
        with open_text(path) as file:
            table = csv.reader(file)
            head = next(table, [])
            missing = [name for name in ("ImageID", "LabelName", *_CORNERS) if name not in head]
            if missing:
                raise SourceError(
                    f"{path}: has no column {missing[0]}; the first line must name those of Open "
                    f"Images' boxes, found {', '.join(head)[:80]}."
                )
            image, label = head.index("ImageID"), head.index("LabelName")
            corners = [head.index(name) for name in _CORNERS]
            flags = [name for name in _NUMBERS if name in head]
            places = [head.index(name) for name in flags]
            for row in filter(None, table):
                where = f"{path}: line {table.line_num}"
                if len(row) != len(head):
                    raise SourceError(
                        f"{where}: {counted(len(row), 'column')}, and the first line has "
                        f"{len(head)}."
                    )
                if row[image] not in images:
                    absent.add(row[image])
                    continue
                if row[label] not in numbers:
                    raise SourceError(
                        f"{where}: the class {row[label]!r} is none of the file of class names; "
                        "add it there, or remove the row."
                    )
                box = _Row(
                    table.line_num,
                    numbers[row[label]],
                    tuple(_fraction(row[place], where) for place in corners),
                    tuple(_flag(row[place], where) for place in places),
                )
                rows_of.setdefault(row[image], []).append(box)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{path}: cannot be read ({error}).") from None
    return rows_of, [_NUMBERS[name] for name in flags], len(absent)


def _fraction(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not -_MARGIN <= value <= 1 + _MARGIN:
        raise SourceError(
            f"{where}: {text[:40]!r} is no fraction from 0 to 1 of the image; correct or remove "
            "the row."
        )
    return value


def _flag(text: str, where: str) -> int:
    if text not in ("0", "1", "-1"):
        raise SourceError(f"{where}: {text[:40]!r} must be 0, 1, or -1 for not known.")
    return int(text)


# -- Where everything is ---------------------------------------------------------------------------


def _files_of(spec: str) -> dict[str, list[str]]:
    """The files of boxes, by split."""
    if spec.lower().endswith(".csv") and stores.is_file(spec):
        return {"": [spec]}
    if not stores.is_folder(spec):
        return {}
    files: dict[str, list[str]] = {}
    for pattern in FORMAT.signs or ():
        for path in folders.matching(spec, pattern):
            folder = os.path.dirname(path)
            name = os.path.basename(path).removesuffix(_BOXES).strip("-")
            if path.endswith(_OF_FIFTYONE):
                name = os.path.dirname(folder).removeprefix(spec).strip("/")
            files.setdefault(name.split("-")[-1], []).append(path)
    return files


def _has_boxes(path: str) -> bool:
    """Whether its first line names the columns of Open Images' boxes."""
    start = stores.look(path, 1 << 12).decode("utf-8-sig", "replace")
    head = start.partition("\n")[0].strip().split(",")
    return {"ImageID", "LabelName", *_CORNERS} <= set(head)


def _of_split(spec: str, split: str | None) -> str:
    files = _files_of(spec)
    if split is None and len(files) == 1:
        return _only(next(iter(files.values())))
    if list(files) == [""]:
        raise ConfigurationError(f"split={split!r}: {spec} has one file; leave split out.")
    named = split_named(files, split or "")
    if named is None:
        error = SourceError if split is None else ConfigurationError
        first = split_named(files, "train") or next(iter(files))
        raise error(f"{spec}: has annotations of {', '.join(files)}; say which: split={first!r}.")
    return _only(files[named])


def _only(paths: list[str]) -> str:
    """The one file of a split."""
    if len(paths) > 1:
        raise SourceError(
            f"{' and '.join(paths)} are of one split; remove one of them, or give the file in the "
            "place of the folder."
        )
    return paths[0]


def _split_of(path: str) -> str:
    """The split that the name of a file of boxes says."""
    return os.path.basename(path).lower().removesuffix(_BOXES).strip("-").split("-")[-1]


def _around(path: str) -> list[str]:
    """The folder of the file, and the one above."""
    folder = os.path.dirname(path)
    return [folder, stores.parent_of(folder)]


def _places(path: str) -> str:
    return " or ".join(_folders(path)) or " and ".join(_around(path))


def _folders(path: str) -> list[str]:
    """The folders that its images may be in: that of the split, `data` of FiftyOne, `images`."""
    split = _split_of(path)
    names = {split, split_of(split) or split}
    paths = []
    for folder in _around(path):
        there = folders.subfolders(folder) if stores.is_folder(folder) else []
        of_split = [n for n in there if n in names or split_of(n) in names]
        wanted = [*of_split, *(os.path.join("images", n) for n in sorted(names)), "data", "images"]
        paths += [os.path.join(folder, name) for name in wanted]
    return [place for place in dict.fromkeys(paths) if stores.is_folder(place)]


def _images(path: str) -> dict[str, str]:
    """The images of the first such folder that has any, by id."""
    for folder in [*_folders(path), os.path.dirname(path)]:
        images: dict[str, str] = {}
        for name in folders.images_below(folder, ""):
            own = os.path.splitext(os.path.basename(name))[0]
            other = images.setdefault(own, os.path.join(folder, name))
            if other != os.path.join(folder, name):
                raise SourceError(
                    f"{other}: has the id of {os.path.join(folder, name)}; remove one of them."
                )
        if images:
            return images
    raise SourceError(
        f"{path}: there are no images in {_places(path)}; put them into a folder "
        f"{_split_of(path) or 'images'!r} beside it."
    )


def _names(path: str) -> dict[str, str]:
    """The names of the classes by their ids, in the order of the file."""
    places = _around(path)
    places += [os.path.join(place, name) for place in places for name in ("metadata", "boxes")]
    files = [
        file for place in places for name in _CLASSES for file in folders.matching(place, name)
    ]
    if not files:
        raise SourceError(
            f"{path}: there are no names of classes beside it; add "
            "class-descriptions-boxable.csv, with lines such as /m/011k07,Tortoise."
        )
    names: dict[str, str] = {}
    try:
        with open_text(files[0]) as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{files[0]}: cannot be read ({error}).") from None
    for number, row in enumerate(rows, 1):
        if not row:
            continue
        if len(row) != 2:
            raise SourceError(
                f"{files[0]}: line {number} must be an id and a name, got {','.join(row)[:80]!r}."
            )
        if row[0] == "LabelName":  # the first line of newer files
            continue
        if row[0] in names:
            raise SourceError(f"{files[0]}: line {number}: the id {row[0]!r} is there twice.")
        names[row[0]] = row[1]
    return names


FORMAT = Format(
    name="openimages",
    title="images and Open Images annotations",
    recognise=is_open_images,
    open=open_open_images,
    options=("split",),
    remote=True,
    signs=(
        *("*annotations-bbox.csv", "*/*annotations-bbox.csv"),
        *("labels/detections.csv", "*/labels/detections.csv"),
    ),
    files=("*.csv",),
    packages=(),
    fallback=True,
    certain=is_open_images,
)
