"""Objects in images as YOLO's folders have them: `data.yaml`, `images/train/*.jpg` and
`labels/train/*.txt` with a line for each object, in fractions of the image."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastload import stores
from fastload.errors import (
    BackendUnavailableError,
    ConfigurationError,
    SourceError,
    and_more,
    counted,
)
from fastload.sources import folders
from fastload.sources.annotations import Annotations, checked_box
from fastload.sources.base import Opened, OpenOptions
from fastload.sources.formats import Format
from fastload.sources.names import SPLITS, split_named, split_of
from fastload.sources.sizes import upright_sizes
from fastload.stores.contents import contents, parts

_FILES = ("data.yaml", "data.yml", "dataset.yaml")
_SPLITS = tuple(SPLITS)
_BOX, _LEAST_CORNERS = 4, 3
_MARGIN = 1e-3
"""Fractions may be outside of 0 to 1 by this, from rounding."""
_LINE = re.compile(rb"\d{1,5}( (0|1|0?\.\d+|[01]\.\d*)){4,}\s*")
"""A class number and four or more fractions."""
_LOOKED_AT = 1 << 16
_LARGEST = 1 << 26
"""Bytes of a file; the outlines of thousands of objects are below that."""


def is_yolo(spec: object) -> bool:
    """A folder with `data.yaml` in it, or such a file."""
    return isinstance(spec, str) and _file(spec) is not None


def has_yolo_labels(spec: str) -> bool:
    """Whether there are files of labels where a YOLO folder has them."""
    root = os.path.dirname(_file(spec) or "")
    own = os.path.join(root, "labels")
    places = [own] if stores.is_folder(own) else []
    places += [os.path.join(place, name) for place in places for name in folders.subfolders(place)]
    for name in folders.subfolders(root):
        # In a store each is a request.
        if not stores.is_remote(root) or split_of(name) is not None:
            place = os.path.join(root, name, "labels")
            places += [place] if stores.is_folder(place) else []
    return any(name.endswith(".txt") for place in places for name in folders.files_in(place))


def looks_like_yolo(path: str) -> bool:
    """Whether the first line of a text file is an object."""
    line = stores.look(path, _LOOKED_AT).split(b"\n", 1)[0]
    return b"." in line and _LINE.fullmatch(line) is not None


def open_yolo(spec: str, options: OpenOptions) -> Opened:
    """Open the images of a split ("train" if none is named): columns `image`, `boxes`, `labels`,
    and `polygons` where lines have outlines in place of boxes; sorted by path.

    The line "3 0.5 0.5 0.2 0.1" is an object of class 3 around the centre of the image; fractions
    become pixels by the size in the image's header. Images without a file of labels have no
    objects.

    Raises:
        SourceError: `data.yaml` without names or that split, or with keypoints; no file of labels
            at all; a line that is neither a box nor an outline; a class beyond the names; numbers
            outside of 0 to 1. The message names file and line.
        BackendUnavailableError: PyYAML is not installed.
    """
    path = _file(spec)
    assert path is not None, "is_yolo said so"
    data = _yaml(path)
    given = data.get("names")
    if isinstance(given, dict) and set(given) != set(range(len(given))):
        raise SourceError(
            f"{path}: names must count from 0 without gaps, got {list(given)[:8]}; number them so."
        )
    names = [str(given[key]) for key in sorted(given)] if isinstance(given, dict) else given
    if not isinstance(names, list) or not names:
        raise SourceError(f"{path}: has no names; list those of the classes: names: [cat, dog].")
    odd = next((name for name in names if type(name) not in (str, int)), None)
    if odd is not None or None in names:
        raise SourceError(
            f"{path}: YAML reads one of names as {odd!r}, which is no word (it takes yes, no, on, "
            'off for true and false); put it into quotes: names: ["no", "yes"].'
        )
    if data.get("nc", len(names)) != len(names):
        raise SourceError(
            f"{path}: nc is {data['nc']}, and there are {len(names)} names; correct it."
        )
    if "kpt_shape" in data:
        # A line is box and points, of which some lengths are those of an outline.
        raise SourceError(
            f"{path}: kpt_shape says that lines have keypoints after their box, which are not "
            "read; write them as COCO's person_keypoints_*.json, or leave kpt_shape and the "
            "numbers after the boxes out."
        )
    split = options.split or "train"
    folder = _folder(path, data, split)
    files = list(folders.images_below(folder, ""))
    if not files:
        raise SourceError(f"{folder}: no images, which {path} names for {split!r}.")
    found = Annotations(polygons=[])
    outlined = labelled = False
    _check_labels(folder, files)
    for some in parts([os.path.join(folder, name) for name in files]):
        lines = _lines_of([_labels_of(image) for image in some])
        filled = [image for image, each in zip(some, lines, strict=True) if each]
        sizes = upright_sizes(filled, [_labels_of(image) for image in filled])
        size_of = dict(zip(filled, sizes, strict=True))
        for image, each in zip(some, lines, strict=True):
            before = len(found.boxes)
            labelled |= each is not None
            if each:
                outlined |= _add(each, size_of[image], _labels_of(image), found, len(names))
            found.counts.append(len(found.boxes) - before)
    if not labelled:
        raise SourceError(
            f"{folder}: none of {counted(len(files), 'image')} has a file of labels (the first "
            f"would be {_labels_of(os.path.join(folder, files[0]))}); put them there. Class "
            f"folders are opened with format='folder', split={split!r}."
        )
    if not outlined:
        found.polygons = None
    notes = () if options.split else (f"the split {split!r}, as none was named",)
    return found.source(
        files,
        folder,
        name=f"{path} ({split})",
        format="YOLO folder",
        classes=[str(name) for name in names],
        notes=notes,
        strict=options.strict,
    )


def _lines_of(files: Sequence[str]) -> list[list[tuple[int, str]] | None]:
    """The lines of files of labels that have anything in them, each after its number; None for
    files that are not there."""
    found: list[list[tuple[int, str]] | None] = []
    for path, data in zip(files, contents(files, _LARGEST), strict=True):
        try:
            lines = None if data is None else data.decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise SourceError(f"{path}: is no UTF-8 ({error}); save it as such.") from None
        numbered = None if lines is None else enumerate(lines, 1)
        found.append(None if numbered is None else [each for each in numbered if each[1].strip()])
    return found


def _add(
    lines: list[tuple[int, str]],
    size: tuple[int, int],
    labels: str,
    found: Annotations,
    classes: int,
) -> bool:
    """Add the objects of an image of a size (height, width), by the lines of its file `labels`;
    returns whether any is given by its outline."""
    height, width = size
    outlined = False
    for number, line in lines:
        where = f"{labels}: line {number}"
        try:
            label, *numbers = line.split()
            values = np.array([float(value) for value in numbers])
            own = int(float(label))  # 3.000000, as numpy.savetxt writes it
            if own != float(label):
                raise ValueError
        except (ValueError, OverflowError):
            raise SourceError(
                f"{where}: must be a whole number for the class, and fractions with a decimal "
                f"point, with spaces between; got {line[:80]!r}."
            ) from None
        if not 0 <= own < classes:
            raise SourceError(
                f"{where}: class {own}, and there are {counted(classes, 'name')} in data.yaml, "
                "from 0; add the name or correct the line."
            )
        if not (np.isfinite(values) & (values >= -_MARGIN) & (values <= 1 + _MARGIN)).all():
            raise SourceError(
                f"{where}: {line[:80]!r} has numbers that are no fractions from 0 to 1; divide "
                "pixels by the width or height of the image."
            )
        outline: list[Any] = []
        if len(values) == _BOX:
            x, y, w, h = values.tolist()
            box = (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
        elif len(values) >= 2 * _LEAST_CORNERS and len(values) % 2 == 0:
            corners = values.reshape(-1, 2)
            outline, outlined = [corners * (width, height)], True
            box = (*corners.min(axis=0).tolist(), *corners.max(axis=0).tolist())
        else:
            raise SourceError(
                f"{where}: after the class must come 4 numbers of a box, or x and y of at least "
                f"three corners; got {len(values)} numbers."
            )
        left, top, right, bottom = box
        pixels = (left * width, top * height, right * width, bottom * height)
        checked = checked_box(pixels, (height, width), where)
        if checked is None:
            found.empty += 1
            continue
        found.boxes.append(checked)
        found.labels.append(own)
        assert found.polygons is not None
        found.polygons.append(outline)
    return outlined


def _file(spec: str) -> str | None:
    if spec.lower().endswith((".yaml", ".yml")):
        return spec if stores.is_file(spec) else None
    found = (os.path.join(spec, name) for name in _FILES if stores.is_folder(spec))
    return next((path for path in found if stores.is_file(path)), None)


def _yaml(path: str) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise BackendUnavailableError(
            f"{path}: YAML files are read by PyYAML, which is not installed: pip install pyyaml"
        ) from error
    try:
        data = yaml.safe_load(contents([path], _LARGEST)[0] or b"")
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: cannot be read as YAML ({error}).") from None
    if not isinstance(data, dict):
        raise SourceError(f"{path}: must have names, train and val; got {type(data).__name__}.")
    return data


def _folder(path: str, data: dict[str, Any], split: str) -> str:
    split_there = split_named([name for name in data if name in _SPLITS], split)
    given = data.get(split_there or split)
    if not isinstance(given, str):
        there = ", ".join(name for name in _SPLITS if isinstance(data.get(name), str)) or "none"
        raise ConfigurationError(
            f"{path}: names no folder of images for {split!r} (it has {there}); lists of folders "
            "and of files are not read: give one folder."
        )
    own = os.path.dirname(path)
    base = os.path.join(own, str(data.get("path") or ""))
    # Roboflow writes ../train/images beside a data.yaml that lies in the folder itself.
    places = [os.path.join(start, given) for start in (base, own)]
    places += [os.path.join(own, given.removeprefix("../"))]
    if stores.is_web(path):
        raise SourceError(
            f"{path}: names a folder of images, and a web server does not list what is in one; "
            "put the files into an object store, or download them."
        )
    if stores.is_remote(path):  # a file in a store leads to no file of this machine
        places = [place for place in places if stores.is_remote(place)]
    places = [place for place in dict.fromkeys(map(stores.resolved, places)) if place]
    for place in places:
        if stores.is_folder(place):
            return place
    raise SourceError(
        f"{path}: the folder of {split!r} is none of {', '.join(places) or 'this store'}; correct "
        "the path (a file with a list of images is not read)."
    )


def _check_labels(folder: str, files: list[str]) -> None:
    """Raise SourceError if there are labels of images that are not there, or of two."""
    images = [os.path.join(folder, name) for name in files]
    expected: dict[str, str] = {}
    for image in images:
        other = expected.setdefault(_labels_of(image), image)
        if other != image:
            raise SourceError(
                f"{_labels_of(image)}: are the labels of {other} and of {image}; rename one of "
                "them."
            )
    beside = {os.path.dirname(image) for image in images}
    places = sorted({os.path.dirname(labels) for labels in expected} - beside)
    stores.list_ahead([stores.parent_of(place) for place in places])
    places = [place for place in places if stores.is_folder(place)]
    stores.list_ahead(places)
    for place in places:
        names = [name for name in folders.files_in(place) if name.lower().endswith(".txt")]
        paths = [os.path.join(place, name) for name in names if name != "classes.txt"]
        alone = [path for path in paths if path not in expected]
        if alone:
            raise SourceError(
                f"{alone[0]}: the image of these labels is missing in {folder}{and_more(alone)}; "
                "add it, or remove the labels."
            )


def _labels_of(image: str) -> str:
    """images/train/a.jpg -> labels/train/a.txt. A bucket keeps its name."""
    top = stores.top_of(image)
    name = image[len(top) :]
    head, mark, tail = f"/{name}".rpartition("/images/")
    place = f"{head}/labels/{tail}"[1:] if mark else name
    return f"{top}{os.path.splitext(place)[0]}.txt"


FORMAT = Format(
    name="yolo",
    title="a YOLO folder with data.yaml",
    recognise=is_yolo,
    open=open_yolo,
    options=("split",),
    remote=True,
    signs=("data.yaml", "data.yml", "dataset.yaml"),
    files=("*.yaml", "*.yml"),
    packages=(),
    parts=("images", "labels"),
    fallback=True,
    certain=has_yolo_labels,
    annotates=looks_like_yolo,
    documents=(".txt",),
)
