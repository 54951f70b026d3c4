"""Images and a `metadata.jsonl` beside them, as Hugging Face's imagefolder has them: a line of JSON
for each sample, with the name of its file and whatever else is known of it.

    train/
    ├── metadata.jsonl      {"file_name": "0001.png", "text": "a fox", "score": 0.5}
    ├── 0001.png
    └── more/0002.png       or metadata.jsonl above, with "train/0001.png"

Gives `image` and a column for each other name: numbers, lists of numbers (rows of variable length),
texts; words called `label` are classes. In the order of the lines; an image may have several.
"""

from __future__ import annotations

import codecs
import json
import os
import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastload import stores
from fastload.errors import ConfigurationError, SourceError, and_more, counted
from fastload.fingerprint import fingerprint_of
from fastload.sources import folders
from fastload.sources.base import Opened, OpenOptions, Source, columns_left_out
from fastload.sources.buffers import PathTable
from fastload.sources.checked import class_labels
from fastload.sources.columns import Column, EncodedFiles, RaggedArray, ValueArray
from fastload.sources.formats import Format
from fastload.sources.image_files import LeftOut
from fastload.sources.json_values import column_of_values
from fastload.sources.names import refuse_splits, split_of, splits_in
from fastload.stores.contents import contents

_NAME = "metadata.jsonl"
_FILE = "file_name"
_LOOKED_AT = 1 << 16
_LARGEST = 1 << 30


def has_lines(spec: object) -> bool:
    """A folder with a metadata.jsonl in it whose first line has a file_name; or, on a disk, with
    one in the folder above it that names a file of this one."""
    return isinstance(spec, str) and stores.is_folder(spec) and _place(spec) is not None


def open_lines(root: str, options: OpenOptions) -> Opened:
    """Open images by their lines: columns `image` and those of the lines, in the order of the first
    line, or of `options.fields`.

    A `label` that is a word is a class: one of `options.classes`, else of those of the training
    split, else of those here, sorted; but not of a folder called val or test, in which a class may
    be missing.

    Raises:
        SourceError: a line that is no JSON object with a file_name; a file that is not there; an
            image without a line; a value that is missing. The message names the line.
    """
    place = _place(root)
    assert place is not None, "has_lines said so"
    path, below = place
    every = _read(path)
    lines = _in_folder(path, every, below)
    split = options.split or split_of(os.path.basename(root))
    splits = splits_in({line.file.split("/", 1)[0] for line in lines if "/" in line.file})
    if options.split is not None:
        folder = folders.split_folder(root, options.split)
        if folder is None and not splits:
            raise ConfigurationError(f"split={split!r}: {root} has no such split; leave it out.")
        if folder is None:
            refuse_splits(root, [*splits.values()], split)
        root, lines = folder, _in_folder(path, lines, os.path.basename(folder))
    elif splits:
        refuse_splits(root, [*splits.values()])
    left_out = LeftOut(root, strict=options.strict)
    there = set(folders.images_below(root, "", left_out))
    for line in lines:
        if line.file not in there:
            raise SourceError(
                f"{path}: line {line.number}: {line.file} is no image in {root}; add it, or remove "
                "the line."
            )
    without = sorted(there.difference(line.file for line in lines))
    if without:
        raise SourceError(
            f"{os.path.join(root, without[0])}: has no line in {path}{and_more(without)}; write "
            "it, or move the image out of the folder."
        )
    training = _training(root, path, every) if split_of(split or "") in ("val", "test") else None
    return _opened(root, path, lines, options, split, training, left_out)


class _Line(NamedTuple):
    number: int
    """Counted from 1."""
    file: str
    """Path of the image relative to the folder."""
    values: Mapping[str, Any]


def _place(root: str) -> tuple[str, str] | None:
    """The file of the lines of a folder, and the folder's name in it: "" where it lies in the
    folder."""
    own = os.path.join(root, _NAME)
    if stores.is_file(own):
        return (own, "") if _first_file(own) is not None else None
    if stores.is_remote(root):  # the folder above is not listed for it
        return None
    above, name = os.path.split(root.rstrip("/"))
    path = os.path.join(above, _NAME)
    if not os.path.isfile(path) or _first_file(path) is None:
        return None
    return (path, name) if any(line.file.startswith(f"{name}/") for line in _read(path)) else None


def _first_file(path: str) -> str | None:
    """The file that the first line names; "" where that line is too long to look at."""
    looked_at = stores.look(path, _LOOKED_AT)
    data = looked_at.removeprefix(codecs.BOM_UTF8).lstrip()
    line, end, _ = data.partition(b"\n")
    if not end and len(looked_at) == _LOOKED_AT:
        return "" if f'"{_FILE}"'.encode() in data else None
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    file = values.get(_FILE) if isinstance(values, dict) else None
    return file if isinstance(file, str) else None


