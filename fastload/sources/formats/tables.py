"""One folder of images whose classes are in a table: Kaggle's CSV files, ImageNet's and
Tiny-ImageNet's validation.

    kaggle/                       or Tiny-ImageNet's:
    ├── train.csv                 val/
    ├── train_images/             ├── val_annotations.txt
    │   └── 0001.jpg              └── images/
    ├── val.csv                       └── val_0.JPEG
    └── val_images/

Gives `image` and `label`, sorted by the image's name.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import os
import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fastload import stores
from fastload.errors import SourceError, and_more, counted
from fastload.sources.base import Opened, OpenOptions
from fastload.sources.buffers import PathTable
from fastload.sources.columns import EncodedFiles
from fastload.sources.folders import (
    classified_images,
    files_in,
    split_folder,
    subfolders,
)
from fastload.sources.formats import Format
from fastload.sources.image_files import LeftOut, is_image_name
from fastload.sources.names import split_in_words, split_of

_IMAGE_FOLDERS = ("images", "image", "imgs", "img", "jpg", "jpeg", "JPEG", "png")
"""What a folder of all images is called, where the table is in the one above it."""
_TABLES = (".csv", ".tsv", ".txt")
_LABELS = (
    "label",
    "labels",
    "class",
    "class_name",
    "category",
    "target",
    "breed",
    "species",
    "wnid",
)
_FILES = (
    *("file", "filename", "file_name", "filepath", "path", "image", "images", "img", "image_id"),
    *("imageid", "image_name", "image_path", "image_file", "id", "id_code", "name"),
)
_NO_LABELS = (
    *("text", "texts", "caption", "captions", "prompt", "description", "sentence", "comment"),
    *("split", "subset", "set", "fold", "partition"),
)
_LARGEST = 1 << 28
"""Bytes of a table; ten million rows have some 200 million."""
_LONGEST_LINE = 1 << 16
"""Characters: a line of a table of labels has some 50. Millions of cells in one line would take
seconds to look up."""
_LONGEST_NUMBER = 18
"""Digits of a label: what fits into int64."""


def is_labelled_by_table(spec: object) -> bool:
    """A folder without folders and with images in it, or with one folder of all images."""
    return isinstance(spec, str) and stores.is_folder(spec) and _images_in(spec) is not None


def open_labelled_by_table(root: str, options: OpenOptions) -> Opened:
    """Open images by a table of their labels: columns `image`, in the order of their names, and
    `label`.

    The table is a .csv, .tsv or .txt file in the folder or the one above it, of which one column
    names the files, with or without extension. If there are two columns the other is the label; of
    more it is the one called label, class, category, target or the like, or the second where none
    has a name (Tiny-ImageNet's `val_annotations.txt`).

    A label that is a name of a class is that class, whatever it looks like. Classes are
    `options.classes`, else the class folders of the training split beside it, else those of the
    training split's own table. Without any of them, labels that are whole numbers are taken as they
    are, and words are classes, sorted; but not for a folder that is called val or test, in whose
    table some class may be missing, so that others would move up.

    Raises:
        SourceError: an empty cell; a column of words and numbers; a label that is no class. The
            message names the row.
    """
    folder = _images_in(root)
    assert folder is not None, "is_labelled_by_table said so"
    left_out = LeftOut(root, strict=options.strict)
    images: list[str] = []
    for name in files_in(folder, left_out):
        if is_image_name(name):
            images.append(name)
        elif not name.lower().endswith(_TABLES):
            left_out.add(name)
    table = _chosen(folder, images)
    labels = table.labels(images)
    if options.classes is None and not options.by_name:
        table.refuse_captions(labels)
    given = options.classes is not None
    classes, whose = (
        (list(options.classes or ()), "those given") if given else _training_classes(folder)
    )
    named = {title: number for number, title in enumerate(classes)}
    # Folders called 0 to 11 are sorted as words: 0, 1, 10, 11, 2. There the label 2 is the folder
    # 2, which is class 4.
    counted_up = classes == [str(number) for number in range(len(classes))] or not any(
        map(_is_number, classes)
    )
    numbered = table.are_numbers(labels, known=() if counted_up else classes)
    notes = f"labels from {table.path}"
    if classes and not (numbered and counted_up):
        notes += f", classes {whose}"
        numbers = [named.get(label.text, -1) for label in labels]
    elif numbered:
        numbers = [_number(table, label) for label in labels]
        classes = classes or [
            str(number) for number in range(min(max(numbers), len(labels) << 4) + 1)
        ]
        notes += ", numbers taken as they are"
    else:
        split = _split_of(folder)
        if split in ("val", "test"):
            raise SourceError(
                f"{table.path}: its labels are words, and which number each has is for the "
                f"training data to say: a class may be missing in the {split} split. Put the "
                "training split beside it (train/ with a folder a class, or its own table), or "
                "give the classes: fastload.open_source(folder, classes=[...])."
            )
        notes += ", classes those of this table, sorted"
        classes = sorted({label.text for label in labels})
        named = {title: number for number, title in enumerate(classes)}
        numbers = [named[label.text] for label in labels]
    for label, number, image in zip(labels, numbers, images, strict=True):
        if not 0 <= number < len(classes):
            raise SourceError(
                f"{table.path}: row {label.row}: {image} has the label {_shown(label.text)}, which "
                f"is none of {counted(len(classes), 'class')} "
                f"({', '.join(classes[:3])}{'...' if classes[3:] else ''}); numbers count from 0. "
                "Correct the table, the training split beside it, or classes=."
            )
    files = EncodedFiles(PathTable.of(images, folder))
    source = classified_images(
        files, np.array(numbers), classes, name=root, format="images and a table"
    )
    return Opened(source, notes=(notes, *left_out.notes()))


def _images_in(root: str) -> str | None:
    """The folder with all images: this one or the only one in it."""
    inner = subfolders(root)
    folder = (
        root
        if not inner
        else os.path.join(root, inner[0])
        if len(inner) == 1 and inner[0] in _IMAGE_FOLDERS
        else None
    )
    if (
        folder is None
        or (inner and subfolders(folder))
        or not any(map(is_image_name, files_in(folder)))
    ):
        return None
    return folder


def _training_classes(folder: str) -> tuple[list[str], str]:
    """The classes of the training split beside the folder, or beside the one above it, and where
    they are from.

    They are its class folders, or the labels in its table; none where there is no such split, or it
    is the folder.
    """
    for above in _above(folder):
        train = split_folder(above, "train")
        if train is None or f"{folder}/".startswith(f"{train}/"):
            continue
        if _images_in(train) is not None:
            with contextlib.suppress(SourceError):  # it has no labels, so that it has no classes
                opened = open_labelled_by_table(train, OpenOptions())
                return list(opened.source.classes or ()), f"those of the table of {train}"
            continue
        classes = subfolders(train)
        if len(classes) > 1:
            return classes, f"the folders in {train}"
    return [], ""


def _above(folder: str) -> list[str]:
    """The folders in which a training split may lie beside a folder of images: val, or
    val/images."""
    above = stores.parent_of(folder)
    return (
        [above, stores.parent_of(above)] if os.path.basename(folder) in _IMAGE_FOLDERS else [above]
    )


def _split_of(folder: str) -> str | None:
    names = [os.path.basename(folder), *(os.path.basename(above) for above in _above(folder)[:-1])]
    return next(filter(None, map(split_of, names)), None)


class _Label(NamedTuple):
    row: int
    """Row of the table, counted from 1; a header is row 1."""
    text: str


def _is_number(text: str) -> bool:
    """Whether it is written as a whole number: 7, +7, -1, 007."""
    return re.fullmatch(r"[+-]?[0-9]+", text) is not None


def _is_numeric(text: str) -> bool:
    """Whether it looks like a number of any kind: 5.0, 1e3, nan."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(table: _Table, label: _Label) -> int:
    if len(label.text) > _LONGEST_NUMBER:
        raise SourceError(
            f"{table.path}: row {label.row}: the label is a number of "
            f"{counted(len(label.text), 'digit')} ({_shown(label.text)}); labels are numbers of "
            "classes, counted from 0: correct it."
        )
    return int(label.text)


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 40 else f"{text[:40]!r}..."


@dataclass(frozen=True)
class _Table:
    path: str
    rows: list[tuple[int, int, list[str]]]
    """Those that name an image: number of the row, which image, cells; all with as many cells."""
    header: list[str] | None
    file_column: int

    def labels(self, images: Sequence[str]) -> list[_Label]:
        """The label of each image. Raises SourceError: one has none, or two."""
        column = self._label_column()
        # The table of ImageNet on Kaggle has boxes after the label.
        boxes = self.header is not None and self.header[column] == "predictionstring"
        found: dict[int, _Label] = {}
        for number, place, row in self.rows:
            label = row[column].strip()
            label = label.partition(" ")[0] if boxes else label
            if not label:
                raise SourceError(
                    f"{self.path}: row {number}: the label of {row[self.file_column]} is empty; "
                    "write it, or remove the row and the image."
                )
            if found.setdefault(place, _Label(number, label)).text != label:
                raise SourceError(
                    f"{self.path}: {row[self.file_column]} comes twice, as {found[place].text} and "
                    f"as {label}; an image has one class here. Boxes and several classes an image "
                    "are for a Dataset of your own."
                )
        lacking = [name for place, name in enumerate(images) if place not in found]
        if lacking:
            raise SourceError(
                f"{self.path}: no row for {lacking[0]}{and_more(lacking)}; add its label, or "
                "remove the image."
            )
        return [found[place] for place in range(len(images))]

    def are_numbers(self, labels: Sequence[_Label], known: Collection[str]) -> bool:
        """Whether all labels are whole numbers. Raises SourceError: some are, or look like numbers
        of another kind.

        `known`: names of classes, which may look like anything.
        """
        others = [label for label in labels if label.text not in known]
        whole = [_is_number(label.text) for label in others]
        if all(whole):
            return len(others) == len(labels)
        odd = [label for label, is_number in zip(others, whole, strict=True) if not is_number]
        if any(whole) and sum(whole) < len(odd):
            odd, usual = (
                [label for label, is_number in zip(others, whole, strict=True) if is_number],
                "words",
            )
        elif any(whole):
            usual = "whole numbers"
        else:
            odd, usual = [label for label in others if _is_numeric(label.text)], "words"
        if odd:
            first = min(odd)
            where = f", where others are {usual}" if len(odd) < len(others) else ""
            raise SourceError(
                f"{self.path}: row {first.row}: the label is {_shown(first.text)}{where} "
                f"({counted(len(odd), 'row')} of this kind). Numbers count classes from 0, as 5 "
                "and not 5.0; words are names of classes. Correct the table, or, where such texts "
                "are names, give all of them: fastload.open_source(folder, classes=[...])."
            )
        return False

    def refuse_captions(self, labels: Sequence[_Label]) -> None:
        """Raise SourceError if no two images have one label, and these are several words."""
        texts = {label.text for label in labels}
        called = self.header is not None and self.header[self._label_column()] in _LABELS
        if called or not 1 < len(texts) == len(labels) or not any(" " in text for text in texts):
            return
        raise SourceError(
            f"{self.path}: every image has another label ({_shown(labels[0].text)}...), as "
            "captions are, and classes are not. To have the images without labels: "
            "format='images'. If these are names of classes: format='table'."
        )

    def _refuse_other_title(self, column: int) -> None:
        """Raise SourceError if the title of a column says that it holds no labels."""
        if self.header is not None and self.header[column] in _NO_LABELS:
            raise SourceError(
                f"{self.path}: its column {self.header[column]!r} holds no labels by its name. To "
                "have the images without labels: format='images'. If it does, call it label."
            )

    def _label_column(self) -> int:
        rows = [row for *_, row in self.rows]
        others = [column for column in range(len(rows[0])) if column != self.file_column]
        called = [
            column
            for column in others
            if self.header is not None and self.header[column] in _LABELS
        ]
        for only in (others, called):
            if len(only) == 1:
                self._refuse_other_title(only[0])
                return only[0]
        rest = [
            cell.strip().lstrip("-").replace(".", "", 1) for row in rows[:100] for cell in row[2:]
        ]
        if self.header is None and self.file_column == 0 and all(map(str.isdecimal, rest)):
            return 1
        raise SourceError(
            f"{self.path}: cannot tell which column is the label (columns: "
            f"{', '.join(self.header or rows[0])}); write a table of two columns, file and label, "
            "in its place."
        )


def _chosen(folder: str, images: Sequence[str]) -> _Table:
    """The table that has the labels."""
    places = {os.path.splitext(name)[0]: row for row, name in enumerate(images)}
    places |= {name: row for row, name in enumerate(images)}
    paths = [
        os.path.join(place, name)
        for place in (folder, stores.parent_of(folder))
        for name in files_in(place)
        if name.lower().endswith(_TABLES) and "submission" not in name.lower()
        # A text of the name of an image is about that image.
        if not (name.lower().endswith(".txt") and os.path.splitext(name)[0] in places)
    ]
    split = _split_of(folder)
    read = {path: _read(path, places, split) for path in paths}
    tables = [table for table in read.values() if isinstance(table, _Table)]
    if split is not None:
        tables = [table for table in tables if _split_said_by(table.path) == split] or tables
    if not tables:
        reasons = [f"{os.path.basename(path)} {reason}" for path, reason in read.items()]
        beside = f" ({', '.join(reasons)})" if paths else ""
        raise SourceError(
            f"{folder}: {counted(len(images), 'image')} ({images[0]}...) but no class folders, and "
            f"no table of their labels{beside}. Move them into one subfolder a class "
            f"({folder}/<class>/{images[0]}), put a labels.csv with the columns file and label "
            "beside them, or say that labels are not wanted: format='images'."
        )
    most = max(len(table.rows) for table in tables)
    fullest = [table for table in tables if len(table.rows) == most]
    texts = [[label.text for label in table.labels(images)] for table in fullest]
    if any(others != texts[0] for others in texts):
        names = " and ".join(table.path for table in fullest)
        raise SourceError(
            f"{folder}: {names} give these images different labels; keep one of them."
        )
    return fullest[0]


def _split_said_by(table: str) -> str | None:
    return split_in_words(os.path.splitext(os.path.basename(table))[0])


def _read(path: str, places: dict[str, int], split: str | None) -> _Table | str:
    """The table, if one of its columns names these images; else why it is not their table, for a
    message. `split`: that of the images. Images of another split may have the same names, 0.jpg and
    1.jpg.
    """
    said = _split_said_by(path)
    if split is not None and said not in (None, split):
        return f"is of the {said} split"
    try:
        data = stores.read_up_to(path, _LARGEST, version=stores.noted(path))
        rows = list(_cells(_text(data)))
    except UnicodeDecodeError as error:
        return f"is no UTF-8 ({error.reason} at byte {error.start:,}): save it as UTF-8"
    except (OSError, csv.Error) as error:
        if isinstance(error, OSError) and stores.is_remote(path):  # it may be the right one
            raise SourceError(f"{path}: this table cannot be read ({error}).") from error
        return "does not name them"
    except _TooLongError:
        return f"has a line of more than {_LONGEST_LINE:,} characters, which no table of labels has"
    width = len(rows[0]) if rows else 0
    even = [row for row in rows if len(row) == width]
    find: Callable[[str], int | None] = places.get

    def place_of(cell: str) -> int | None:
        above, name = os.path.split(cell.strip().replace("\\", "/"))
        if above and split is not None:  # the innermost folder that says a split
            said = next(filter(None, map(split_of, reversed(above.split("/")))), None)
            if said not in (None, split):
                return None
        return find(name)

    def named_in(column: int) -> set[int | None]:
        return {place_of(row[column]) for row in even} - {None}

    named = [*map(named_in, range(width))]
    if not any(named):
        find = _Alike(places).get
        named = [*map(named_in, range(width))]
    most = max(map(len, named), default=0)
    if width < 2 or not most:
        return "does not name them"
    column = _file_column([place for place in range(width) if len(named[place]) == most], even)
    if column is None:
        return "names them in several columns (write their names with extensions, 1.jpg)"
    if len(even) != len(rows):
        odd = next(number for number, row in enumerate(rows, 1) if len(row) != width)
        raise SourceError(
            f"{path}: row {odd} has {counted(len(rows[odd - 1]), 'column')}, the first has "
            f"{width}; correct it."
        )
    # The first row has names of columns if it names no file and no other split's, which would have
    # an extension too.
    titled = place_of(rows[0][column]) is None and not is_image_name(rows[0][column])
    header = [cell.strip().lower() for cell in rows[0]] if titled else None
    numbered = enumerate(rows, 1)
    ours = [
        (number, place, row)
        for number, row in numbered
        if (place := place_of(row[column])) is not None
    ]
    return _Table(path, ours, header, column)


class _Alike:
    """Images by names in other letters: upper or lower case, an accent of its own (NFD, as macOS
    writes names) or in one letter. None where two images are alike."""

    def __init__(self, places: Mapping[str, int]) -> None:
        self._places = places
        self._alike: dict[str, int | None] | None = None

    def get(self, name: str) -> int | None:
        if self._alike is None:
            self._alike = {}
            for each, place in self._places.items():
                key = _folded(each)
                self._alike[key] = place if self._alike.get(key, place) == place else None
        return self._alike.get(_folded(name))


def _folded(name: str) -> str:
    return name.casefold() if name.isascii() else unicodedata.normalize("NFC", name).casefold()


def _text(data: bytes) -> str:
    """A table as text: UTF-8, or UTF-16 with its mark, as spreadsheets write it. Raises
    UnicodeDecodeError: it is neither."""
    if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return data.decode("utf-16")
    text = data.decode("utf-8-sig")
    if "\0" in text[:64]:
        raise UnicodeDecodeError("utf-8", data, data.index(0), data.index(0) + 1, "a zero")
    return text


def _file_column(columns: list[int], rows: list[list[str]]) -> int | None:
    """The column of file names among columns that all name as many images; None: it is not known. A
    column of numeric labels, 0 and 1, seems to name images as well, 0.jpg and 1.jpg.
    """
    if len(columns) > 1:
        extended = [column for column in columns if any(is_image_name(row[column]) for row in rows)]
        titles = [cell.strip().lower() for cell in rows[0]]
        columns = (
            extended
            or [column for column in columns if titles[column] in _FILES]
            or [column for column in columns if titles[column] not in _LABELS]
        )
    return columns[0] if len(columns) == 1 else None


class _TooLongError(Exception):
    """A line that is too long for a table."""


def _cells(text: str) -> Iterator[list[str]]:
    """The rows: with tabs, commas or semicolons between the cells, or, where there are none,
    spaces."""
    lines = text.splitlines(keepends=True)
    if max(map(len, lines), default=0) > _LONGEST_LINE:
        raise _TooLongError
    first = lines[0] if lines else ""
    delimiter = next((mark for mark in "\t,;" if mark in first), None)
    if delimiter is None:
        return (line.split() for line in lines if line.strip())
    return (
        row
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=False)
        if row
    )


FORMAT = Format(
    name="table",
    title="images and a table",
    recognise=is_labelled_by_table,
    open=open_labelled_by_table,
    options=("classes",),
    remote=True,
    signs=("*.*", ".*", "images", "image", "imgs", "img", "jpg", "jpeg", "JPEG", "png"),
    files=(),
    packages=(),
    generality=1,
    common=True,
)
