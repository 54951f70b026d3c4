"""Objects in images as YOLO's folders have them: a line for each object, in fractions of the image.

    data.yaml                          obj.data, obj.names              classes.txt
    images/train/1.jpg                 train.txt: obj/1.jpg             images/1.jpg
    labels/train/1.txt: 0 .5 .5 .2 .1  obj/1.jpg, obj/1.txt             labels/1.txt

The names of the classes are in `data.yaml`, in the file that darknet's `obj.data` names, or in
`classes.txt`; a split is a folder of images, or a list of them (`train.txt`).

Gives `image`, `boxes`, `labels`, and `polygons` or `keypoints` where lines have them.
"""

from __future__ import annotations

import codecs
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from fastload.sources.image_files import is_image_name
from fastload.sources.keypoints import Pairs
from fastload.sources.names import SPLITS, split_named, split_of
from fastload.sources.sizes import upright_sizes
from fastload.sources.texts import text_of_file
from fastload.stores.contents import contents, parts

_YAML = ("data.yaml", "data.yml", "dataset.yaml")
_DARKNET = "obj.data"
_CLASSES = "classes.txt"
_SPLITS = tuple(SPLITS)
_BOX, _LEAST_CORNERS = 4, 3
_MARGIN = 1e-3
"""Fractions may be outside of 0 to 1 by this, from rounding."""
_LINE = re.compile(rb"\d{1,5}( (0|1|0?\.\d+|[01]\.\d*)){4,}\s*")
"""A class number and four or more fractions."""
_NUMBERED = re.compile(r"\d+[\s:,]+\S")
_LOOKED_AT = 1 << 16
_LOOKED_INTO = 16
"""Files of labels, of which one must have objects: images without any have files, too."""
_LARGEST = 1 << 26
"""Bytes of a file; the outlines of thousands of objects are below that."""


@dataclass(frozen=True)
class _Said:
    """What the files of a data set say of it."""

    file: str
    """The one that says where the images are; for messages."""
    names_file: str
    """The one that the names are from."""
    names: tuple[str, ...]
    splits: Mapping[str, tuple[str, ...]]
    """Folders of images, and lists of them, as they are written; "" for a data set without
    splits."""
    starts: tuple[str, ...]
    """The folders that these are relative to, the likeliest first."""
    needless: str = ""
    """What paths may begin with though it is the folder of the file that is meant."""
    point_shape: tuple[int, int] | None = None
    """Keypoints of an object, and numbers of each."""
    point_pairs: Pairs | None = None


# -- What says what is there -----------------------------------------------------------------------


def is_yolo(spec: object) -> bool:
    """A folder with `data.yaml` or darknet's `obj.data` in it, or such a file; or a folder with
    `classes.txt` and labels in fractions."""
    return isinstance(spec, str) and _reader(spec) is not None


def _reader(spec: str) -> tuple[Callable[[str], _Said], str] | None:
    """What reads what a data set says of itself, and the path that it takes."""
    if spec.lower().endswith((".yaml", ".yml")):
        return (_of_yaml, spec) if stores.is_file(spec) else None
    if spec.lower().endswith(".data") and stores.is_file(spec):
        return (_of_darknet, spec) if _is_darknet(spec) else None
    if not stores.is_folder(spec):
        return None
    for name in _YAML:
        if stores.is_file(path := os.path.join(spec, name)):
            return _of_yaml, path
    path = os.path.join(spec, _DARKNET)
    if stores.is_file(path) and _is_darknet(path):
        return _of_darknet, path
    if _names_in(spec) is not None and any(
        looks_like_yolo(path) for path in _first_labels(spec, _splits_in(spec))
    ):
        return _of_classes, spec
    return None


def has_yolo_labels(spec: str) -> bool:
    """Whether there are files of labels where a YOLO folder has them."""
    reader = _reader(spec)
    if reader is None or reader[0] is not _of_yaml:
        return reader is not None
    root = os.path.dirname(reader[1])
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


