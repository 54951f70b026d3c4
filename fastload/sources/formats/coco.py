"""Objects in images as COCO lists them: `annotations/instances_train2017.json` beside `train2017/`,
or one JSON file.

    coco/                                    or the file of each split in it:
    ├── annotations/                         data/
    │   ├── instances_train2017.json         ├── train/
    │   └── instances_val2017.json           │   ├── _annotations.coco.json
    ├── train2017/                           │   └── 0001.jpg
    │   └── 000000000009.jpg                 └── valid/
    └── val2017/

Gives `image`, `boxes`, `labels`, `area`, `iscrowd`, `ids` and `image_id`, and `polygons` and
`keypoints` where any object has them; with `masks=True` a mask of each object.

Keypoints (`person_keypoints_*.json`) and outlines come along where the file has them; which points
change places in a mirrored picture, their names in `categories` say ("left_eye"). Image and
annotation ids are those of the file; labels count from 0 in the order of the category ids, which
may have gaps: `source.details["category_ids"]` has the id of each label. They are those of the
training split's file where another one of the same folder is opened.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from fastload import stores
from fastload.errors import SourceError, and_more, counted
from fastload.known_code import is_as_defined
from fastload.sources import folders
from fastload.sources.annotation_json import (
    FOLDER,
    KINDS,
    OTHER_KINDS,
    Id,
    ImageId,
    ends_of,
    file_of_split,
    image_id,
    image_root,
    is_of_segments,
    looks_like_panoptic,
    missing_files,
    names_of_categories,
    once_each,
    positions,
    read_document,
    refuse_other_things,
    relative_names,
)
from fastload.sources.annotations import Annotations, checked_box
from fastload.sources.base import Opened, OpenOptions
from fastload.sources.formats import Format
from fastload.sources.keypoints import COCO_PERSON, Pairs, pairs_of_names
from fastload.sources.masks import LEAST_CORNERS, Shapes
from fastload.sources.names import SPLITS, split_of

_BESIDE_IMAGES = "_annotations.coco.json"
"""In each split's folder of images, as Roboflow exports them."""
_IN_ROOT = (
    *("annotations.json", "instances.json", "labels.json", "result.json"),
    *("lvis_v1_train.json", "lvis_v1_val.json"),
    *(f"{word}.json" for words in SPLITS.values() for word in words),
)
"""What other programs call a file that lies beside the folders of images."""
_PARTS = (b'"images"', b'"annotations"', b'"categories"')
_OBJECT = (b'"annotations"', b'"image_id"', b'"category_id"', b'"bbox"')
_LVIS_IMAGE = (b'"images"', b'"coco_url"', b'"neg_category_ids"')
"""Of COCO's first object, and of LVIS's first image: the categories of LVIS, all 400 KB of them,
come last."""
_LOOKED_AT = 1 << 16
"""Bytes at the beginning of a file, where its first image is looked for."""
_FILE_NAME = re.compile(rb'"file_name"\s*:\s*("(?:[^"\\]|\\.)*")')


class _Image(msgspec.Struct):
    id: ImageId
    file_name: str = ""
    height: int | None = None
    width: int | None = None
    coco_url: str = ""
    """LVIS has no file names; its images are COCO's, of which this ends in "train2017/5.jpg"."""
    not_exhaustive_category_ids: list[int] | None = None
    neg_category_ids: list[int] | None = None

    @property
    def name(self) -> str:
        return self.file_name or "/".join(self.coco_url.split("/")[-2:])


class _Category(msgspec.Struct):
    id: Id
    name: str
    keypoints: list[str] | None = None
    """The names of the points, such as "left_eye"."""


class _Annotation(msgspec.Struct):
    image_id: ImageId
    category_id: Id
    bbox: list[float]
    id: Id | None = None
    area: float | None = None
    iscrowd: Id | bool = 0
    segmentation: Any = None
    keypoints: list[float] | None = None


class _Document(msgspec.Struct):
    images: list[_Image]
    annotations: list[_Annotation]
    categories: list[_Category]


