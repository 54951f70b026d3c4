"""Objects in images as COCO lists them: `annotations/instances_train2017.json` beside `train2017/`,
or one JSON file.

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
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from fastload import stores
from fastload.errors import ConfigurationError, SourceError, and_more, counted
from fastload.sources import folders
from fastload.sources.annotations import Annotations, checked_box
from fastload.sources.base import Opened, OpenOptions
from fastload.sources.beside import first_image_of, looks_like_coco, looks_like_panoptic
from fastload.sources.keypoints import COCO_PERSON, Pairs, pairs_of_names
from fastload.sources.masks import LEAST_CORNERS, Shapes
from fastload.sources.names import SPLITS, has_number_of, split_in_words, split_named, split_of

_FOLDER = "annotations"
_BESIDE_IMAGES = "_annotations.coco.json"
"""In each split's folder of images, as Roboflow exports them."""
_KINDS = ("instances_", "person_keypoints_")
_OTHER_KINDS = ("captions_", "panoptic_", "stuff_", "image_info_")
"""Names of COCO's other files, which have no objects."""
_IN_ROOT = (
    *("annotations.json", "instances.json", "labels.json", "result.json"),
    *("lvis_v1_train.json", "lvis_v1_val.json"),
    *(f"{word}.json" for words in SPLITS.values() for word in words),
)
"""What other programs call a file that lies beside the folders of images."""
COCO_SIGNS = (
    f"{_FOLDER}/*.json",
    _BESIDE_IMAGES,
    f"*/{_BESIDE_IMAGES}",
    *_IN_ROOT,
)
"""A folder without any of these has no COCO annotations (see `Format.signs`)."""
COCO_PARTS = (_FOLDER, "train2017", "val2017", "test2017", "unlabeled2017")
"""See `Format.parts`."""


Id = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A number that a column of int64 holds."""


class _Image(msgspec.Struct):
    id: Id
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
    image_id: Id
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


class _Categories(msgspec.Struct):
    """A document of which only the categories are read."""

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


def _has_first_image(path: str) -> bool:
    name = first_image_of(path)
    try:
        return name is None or bool(image_root(path, name))
    except SourceError:
        return False


def open_coco(spec: str, options: OpenOptions) -> Opened:
    """Open annotated images: columns `image`, `boxes`, `labels`, `area`, `iscrowd`, `ids`,
    `image_id`, and `polygons` and `keypoints` where any annotation has them. With `masks`, these
    are drawn from polygons and run lengths (RLE), and take the place of `polygons`.

    Samples are in the order of the file; images without annotations are samples without objects.
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


def listed_coco(coco: Any, ids: Sequence[int], root: str) -> Opened:
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
    position = positions(path, "image", [image.id for image in images])
    of_image: list[list[_Annotation]] = [[] for _ in images]
    seen: set[int] = set()
    listed = {category.id for category in document.categories}
    for number, one in enumerate(document.annotations):
        where = _where(path, number, one)
        if one.id is not None and one.id in seen:
            raise SourceError(f"{where}: its id is that of another one; give each its own.")
        if one.id is not None:
            seen.add(one.id)
        if one.image_id not in position:
            raise SourceError(
                f"{where}: there is no image {one.image_id} in the file; add it, or remove the "
                "annotation."
            )
        if one.category_id not in listed:
            raise SourceError(
                f"{where}: there is no category {one.category_id} in the file, which has "
                f"{', '.join(map(str, sorted(listed)[:8])) or 'none'}{'...' * (len(listed) > 8)}; "
                "add it, or correct the annotation."
            )
        of_image[position[one.image_id]].append(one)
    missing = missing_files(root, [image.name for image in images])
    if missing:
        raise SourceError(
            f"{path}: the image {missing[0]} is missing in {root}{and_more(missing)}; add it, or "
            "remove it and its annotations from the file."
        )
    found, crowds = _collected(path, document, of_image, label, masks=masks)
    found.of_images = _verified(path, images, label)
    notes = (f"{counted(crowds, 'object')} with RLE, which are served without polygons",)
    return found.source(
        relative_names(root, [image.name for image in images]),
        root,
        name=path,
        format="COCO annotations",
        classes=classes,
        image_ids=[image.id for image in images],
        details=details,
        notes=notes if crowds else (),
        strict=strict,
    )