def _of_yaml(path: str) -> _Said:
    data = _yaml(path)
    given = data.get("names")
    if isinstance(given, dict) and set(given) != set(range(len(given))):
        raise SourceError(
            f"{path}: names must count from 0 without gaps, got {list(given)[:8]}; number them so."
        )
    names = [given[key] for key in sorted(given)] if isinstance(given, dict) else given
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
    own = os.path.dirname(path)
    shape = _point_shape(path, data)
    return _Said(
        file=path,
        names_file=path,
        names=tuple(map(str, names)),
        splits={name: given for name in _SPLITS if (given := _places_said(data.get(name)))},
        starts=(os.path.join(own, str(data.get("path") or "")), own),
        # Roboflow writes ../train/images beside a data.yaml that lies in the folder itself.
        needless="../",
        point_shape=shape,
        point_pairs=None if shape is None else _point_pairs(path, data, shape[0]),
    )


def _places_said(given: Any) -> tuple[str, ...]:
    places = given if isinstance(given, list) else [given]
    return tuple(places) if all(isinstance(place, str) and place for place in places) else ()


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


def _point_shape(path: str, data: Mapping[str, Any]) -> tuple[int, int] | None:
    if "kpt_shape" not in data:
        return None
    given = data["kpt_shape"]
    whole = isinstance(given, list) and [type(number) for number in given] == [int, int]
    if not whole or given[0] < 1 or given[1] not in (2, 3):
        raise SourceError(
            f"{path}: kpt_shape must be how many keypoints an object has, and 2 (x, y) or 3 (with "
            f"visibility), such as [17, 3]; got {given!r}."
        )
    return given[0], given[1]


def _point_pairs(path: str, data: Mapping[str, Any], count: int) -> Pairs | None:
    """By `flip_idx`, which has for each point the one that takes its place in a mirrored picture;
    None where it is not given."""
    given = data.get("flip_idx")
    if given is None:
        return None
    order = list(enumerate(given)) if isinstance(given, list) else []
    back = {other: own for own, other in order if type(other) is int}
    if len(order) != count or any(back.get(own) != other for own, other in order):
        raise SourceError(
            f"{path}: flip_idx must have for each of {counted(count, 'keypoint')} the number of "
            f"the one that it changes places with, or its own; got {given!r}. Correct it, or leave "
            "it out and give keypoint_pairs."
        )
    return tuple((own, other) for own, other in order if own < other)


def _is_darknet(path: str) -> bool:
    lines = stores.look(path, _LOOKED_AT).removeprefix(codecs.BOM_UTF8).splitlines()
    return {b"train", b"names"} <= {line.partition(b"=")[0].strip() for line in lines}


def _of_darknet(path: str) -> _Said:
    lines = [line.partition("=") for _, line in _text(path)]
    data = {key.strip(): value.strip() for key, _, value in lines}
    own = os.path.dirname(path)
    # Paths are relative to where darknet runs: mostly the folder above, with data/ for this one.
    splits = {name: (data[name],) for name in data if split_of(name) is not None and data[name]}
    said = _Said(path, path, (), splits, starts=(own, stores.parent_of(own)), needless="data/")
    places = _places(said, data["names"])
    names_file = next((place for place in places if stores.is_file(place)), None)
    if names_file is None:
        raise SourceError(
            f"{path}: the file of names is none of {', '.join(places) or 'this store'}; correct "
            "the path."
        )
    names = _names(names_file)
    if data.get("classes", str(len(names))) != str(len(names)):
        raise SourceError(
            f"{path}: classes is {data['classes']}, and {names_file} has {len(names)} names; "
            "correct it."
        )
    return replace(said, names_file=names_file, names=names)


def _of_classes(root: str) -> _Said:
    path = _names_in(root)
    assert path is not None, "_reader has found it"
    return _Said(path, path, _names(path), _splits_in(root), (root,))


def _names_in(root: str) -> str | None:
    """The file of names of a folder: in it, in `labels`, or in one of the folders of that."""
    own = os.path.join(root, "labels")
    places = [root, *([own] if stores.is_folder(own) else [])]
    places += [os.path.join(own, name) for name in (folders.subfolders(own) if places[1:] else ())]
    files = (os.path.join(place, _CLASSES) for place in places)
    return next((path for path in files if stores.is_file(path)), None)


