"""From lists of annotated objects to a source: what the formats of detection data have in
common."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastload import stores
from fastload.errors import SourceError, counted
from fastload.fingerprint import fingerprint_of
from fastload.sources import folders
from fastload.sources.base import Opened, Source
from fastload.sources.buffers import PathTable
from fastload.sources.columns import EncodedFiles, RaggedArray, ValueArray
from fastload.sources.keypoints import Pairs, role_of
from fastload.sources.masks import Shapes
from fastload.sources.ragged import Ragged, offsets_of
from fastload.sources.sizes import stored_sizes
from fastload.sources.texts import text_column

logger = logging.getLogger("fastload")

_FRACTIONS = ("area", "confidence", "keypoints", "truncated")
"""Columns that are no whole numbers."""

Box = tuple[float, float, float, float]
"""Left, top, right, bottom [pixels]."""


def checked_box(box: Box, size: tuple[int, int] | None, where: str) -> Box | None:
    """A box as it is served; None for an empty one, which is left out.

    `size`: (height, width) of its image, if that is known; `where`: the file and the annotation,
    for messages. Raises SourceError: it is not finite, reversed, or lies outside of its image.
    """
    left, top, right, bottom = box
    if not all(map(math.isfinite, box)):
        raise SourceError(f"{where}: the box {list(box)} is not finite; correct or remove it.")
    if right < left or bottom < top:
        raise SourceError(
            f"{where}: the box {list(box)} (left, top, right, bottom) is reversed: its width or "
            "height is negative; correct or remove it."
        )
    if size is not None and (left >= size[1] or top >= size[0] or right <= 0 or bottom <= 0):
        raise SourceError(
            f"{where}: the box {list(box)} (left, top, right, bottom) lies outside of its image, "
            f"which is {size[1]} x {size[0]}; correct it, or remove it."
        )
    return box if right > left and bottom > top else None


def ordered_classes(
    root: str, known: set[str], training: tuple[str, set[str]] | None, usual: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The classes of a split in the order of their numbers: as in `usual`, where that has them all,
    else by name.

    `training`: the folder of the training split, where there is one beside it, and its classes,
    which are those of all splits. Raises SourceError: that has not all of those that are `known`
    here.
    """
    if training is not None:
        folder, theirs = training
        strange = known - theirs
        if strange:
            raise SourceError(
                f"{root}: has objects of {', '.join(sorted(strange)[:3])}, which the training "
                f"split {folder} has not, so that labels of the two would mean different "
                f"classes. Correct them; or, to have this split with numbers of its own, open "
                f"{root!r} without split=."
            )
        known = theirs
    return usual if known <= {*usual} else tuple(sorted(known))