def _verified(path: str, images: list[_Image], label: dict[int, int]) -> dict[str, list[list[int]]]:
    """Columns of LVIS: for each image the labels of which there is none in it, and those of which
    not all are marked. Empty for files without them."""
    found = {}
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
        found[name] = [[label[own] for own in one or ()] for one in lists]
    return found


def _collected(
    path: str,
    document: _Document,
    of_image: list[list[_Annotation]],
    label: dict[int, int],
    *,
    masks: bool,
) -> tuple[Annotations, int]:
    """The objects, image by image, and how many have RLE that is left out."""
    found, crowds = Annotations(), 0
    outlined = any(one.segmentation for one in document.annotations)
    if masks and outlined:
        found.shapes = Shapes()
    posed = {len(one.keypoints or ()) for one in document.annotations} - {0}
    numbers: dict[str, list[Any]] = {"area": [], "iscrowd": [], "ids": []}
    if len(posed) == 1 and not (length := next(iter(posed))) % 3:
        numbers["keypoints"] = []
        posing = {one.category_id for one in document.annotations if one.keypoints}
        found.point_pairs = _pairs([c for c in document.categories if c.id in posing], length // 3)
    elif posed:
        raise SourceError(
            f"{path}: keypoints must be (x, y, visibility) of as many points in each annotation, "
            f"got {sorted(posed)[:4]} numbers; correct them."
        )
    polygons: list[list[Any]] = []
    for image, objects in zip(document.images, of_image, strict=True):
        sized = image.height is not None and image.width is not None
        size = (int(image.height or 0), int(image.width or 0)) if sized else None
        found.sizes.append(size)
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
                found.empty += 1
                continue
            if not all(map(math.isfinite, (one.area or 0.0, *(one.keypoints or ())))):
                raise SourceError(
                    f"{where}: its area or keypoints are not finite; correct or remove it."
                )
            kept += 1
            found.boxes.append(box)
            found.labels.append(label[one.category_id])
            numbers["area"].append(w * h if one.area is None else one.area)
            numbers["iscrowd"].append(int(one.iscrowd))
            numbers["ids"].append(-1 if one.id is None else one.id)
            if "keypoints" in numbers:
                points = np.array(one.keypoints or [0.0] * length, np.float32)
                numbers["keypoints"].append(points.reshape(-1, 3))
            if found.shapes is not None:
                found.shapes.add(one.segmentation, size, where)
                continue
            crowds += isinstance(one.segmentation, dict)
            polygons.append(_polygons(one, where))
        found.counts.append(kept)
    found.numbers = (
        numbers if found.boxes else {k: v for k, v in numbers.items() if k != "keypoints"}
    )
    found.polygons = polygons if outlined and found.shapes is None else None
    return found, crowds


def _pairs(categories: list[_Category], count: int) -> Pairs | None:
    """The points that change places in a mirrored picture, of all categories that have points; None
    where it is not known, or differs."""
    found = {
        COCO_PERSON
        if own.keypoints is None and own.name == "person" and count == 17
        else pairs_of_names(own.keypoints or ())
        if len(own.keypoints or ()) == count
        else None
        for own in categories
    }
    return found.pop() if len(found) == 1 else None


def _polygons(one: _Annotation, where: str) -> list[Any]:
    """(n, 2) of each outline; none of RLE."""
    if one.segmentation is None or isinstance(one.segmentation, dict):
        return []
    if not isinstance(one.segmentation, list):
        raise SourceError(
            f"{where}: its segmentation is a {type(one.segmentation).__name__}; give polygons, or "
            "run lengths (RLE) with size and counts."
        )
    made = []
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
        made.append(corners)
    return made


_D = TypeVar("_D", bound=msgspec.Struct)


def read_document(path: str, kind: type[_D], name: str = "COCO's format") -> _D:
    """A file of JSON as a structure. Raises SourceError: it cannot be read, or is no `name`."""
    try:
        data = stores.read(path, version=stores.noted(path))
        try:
            # Not strict: whole numbers may be written as 1.0, by way of pandas, or as "1".
            return msgspec.json.decode(data, type=kind, strict=False)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            # NaN is no JSON, but Python writes it. Read so, the annotation can be named.
            return msgspec.convert(json.loads(data), kind, strict=False)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error}).") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SourceError(f"{path}: is not what {name} has ({error}); correct the file.") from error


