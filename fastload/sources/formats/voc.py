"""Objects in images as PASCAL VOC lists them: `Annotations/*.xml` beside `JPEGImages/`, and lists
of splits in `ImageSets/Main/`; or as labelling programs write them: `annotations/*.xml` beside
`images/`, or each XML file beside its image, in one folder or one a split.

    VOC2012/                         data/                  data/
    ├── Annotations/                 ├── annotations/       ├── train/
    │   └── 2007_000027.xml          │   └── 0001.xml       │   ├── 0001.jpg
    ├── ImageSets/Main/              └── images/            │   └── 0001.xml
    │   ├── train.txt                    └── 0001.jpg       └── valid/
    │   └── val.txt
    └── JPEGImages/
        └── 2007_000027.jpg

Gives `image`, `boxes`, `labels` and `difficult`.
"""

from __future__ import annotations

import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fastload import stores
from fastload.errors import ConfigurationError, SourceError, counted
from fastload.sources import folders
from fastload.sources.annotations import Annotations, checked_box, ordered_classes
from fastload.sources.base import Opened, OpenOptions
from fastload.sources.formats import Format
from fastload.sources.image_files import is_image_name
from fastload.stores.contents import contents, parts

_ANNOTATIONS = ("Annotations", "annotations", "annotations/xmls")
_IMAGES = ("JPEGImages", "images", "Images")
_LISTS = "ImageSets/Main"
_LOOKED_INTO = 16
"""Files, of which one must have objects: images without any have files, too."""
_MARKS = (b"<annotation", b"<bndbox>")
"""What a file of objects has in its first bytes."""
_LOOKED_AT = 1 << 16
_FLAGS = {"0": 0, "1": 1, "false": 0, "true": 1, "": 0, "unspecified": 0}
"""What `difficult` may say, in any case of letters."""
_LARGEST = 1 << 22
"""Bytes of an annotation file; thousands of objects are below that."""
_LARGEST_LIST = 1 << 28
"""Bytes of a list of images; ten million names have some 120 million."""
_CLASSES = (
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
)
"""The classes of PASCAL VOC itself."""


class _Layout(NamedTuple):
    """Where the files of a data set are."""

    root: str
    annotations: str
    """The folder of XML files."""
    images: str

    def path(self, stem: str) -> str:
        return os.path.join(self.annotations, f"{stem}.xml")


def is_voc(spec: object) -> bool:
    """A folder of images with XML files beside them, or with folders of both: `JPEGImages/` and
    `Annotations/`, `images/` and `annotations/`. With masks of classes beside them it is opened as
    image and mask pairs, unless format="voc" asks for the boxes."""
    return isinstance(spec, str) and _layout(spec) is not None


def _layout(root: str) -> _Layout | None:
    """None: it is none such."""
    if not stores.is_folder(root):
        return None
    names = folders.subfolders(root)
    images = next((name for name in _IMAGES if name in names), None)
    for name in _ANNOTATIONS if images is not None else ():
        folder = os.path.join(root, name)
        if name.split("/")[0] in names and stores.is_folder(folder):
            layout = _Layout(root, folder, os.path.join(root, str(images)))
            if name == _ANNOTATIONS[0] and images == _IMAGES[0]:
                return layout if _stems(layout) else None  # nobody else's names
            if _has_objects(layout):
                return layout
    layout = _Layout(root, root, root)
    return (
        layout if any(map(is_image_name, folders.files_in(root))) and _has_objects(layout) else None
    )


def _has_objects(layout: _Layout) -> bool:
    stems = _stems(layout)[:_LOOKED_INTO]
    return any(looks_like_voc(layout.path(stem)) for stem in stems)


def looks_like_voc(path: str) -> bool:
    """Whether an XML file has boxes of objects."""
    text = stores.look(path, _LOOKED_AT)
    return all(mark in text for mark in _MARKS)


