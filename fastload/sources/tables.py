"""One folder of images whose classes are in a table: Kaggle's CSV files, ImageNet's and Tiny-ImageNet's validation."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fastload.errors import SourceError, and_more, counted
from fastload.files import read_regular
from fastload.sources.base import Opened, OpenOptions
from fastload.sources.buffers import PathTable
from fastload.sources.columns import EncodedFiles
from fastload.sources.folders import classified_images, files_in, is_image_name, split_folder, subfolders

_FOLDERS = ("images", "image", "imgs", "img", "jpg", "jpeg", "JPEG", "png")
"""What a folder of all images is called, where the table is in the one above it."""
_TABLES = (".csv", ".tsv", ".txt")
_LABELS = ("label", "labels", "class", "class_name", "category", "target", "breed", "species", "wnid")
_LARGEST = 1 << 28
"""Bytes of a table; ten million rows have some 200 million."""


def is_labelled_by_table(spec: object) -> bool:
    """A folder without folders and with images in it, or with one folder of all images."""
    return isinstance(spec, str) and os.path.isdir(spec) and _images_in(spec) is not None


def open_labelled_by_table(root: str, options: OpenOptions) -> Opened:
    """Open images by a table of their labels: columns `image`, in the order of their names, and `label`.

    The table is a .csv, .tsv or .txt file in the folder or the one above it, of which one column names the files, with
    or without extension. If there are two columns the other is the label; of more it is the one called label, class,
    category, target or the like, or the second where none has a name (Tiny-ImageNet's `val_annotations.txt`).

    Labels that are whole numbers are taken as they are. Words are classes: those of the class folders in the training
    split beside it, if there is one, else all words in the table, sorted.
    """
    folder = _images_in(root)
    assert folder is not None, "is_labelled_by_table said so"
    images = [name for name in files_in(folder) if is_image_name(name)]
    path, labels = _chosen(folder, images)
    numbers = [int(label) for label in labels if label.lstrip("+").isdecimal()]
    trained = _training_classes(folder)
    notes = f"labels from {path}"
    if len(numbers) == len(labels):
        classes = trained or [str(number) for number in range(min(max(numbers), len(labels) << 4) + 1)]
        notes += ", numbers taken as they are"
    else:
        classes = trained or sorted(set(labels))
        notes += f", classes those of {'the training split' if trained else 'this table, sorted'}"
        label_of = {title: number for number, title in enumerate(classes)}
        numbers = [label_of.get(label, -1) for label in labels]
    wrong = next((row for row, number in enumerate(numbers) if not 0 <= number < len(classes)), None)
    if wrong is not None:
        raise SourceError(
            f"{path}: {images[wrong]} has the label {labels[wrong]!r}, which is none of "
            f"{counted(len(classes), 'class')} ({', '.join(classes[:3])}...); correct the table, or the training "
            "split beside it."
        )
    files = EncodedFiles(PathTable.of(images, folder))
    source = classified_images(files, np.array(numbers), classes, name=root, format="images and a table")
    return Opened(source, notes=(notes,))


def _images_in(root: str) -> str | None:
    """The folder with all images: this one or the only one in it."""
    inner = subfolders(root)
    folder = root if not inner else os.path.join(root, inner[0]) if len(inner) == 1 and inner[0] in _FOLDERS else None
    if folder is None or (inner and subfolders(folder)) or not any(map(is_image_name, files_in(folder))):
        return None
    return folder


def _training_classes(folder: str) -> list[str] | None:
    """The class folders of the training split beside the folder, or beside the one above it."""
    for above in (os.path.dirname(folder), os.path.dirname(os.path.dirname(folder))):
        train = split_folder(above, "train")
        classes = [] if train is None or train == folder else subfolders(train)
        if len(classes) > 1:
            return classes
    return None


@dataclass(frozen=True)
class _Table:
    path: str
    rows: list[tuple[int, list[str]]]
    """Those that name an image, by its row; all with as many columns."""
    header: list[str] | None
    file_column: int

    def labels(self, images: Sequence[str]) -> list[str]:
        """The label of each image."""
        column = self._label_column()
        boxes = self.header is not None and self.header[column] == "predictionstring"  # ImageNet on Kaggle
        found: dict[int, str] = {}
        for place, row in self.rows:
            label = row[column].strip()
            label = label.partition(" ")[0] if boxes else label
            if found.setdefault(place, label) != label:
                raise SourceError(
                    f"{self.path}: {row[self.file_column]} comes twice, as {found[place]} and as {label}; an image has "
                    "one class here. Boxes and several classes an image are for a Dataset of your own."
                )
        lacking = [name for place, name in enumerate(images) if place not in found]
        if lacking:
            raise SourceError(
                f"{self.path}: no row for {lacking[0]}{and_more(lacking)}; add its label, or remove the image."
            )
        return [found[place] for place in range(len(images))]

    def _label_column(self) -> int:
        rows = [row for _, row in self.rows]
        others = [column for column in range(len(rows[0])) if column != self.file_column]
        called = [column for column in others if self.header is not None and self.header[column] in _LABELS]
        for only in (others, called):
            if len(only) == 1:
                return only[0]
        rest = [cell.strip().lstrip("-").replace(".", "", 1) for row in rows[:100] for cell in row[2:]]
        if self.header is None and self.file_column == 0 and all(map(str.isdecimal, rest)):
            return 1
        raise SourceError(
            f"{self.path}: cannot tell which column is the label (columns: {', '.join(self.header or rows[0])}); write "
            "a table of two columns, file and label, in its place."
        )


def _chosen(folder: str, images: Sequence[str]) -> tuple[str, list[str]]:
    """The table that has the labels, and these."""
    places = {os.path.splitext(name)[0]: row for row, name in enumerate(images)}
    places |= {name: row for row, name in enumerate(images)}
    paths = [
        os.path.join(place, name)
        for place in (folder, os.path.dirname(folder))
        for name in files_in(place)
        if name.lower().endswith(_TABLES) and "submission" not in name.lower()
    ]
    tables = [table for path in paths if (table := _read(path, places)) is not None]
    if not tables:
        beside = f" ({', '.join(map(os.path.basename, paths))} does not name them)" if paths else ""
        raise SourceError(
            f"{folder}: {counted(len(images), 'image')} ({images[0]}...) but no class folders, and no table of their "
            f"labels{beside}. Move them into one subfolder a class ({folder}/<class>/{images[0]}), or put a labels.csv "
            "with the columns file and label beside them."
        )
    most = max(len(table.rows) for table in tables)
    found = {table.path: table.labels(images) for table in tables if len(table.rows) == most}
    path, labels = next(iter(found.items()))
    if any(others != labels for others in found.values()):
        raise SourceError(f"{folder}: {' and '.join(found)} give these images different labels; keep one of them.")
    return path, labels


def _read(path: str, places: dict[str, int]) -> _Table | None:
    """The table, if one of its columns names these images."""
    try:
        rows = list(_cells(read_regular(path, most=_LARGEST).decode("utf-8-sig")))
    except (OSError, UnicodeDecodeError, csv.Error):
        return None
    width = len(rows[0]) if rows else 0
    even = [row for row in rows if len(row) == width]

    def place_of(cell: str) -> int | None:
        return places.get(os.path.basename(cell.strip()))

    hits = [sum(place_of(row[column]) is not None for row in even) for column in range(width)]
    if width < 2 or not any(hits):
        return None
    column = hits.index(max(hits))
    if len(even) != len(rows):
        odd = next(number for number, row in enumerate(rows, 1) if len(row) != width)
        raise SourceError(
            f"{path}: row {odd} has {counted(len(rows[odd - 1]), 'column')}, the first has {width}; correct it."
        )
    # The first row has names of columns if it names no file and no other split's, which would have an extension too.
    named = place_of(rows[0][column]) is None and not is_image_name(rows[0][column])
    header = [cell.strip().lower() for cell in rows[0]] if named else None
    return _Table(path, [(place, row) for row in rows if (place := place_of(row[column])) is not None], header, column)


def _cells(text: str) -> Iterator[list[str]]:
    """The rows: with tabs, commas or semicolons between the cells, or, where there are none, spaces."""
    first = text[: text.find("\n") + 1] or text
    delimiter = next((mark for mark in "\t,;" if mark in first), None)
    if delimiter is None:
        return (line.split() for line in text.splitlines() if line.strip())
    return (row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=False) if row)