def is_coco(spec: object) -> bool:
    """A JSON file that begins as COCO's, or a folder with such files in `annotations/` or beside
    its images."""
    if not isinstance(spec, str):
        return False
    if spec.lower().endswith(".json"):
        return stores.is_file(spec) and looks_like_coco(spec) and not looks_like_panoptic(spec)
    return bool(_files_of(spec))


def has_coco_content(spec: str) -> bool:
    """Whether what `is_coco` recognises by names has an annotation file of COCO's form, and the
    first image that it lists is there."""
    files = [spec] if spec.lower().endswith(".json") else _files_of(spec).values()
    return any(looks_like_coco(path) and _has_first_image(path) for path in files)


def looks_like_coco(path: str) -> bool:
    """Whether a file has the names of COCO's parts, or of one and what is in it, in its first and
    last 64 KiB."""
    text = ends_of(path)
    if text.lstrip()[:1] != b"{":
        return False
    parts = sum(name in text for name in _PARTS)
    return parts >= 2 or any(
        all(name in text for name in names) for names in (_OBJECT, _LVIS_IMAGE)
    )


def _first_image_of(path: str) -> str | None:
    """The first file name in COCO's JSON; None where none comes early."""
    match = _FILE_NAME.search(stores.look(path, _LOOKED_AT))
    try:
        return None if match is None else str(json.loads(match[1]))
    except ValueError:
        return None


def _has_first_image(path: str) -> bool:
    name = _first_image_of(path)
    try:
        return name is None or bool(image_root(path, name))
    except SourceError:
        return False


def refuse_other_annotations(url: str) -> list[str]:
    """No file is copied; raises SourceError for a URL whose annotations are of other things than
    objects, as another format would serve the images without them."""
    folder = f"{url}/{FOLDER}"
    if stores.is_folder(url) and stores.is_folder(folder) and not is_coco(url):
        names = [name for name, _ in stores.entries(folder) if name.endswith(".json")]
        if names and not any(map(is_of_segments, names)):
            refuse_other_things(url)
    return []


def open_coco(spec: str, options: OpenOptions) -> Opened:
    """Open annotated images: columns `image`, `boxes`, `labels`, `area`, `iscrowd`, `ids`,
    `image_id`, and `polygons` and `keypoints` where any annotation has them. With `masks`, these
    are drawn from polygons and run lengths (RLE), and take the place of `polygons`.

    Samples are in the order of the file; images without annotations are samples without objects.
    Where ids of images are words, `image_id` is a column of texts.
    Of LVIS, whose images have no `file_name` but COCO's address, `neg_labels` and
    `not_exhaustive_labels` are the classes of which there is none in an image, or not all marked.
    Crowds are kept, `iscrowd` says so; their outlines (RLE) are no polygons, which stay empty.
    Boxes without area are left out, and counted.

    Raises:
        SourceError: no such split; ids or files of images twice; a category that the training split
            has not; an annotation of an image or a category that is not listed; a box that is
            reversed, not finite or outside of its image; a polygon of less than three corners; with
            `masks`, run lengths that are not those of the image; a file that is missing. The
            message names file and annotation.
    """
    is_file = spec.lower().endswith(".json")
    files = {"": spec} if is_file else _files_of(spec)
    path = file_of_split(spec, files, options.split)
    document = read_document(path, _Document)
    nameless = next((image.id for image in document.images if not image.name), None)
    if nameless is not None:
        raise SourceError(f"{path}: the image {nameless} has no file_name; add it.")
    once_each(path, [image.name for image in document.images])
    # Whose images have no names are LVIS's, and those COCO's: its folder may lie beside this one.
    lvis = any(not image.file_name for image in document.images)
    first = document.images[0].name if document.images else ""
    root = image_root(path, first, beside=("coco",) if lvis else ())
    names = names_of_categories(path, files, [(one.id, one.name) for one in document.categories])
    return _opened(
        path,
        document,
        root,
        {own: label for label, own in enumerate(names)},
        classes=list(names.values()),
        details={"category_ids": tuple(names)},
        strict=options.strict,
        masks=options.masks,
    )