def _names(path: str) -> tuple[str, ...]:
    """The names in a file with one in each line."""
    lines = _text(path)
    for wanted, (number, _) in enumerate(lines, 1):
        if number != wanted:
            raise SourceError(
                f"{path}: line {wanted} is empty, so that it is not known whether a class has no "
                "name; remove the line, or write the name."
            )
    names = tuple(line.strip() for _, line in lines)
    if not names:
        raise SourceError(f"{path}: has no names; write that of each class in a line of its own.")
    if all(map(_NUMBERED.match, names)):
        raise SourceError(
            f"{path}: each line begins with a number ({names[0]!r}); write the names alone, in the "
            "order of their numbers, that of class 0 first."
        )
    return names


def _splits_in(root: str) -> dict[str, tuple[str, ...]]:
    """The splits of a folder that no file tells of: lists of images in it; folders of splits in
    `images` or in it; or none."""
    files = folders.files_in(root)
    stems = {os.path.splitext(name)[0] for name in files if is_image_name(name)}
    texts = [name[:-4] for name in files if name.endswith(".txt") and split_of(name[:-4])]
    lists = [
        stem for stem in texts if stem not in stems and _is_list(os.path.join(root, f"{stem}.txt"))
    ]
    if lists:
        return {stem: (f"{stem}.txt",) for stem in lists}
    top = "images" if stores.is_folder(os.path.join(root, "images")) else ""
    inner = [name for name in folders.subfolders(os.path.join(root, top)) if split_of(name)]
    places = {name: os.path.join(top, name) for name in inner}
    for name, place in places.items():
        if not top and stores.is_folder(os.path.join(root, name, "images")):
            places[name] = os.path.join(place, "images")
    return {name: (place,) for name, place in places.items()} or {"": (top or ".",)}


def _is_list(path: str) -> bool:
    """Whether the first line of a text file is the name of an image."""
    line = stores.look(path, _LOOKED_AT).split(b"\n", 1)[0]
    return is_image_name(line.decode("utf-8-sig", "replace").strip())