@dataclass
class Annotations:
    """Collects the objects of a data set, image by image, and becomes its source."""

    boxes: list[Box] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    numbers: dict[str, list[Any]] = field(default_factory=dict)
    """More columns of objects, by name: areas, crowd flags, ids; keypoints."""
    point_pairs: Pairs | None = None
    """Pairs of keypoints that change places in a mirrored picture; None: not known."""
    polygons: list[list[Any]] | None = None
    """The outlines of each object, (n, 2) each; None: the format has none."""
    shapes: Shapes | None = None
    """What the mask of each object is drawn from; None: no masks are wanted."""
    of_images: dict[str, list[list[int]]] = field(default_factory=dict)
    """Columns with any number of whole numbers an image, which do not belong to its objects."""
    beside: dict[str, Any] = field(default_factory=dict)
    """More columns, of pixels."""
    identity: tuple[Any, ...] = ()
    """What these columns depend on, for the fingerprint."""
    counts: list[int] = field(default_factory=list)
    """Objects in each image so far."""
    empty: int = 0
    """Boxes that were left out because they have no area."""
    sizes: list[tuple[int, int] | None] = field(default_factory=list)
    """(height, width) of each image as the annotations say; None: they do not. Empty: none do."""

    def number(self, names: Sequence[str], classes: Sequence[str], root: str) -> None:
        """Set the labels of all objects by the names of their classes. Raises SourceError: a name
        is none of `classes`."""
        label = {name: number for number, name in enumerate(classes)}
        unknown = next((name for name in names if name not in label), None)
        if unknown is not None:
            raise SourceError(
                f"{root}: an object of class {unknown!r}, which is none of {', '.join(classes)}; "
                "add it to classes, or correct the annotation."
            )
        self.labels = [label[name] for name in names]

    def source(
        self,
        images: Sequence[str],
        root: str,
        *,
        name: str,
        format: str,
        classes: Sequence[str] | None,
        image_ids: Sequence[float | str] | None = None,
        details: dict[str, Any] | None = None,
        notes: tuple[str, ...] = (),
        strict: bool = False,
    ) -> Opened:
        """The source of `images`, paths below `root`; columns `image`, `boxes`, `labels` and what
        was collected."""
        if self.empty and strict:
            raise SourceError(
                f"{name}: {counted(self.empty, 'box')} without area; remove them, or leave out "
                "strict=True, with which they are left out."
            )
        if self.empty:
            notes += (f"left out: {counted(self.empty, 'box')} without area",)
        blank = 0 if self.shapes is None else self.shapes.lengths.count(0)
        if blank and strict:
            raise SourceError(
                f"{name}: {counted(blank, 'object')} without segmentation, of which masks are "
                "wanted; add it, or leave out strict=True, with which their masks are empty."
            )
        if blank:
            notes += (f"{counted(blank, 'object')} without segmentation: their masks are empty",)
        if classes is not None:  # torchvision's own data sets do not look at sizes
            notes += self._other_sizes(images, root, name, strict=strict)
        without = self.counts.count(0)
        if without:
            notes += (f"{counted(without, 'image')} without objects, served with empty rows",)
        offsets = offsets_of(self.counts)

        def rows(values: Any, role: str) -> RaggedArray:
            return RaggedArray(Ragged(values, offsets), role=role)

        names = paths = PathTable.of(images, root)
        if stores.is_web(root):
            paths = PathTable.of((stores.spelt(root, each) for each in images), root)
        files = EncodedFiles(paths)
        boxes = np.array(self.boxes, dtype=np.float32).reshape(-1, 4)
        labels = np.array(self.labels, dtype=np.int64)
        columns: dict[str, Any] = {
            "image": files,
            "boxes": rows(boxes, "boxes"),
            "labels": rows(labels, "instances"),
        }
        for key, entries in self.numbers.items():
            dtype = np.float32 if key in _FRACTIONS else np.int64
            role = role_of(self.point_pairs) if key == "keypoints" else "instances"
            columns[key] = rows(np.array(entries, dtype=dtype), role)
        if self.polygons is not None:
            polygons = [
                np.asarray(polygon, np.float32)
                for outlines in self.polygons
                for polygon in outlines
            ]
            corners = np.concatenate(polygons) if polygons else np.zeros((0, 2), np.float32)
            outlines = Ragged(corners, offsets_of([len(polygon) for polygon in polygons]))
            of_objects = Ragged(outlines, offsets_of([len(polygons) for polygons in self.polygons]))
            columns["polygons"] = rows(of_objects, "polygons")
        if self.shapes is not None:
            columns["masks"] = rows(self.shapes.rows(), "instance_masks")
        for key, lists in self.of_images.items():
            numbers = np.array([number for one in lists for number in one], dtype=np.int64)
            columns[key] = RaggedArray(Ragged(numbers, offsets_of([len(one) for one in lists])))
        columns |= self.beside
        if image_ids is not None:
            if any(isinstance(own, str) for own in image_ids):
                columns["image_id"] = text_column(map(str, image_ids), lambda _: name)
            else:
                columns["image_id"] = ValueArray(np.array(image_ids, dtype=np.int64))
        identity: list[Any] = [
            names.digest(),
            offsets,
            repr(None if classes is None else tuple(classes)),
            *self.identity,
        ]
        for key, column in columns.items():
            if isinstance(column, RaggedArray):
                identity += [key, *column.array.arrays()]
                identity += [column.role] if ":" in column.role else []
            elif isinstance(column, ValueArray):
                identity += [key, column.array]
        identity += [folders.sampled_sizes(files), *folders.sampled_bytes(files)]
        source = Source(
            columns,
            fingerprint_of("objects", *identity),
            name,
            "dict",
            None if classes is None else tuple(classes),
            format,
            details or {},
        )
        return Opened(source, notes=notes)

    def _other_sizes(
        self, images: Sequence[str], root: str, name: str, *, strict: bool
    ) -> tuple[str, ...]:
        """A note where images on a disk have another size than the annotations say. Reads the
        headers of up to 1,024 images, spread evenly. Raises SourceError: there are such, and
        `strict`."""
        if not self.sizes or stores.is_remote(root):
            return ()
        rows = [row for row in folders.sampled_rows(len(images)).tolist() if self.sizes[row]]
        stored = stored_sizes([os.path.join(root, images[row]) for row in rows])
        wrong = [
            (images[row], size, self.sizes[row])
            for row, size in zip(rows, stored, strict=True)
            if size is not None and size != self.sizes[row]
        ]
        if not wrong:
            return ()
        image, is_there, said = wrong[0]
        shown = [f"{size[1]} x {size[0]}" for size in (is_there, said) if size]
        words = (
            f"{counted(len(wrong), 'image')} of {len(rows)} looked at are not of the size that the "
            f"annotations say (first {image}: {' and not '.join(shown)}); where they were resized, "
            "or their EXIF data turn them, boxes are of another picture"
        )
        if strict:
            raise SourceError(f"{name}: {words}. Correct the sizes, or the images.")
        logger.warning("%s: %s. strict=True makes this an error.", name, words)
        return (words,)