def missing_files(root: str, names: list[str]) -> list[str]:
    """Those of the files below `root` that are not there; each folder is listed once. Of a web
    server, which lists nothing, each file is asked for."""
    if stores.is_web(root):
        stores.ask_ahead([stores.below(root, name) for name in names])
        return [name for name in names if stores.size_of(stores.below(root, name)) < 0]
    places = {
        folder: stores.below(root, folder).rstrip("/") for folder, _ in map(os.path.split, names)
    }
    stores.list_ahead([place for place in places.values() if stores.is_remote(place)])
    there = {
        folder: set(folders.files_in(place)) if stores.is_folder(place) else set()
        for folder, place in places.items()
    }
    return [name for name in names if os.path.basename(name) not in there[os.path.dirname(name)]]


def relative_names(root: str, names: list[str]) -> list[str]:
    """Names of files below `root`, of which some may be absolute paths."""
    if stores.is_remote(root):
        return names
    return [os.path.relpath(name, root) if os.path.isabs(name) else name for name in names]


def positions(path: str, what: str, ids: list[int]) -> dict[int, int]:
    made = {own: place for place, own in enumerate(ids)}
    if len(made) < len(ids):
        twice = next(own for place, own in enumerate(ids) if made[own] != place)
        raise SourceError(f"{path}: the {what} id {twice} is there twice; give each its own.")
    return made


def once_each(path: str, names: list[str]) -> None:
    """Raise SourceError if a file has two entries, each of which has a part of its objects."""
    name, count = Counter(map(os.path.normpath, names)).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise SourceError(
            f"{path}: lists the image {name} twice, so that neither entry has all its objects; "
            "make them one."
        )


def _where(path: str, number: int, one: _Annotation) -> str:
    named = f"annotation {one.id}" if one.id is not None else f"annotations[{number}]"
    return f"{path}: {named} (of image {one.image_id})"


def _files_of(root: str) -> dict[str, str]:
    """The annotation files of a folder, by split."""
    if not stores.is_folder(root):
        return {}
    own = os.path.join(root, _BESIDE_IMAGES)
    found = {"": own} if stores.is_file(own) else {}
    inside = os.path.join(root, _FOLDER)
    names = folders.files_in(inside) if stores.is_folder(inside) else []
    for kind in _KINDS:  # instances before keypoints
        for name in names:
            if name.startswith(kind) and name.endswith(".json"):
                found.setdefault(name[len(kind) : -len(".json")], os.path.join(inside, name))
    if found:
        return found
    found = _files_beside_images(root)
    if found:
        return found
    paths = [os.path.join(inside, name) for name in names if not _is_of_another_kind(name)]
    paths += [os.path.join(root, name) for name in _IN_ROOT]
    for path in paths:
        if path.endswith(".json") and stores.is_file(path) and looks_like_coco(path):
            found[os.path.basename(path).removesuffix(".json")] = path
    return found


def _files_beside_images(root: str) -> dict[str, str]:
    """Of the folders in a folder those with annotations, if one of them has the name of a split:
    else they may be classes."""
    names = folders.subfolders(root)
    splits = [name for name in names if split_of(name) is not None]
    found: dict[str, str] = {}
    for some in (splits, [name for name in names if name not in splits]):
        paths = {name: os.path.join(root, name, _BESIDE_IMAGES) for name in some}
        found |= {name: path for name, path in paths.items() if stores.size_of(path) >= 0}
        if not found:
            break
    return {name: found[name] for name in names if name in found}