def _of_torchvision(coco: Any, ids: Sequence[int], root: str) -> Opened:
    """Annotated images as pycocotools has them, for torchvision's data sets: the same columns as
    `open_coco`, with category ids as labels and without names of classes.

    Args:
        coco: a `pycocotools.coco.COCO`.
        ids: of the images, in the order of the samples.
        root: the folder of the images.

    Raises:
        SourceError: as `open_coco`; or a box has no area.
    """
    parts = {
        "images": [coco.imgs[own] for own in ids],
        "annotations": [one for own in ids for one in coco.imgToAnns.get(own, ())],
        "categories": list(coco.cats.values()),
    }
    try:
        document = msgspec.convert(parts, _Document)
    except msgspec.ValidationError as error:
        raise SourceError(
            f"{root}: its annotations are not what COCO's format has ({error})"
        ) from None
    labels = {category.id: category.id for category in document.categories}
    return _opened(root, document, root, labels, classes=None, strict=True)


def open_coco_detection(dataset: Any) -> Opened:
    """Open torchvision's `CocoDetection`, whose own code is as torchvision wrote it. Raises
    SourceError: that of pycocotools is not, or it lists what is no image."""
    coco = dataset.coco
    cls = type(coco)
    if (cls.__module__, cls.__name__) != ("pycocotools.coco", "COCO"):
        raise SourceError(f"its annotations are a {cls.__name__}, not pycocotools' COCO")
    used = (cls.loadImgs, cls.loadAnns, cls.getAnnIds)
    if not all(map(is_as_defined, used)) or set(vars(coco)) & {one.__name__ for one in used}:
        raise SourceError("the code of its annotations was changed")
    if type(dataset.ids) is not list or not all(type(own) is int for own in dataset.ids):
        raise SourceError("its ids are no list of whole numbers")
    strange = [own for own in dataset.ids if own not in coco.imgs]
    if strange:
        raise SourceError(f"its ids have {strange[0]}, which is no image")
    ids = list(dict.fromkeys(dataset.ids))
    opened = _of_torchvision(coco, ids, os.path.abspath(os.fspath(dataset.root)))
    source = replace(opened.source, format="torchvision CocoDetection")
    if len(ids) < len(dataset.ids):  # some come several times
        place = {own: row for row, own in enumerate(ids)}
        source = source.take(np.array([place[own] for own in dataset.ids], dtype=np.int64))
    return replace(opened, source=source)


def _opened(
    path: str,
    document: _Document,
    root: str,
    label: dict[int, int],
    *,
    classes: Sequence[str] | None,
    details: dict[str, Any] | None = None,
    strict: bool,
    masks: bool = False,
) -> Opened:
    """The source of a document. `label`: of each category id."""
    images = document.images
    ids: list[float | str] = [image_id(image.id) for image in images]
    position = positions(path, "image", ids)
    of_image: list[list[_Annotation]] = [[] for _ in images]
    seen: set[int] = set()
    listed = {category.id for category in document.categories}
    for number, one in enumerate(document.annotations):
        where = _where(path, number, one)
        if one.id is not None and one.id in seen:
            raise SourceError(f"{where}: its id is that of another one; give each its own.")
        if one.id is not None:
            seen.add(one.id)
        place = position.get(one.image_id)
        if place is None:
            place = position.get(image_id(one.image_id))
        if place is None:
            raise SourceError(
                f"{where}: there is no image {image_id(one.image_id)!r} in the file; add it, or "
                "remove the annotation."
            )
        if one.category_id not in listed:
            raise SourceError(
                f"{where}: there is no category {one.category_id} in the file, which has "
                f"{', '.join(map(str, sorted(listed)[:8])) or 'none'}{'...' * (len(listed) > 8)}; "
                "add it, or correct the annotation."
            )
        of_image[place].append(one)
    missing = missing_files(root, [image.name for image in images])
    if missing:
        raise SourceError(
            f"{path}: the image {missing[0]} is missing in {root}{and_more(missing)}; add it, or "
            "remove it and its annotations from the file."
        )
    annotations, crowds = _collected(path, document, of_image, label, masks=masks)
    annotations.of_images = _verified(path, images, label)
    notes = (f"{counted(crowds, 'object')} with RLE, which are served without polygons",)
    return annotations.source(
        relative_names(root, [image.name for image in images]),
        root,
        name=path,
        format="COCO annotations",
        classes=classes,
        image_ids=ids,
        details=details,
        notes=notes if crowds else (),
        strict=strict,
    )