def open_voc(root: str, options: OpenOptions) -> Opened:
    """Open annotated images: columns `image`, `boxes`, `labels`, `difficult`, sorted by the name of
    the annotation file, or in the order of the list of `options.split`.

    Boxes are the numbers of the files, as torchvision takes them. Labels count from 0: in VOC's own
    order where all names are VOC's, else by name; `options.classes` gives another order.

    Raises:
        SourceError: no such split; an annotation that is no such XML file; a box that is reversed,
            not finite or outside of its image; an object of no known class; a missing image. The
            message names the file and the object.
    """
    layout = _layout(root)
    assert layout is not None, "is_voc said so"
    everything = _stems(layout)
    stems = everything if options.split is None else _listed(root, options.split)
    objects = Annotations(numbers={"difficult": []})
    images: list[str] = []
    names: list[str] = []
    known: set[str] = set()
    there = _images_by_stem(layout)
    taken: dict[str, str] = {}
    annotations = _parsed([layout.path(stem) for stem in stems])
    for stem, (path, annotation) in zip(stems, annotations, strict=True):
        image = _image_of(layout, stem, annotation, there)
        other = taken.setdefault(image, path)
        if other != path:
            raise SourceError(
                f"{path}: its image {image} is that of {other}, too; remove one of the two."
            )
        images.append(image)
        names += _add(objects, annotation, path)
        known |= _classes_in(annotation, path)
    classes = options.classes
    if classes is None:
        # Of all annotations and all objects, those that are left out too: each split by itself
        # might lack a class, and count differently.
        others = [layout.path(stem) for stem in sorted({*everything} - {*stems})]
        known |= _classes_of(others)
        training = None if options.training is None else _layout(options.training)
        theirs = None
        if training is not None:
            paths = [training.path(stem) for stem in _stems(training)]
            theirs = training.root, _classes_of(paths)
        classes = ordered_classes(root, known, theirs, usual=_CLASSES)
    objects.number(names, classes, root)
    alone = 0
    if options.split is None:
        alone = sum(map(len, there.values())) - len(images)
    notes = (f"left out: {counted(alone, 'image')} without an annotation file",) if alone else ()
    if alone and options.strict:
        raise SourceError(
            f"{root}: {counted(alone, 'image')} in {os.path.basename(layout.images)} without an "
            "annotation file; add them, or leave out strict=True, with which they are left out."
        )
    return objects.source(
        images,
        layout.images,
        name=root,
        format="PASCAL VOC annotations",
        classes=classes,
        notes=notes,
        strict=options.strict,
    )


def open_voc_detection(dataset: Any) -> Opened:
    """Open torchvision's `VOCDetection`, whose own code is as torchvision wrote it. Raises
    SourceError: it lists other than files."""
    for paths in (dataset.images, dataset.targets):
        if type(paths) is not list or not all(type(path) is str for path in paths):
            raise SourceError("its images and targets are no lists of paths")
    if len(dataset.images) != len(dataset.targets) or not dataset.images:
        raise SourceError("its images and targets differ in number, or there are none")
    return _of_torchvision(
        *([os.path.abspath(path) for path in each] for each in (dataset.images, dataset.targets))
    )


def _of_torchvision(images: Sequence[str], targets: Sequence[str]) -> Opened:
    """Annotated images as torchvision's `VOCDetection` lists them: columns `image`, `boxes`,
    `labels` (PASCAL's classes counted from 1) and `difficult`.

    Args:
        images: paths of the images, in the order of the samples.
        targets: of each the path of its annotation file.

    Raises:
        SourceError: as `open_voc`; or a box has no area, or a class is none of PASCAL's.
    """
    objects = Annotations(numbers={"difficult": []})
    label = {name: number for number, name in enumerate(_CLASSES, 1)}
    for path, annotation in _parsed(targets):
        names = _add(objects, annotation, path)
        unknown = [name for name in names if name not in label]
        if unknown:
            raise SourceError(f"{path}: {unknown[0]!r} is none of PASCAL's classes")
        objects.labels += [label[name] for name in names]
    missing = next((path for path in images if not os.path.isfile(path)), None)
    if missing is not None:
        raise SourceError(f"{missing}: this image is missing")
    root = os.path.dirname(images[0]) if images else ""
    names = [os.path.relpath(path, root) for path in images]
    return objects.source(
        names, root, name=root, format="torchvision VOCDetection", classes=None, strict=True
    )


def _add(objects: Annotations, annotation: ElementTree.Element, path: str) -> list[str]:
    """Add the objects of an image, and their count; the names of their classes."""
    names: list[str] = []
    size = _size(annotation)
    objects.sizes.append(size)
    for number, item in enumerate(annotation.findall("object")):
        where = f"{path}: object {number}"
        box = checked_box(_box(item, where), size, where)
        if box is None:
            objects.empty += 1
            continue
        objects.boxes.append(box)
        names.append(_class_of(item, where))
        objects.numbers["difficult"].append(_difficult(item, where))
    objects.counts.append(len(names))
    return names


def _stems(layout: _Layout) -> list[str]:
    """The stems of all annotation files, sorted."""
    names = folders.files_in(layout.annotations)
    return [name.removesuffix(".xml") for name in names if name.endswith(".xml")]


def _listed(root: str, split: str) -> list[str]:
    """The stems that the list of a split names, in its order."""
    path = os.path.join(root, _LISTS, f"{split}.txt")
    try:
        data = contents([path], _LARGEST_LIST)[0]
        lines = None if data is None else data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise SourceError(f"{path}: this list is no text of UTF-8 ({error}); correct it.") from None
    if lines is None:
        raise ConfigurationError(
            f"split={split!r}: the list {path} cannot be read, as there is none; give the name of "
            "a list that is there."
        )
    stems = [line.strip() for line in lines if line.strip()]
    marked = [stem for stem in stems if stem.split()[1:] in (["1"], ["-1"], ["0"])]
    if marked:
        raise SourceError(
            f"{path}: is a list of one class, with a number after each name that says whether it "
            f"is in the image ({marked[0][:40]!r}), so that it is not known which images are "
            "wanted; give the split of all classes, or write a list of the names alone."
        )
    if len(set(stems)) < len(stems):
        twice = next(stem for place, stem in enumerate(stems) if stem in stems[:place])
        raise SourceError(f"{path}: names {twice} twice; remove one of the lines.")
    return stems


