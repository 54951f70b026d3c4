"""The shapes of the objects in an image, from which their masks are drawn: polygons, and run
lengths as COCO has them.

A shape is a row of float64 numbers, one part after the other; its mask is all that any part covers:

    polygon      n, x0, y0, x1, y1, ... of n corners, 3 or more, in pixels of the source image
    run lengths  -n, height, width, then n lengths: down the columns of an image of that size,
                 pixels beside the object, pixels of it, and so on in turn

The native core reads them when a batch is made (fastload/native/masks.cpp): after all geometry, at
the size of the output.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.errors import ConfigurationError, SourceError, counted
from fastload.sources.base import Source
from fastload.sources.buffers import AnyArray, Int64Array
from fastload.sources.columns import RaggedArray
from fastload.sources.kinds import Kind, register_kind
from fastload.sources.ragged import Ragged, offsets_of

LEAST_CORNERS = 3
_MOST_PIXELS = 1 << 31
"""Pixels of a mask in run lengths: an image of 46,340 x 46,340."""
_SHOWN = 60
"""Characters of a shape in messages."""


class InstanceMasks(Kind):
    """For each object in an image its shape, a row of numbers (Ragged of Ragged). Delivered as
    masks, (T, H, W) uint8 for all T objects of a batch: 1 where the object is, in the picture as
    the trainer gets it."""

    name = "instance_masks"
    moves = True
    of_instances = True
    only_ragged = True
    drawn = True

    def check(self, rows: AnyArray, name: str) -> None:
        if rows.ndim != 1 or rows.dtype != np.float64:
            raise SourceError(
                f"{name}: shapes must be rows of float64 numbers, got {rows.dtype} of shape "
                f"{rows.shape}; make them with fastload.sources.shapes_of."
            )


@dataclass
class Shapes:
    """Collects the shapes of objects, one after the other."""

    numbers: array[float] = field(default_factory=lambda: array("d"))
    lengths: list[int] = field(default_factory=list)
    """Numbers of each object so far."""

    def add(self, segmentation: Any, size: tuple[int, int] | None, where: str) -> None:
        """The next object, in any form that COCO has.

        Args:
            segmentation: a list of polygons [x0, y0, x1, y1, ...]; a dict with `size` (height,
                width) and `counts`, a list of numbers or a compressed string; None: it has no mask.
            size: (height, width) of its image, where that is known.
            where: file and annotation, for messages.

        Raises:
            SourceError: it is none of these.
        """
        before = len(self.numbers)
        if isinstance(segmentation, dict):
            self._add_runs(segmentation, size, where)
        elif isinstance(segmentation, list | tuple):
            for outline in segmentation:
                self._add_polygon(outline, where)
        elif segmentation is not None:
            raise SourceError(
                f"{where}: its segmentation is a {type(segmentation).__name__}; give polygons, or "
                "run lengths (RLE) with size and counts."
            )
        self.lengths.append(len(self.numbers) - before)

    def rows(self) -> Ragged:
        """(objects) rows of numbers."""
        return Ragged(np.array(self.numbers, dtype=np.float64), offsets_of(self.lengths))

    def _add_polygon(self, outline: Any, where: str) -> None:
        start = len(self.numbers)
        self.numbers.append(0.0)
        try:
            self.numbers.extend(outline)
            count, odd = divmod(len(outline), 2)
            sound = count >= LEAST_CORNERS and not odd and all(map(math.isfinite, outline))
        except (TypeError, OverflowError):
            count, sound = 0, False
        if not sound:
            raise SourceError(
                f"{where}: a polygon must be x and y of at least three corners, got "
                f"{str(outline)[:_SHOWN]}; correct or remove it."
            )
        self.numbers[start] = count

    def _add_runs(self, given: dict[Any, Any], size: tuple[int, int] | None, where: str) -> None:
        extent, counts = given.get("size"), given.get("counts")
        good = isinstance(extent, list | tuple) and len(extent) == 2
        if not good or not all(type(side) is int and side > 0 for side in extent or ()):
            raise SourceError(
                f"{where}: the size of its run lengths (RLE) must be height and width, got "
                f"{str(extent)[:_SHOWN]}; correct or remove it."
            )
        height, width = extent  # type: ignore[misc]
        if size is not None and (height, width) != size:
            raise SourceError(
                f"{where}: its run lengths (RLE) are of an image of {width} x {height}, and the "
                f"image is {size[1]} x {size[0]}; correct the one that is wrong."
            )
        runs = _counts_of(counts, where)
        pixels = height * width
        sound = pixels <= _MOST_PIXELS and ((runs >= 0) & (runs <= pixels)).all()
        if not sound or runs.sum() != pixels:
            wrong = f"add up to {runs.sum()}" if sound else "are negative or too long"
            raise SourceError(
                f"{where}: its run lengths (RLE) {wrong}, and an image of {width} x {height} has "
                f"{pixels} pixels; correct or remove it."
            )
        self.numbers.extend((-len(runs), height, width))
        self.numbers.frombytes(runs.astype(np.float64).tobytes())


def _counts_of(counts: Any, where: str) -> Int64Array:
    if isinstance(counts, str | bytes):
        text = counts.encode("utf-8") if isinstance(counts, str) else counts
        return _decompressed(text, where)
    if isinstance(counts, list | tuple):
        runs = np.array(counts)
        if runs.ndim == 1 and (runs.dtype.kind in "iu" or not len(runs)):
            return runs.astype(np.int64)
    raise SourceError(
        f"{where}: the counts of its run lengths (RLE) must be whole numbers or a compressed "
        f"string, got {str(counts)[:_SHOWN]}; correct or remove it."
    )


def _decompressed(text: bytes, where: str) -> Int64Array:
    """Run lengths of COCO's strings (`rleFrString` of cocoapi): groups of five bits, the lowest
    first, each as a character from "0" on; 32 says that another follows, 16 in the last one that
    the number is negative. From the fourth number on it is the difference from the one two before.
    """
    codes = np.frombuffer(text, np.uint8).astype(np.int64) - ord("0")
    ends = np.flatnonzero(codes < 32) + 1
    lengths = np.diff(ends, prepend=0)
    sound = not len(codes) or (len(ends) > 0 and ends[-1] == len(codes))
    if not sound or ((codes < 0) | (codes >= 64)).any() or (lengths > 7).any():
        raise SourceError(
            f"{where}: the counts of its run lengths (RLE) are no compressed string: "
            f"{text[:_SHOWN]!s}; correct or remove it."
        )
    if not len(codes):
        return np.zeros(0, np.int64)
    starts = ends - lengths
    place = np.arange(len(codes)) - np.repeat(starts, lengths)
    runs = np.add.reduceat((codes & 31) << (5 * place), starts)
    runs -= ((codes[ends - 1] & 16) != 0) * (1 << (5 * lengths))
    runs[1::2] = np.cumsum(runs[1::2])
    runs[2::2] = np.cumsum(runs[2::2])
    return runs


def runs_of(mask: npt.NDArray[Any]) -> dict[str, Any]:
    """Run lengths, as COCO has them, of an (H, W) mask."""
    flat = np.concatenate([[False], mask.astype(np.bool_).T.reshape(-1)])
    changes = np.flatnonzero(flat[1:] != flat[:-1])
    counts = np.diff(changes, prepend=0, append=flat.size - 1)
    return {"size": [int(side) for side in mask.shape], "counts": counts.tolist()}


def shapes_of(images: Sequence[Sequence[Any]]) -> Ragged:
    """The shapes of the objects of each image, for a column of masks of your own:
    `RaggedArray(shapes_of(images), role="instance_masks")`.

    `images`: of each image its objects, each as COCO's `segmentation` (see `Shapes.add`). Raises
    SourceError: one is no such.
    """
    shapes = Shapes()
    for row, objects in enumerate(images):
        for number, segmentation in enumerate(objects):
            shapes.add(segmentation, None, f"image {row}, object {number}")
    return Ragged(shapes.rows(), offsets_of([len(objects) for objects in images]))


def with_masks(source: Source) -> Source:
    """The source with a column `masks` in the place of polygons.

    Raises:
        ConfigurationError: it has no polygons; or a column of that name which is something else.
        SourceError: a polygon has less than three corners.
    """
    roles = {name: column.role for name, column in source.columns.items()}
    if InstanceMasks.name in roles.values():
        return source
    polygons = [name for name, role in roles.items() if role == "polygons"]
    if len(polygons) != 1 or "masks" in roles or not source.images:
        raise ConfigurationError(
            f"masks: they are drawn from polygons or run lengths (RLE) of the objects in images, "
            f"and {source.name} has {'several' if polygons else 'none'} (columns: "
            f"{', '.join(roles)}). Leave masks out."
        )
    column: Any = source.columns[polygons[0]]
    everything: Ragged = column.at(np.arange(len(source)))
    shapes = RaggedArray(_of_polygons(everything, source.name), role=InstanceMasks.name)
    columns = {
        "masks" if name == polygons[0] else name: shapes if name == polygons[0] else one
        for name, one in source.columns.items()
    }
    return replace(source, columns=columns)


def _of_polygons(images: Ragged, name: str) -> Ragged:
    """From images, objects, polygons and corners to shapes."""
    objects: Ragged = images.values
    polygons: Ragged = objects.values
    lengths = polygons.lengths
    without = np.flatnonzero(objects.lengths == 0)
    if len(without):
        row = int(images.rows_of_values[without[0]])
        raise SourceError(
            f"{name}: {counted(len(without), 'object')} without polygons, the first in sample "
            f"{row}, of which no mask can be drawn; add polygons, or leave masks out. Of COCO's "
            "run lengths (RLE) they can, if masks=True is given where the files are opened."
        )
    if len(lengths) and lengths.min() < LEAST_CORNERS:
        bad = int(objects.rows_of_values[lengths.argmin()])
        row = int(images.rows_of_values[bad])
        raise SourceError(
            f"{name}: sample {row} has a polygon of {lengths.min()} corners; it must have three or "
            "more. Correct or remove it."
        )
    places = offsets_of(1 + 2 * lengths)
    numbers = np.empty(places[-1], np.float64)
    corners = np.ones(len(numbers), np.bool_)
    corners[places[:-1]] = False
    numbers[places[:-1]] = lengths
    numbers[corners] = np.asarray(polygons.values, np.float64).reshape(-1)
    return Ragged(Ragged(numbers, places[objects.offsets]), images.offsets)


register_kind(InstanceMasks())