def _verified(path: str, images: list[_Image], label: dict[int, int]) -> dict[str, list[list[int]]]:
    """Columns of LVIS: for each image the labels of which there is none in it, and those of which
    not all are marked. Empty for files without them."""
    columns = {}
    for name, lists in (
        ("neg_labels", [image.neg_category_ids for image in images]),
        ("not_exhaustive_labels", [image.not_exhaustive_category_ids for image in images]),
    ):
        if all(one is None for one in lists):
            continue
        unknown = {own for one in lists for own in one or ()} - label.keys()
        if unknown:
            raise SourceError(
                f"{path}: an image names category {min(unknown)}, which the file does not list; "
                "add it, or remove the number."
            )
        columns[name] = [[label[own] for own in one or ()] for one in lists]
    return columns


def _collected(
    path: str,
    document: _Document,
    of_image: list[list[_Annotation]],
    label: dict[int, int],
    *,
    masks: bool,
) -> tuple[Annotations, int]:
    """The objects, image by image, and how many have RLE that is left out."""
    annotations, crowds = Annotations(), 0
    outlined = any(one.segmentation for one in document.annotations)
    if masks and outlined:
        annotations.shapes = Shapes()
    posed = {len(one.keypoints or ()) for one in document.annotations} - {0}
    numbers: dict[str, list[Any]] = {"area": [], "iscrowd": [], "ids": []}
    if len(posed) == 1 and not (length := next(iter(posed))) % 3:
        numbers["keypoints"] = []
        posing = {one.category_id for one in document.annotations if one.keypoints}
        annotations.point_pairs = _pairs(
            [c for c in document.categories if c.id in posing], length // 3
        )
    elif posed:
        raise SourceError(
            f"{path}: keypoints must be (x, y, visibility) of as many points in each annotation, "
            f"got {sorted(posed)[:4]} numbers; correct them."
        )
    polygons: list[list[Any]] = []
    for image, objects in zip(document.images, of_image, strict=True):
        sized = image.height is not None and image.width is not None
        size = (int(image.height or 0), int(image.width or 0)) if sized else None
        annotations.sizes.append(size)
        kept = 0
        for one in objects:
            where = f"{path}: the annotation {one.id} of {image.name}"
            if len(one.bbox) != 4:
                raise SourceError(
                    f"{where}: bbox must be left, top, width, height; got {one.bbox}."
                )
            x, y, w, h = one.bbox
            box = checked_box((x, y, x + w, y + h), size, where)
            if box is None:
                annotations.empty += 1
                continue
            if not all(map(math.isfinite, (one.area or 0.0, *(one.keypoints or ())))):
                raise SourceError(
                    f"{where}: its area or keypoints are not finite; correct or remove it."
                )
            kept += 1
            annotations.boxes.append(box)
            annotations.labels.append(label[one.category_id])
            numbers["area"].append(w * h if one.area is None else one.area)
            numbers["iscrowd"].append(int(one.iscrowd))
            numbers["ids"].append(-1 if one.id is None else one.id)
            if "keypoints" in numbers:
                points = np.array(one.keypoints or [0.0] * length, np.float32)
                numbers["keypoints"].append(points.reshape(-1, 3))
            if annotations.shapes is not None:
                annotations.shapes.add(one.segmentation, size, where)
                continue
            crowds += isinstance(one.segmentation, dict)
            polygons.append(_polygons(one, where))
        annotations.counts.append(kept)
    annotations.numbers = (
        numbers if annotations.boxes else {k: v for k, v in numbers.items() if k != "keypoints"}
    )
    annotations.polygons = polygons if outlined and annotations.shapes is None else None
    return annotations, crowds


