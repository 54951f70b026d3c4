"""Panoptic COCO: `annotations/panoptic_train2017.json`, beside it a folder of PNG files of the same
name in which each pixel has the id of its segment, and `train2017/`.

    data/
    ├── annotations/
    │   ├── panoptic_train2017.json
    │   └── panoptic_train2017/
    │       └── 000000000009.png
    └── train2017/
        └── 000000000009.jpg

Gives `image`, `mask` (the class of each pixel, 255 for none), and of the segments `boxes`,
`labels`, `area`, `iscrowd`, `ids` and `is_thing`; with `masks=True` a mask of each segment.

Every pixel of an image belongs to one segment: a thing, such as a person, or all there is of some
stuff, such as grass. Served are the class of each pixel, and of each segment its box, class and
what else the file has. The number of a segment is in no mask: where a transform drops a box,
numbers would mean other segments.
"""

from __future__ import annotations

import functools
import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image

from fastload import stores
from fastload.errors import DecodeError, SourceError, and_more
from fastload.sources import folders
from fastload.sources.annotation_json import (
    OF_SEGMENTS,
    Id,
    file_of_split,
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
from fastload.sources.buffers import Int64Array, PathTable, PickledByReference, values_of
from fastload.sources.columns import EncodedFiles, EncodedImages, Values
from fastload.sources.formats import Format
from fastload.sources.masks import Shapes, runs_of
from fastload.sources.ragged import Ragged, offsets_of

_NO_CLASS = 255
"""Of pixels that belong to no segment, whose id is 0; as in masks of PASCAL VOC."""
_LARGEST_ID = (1 << 24) - 1


class _Image(msgspec.Struct):
    id: Id
    file_name: str
    height: int
    width: int


class _Category(msgspec.Struct):
    id: int
    name: str
    isthing: int = 1


class _Segment(msgspec.Struct):
    id: int
    category_id: int
    bbox: list[float]
    area: float | None = None
    iscrowd: int | bool = 0


class _Annotation(msgspec.Struct):
    image_id: int
    file_name: str
    segments_info: list[_Segment]


class _Document(msgspec.Struct):
    images: list[_Image]
    annotations: list[_Annotation]
    categories: list[_Category]


def is_panoptic(spec: object) -> bool:
    """A JSON file with `segments_info`, or a folder with `panoptic_*.json` in `annotations/`."""
    return isinstance(spec, str) and any(map(looks_like_panoptic, _files_of(spec).values()))


def refuse_other_annotations(url: str) -> list[str]:
    """No file is copied; raises SourceError for a URL with files of such a name that are no
    segments, as another format would serve the images without them."""
    if stores.is_folder(url) and _files_of(url) and not is_panoptic(url):
        refuse_other_things(url)
    return []


def open_panoptic(spec: str, options: OpenOptions) -> Opened:
    """Open annotated images in the order of the file: columns `image`, `mask` (the class of each
    pixel, 255 where it has none), and of each segment `boxes`, `labels`, `area`, `iscrowd`, `ids`,
    `is_thing`; `image_id`. With `masks`, there is a mask of each segment in the place of `mask`.

    Labels are in the order of the category ids, things and stuff alike:
    `source.details["category_ids"]` has the id of each.

    Raises:
        SourceError: no such split; ids or files twice; an id of 0, which is that of pixels without
            a segment; an annotation of an image
            or a category that is not listed; an image without an annotation; a box that is
            reversed, not finite or outside of its image; a missing file. The message names it.
    """
    files = _files_of(spec)
    path = file_of_split(spec, files, options.split)
    document = read_document(path, _Document, "COCO's panoptic format")
    classes = names_of_categories(path, files, [(one.id, one.name) for one in document.categories])
    label = {own: number for number, own in enumerate(classes)}
    is_thing = {one.id: one.isthing for one in document.categories}
    if len(classes) > _NO_CLASS:
        raise SourceError(
            f"{path}: has {len(classes)} categories, and a mask has place for {_NO_CLASS}."
        )
    positions(path, "image", [image.id for image in document.images])
    of_image = _annotations(path, document)
    once_each(path, [image.file_name for image in document.images])
    once_each(path, [one.file_name for one in of_image])
    root = image_root(path, document.images[0].file_name if document.images else "")
    pngs = path.removesuffix(".json")
    for folder, names in (
        (root, [image.file_name for image in document.images]),
        (pngs, [one.file_name for one in of_image]),
    ):
        missing = missing_files(folder, names)
        if missing:
            raise SourceError(
                f"{path}: {missing[0]} is missing in {folder}{and_more(missing)}; add it, or "
                "remove it from the file. (COCO's archive has the PNG files in another archive.)"
            )
    annotations = Annotations(numbers={name: [] for name in ("area", "iscrowd", "ids", "is_thing")})
    for image, one in zip(document.images, of_image, strict=True):
        annotations.sizes.append((image.height, image.width))
        kept = 0
        for segment in one.segments_info:
            where = f"{path}: the segment {segment.id} of {image.file_name}"
            if not 0 < segment.id <= _LARGEST_ID:
                raise SourceError(
                    f"{where}: ids count from 1, as pixels of 0 belong to no segment, up to "
                    f"{_LARGEST_ID:,}, which three bytes hold; give it another, in the PNG too."
                )
            if segment.category_id not in is_thing:
                raise SourceError(
                    f"{where}: there is no category {segment.category_id} in the file; add it, or "
                    "correct the annotation."
                )
            if len(segment.bbox) != 4:
                raise SourceError(f"{where}: bbox must be left, top, width, height.")
            x, y, w, h = segment.bbox
            box = checked_box((x, y, x + w, y + h), (image.height, image.width), where)
            if box is None:
                annotations.empty += 1
                continue
            if not math.isfinite(segment.area or 0.0):
                raise SourceError(f"{where}: its area is not finite; correct or remove it.")
            kept += 1
            annotations.boxes.append(box)
            annotations.labels.append(label[segment.category_id])
            annotations.numbers["area"].append(w * h if segment.area is None else segment.area)
            annotations.numbers["iscrowd"].append(int(segment.iscrowd))
            annotations.numbers["ids"].append(segment.id)
            annotations.numbers["is_thing"].append(is_thing[segment.category_id])
        annotations.counts.append(kept)
    names = [one.file_name for one in of_image]
    paths = PathTable.of([stores.spelt(pngs, name) for name in names], pngs)
    versions = stores.versions_of(map(paths.__getitem__, range(len(paths))))
    segments = Segments(
        EncodedFiles(paths, "mask", versions=versions if stores.is_remote(pngs) else None),
        np.array([one.id for each in of_image for one in each.segments_info], np.int64),
        np.array(
            [label[one.category_id] for each in of_image for one in each.segments_info], np.uint8
        ),
        offsets_of([len(one.segments_info) for one in of_image]),
    )
    drawn = Ragged(np.array(annotations.numbers["ids"], np.int64), offsets_of(annotations.counts))
    annotations.beside = (
        {"masks": SegmentMasks(segments, drawn)}
        if options.masks
        else {"mask": SegmentClasses(segments)}
    )
    annotations.identity = (
        PathTable.of(names).digest(),
        segments.ids,
        segments.labels,
        segments.offsets,
    )
    return annotations.source(
        relative_names(root, [image.file_name for image in document.images]),
        root,
        name=path,
        format="panoptic COCO annotations",
        classes=list(classes.values()),
        image_ids=[image.id for image in document.images],
        details={"category_ids": tuple(classes)},
        strict=options.strict,
    )


def _annotations(path: str, document: _Document) -> list[_Annotation]:
    """Of each image, in the order of the images."""
    known = {image.id for image in document.images}
    of_image: dict[int, _Annotation] = {}
    for one in document.annotations:
        if one.image_id not in known:
            raise SourceError(
                f"{path}: the annotation {one.file_name} is of image {one.image_id}, which is not "
                "in the file; add it, or remove the annotation."
            )
        if one.image_id in of_image:
            raise SourceError(f"{path}: the image {one.image_id} has two annotations; remove one.")
        positions(path, f"segment (of {one.file_name})", [each.id for each in one.segments_info])
        of_image[one.image_id] = one
    for image in document.images:
        if image.id not in of_image:
            raise SourceError(
                f"{path}: {image.file_name} has no annotation, so that nothing is known of its "
                "pixels; add one, or remove the image."
            )
    return [of_image[image.id] for image in document.images]


def _files_of(spec: str) -> dict[str, str]:
    """The annotation files, by split."""
    if spec.lower().endswith(".json"):
        return {"": spec} if stores.is_file(spec) else {}
    files: dict[str, str] = {}
    for folder in (os.path.join(spec, "annotations"), spec):
        for name in folders.files_in(folder) if stores.is_folder(folder) else ():
            if is_of_segments(name) and name.endswith(".json"):
                split = name.removeprefix(OF_SEGMENTS).removesuffix(".json")
                files.setdefault(split, os.path.join(folder, name))
    return files


# -- Pixels ----------------------------------------------------------------------------------------


def _check_numbers(rows: Ragged, count: int, dtype: type[np.generic]) -> None:
    """Raise SourceError unless they are `count` rows of numbers of a dtype."""
    dtypes = rows.values.dtype, rows.offsets.dtype
    if len(rows) != count or rows.values.ndim != 1 or dtypes != (dtype, np.int64):
        raise SourceError("no segments")


@dataclass(frozen=True)
class Segments(PickledByReference):
    """PNG files in which red + 256 green + 65,536 blue is the id of a pixel's segment."""

    files: EncodedFiles
    ids: npt.NDArray[np.int64]
    """(T,): of all segments of all images."""
    labels: npt.NDArray[np.uint8]
    """(T,): their classes."""
    offsets: Int64Array
    """(N + 1,): where those of each image begin."""

    def parts(self) -> dict[str, Any] | None:
        """What an index holds (`fastload.sources.index.OfParts`); None: they are not remote."""
        return values_of(self) if self.files.is_remote else None

    @staticmethod
    def of_parts(parts: dict[str, Any]) -> Segments:
        """Raises SourceError: they do not fit each other."""
        segments = Segments(*(parts[name] for name in ("files", "ids", "labels", "offsets")))
        for values, dtype in ((segments.ids, np.int64), (segments.labels, np.uint8)):
            _check_numbers(Ragged(values, segments.offsets), len(segments.files), dtype)
        return segments

    def read(self, indices: Int64Array) -> Sequence[bytes]:
        """Files. Raises DecodeError: they cannot be read."""
        try:
            return self.files.read_many(indices)
        except OSError as error:  # It names the file.
            raise DecodeError(f"{self.files.paths[int(indices[0])]} or another: {error}") from error

    def ids_of_pixels(self, index: int, data: bytes) -> npt.NDArray[np.int64]:
        """(H, W), of a file. Raises DecodeError: it is no such file."""
        path = self.files.paths[index]
        try:
            with Image.open(io.BytesIO(data)) as image:
                mode, pixels = image.mode, np.asarray(image)
        except Exception as error:  # damage shows in any way
            raise DecodeError(f"{path}: cannot be decoded ({error}).") from error
        if mode != "RGB":
            raise DecodeError(f"{path}: ids of segments are three bytes (RGB), found {mode}.")
        red, green, blue = (pixels[..., channel].astype(np.int64) for channel in range(3))
        return red | green << 8 | blue << 16

    def classes(self, index: int, data: bytes) -> npt.NDArray[np.uint8]:
        """(H, W): the class of each pixel of a file. Raises DecodeError: also for an unknown
        segment."""
        pixels = self.ids_of_pixels(index, data)
        span = slice(self.offsets[index], self.offsets[index + 1])
        order = np.argsort(self.ids[span])
        ids = np.append(0, self.ids[span][order])
        labels = np.append(_NO_CLASS, self.labels[span][order]).astype(np.uint8)
        places = np.searchsorted(ids, pixels).clip(max=len(ids) - 1)
        unknown = ids[places] != pixels
        if unknown.any():
            raise DecodeError(
                f"{self.files.paths[index]}: has pixels of the segment {pixels[unknown][0]}, which "
                "the JSON file does not list; correct one of the two."
            )
        classes: npt.NDArray[np.uint8] = labels[places]
        return classes


@dataclass(frozen=True)
class SegmentClasses(EncodedImages):
    """The class of each pixel, as PNG files of one channel, which are made when they are read."""

    segments: Segments
    rows: Int64Array | None = None
    role: str = "mask"

    def __len__(self) -> int:
        return len(self.segments.files) if self.rows is None else len(self.rows)

    def read(self, index: int) -> bytes:
        row = index if self.rows is None else int(self.rows[index])
        return self._made(row, self.segments.files.read(row))

    def read_many(self, indices: Int64Array) -> Sequence[bytes]:
        rows = indices if self.rows is None else self.rows[indices]
        pngs = self.segments.files.read_many(rows)
        return [self._made(row, data) for row, data in zip(rows.tolist(), pngs, strict=True)]

    def _made(self, row: int, data: bytes) -> bytes:
        file = io.BytesIO()
        Image.fromarray(self.segments.classes(row, data)).save(file, "png", compress_level=1)
        return file.getvalue()

    def parts(self) -> dict[str, Any] | None:
        return self.segments.parts() if self.rows is None else None

    @classmethod
    def of_parts(cls, parts: dict[str, Any]) -> SegmentClasses:
        return cls(Segments.of_parts(parts))

    def read_from(self, indices: Int64Array) -> Sequence[stores.Range]:
        return self.segments.files.read_from(indices if self.rows is None else self.rows[indices])

    @property
    def survives_fork(self) -> bool:
        return self.segments.files.survives_fork

    def describe(self, index: int) -> str:
        return self.segments.files.paths[index if self.rows is None else int(self.rows[index])]

    def take(self, indices: Int64Array) -> SegmentClasses:
        rows = indices if self.rows is None else self.rows[indices]
        return SegmentClasses(self.segments, rows, self.role)


@dataclass(frozen=True)
class SegmentMasks(Values):
    """What the masks of segments are drawn from: run lengths, made when they are asked for."""

    segments: Segments
    drawn: Ragged
    """(N,) rows of the ids of segments."""
    rows: Int64Array | None = None
    role: str = "instance_masks"
    ragged = True

    def __len__(self) -> int:
        return len(self.drawn) if self.rows is None else len(self.rows)

    @property
    def lengths(self) -> Int64Array:
        """(N,) int64: how many segments each image has."""
        lengths = self.drawn.lengths
        return lengths if self.rows is None else lengths[self.rows]

    def parts(self) -> dict[str, Any] | None:
        parts = self.segments.parts() if self.rows is None else None
        return None if parts is None else {**parts, "drawn": self.drawn}

    @classmethod
    def of_parts(cls, parts: dict[str, Any]) -> SegmentMasks:
        _check_numbers(parts["drawn"], len(parts["files"]), np.int64)
        return cls(Segments.of_parts(parts), parts["drawn"])

    @functools.cached_property
    def nbytes(self) -> int:
        return 8 * len(self.drawn.values)  # they are not kept

    def at(self, indices: Int64Array) -> Ragged:
        shapes, counts = Shapes(), []
        rows = indices if self.rows is None else self.rows[indices]
        for row, data in zip(rows.tolist(), self.segments.read(rows), strict=True):
            pixels, wanted = self.segments.ids_of_pixels(row, data), self.drawn[row].tolist()
            counts.append(len(wanted))
            for own in wanted:
                where = f"{self.segments.files.paths[row]}: the segment {own}"
                mask = pixels == own
                if not mask.any():
                    raise DecodeError(f"{where} has no pixel; correct the JSON file or this one.")
                shapes.add(runs_of(mask), None, where)
        return Ragged(shapes.rows(), offsets_of(counts))

    def take(self, indices: Int64Array) -> SegmentMasks:
        rows = indices if self.rows is None else self.rows[indices]
        return SegmentMasks(self.segments, self.drawn, rows, self.role)

    def describe(self, index: int) -> str:
        return self.segments.files.paths[index if self.rows is None else int(self.rows[index])]


FORMAT = Format(
    name="panoptic",
    title="images and COCO's panoptic annotations",
    recognise=is_panoptic,
    open=open_panoptic,
    options=("split",),
    remote=True,
    signs=("annotations/panoptic_*.json", "panoptic_*.json"),
    files=("*.json",),
    packages=(),
    parts=("annotations", "panoptic_train2017", "panoptic_val2017"),
    fallback=True,
    family="COCO",
    copies=refuse_other_annotations,
    certain=is_panoptic,
    columns={"SegmentClasses": SegmentClasses, "SegmentMasks": SegmentMasks},
)