def _images_by_stem(layout: _Layout) -> dict[str, list[str]]:
    images: dict[str, list[str]] = {}
    for name in folders.files_in(layout.images):
        if is_image_name(name):
            images.setdefault(os.path.splitext(name)[0], []).append(name)
    return images


def _image_of(
    layout: _Layout, stem: str, annotation: ElementTree.Element, there: dict[str, list[str]]
) -> str:
    """The image of the annotation's own name; else, or of several, the one that it names."""
    listed = (annotation.findtext("filename") or f"{stem}.jpg").strip()
    own = there.get(stem, [])
    if len(own) == 1:
        return own[0]
    if listed in there.get(os.path.splitext(listed)[0], []):
        return listed
    if own:
        raise SourceError(
            f"{layout.path(stem)}: its image may be any of {', '.join(own)}; remove the others."
        )
    raise SourceError(
        f"{layout.path(stem)}: its image {os.path.join(layout.images, listed)} is missing; add it, "
        "or remove the annotation."
    )


def _classes_of(paths: Sequence[str]) -> set[str]:
    """The classes of all objects in some files."""
    return {name for path, annotation in _parsed(paths) for name in _classes_in(annotation, path)}


def _classes_in(annotation: ElementTree.Element, path: str) -> set[str]:
    items = annotation.findall("object")
    return {_class_of(item, f"{path}: object {number}") for number, item in enumerate(items)}


def _class_of(item: ElementTree.Element, where: str) -> str:
    name = (item.findtext("name") or "").strip()
    if not name:
        raise SourceError(f"{where}: has no name; add that of its class.")
    return name


def _difficult(item: ElementTree.Element, where: str) -> int:
    text = (item.findtext("difficult") or "0").strip()
    if text.lower() not in _FLAGS:
        raise SourceError(f"{where}: difficult must be 0 or 1, got {text[:40]!r}; correct it.")
    return _FLAGS[text.lower()]


def _parsed(paths: Sequence[str]) -> Iterator[tuple[str, ElementTree.Element]]:
    """(path, content) of annotation files."""
    for some in parts(paths):
        for path, data in zip(some, contents(some, _LARGEST), strict=True):
            if data is None:
                raise SourceError(f"{path}: cannot be read, as there is no such file; add it.")
            if b"<!ENTITY" in data or b"<!DOCTYPE" in data:
                raise SourceError(f"{path}: declares a document type or entities; remove them.")
            try:
                root = ElementTree.fromstring(data)
            except (ElementTree.ParseError, LookupError, ValueError) as error:
                raise SourceError(
                    f"{path}: is no XML that is read here ({error}); correct it, or save it as "
                    "UTF-8."
                ) from None
            if root.tag != "annotation":
                raise SourceError(
                    f"{path}: begins with <{root.tag}>, and PASCAL VOC's files with <annotation>; "
                    "correct or remove it."
                )
            yield path, root


def _size(annotation: ElementTree.Element) -> tuple[int, int] | None:
    """(height, width) as the file says; some tools write 0."""
    texts = [annotation.findtext(f"size/{name}") or "" for name in ("height", "width")]
    if not all(text.strip().isdigit() and int(text) for text in texts):
        return None
    return int(texts[0]), int(texts[1])


def _box(item: ElementTree.Element, where: str) -> tuple[float, float, float, float]:
    count = len(item.findall("bndbox"))
    if count > 1:
        raise SourceError(f"{where}: has {count} times bndbox; write an object for each.")
    texts = [item.findtext(f"bndbox/{name}") for name in ("xmin", "ymin", "xmax", "ymax")]
    try:
        left, top, right, bottom = (float(text or "") for text in texts)
    except ValueError:
        raise SourceError(
            f"{where}: bndbox must have xmin, ymin, xmax and ymax, numbers of pixels; got {texts}."
        ) from None
    return left, top, right, bottom


FORMAT = Format(
    name="voc",
    title="images and PASCAL VOC annotations",
    recognise=is_voc,
    open=open_voc,
    options=("split", "classes"),
    remote=True,
    signs=("Annotations", "annotations", "*.xml", ".*.xml"),
    files=(),
    packages=(),
    parts=("Annotations", "JPEGImages", "ImageSets", "SegmentationClass", "SegmentationObject"),
    fallback=True,
    certain=is_voc,
    annotates=looks_like_voc,
    documents=(".xml",),
    datasets={"VOCDetection": open_voc_detection},
)