def _pairs(categories: list[_Category], count: int) -> Pairs | None:
    """The points that change places in a mirrored picture, of all categories that have points; None
    where it is not known, or differs."""
    pairs = {
        COCO_PERSON
        if own.keypoints is None and own.name == "person" and count == 17
        else pairs_of_names(own.keypoints or ())
        if len(own.keypoints or ()) == count
        else None
        for own in categories
    }
    return pairs.pop() if len(pairs) == 1 else None


def _polygons(one: _Annotation, where: str) -> list[Any]:
    """(n, 2) of each outline; none of RLE."""
    if one.segmentation is None or isinstance(one.segmentation, dict):
        return []
    if not isinstance(one.segmentation, list):
        raise SourceError(
            f"{where}: its segmentation is a {type(one.segmentation).__name__}; give polygons, or "
            "run lengths (RLE) with size and counts."
        )
    outlines = []
    for outline in one.segmentation:
        try:
            corners = np.array(outline, np.float32).reshape(-1, 2)
        except (ValueError, TypeError):
            corners = np.zeros((0, 2), np.float32)
        if len(corners) < LEAST_CORNERS or not np.isfinite(corners).all():
            raise SourceError(
                f"{where}: a polygon must be x and y of at least three corners, got "
                f"{str(outline)[:80]}; correct or remove it."
            )
        outlines.append(corners)
    return outlines


def _where(path: str, number: int, one: _Annotation) -> str:
    named = f"annotation {one.id}" if one.id is not None else f"annotations[{number}]"
    return f"{path}: {named} (of image {one.image_id})"


def _files_of(root: str) -> dict[str, str]:
    """The annotation files of a folder, by split."""
    if not stores.is_folder(root):
        return {}
    own = os.path.join(root, _BESIDE_IMAGES)
    files = {"": own} if stores.is_file(own) else {}
    inside = os.path.join(root, FOLDER)
    names = folders.files_in(inside) if stores.is_folder(inside) else []
    for prefix in KINDS:  # instances before keypoints
        for name in names:
            if name.startswith(prefix) and name.endswith(".json"):
                files.setdefault(name[len(prefix) : -len(".json")], os.path.join(inside, name))
    if files:
        return files
    files = _files_beside_images(root)
    if files:
        return files
    paths = [os.path.join(inside, name) for name in names if not _is_of_another_kind(name)]
    paths += [os.path.join(root, name) for name in _IN_ROOT]
    for path in paths:
        if path.endswith(".json") and stores.is_file(path) and looks_like_coco(path):
            files[os.path.basename(path).removesuffix(".json")] = path
    return files


def _files_beside_images(root: str) -> dict[str, str]:
    """Of the folders in a folder those with annotations, if one of them has the name of a split:
    else they may be classes."""
    names = folders.subfolders(root)
    splits = [name for name in names if split_of(name) is not None]
    files: dict[str, str] = {}
    for some in (splits, [name for name in names if name not in splits]):
        paths = {name: os.path.join(root, name, _BESIDE_IMAGES) for name in some}
        files |= {name: path for name, path in paths.items() if stores.size_of(path) >= 0}
        if not files:
            break
    return {name: files[name] for name in names if name in files}


def _is_of_another_kind(name: str) -> bool:
    return name.startswith((*OTHER_KINDS, "lvis_v1_image_info_"))


FORMAT = Format(
    name="coco",
    title="images and COCO annotations",
    recognise=is_coco,
    open=open_coco,
    options=("split",),
    remote=True,
    signs=(
        *("annotations/*.json", "_annotations.coco.json", "*/_annotations.coco.json"),
        *("annotations.json", "instances.json", "labels.json", "result.json", "{split}.json"),
        *("lvis_v1_train.json", "lvis_v1_val.json"),
    ),
    files=("*.json",),
    packages=(),
    parts=("annotations", "train2017", "val2017", "test2017", "unlabeled2017"),
    fallback=True,
    family="COCO",
    copies=refuse_other_annotations,
    certain=has_coco_content,
    annotates=looks_like_coco,
    documents=(".json",),
    datasets={"CocoDetection": open_coco_detection},
)