def _first_labels(root: str, splits: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """Some files of labels of images in such a folder. No folders of images are looked through."""
    for (place,) in splits.values():
        path = stores.resolved(os.path.join(root, place))
        if stores.is_folder(path):
            here = _labels_folder(path) if stores.is_folder(_labels_folder(path)) else path
            inner = folders.subfolders(here) if here != path else []
            for folder in (here, *(os.path.join(here, name) for name in inner)):
                names = [name for name in folders.files_in(folder) if _is_labels(name)]
                yield from (os.path.join(folder, name) for name in names[:_LOOKED_INTO])
        else:
            images = [line.strip() for _, line in itertools.islice(_text(path), _LOOKED_INTO)]
            images = [stores.resolved(os.path.join(root, image)) for image in images]
            images = [
                image for image in images if stores.is_remote(image) == stores.is_remote(root)
            ]
            yield from filter(stores.is_file, _labels_of([image for image in images if image]))


# -- Which images there are ------------------------------------------------------------------------


def _leads(said: _Said, *more: str) -> list[tuple[str, str]]:
    """(a folder that paths may be relative to, what they begin with without need), the likeliest
    first; those of `more` before the others."""
    own = os.path.dirname(said.file)
    starts = dict.fromkeys((*more, *said.starts))
    # A file in a store leads to no file of this machine.
    as_given = [(start, "") for start in starts if stores.is_remote(start) == stores.is_remote(own)]
    return [*as_given, *([(own, said.needless)] if said.needless else [])]


def _led(lead: tuple[str, str], given: str) -> str:
    """Where a path that is written in a file leads; "" where a file in a store would lead out of
    it."""
    start, needless = lead
    place = os.path.join(start, given.removeprefix(needless))
    return stores.resolved(place) if stores.is_remote(place) == stores.is_remote(start) else ""


def _places(said: _Said, given: str, *more: str) -> list[str]:
    places = (_led(lead, given) for lead in _leads(said, *more))
    return [place for place in dict.fromkeys(places) if place]


def _split_of(said: _Said, split: str | None) -> str:
    """Which of the splits is meant. Raises ConfigurationError: there is none such."""
    if "" in said.splits:
        if split is not None:
            raise ConfigurationError(
                f"split={split!r}: the images that {said.file} is of are in one folder; leave "
                "split out."
            )
        return ""
    wanted = split or "train"
    name = split_named(list(said.splits), wanted)
    if name is None:
        there = ", ".join(said.splits) or "none"
        raise ConfigurationError(
            f"{said.file}: names no images for {wanted!r} (it has {there}); give a folder of them, "
            "or a file with a list."
        )
    return name


def _images(said: _Said, split: str) -> tuple[str, list[str], list[str]]:
    """(a folder, the images of a split below it, those and all beside them)."""
    if stores.is_web(said.file):
        raise SourceError(
            f"{said.file}: names a folder of images, and a web server does not list what is in "
            "one; put the files into an object store, or download them."
        )
    places = [_place(said, given, split) for given in said.splits[split]]
    images: list[str] = []
    beside: list[str] = []
    for place in places:
        if stores.is_folder(place):
            listed = others = [
                os.path.join(place, name) for name in folders.images_below(place, "")
            ]
        else:
            listed, others = _listed(said, place)
        images, beside = [*images, *listed], [*beside, *others]
    if not images:
        raise SourceError(f"{places[0]}: no images, which {said.file} names for {split!r}.")
    image, times = Counter(images).most_common(1)[0]
    if times > 1:
        raise SourceError(
            f"{', '.join(places)}: {image} is named {times} times; name it once. (What is to come "
            "more often is drawn so by a sampler with weights.)"
        )
    if len(places) == 1 and stores.is_folder(places[0]):
        return places[0], images, beside
    top = stores.top_of(said.file)
    common = os.path.commonpath([f"/{os.path.dirname(path[len(top) :])}" for path in images])
    return stores.resolved(f"{top}{common}"), images, beside


def _place(said: _Said, given: str, split: str) -> str:
    """The folder or list that a file means."""
    places = _places(said, given)
    for place in places:
        if stores.is_folder(place) or (place.endswith(".txt") and stores.is_file(place)):
            return place
    raise SourceError(
        f"{said.file}: the folder of {split!r} is none of {', '.join(places) or 'this store'}; "
        "correct the path (that of a list of images ends in .txt)."
    )


def _listed(said: _Said, path: str) -> tuple[list[str], list[str]]:
    """The images that a list names, in its order, and all in their folders."""
    lines = [(number, line.strip()) for number, line in _text(path)]
    if not lines:
        raise SourceError(f"{path}: names no images; write the path of one in each line.")
    # All are relative to what the first one is.
    own, first = os.path.dirname(path), lines[0][1]
    leads = _leads(said, own)
    lead = next((each for each in leads if stores.is_file(_led(each, first))), leads[0])
    images = [_led(lead, line) for _, line in lines]
    there: dict[str, None] = {}
    within = [*dict.fromkeys(os.path.dirname(image) for image in images if image)]
    stores.list_ahead([folder for folder in within if stores.is_remote(folder)])
    for folder in filter(stores.is_folder, within):
        names = filter(is_image_name, folders.files_in(folder))
        there |= dict.fromkeys(os.path.join(folder, name) for name in names)
    for (number, line), image in zip(lines, images, strict=True):
        if image not in there:
            tried = _places(said, line, own) if image == images[0] else [image]
            raise SourceError(
                f"{path}: line {number}: the image {line!r} is not at "
                f"{' or '.join(tried) or 'a place in this store'}; add it, or correct the list."
            )
    return images, [*there]


# -- Labels ----------------------------------------------------------------------------------------


def open_yolo(spec: str, options: OpenOptions) -> Opened:
    """Open the images of a split ("train" if none is named): columns `image`, `boxes`, `labels`,
    and `polygons` where lines have outlines in place of boxes, or `keypoints` where `kpt_shape` of
    `data.yaml` says that these come after the boxes; sorted by path, or as a list has them.

    The line "3 0.5 0.5 0.2 0.1" is an object of class 3 around the centre of the image; fractions
    become pixels by the size in the image's header. Images without a file of labels have no
    objects.

    Raises:
        SourceError: no names; no images; an image of a list that is not there, or comes twice; no
            file of labels at all; a line that is neither a box nor an outline, or has not as many
            numbers as `kpt_shape` says; a class beyond the names; numbers outside of 0 to 1. The
            message names file and line.
        ConfigurationError: there is no such split.
        BackendUnavailableError: PyYAML is not installed.
    """
    reader = _reader(spec)
    assert reader is not None, "is_yolo said so"
    read, path = reader
    said = read(path)
    split = _split_of(said, options.split)
    folder, images, beside = _images(said, split)
    labels_of = dict(zip(images, _labels_of(images), strict=True))
    _check_labels(folder, labels_of, beside)
    annotations = Annotations(polygons=[], point_pairs=said.point_pairs)
    if said.point_shape is not None:
        annotations.numbers["keypoints"] = []
    outlined = labelled = False
    for some in parts(images):
        lines = _lines_of([labels_of[image] for image in some])
        filled = [image for image, each in zip(some, lines, strict=True) if each]
        sizes = upright_sizes(filled, [labels_of[image] for image in filled])
        size_of = dict(zip(filled, sizes, strict=True))
        for image, each in zip(some, lines, strict=True):
            before = len(annotations.boxes)
            labelled |= each is not None
            if each:
                outlined |= _add(each, size_of[image], labels_of[image], annotations, said)
            annotations.counts.append(len(annotations.boxes) - before)
    if not labelled:
        example = os.path.join(_labels_folder(os.path.dirname(images[0])), _text_of(images[0]))
        raise SourceError(
            f"{folder}: none of {counted(len(images), 'image')} has a file of labels (the first "
            f"would be {example}); put them there. Class folders are opened with "
            f"format='folder'{f', split={split!r}' if split else ''}."
        )
    if not outlined:
        annotations.polygons = None
    if not annotations.boxes:
        annotations.numbers.clear()  # no rows say of which shape they are
    notes = (f"the split {split!r}, as none was named",)
    return annotations.source(
        [image[len(folder) :].lstrip("/") for image in images],
        folder,
        name=f"{said.file} ({split})" if split else said.file,
        format="YOLO folder",
        classes=said.names,
        notes=notes if split and not options.split else (),
        strict=options.strict,
    )


def _text(path: str) -> list[tuple[int, str]]:
    return _lines_of([path])[0] or []


def _lines_of(files: Sequence[str]) -> list[list[tuple[int, str]] | None]:
    """The lines of text files that have anything in them, each after its number; None for files
    that are not there."""
    lines_of_files: list[list[tuple[int, str]] | None] = []
    for path, data in zip(files, contents(files, _LARGEST), strict=True):
        lines = [] if data is None else enumerate(text_of_file(path, data).splitlines(), 1)
        lines_of_files.append(None if data is None else [each for each in lines if each[1].strip()])
    return lines_of_files


def _add(
    lines: list[tuple[int, str]],
    size: tuple[int, int],
    labels: str,
    annotations: Annotations,
    said: _Said,
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
        if not 0 <= own < len(said.names):
            raise SourceError(
                f"{where}: class {own}, and there are {counted(len(said.names), 'name')} in "
                f"{said.names_file}, from 0; add the name or correct the line."
            )
        points = None
        if said.point_shape is not None:
            values, points = _points(values, said.point_shape, where)
        fractions = values if points is None else np.append(values, points[:, :2])
        if not (
            np.isfinite(fractions) & (fractions >= -_MARGIN) & (fractions <= 1 + _MARGIN)
        ).all():
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
            annotations.empty += 1
            continue
        annotations.boxes.append(checked)
        annotations.labels.append(own)
        assert annotations.polygons is not None
        annotations.polygons.append(outline)
        if points is not None:
            points[:, :2] *= (width, height)
            annotations.numbers["keypoints"].append(points)
    return outlined


def _points(values: Any, shape: tuple[int, int], where: str) -> tuple[Any, Any]:
    """(the numbers of the box, the keypoints after it). A visibility is 0, 1 or 2, as COCO's."""
    count, each = shape
    if len(values) != _BOX + count * each:
        raise SourceError(
            f"{where}: after the class must come 4 numbers of a box and {each} of each of "
            f"{counted(count, 'keypoint')}, as kpt_shape says; got {len(values)} numbers."
        )
    points = values[_BOX:].reshape(shape)
    if not np.isin(points[:, 2:], (0, 1, 2)).all():
        raise SourceError(
            f"{where}: the visibility of each keypoint must be 0, 1 or 2; got "
            f"{points[:, 2].tolist()}."
        )
    return values[:_BOX], points


def _check_labels(folder: str, labels_of: Mapping[str, str], beside: Sequence[str]) -> None:
    """Raise SourceError if there are labels of images that are not there, or of two.

    `beside`: all images in the folders of those, which a list may leave out.
    """
    expected: dict[str, str] = {}
    for image, labels in labels_of.items():
        other = expected.setdefault(labels, image)
        if other != image:
            raise SourceError(
                f"{labels}: are the labels of {other} and of {image}; rename one of them."
            )
    all_expected = {*expected, *(_labels_of(beside) if len(beside) > len(labels_of) else ())}
    own = {os.path.dirname(image) for image in labels_of}
    places = sorted({os.path.dirname(labels) for labels in expected} - own)
    stores.list_ahead(places)
    for place in places:
        names = folders.files_in(place) if stores.is_folder(place) else ()
        paths = [os.path.join(place, name) for name in names if _is_labels(name)]
        alone = [path for path in paths if path not in all_expected]
        if alone:
            raise SourceError(
                f"{alone[0]}: the image of these labels is missing in {folder}{and_more(alone)}; "
                "add it, or remove the labels."
            )


def _is_labels(name: str) -> bool:
    return name.lower().endswith(".txt") and name != _CLASSES


def _labels_of(images: Sequence[str]) -> list[str]:
    """The file of labels of each image: images/train/a.jpg -> labels/train/a.txt; beside it where
    there is no such folder."""
    within = [*dict.fromkeys(map(os.path.dirname, images))]
    moved = {folder: _labels_folder(folder) for folder in within}
    others = [place for folder, place in moved.items() if place != folder]
    stores.list_ahead([stores.parent_of(place) for place in others if stores.is_remote(place)])
    missing = {place for place in others if not stores.is_folder(place)}
    place_of = {folder: folder if place in missing else place for folder, place in moved.items()}
    return [os.path.join(place_of[os.path.dirname(path)], _text_of(path)) for path in images]


def _text_of(image: str) -> str:
    return f"{os.path.splitext(os.path.basename(image))[0]}.txt"


def _labels_folder(folder: str) -> str:
    """images/train -> labels/train. A bucket keeps its name."""
    top = stores.top_of(folder)
    head, mark, tail = f"/{folder[len(top) :]}/".rpartition("/images/")
    return f"{top}{f'{head}/labels/{tail}'[1:].rstrip('/')}" if mark else folder


FORMAT = Format(
    name="yolo",
    title="images and YOLO labels",
    recognise=is_yolo,
    open=open_yolo,
    options=("split",),
    remote=True,
    signs=(
        *("data.yaml", "data.yml", "dataset.yaml", "obj.data"),
        *("classes.txt", "labels/classes.txt", "labels/*/classes.txt"),
    ),
    files=("*.yaml", "*.yml", "*.data"),
    packages=(),
    parts=("images", "labels"),
    fallback=True,
    certain=has_yolo_labels,
    annotates=looks_like_yolo,
    documents=(".txt",),
)
