"""One folder of images whose classes, or numbers to be predicted, are in a table: Kaggle's CSV
files, ImageNet's and Tiny-ImageNet's validation.

    kaggle/                       or Tiny-ImageNet's:
    ├── train.csv                 val/
    ├── train_images/             ├── val_annotations.txt
    │   └── 0001.jpg              └── images/
    ├── val.csv                       └── val_0.JPEG
    └── val_images/

Gives `image` and `label`, sorted by the image's name; or `image` and `target` (float32) where
columns of 0 and 1 say several classes of an image (multi-label), or numbers have fractions
(regression). Columns of 0 and 1 of which each image has one 1 (one-hot) are labels.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fastload import stores
from fastload.errors import ConfigurationError, SourceError, and_more, counted
from fastload.fingerprint import fingerprint_of
from fastload.sources import folders
from fastload.sources.base import Opened, OpenOptions, Source
from fastload.sources.buffers import PathTable
from fastload.sources.columns import EncodedFiles, ValueArray
from fastload.sources.folders import (
    classified_images,
    files_in,
    split_folder,
    subfolders,
)
from fastload.sources.formats import Format
from fastload.sources.image_files import LeftOut, is_image_name
from fastload.sources.image_tables import LABELS, ImageTable, read_table, split_said_by
from fastload.sources.kinds import PLACES, VALUE
from fastload.sources.names import split_of
from fastload.sources.places import say_places
from fastload.sources.targets import (
    Cells,
    Meaning,
    Training,
    all_numbers,
    meaning_of,
    numbers_of,
    refuse_several_in_one,
    remedy,
    some_have_fractions,
)

_IMAGE_FOLDERS = ("images", "image", "imgs", "img", "jpg", "jpeg", "JPEG", "png")
"""What a folder of all images is called, where the table is in the one above it."""
_TABLES = (".csv", ".tsv", ".txt")
_NO_LABELS = (
    *("text", "texts", "caption", "captions", "prompt", "description", "sentence", "comment"),
    *("split", "subset", "set", "fold", "partition"),
)
_LONGEST_NUMBER = 18
"""Digits of a label: what fits into int64."""


def is_labelled_by_table(spec: object) -> bool:
    """A folder without folders and with images in it, or with one folder of all images."""
    return isinstance(spec, str) and stores.is_folder(spec) and _images_in(spec) is not None


def open_labelled_by_table(root: str, options: OpenOptions) -> Opened:
    """Open images by a table of their labels: columns `image`, in the order of their names, and
    `label` or `target`.

    The table is a .csv, .tsv or .txt file in the folder or the one above it, of which one column
    names the files, with or without extension. If there are two columns the other is the label; of
    more it is the one called label, class, category, target or the like. Where none has a name it
    is the second, if it holds words (Tiny-ImageNet's `val_annotations.txt`).

    A label that is a name of a class is that class, whatever it looks like. Classes are
    `options.classes`, else the class folders of the training split beside it, else those of the
    training split's own table. Without any of them, labels that are whole numbers are taken as they
    are, and words are classes, sorted; but not for a folder that is called val or test, in whose
    table some class may be missing, so that others would move up.

    Of several columns of which none is called label, all are numbers, and `sources.targets` says
    what they mean; `target` is of float32. So is that of numbers with fractions in one column.

    Raises:
        SourceError: an empty cell; a column of words and numbers; a label that is no class; columns
            that may mean one thing or another. The message names the row.
        ConfigurationError: `options.target` is no column.
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
    labelled = _labelled(folder, images, options)
    files = EncodedFiles(PathTable.of(images, folder))
    name, values, names = "images and a table", labelled.values, labelled.names
    if labelled.meaning == "class":
        source = classified_images(files, values.array, names, name=root, format=name)
        return Opened(source, notes=(*labelled.notes, *left_out.notes()))
    source = Source(
        {
            "image": files,
            "target": replace(values, role=(PLACES if say_places(names) else VALUE).name),
        },
        fingerprint_of(
            "images and targets",
            *(files.paths.digest(), values.array, *names),
            *(folders.sampled_sizes(files), *folders.sampled_bytes(files)),
        ),
        root,
        classes=names if labelled.meaning == "classes" else None,
        format=name,
        details={} if labelled.meaning == "classes" else {"targets": names},
    )
    return Opened(source, notes=(*labelled.notes, *left_out.notes()))


@dataclass(frozen=True)
class _Labelled:
    """What a table says of all images of a folder."""

    meaning: Meaning
    names: tuple[str, ...]
    """Of classes, or of columns of numbers."""
    values: ValueArray
    table: str
    notes: tuple[str, ...]


def _labelled(folder: str, images: Sequence[str], options: OpenOptions) -> _Labelled:
    training = None
    if options.classes is not None:
        training = Training("class", tuple(options.classes), "the call")
    elif options.target is None:
        training = _training_of(folder)
    table, columns, cells = _chosen(folder, images, options, training)
    used = (table.file_column, *columns)
    left = [title for column, title in enumerate(table.titles or ()) if column not in used]
    notes = (f"left out: the columns {', '.join(left)} of {table.path}",) if left else ()
    if len(columns) == 1 and not _are_targets(cells, options, training):
        if training is None:
            refuse_several_in_one((text for (text,) in cells.rows), cells.titles[0], table.path)
        if options.classes is None and not options.by_name:
            _refuse_captions(table, columns[0], cells)
        return _of_one_column(folder, table, columns[0], images, cells, training, notes)
    meaning, numbers = meaning_of(
        cells,
        all_numbers(cells),
        training,
        wanted=options.target is not None,
        split=_split_of(folder),
    )
    names = cells.titles if training is None or len(columns) == 1 else training.names
    if meaning == "class":
        labels = numbers.argmax(1)
        note = f"labels from {table.path}: each image is of the one of its columns that has a 1"
        return _Labelled(meaning, names, ValueArray(labels), table.path, (note, *notes))
    if meaning == "classes":
        what = "0 or 1 for each class (of -1 and 1, 0 for -1)"
    else:
        numbers, what = (numbers[:, 0] if len(columns) == 1 else numbers), "numbers as they are"
    note = f"targets from {table.path}, {what}: {', '.join(names)}"
    return _Labelled(meaning, names, ValueArray(numbers), table.path, (note, *notes))


def _are_targets(cells: Cells, options: OpenOptions, training: Training | None) -> bool:
    """Whether the cells of a single column are numbers to be predicted, and not labels. Raises
    SourceError: some are."""
    if options.target is not None or training is not None:
        return training is None or training.meaning == "numbers"
    numbers = numbers_of(cells.rows)
    if not some_have_fractions(numbers)[0] or np.isnan(numbers).mean() > 0.5:
        return False
    all_numbers(cells)
    return True


def _of_one_column(
    folder: str,
    table: ImageTable,
    column: int,
    images: Sequence[str],
    cells: Cells,
    training: Training | None,
    notes: tuple[str, ...],
) -> _Labelled:
    """A column of names of classes, or of their numbers."""
    classes = [] if training is None else [*training.names]
    if training is not None and training.meaning != "class":
        raise SourceError(
            f"{table.path}: has one column of labels, {table.title(column)!r}, and "
            f"{training.place} the columns {', '.join(training.names)}; write the same columns."
        )
    texts = [text for (text,) in cells.rows]
    named = {title: number for number, title in enumerate(classes)}
    # Folders called 0 to 11 are sorted as words: 0, 1, 10, 11, 2. There the label 2 is the folder
    # 2, which is class 4.
    counted_up = classes == [str(number) for number in range(len(classes))] or not any(
        map(_is_number, classes)
    )
    numbered = _are_numbers(cells, texts, known=() if counted_up else classes)
    note = f"labels from {table.path}"
    if classes and not (numbered and counted_up):
        assert training is not None, "it has them"
        note += f", classes of {training.place}"
        numbers = [named.get(text, -1) for text in texts]
    elif numbered:
        numbers = [_number(cells, row, text) for row, text in enumerate(texts)]
        classes = classes or [
            str(number) for number in range(min(max(numbers), len(texts) << 4) + 1)
        ]
        note += ", numbers taken as they are"
    else:
        split = _split_of(folder)
        if split in ("val", "test"):
            raise SourceError(
                f"{table.path}: its labels are words, and which number each has is for the "
                f"training data to say: a class may be missing in the {split} split. Put the "
                "training split beside it (train/ with a folder a class, or its own table), or "
                "give the classes: fastload.open_source(folder, classes=[...])."
            )
        note += ", classes those of this table, sorted"
        classes = sorted({*texts})
        named = {title: number for number, title in enumerate(classes)}
        numbers = [named[text] for text in texts]
    for row, number in enumerate(numbers):
        if not 0 <= number < len(classes):
            raise SourceError(
                f"{cells.describe(row)} has the label {_shown(texts[row])}, which "
                f"is none of {counted(len(classes), 'class')} "
                f"({', '.join(classes[:3])}{'...' if classes[3:] else ''}); numbers count from 0. "
                "Correct the table, the training split beside it, or classes=."
            )
    labels = ValueArray(np.array(numbers))
    return _Labelled("class", tuple(classes), labels, table.path, (note, *notes))


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


def _training_of(folder: str) -> Training | None:
    """What the training split beside the folder says, or the one beside the folder above it.

    Its classes are its class folders, or the labels in its table; None where there is no such
    split, or it is the folder.
    """
    for above in _above(folder):
        train = split_folder(above, "train")
        if train is None or f"{folder}/".startswith(f"{train}/"):
            continue
        images = _images_in(train)
        if images is not None:
            with contextlib.suppress(SourceError):  # it has no labels, so that it has no classes
                labelled = _labelled(
                    images, [*filter(is_image_name, files_in(images))], OpenOptions()
                )
                return Training(labelled.meaning, labelled.names, f"the table of {train}")
            continue
        classes = subfolders(train)
        if len(classes) > 1:
            return Training("class", tuple(classes), f"the folders in {train}")
    return None


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


def _is_number(text: str) -> bool:
    """Whether it is written as a whole number: 7, +7, -1, 007."""
    return re.fullmatch(r"[+-]?[0-9]+", text) is not None


def _is_numeric(text: str) -> bool:
    """Whether it looks like a number of any kind: 5.0, 0,5, 1e3, nan."""
    try:
        float(text.replace(",", ".", 1))
    except ValueError:
        return False
    return True


def _number(cells: Cells, row: int, text: str) -> int:
    if len(text) > _LONGEST_NUMBER:
        raise SourceError(
            f"{cells.path}: row {cells.numbers[row]}: the label is a number of "
            f"{counted(len(text), 'digit')} ({_shown(text)}); labels are numbers of classes, "
            "counted from 0: correct it."
        )
    return int(text)


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 40 else f"{text[:40]!r}..."


def _are_numbers(cells: Cells, texts: Sequence[str], known: Collection[str]) -> bool:
    """Whether all labels are whole numbers. Raises SourceError: some are, or look like numbers of
    another kind.

    `known`: names of classes, which may look like anything.
    """
    others = [row for row, text in enumerate(texts) if text not in known]
    whole = [row for row in others if _is_number(texts[row])]
    if len(whole) == len(others):
        return len(others) == len(texts)
    odd, usual = sorted({*others}.difference(whole)), "whole numbers"
    if len(whole) < len(odd):
        odd, usual = whole or [row for row in others if _is_numeric(texts[row])], "words"
    if odd:
        first = min(odd, key=cells.numbers.__getitem__)
        where = f", where others are {usual}" if len(odd) < len(others) else ""
        raise SourceError(
            f"{cells.path}: row {cells.numbers[first]}: the label is {_shown(texts[first])}{where} "
            f"({counted(len(odd), 'row')} of this kind). Numbers count classes from 0, as 5 "
            "and not 5.0; fractions have a point, as 0.5; words are names of classes. Correct the "
            "table, or, where such texts "
            "are names, give all of them: fastload.open_source(folder, classes=[...])."
        )
    return False


# -- The table and its columns ---------------------------------------------------------------------


def _chosen(
    folder: str, images: Sequence[str], options: OpenOptions, training: Training | None
) -> tuple[ImageTable, list[int], Cells]:
    """The table that has the labels, their columns, and what these say of each image."""
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
    read = {path: read_table(path, places, split) for path in paths}
    tables = [table for table in read.values() if isinstance(table, ImageTable)]
    if split is not None:
        tables = [table for table in tables if split_said_by(table.path) == split] or tables
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
    choices = []
    for table in fullest:
        columns = _columns(table, options, training)
        choices.append((table, columns, _cells(table, images, columns)))
    if any(cells.rows != choices[0][2].rows for *_, cells in choices):
        names = " and ".join(table.path for table in fullest)
        raise SourceError(
            f"{folder}: {names} give these images different labels; keep one of them."
        )
    return choices[0]


def _columns(table: ImageTable, options: OpenOptions, training: Training | None) -> list[int]:
    """The column of the labels, or those of numbers. Raises SourceError: it is not known which."""
    others = [place for place in range(table.width) if place != table.file_column]
    titles = [] if table.titles is None else table.titles
    if options.target is not None:
        unknown = [name for name in options.target if titles.count(name) != 1]
        if unknown or not options.target:
            raise ConfigurationError(
                f"target={[*options.target]}: {table.path} has the columns "
                f"{', '.join(titles) or 'without names'}; name one or some of them."
            )
        return [*map(titles.index, options.target)]
    called = [column for column in others if table.title(column) in LABELS]
    for only in (others, called):
        if len(only) == 1:
            if table.title(only[0]) in _NO_LABELS:
                raise SourceError(
                    f"{table.path}: its column {table.title(only[0])!r} holds no labels by its "
                    "name. To have the images without labels: format='images'. If it does, call "
                    "it label."
                )
            return only
    first = [row for *_, row in table.rows[:100]]
    no_numbers = np.isnan(numbers_of([cell.strip() for cell in row] for row in first)).mean(0)
    numeric = [column for column in others if no_numbers[column] < 0.5]
    named = [titles[column] for column in others] if titles else []
    if (
        numeric == others
        and all(named)
        and len({*named}) == len(named) > 0
        and not any(table.title(column) in _NO_LABELS for column in others)
    ):
        if training is None:
            return others
        lacking = [name for name in training.names if name not in named]
        if lacking:
            raise SourceError(
                f"{table.path}: lacks the column {lacking[0]!r}{and_more(lacking)} of "
                f"{training.place}; write the same columns."
            )
        return [*map(titles.index, training.names)]
    if not titles and table.file_column == 0 and numeric == others[1:]:
        return [1]
    shown = titles or first[0]
    likely = [titles[each] for each in numeric if table.title(each) not in ("", *_NO_LABELS)]
    raise SourceError(
        f"{table.path}: cannot tell which column is the label (columns: {', '.join(shown[:20])}"
        f"{'...' if shown[20:] else ''}). {remedy(likely)}"
    )


def _cells(table: ImageTable, images: Sequence[str], columns: Sequence[int]) -> Cells:
    """What the table says of each image. Raises SourceError: nothing of one, or two things; or a
    label is empty."""
    # The table of ImageNet on Kaggle has boxes after the label.
    boxes = [table.title(column) for column in columns] == ["predictionstring"]
    cells_of: dict[int, tuple[int, tuple[str, ...]]] = {}
    for number, place, row in table.rows:
        cells = tuple(row[column].strip() for column in columns)
        if boxes:
            cells = (cells[0].partition(" ")[0],)
        image = row[table.file_column]
        if cells == ("",):
            raise SourceError(
                f"{table.path}: row {number}: the label of {image} is empty; write it, or remove "
                "the row and the image."
            )
        if cells_of.setdefault(place, (number, cells))[1] != cells:
            before, after = (", ".join(each) for each in (cells_of[place][1], cells))
            raise SourceError(
                f"{table.path}: {image} comes twice, as {before} and as {after}; an image has one "
                "row here. Boxes and several classes an image are for a Dataset of your own."
            )
    lacking = [name for place, name in enumerate(images) if place not in cells_of]
    if lacking:
        raise SourceError(
            f"{table.path}: no row for {lacking[0]}{and_more(lacking)}; add its label, or "
            "remove the image."
        )
    in_order = [cells_of[place] for place in range(len(images))]
    titles = tuple("label" if table.titles is None else table.titles[each] for each in columns)
    numbers = [number for number, _ in in_order]
    return Cells(table.path, titles, [cells for _, cells in in_order], numbers, images)


def _refuse_captions(table: ImageTable, column: int, cells: Cells) -> None:
    """Raise SourceError if no two images have one label, and these are several words."""
    texts = {text for (text,) in cells.rows}
    called = table.title(column) in LABELS
    if called or not 1 < len(texts) == len(cells.rows) or not any(" " in text for text in texts):
        return
    raise SourceError(
        f"{table.path}: every image has another label ({_shown(cells.rows[0][0])}...), as "
        "captions are, and classes are not. To have the images without labels: "
        "format='images'. If these are names of classes: format='table'."
    )


FORMAT = Format(
    name="table",
    title="images and a table",
    recognise=is_labelled_by_table,
    open=open_labelled_by_table,
    options=("classes", "target"),
    remote=True,
    signs=("*.*", ".*", "images", "image", "imgs", "img", "jpg", "jpeg", "JPEG", "png"),
    files=(),
    packages=(),
    generality=1,
    common=True,
)