def _is_of_another_kind(name: str) -> bool:
    return name.startswith(_OTHER_KINDS) or name.startswith("lvis_v1_image_info_")


def file_of_split(root: str, files: dict[str, str], split: str | None) -> str:
    """The annotation file of a split, from files by split, or from a single one that was named (its
    key is ""). Raises SourceError or ConfigurationError: there is none, or several and none is
    named."""
    if files == {"": root} and split is not None:
        raise ConfigurationError(f"split={split!r}: {root} is one file; leave split out.")
    if len(files) == 1 and split is None:
        return next(iter(files.values()))
    if split in files:
        return files[split]
    wanted = split_of(split or "")
    named = [
        name
        for name in files
        if wanted and split_in_words(name) == wanted and has_number_of(name, split or "")
    ]
    if len(named) == 1:
        return files[named[0]]
    kind = SourceError if split is None else ConfigurationError
    if list(files) == [""]:
        raise kind(f"split={split!r}: {root} is one folder of images; leave split out.")
    raise kind(
        f"{root}: has annotations of {', '.join(files)}; say which: "
        f"split={split_named(files, 'train') or next(iter(files))!r}."
    )


def names_of_categories(
    path: str, files: dict[str, str], listed: Sequence[tuple[int, str]]
) -> dict[int, str]:
    """The name of each category by its id, in the order of the labels.

    They are those of the training split, where a file of another split is opened: one may be
    missing there, and all after it would have other labels.

    Args:
        files: by split, which `path` is one of.
        listed: (id, name) of each category of `path`.

    Raises:
        SourceError: an id is there twice; the training split has not a category, or calls it
            otherwise; its file cannot be read.
    """
    positions(path, "category", [own for own, _ in listed])
    names = dict(sorted(listed))
    training = [each for split, each in files.items() if split_in_words(split) == "train"]
    if path in training:
        return names
    for number, each in enumerate(training):
        found = [(one.id, one.name) for one in read_document(each, _Categories).categories]
        positions(each, "category", [own for own, _ in found])
        strange = next((one for one in listed if one not in found), None)
        if strange is not None:
            raise SourceError(
                f"{path}: its category {strange[0]} is {strange[1]!r}, and {each} has "
                f"{dict(found).get(strange[0], 'none of this id')!r}, so that labels of the two "
                "would mean different classes; list the same categories in both. To have this "
                "file with numbers of its own, open it alone, by its path."
            )
        if number and names != dict(found):
            raise SourceError(
                f"{path}: which labels its categories have, the training files say, and "
                f"{training[0]} and {each} list different ones; make them equal."
            )
        names = dict(sorted(found))
    return names


def image_root(path: str, first: str, *, beside: Sequence[str] = ()) -> str:
    """The folder that `file_name` is relative to. `beside`: names of more folders.

    Images of a file in `annotations/` are looked for beside that first, those of another one where
    it lies: what is beside that folder may be another data set, with images of the same names.
    """
    if not first:
        raise SourceError(f"{path}: lists no images; add them.")
    folder, name = os.path.split(path)
    above = stores.parent_of(folder)
    split = name.removesuffix(".json")
    for kind in (*_KINDS, *_OTHER_KINDS):
        split = split.removeprefix(kind)
    wanted = split_in_words(split)
    roots = [above, folder] if os.path.basename(folder) == _FOLDER else [folder, above]
    places = []
    for root in roots:
        images = os.path.join(root, "images")
        places += [os.path.join(root, split), os.path.join(images, split), root, images]
        places += [os.path.join(root, "data")]
        for whole in (root, images) if wanted else ():
            names = folders.subfolders(whole) if stores.is_folder(whole) else []
            places += [os.path.join(whole, name) for name in names if split_of(name) == wanted]
    places += [os.path.join(root, name) for root in roots for name in beside]
    for place in places:
        if stores.is_file(stores.below(place, first)):
            return place
    raise SourceError(
        f"{path}: the image {first!r} that it lists is in none of {', '.join(places)}; put the "
        "images there."
    )