def _read(path: str) -> list[_Line]:
    """All lines. Raises SourceError: one is none."""
    data = contents([path], _LARGEST)[0] or b""
    lines = []
    for number, line in enumerate(data.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{path}: line {number} is no JSON ({error}); correct it.") from None
        file = values.pop(_FILE, None) if isinstance(values, dict) else None
        if not isinstance(file, str):
            raise SourceError(
                f'{path}: line {number} must be an object with the name of an image, {{"{_FILE}": '
                f'"0001.png", ...}}, got {line[:80].decode(errors="replace")!r}; correct it.'
            )
        inside = posixpath.normpath(file.replace("\\", "/"))
        if inside.startswith(("../", "/")) or inside == "..":
            raise SourceError(
                f"{path}: line {number}: {file!r} lies outside of the folder of this file; move "
                "the image into it."
            )
        lines.append(_Line(number, inside, values))
    return lines


def _in_folder(path: str, lines: Sequence[_Line], name: str) -> list[_Line]:
    """Those of images in a folder, by their paths in it; all where it has no name."""
    if not name:
        return [*lines]
    prefix = f"{name}/"
    inside = [
        line._replace(file=line.file.removeprefix(prefix))
        for line in lines
        if line.file.startswith(prefix)
    ]
    if not inside:
        raise SourceError(f"{path}: names no image in {name}; add lines, or open another folder.")
    return inside


def _training(root: str, path: str, every: Sequence[_Line]) -> Sequence[_Line]:
    """The lines of the training split beside another one: of the same file, or of its own; none
    where there are none."""
    if os.path.dirname(path) != root.rstrip("/"):
        return [line for line in every if split_of(line.file.split("/", 1)[0]) == "train"]
    folder = folders.split_folder(stores.parent_of(root), "train")
    own = os.path.join(folder or "", _NAME)
    return _read(own) if folder is not None and stores.is_file(own) else []


def _opened(
    root: str,
    path: str,
    lines: Sequence[_Line],
    options: OpenOptions,
    split: str | None,
    training: Sequence[_Line] | None,
    left_out: LeftOut,
) -> Opened:
    titles = list(dict.fromkeys(title for line in lines for title in line.values))
    if "image" in titles:
        raise SourceError(f"{path}: has a column 'image', as the images are called; rename it.")
    wanted = ["image", *titles] if options.fields is None else list(options.fields)
    unknown = [title for title in wanted if title not in ("image", *titles)]
    if unknown or "image" not in wanted:
        raise ConfigurationError(
            f"fields={tuple(wanted)}: {path} has the columns image, {', '.join(titles)}; name "
            "image and some of the others."
        )

    def describe(row: int) -> str:
        return f"{path}: line {lines[row].number}"

    files = EncodedFiles(PathTable.of((line.file for line in lines), root))
    columns: dict[str, Column] = {}
    identity: list[Any] = [files.paths.digest(), folders.sampled_sizes(files)]
    identity += folders.sampled_bytes(files)
    classes, without = options.classes, []
    for title in wanted:
        if title == "image":
            columns[title] = files
            continue
        values = [line.values.get(title) for line in lines]
        column: ValueArray | RaggedArray | None
        if title == "label" and all(type(value) in (str, int) for value in values):
            column, classes = _labels(path, values, describe, options, split, training)
        else:
            column = column_of_values(title, values, path, describe)
        if column is None:
            without.append(f"{title} ({type(values[0]).__name__})")
            continue
        columns[title] = column
        stored: Any = column.array
        identity += [title, *(stored.arrays() if isinstance(column, RaggedArray) else [stored])]
    notes = columns_left_out(path, without, columns, options)
    source = Source(
        columns,
        fingerprint_of("lines of images", *identity),
        root,
        classes=classes,
        format="images and a metadata.jsonl",
    )
    return Opened(source, notes=(*notes, *left_out.notes()))


def _labels(
    path: str,
    values: Sequence[Any],
    describe: Callable[[int], str],
    options: OpenOptions,
    split: str | None,
    training: Sequence[_Line] | None,
) -> tuple[ValueArray, tuple[str, ...] | None]:
    """The column of labels, and the names of the classes where there are any."""
    types = {type(value) for value in values}
    if len(types) > 1:
        rows = [next(row for row, v in enumerate(values) if type(v) is cls) for cls in types]
        raise SourceError(
            f"{describe(max(rows))}: the label is {values[max(rows)]!r}, and before it, in "
            f"{describe(min(rows))}, {values[min(rows)]!r}; write numbers from 0, or words."
        )
    known = options.classes
    if types == {int}:
        count = None if known is None else len(known)
        labels = class_labels(values, classes=count, name=path, describe=describe)
        return ValueArray(labels), known
    if known is None and training is not None:
        words = {line.values.get("label") for line in training}
        known = tuple(sorted(word for word in words if isinstance(word, str)))
        if not known:
            raise SourceError(
                f"{path}: its labels are words, and which number each has is for the training "
                f"data to say: a class may be missing in the {split} split. Put the training split "
                "beside it (a folder train), or give the classes: fastload.open_source(folder, "
                "classes=[...])."
            )
    names = tuple(sorted(set(values))) if known is None else tuple(known)
    numbers = {name: number for number, name in enumerate(names)}
    strange = next((row for row, value in enumerate(values) if value not in numbers), None)
    if strange is not None:
        raise SourceError(
            f"{describe(strange)}: the label {values[strange]!r} is none of "
            f"{counted(len(names), 'class')} ({', '.join(names[:3])}"
            f"{'...' if names[3:] else ''}); correct it, or the training split beside it, or "
            "classes=."
        )
    return ValueArray(np.array([numbers[value] for value in values], dtype=np.int64)), names


FORMAT = Format(
    name="jsonl",
    title="images and a metadata.jsonl",
    recognise=has_lines,
    open=open_lines,
    options=("split", "fields", "classes"),
    remote=True,
    signs=("metadata.jsonl", "../metadata.jsonl"),
    files=(),
    packages=(),
    fallback=True,
    certain=has_lines,
)
