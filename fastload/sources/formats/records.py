"""Records of images: JSON lines, or a JSON list of objects, which name the images and whatever else
is known of them. What scripts for LLaVA, Qwen-VL and diffusers read.

    data/
    ├── train.jsonl     {"image": "a.jpg", "text": "a fox", "score": 0.5}
    ├── talk.jsonl      {"image": ["a.jpg", "c/1.png"], "conversations": [...]}
    ├── talk.json       [{"image": "c/1.png", "conversations": [...]}, ...]
    ├── a.jpg
    └── c/1.png

Gives `image`, where each line has one path, else `images`: a list of tensors of their own sizes for
each sample, with none where a line names none. Images are named by `image`, `images`, `file_name`,
`image_path`, `path` and the like; also by fields that end in `_image` or `_file_name`, which are
columns of their own. Every other field is a column: numbers, lists of numbers, texts; all else
becomes objects of Python's.

Paths start from the folder of the file, or from `image_root=`; whole paths and URLs are taken as
they are. In the order of the lines; an image may have several.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fastload import stores
from fastload.errors import ConfigurationError, SourceError, and_more, counted
from fastload.files import is_remote
from fastload.fingerprint import fingerprint_of
from fastload.sources import folders
from fastload.sources.base import Opened, OpenOptions, Source
from fastload.sources.buffers import PathTable
from fastload.sources.checked import class_labels
from fastload.sources.columns import Column, EncodedFiles, RaggedArray, ValueArray
from fastload.sources.formats import Format
from fastload.sources.image_files import is_image_name
from fastload.sources.image_lists import ImageLists
from fastload.sources.json_values import column_of_values, json_column
from fastload.sources.kinds import role_of_images
from fastload.sources.ragged import Ragged, offsets_of
from fastload.stores.contents import contents, open_text

_NAMES = (
    *("image", "images", "file_name", "file_names", "image_path", "image_paths", "image_file"),
    *("image_files", "img", "img_path", "filename", "path"),
)
"""Fields that name the images of a record."""
_MORE = ("_image", "_images", "_file_name")
"""How fields end that name further ones."""
_LOOKED_AT = 1 << 16
_LARGEST = 1 << 30
"""Bytes of a JSON list, which is read as one."""
_DEEPEST = 4
"""Lists within lists that become rows of arrays: polygons of objects have three."""
_ENDINGS = (".jsonl", ".ndjson", ".json")
_FIELD = re.compile(rb'"(%s)"\s*:\s*[\["]' % "|".join(_NAMES).encode())


class _Record(NamedTuple):
    where: str
    """The file and the line."""
    fields: Mapping[str, Any]


def has_records(spec: object) -> bool:
    """A file of lines of JSON, or of a JSON list, whose first object names an image."""
    if not isinstance(spec, str) or not spec.lower().endswith(_ENDINGS):
        return False
    start = stores.look(spec, _LOOKED_AT).removeprefix(b"\xef\xbb\xbf").lstrip()
    if spec.lower().endswith(".json"):
        if not start.startswith(b"["):
            return False
        start = start[1:].lstrip()
    if not start.startswith(b"{"):
        return False
    try:
        first, _ = json.JSONDecoder().raw_decode(start.decode(errors="replace"))
    except (ValueError, RecursionError):  # it is longer than what was looked at
        return _FIELD.search(start) is not None
    return any(_paths_in(value) for name, value in first.items() if name in _NAMES)


def open_records(path: str, options: OpenOptions) -> Opened:
    """Open the images that a file names, and the other fields of its lines.

    A field that some lines lack, or where it is null, is left out, which the notes say; where
    `options.fields` names it, it is served as objects of Python's, with None.

    Raises:
        SourceError: a line is no object, or names no image, one that is not there, or something
            that is no image; a number is beyond 64 bits. The message names the line.
        ConfigurationError: it is not known which field names the images.
    """
    records = _read(path)
    titles = list(dict.fromkeys(title for record in records for title in record.fields))
    named = _image_fields(path, records, titles, options.fields)
    root = options.image_root or stores.parent_of(path)
    made: dict[str, tuple[str, Column]] = {}
    identity: list[Any] = []
    for title, name in named.items():
        if options.fields is None or {title, name, f"{name}s"} & {*options.fields}:
            column, parts = _images(path, records, title, name, root)
            several = name == "image" and isinstance(column, ImageLists)
            made[title] = "images" if several else name, column
            identity += [made[title][0], *parts]
    called = {name: title for title, (name, _) in made.items()}
    others = [title for title in titles if title not in named]
    clash = next((title for title in others if title in called), None)
    if clash is not None:
        raise SourceError(
            f"{path}: has a field {clash!r} beside the images, which are to be called so; rename "
            "it."
        )
    wanted = [*made, *others] if options.fields is None else list(options.fields)
    notes, columns = list[str](), dict[str, Column]()
    for field in wanted:
        title = field if field in titles else called.get(field, called.get(f"{field}s", field))
        if title in made:
            name, columns[name] = made[title]
            continue
        if title not in titles:
            raise ConfigurationError(
                f"fields: {path} has no field {field!r}; there are {', '.join(titles)}."
            )
        values, note = _column(path, records, title, options)
        if values is None:
            notes.append(note)
            continue
        columns[title] = values
        stored: Any = values.array
        identity += [title, *(stored.arrays() if isinstance(stored, Ragged) else [stored])]
    if notes and options.strict:
        raise SourceError(f"{path}: {notes[0]}; write it, or name the fields: fields=...")
    source = Source(
        columns,
        fingerprint_of("records", *identity),
        path,
        layout="dict",
        classes=options.classes,
        format="JSON lines of images",
    )
    return Opened(source, notes=tuple(notes))


# -- The file --------------------------------------------------------------------------------------


def _read(path: str) -> list[_Record]:
    """Raises SourceError: there are none; one is no object."""
    try:
        read = _listed(path) if path.lower().endswith(".json") else _lines(path)
    except UnicodeDecodeError as error:
        raise SourceError(f"{path}: is no UTF-8 ({error}); save it as such.") from None
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error}).") from error
    for record in read:
        if not isinstance(record.fields, Mapping):
            raise SourceError(
                f'{record.where}: must be an object, {{"image": "0001.jpg", ...}}, got '
                f"{str(record.fields)[:80]!r}; correct it."
            )
    if not read:
        raise SourceError(f"{path}: has no records; add lines.")
    return read


def _lines(path: str) -> list[_Record]:
    records, decode = [], msgspec.json.Decoder().decode
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                records.append(_Record(f"{path}: line {number}", decode(line)))
            except (ValueError, RecursionError) as error:
                raise SourceError(
                    f"{path}: line {number} is no JSON ({error}); correct it."
                ) from None
    return records


def _listed(path: str) -> list[_Record]:
    data = contents([path], _LARGEST)[0] or b""
    try:
        every = msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: is no JSON ({error}); correct it.") from None
    if not isinstance(every, list):
        raise SourceError(f"{path}: is no list of objects; write one, or JSON lines.")
    return [_Record(f"{path}: entry {row}", one) for row, one in enumerate(every)]


# -- Images ----------------------------------------------------------------------------------------


def _paths_in(value: Any) -> list[str] | None:
    """The paths that a value of a field is: of one, of a list, none; else None."""
    if value is None or value == "":
        return []
    paths = value if isinstance(value, list) else [value]
    return paths if all(isinstance(one, str) and is_image_name(one) for one in paths) else None


def _image_fields(
    path: str, records: Sequence[_Record], titles: Sequence[str], wanted: Sequence[str] | None
) -> dict[str, str]:
    """The fields that name images, and how their columns are called; the images of a record first.
    Raises SourceError, ConfigurationError: there is none, or it is not known which."""
    named: list[str] = []
    for title in titles:
        if title not in _NAMES and not title.endswith(_MORE):
            continue
        values = [record.fields.get(title) for record in records]
        read = [_paths_in(value) for value in values]
        if not any(read):
            continue  # a text, or nothing but nulls
        wrong = next((row for row, paths in enumerate(read) if paths is None), None)
        if wrong is None:
            named.append(title)
        elif title in ("image", "images"):
            raise SourceError(
                f"{records[wrong].where}: {title!r} is {str(values[wrong])[:80]!r}, no path of an "
                "image that is read here, nor a list of such; correct it."
            )
    of_records = [title for title in named if title in _NAMES]
    if wanted is not None:
        chosen = [title for title in of_records if title in wanted]
        of_records = chosen or of_records
    if not of_records:
        raise SourceError(
            f"{path}: no field names images; call it 'image', with a path, or 'images', with a "
            "list of paths."
        )
    if len(of_records) > 1:
        raise ConfigurationError(
            f"{path}: which field names the images is not known: "
            f"{' or '.join(map(repr, of_records))}; say so, with all others that you want: "
            f"fields=({of_records[0]!r}, ...)."
        )
    columns = {of_records[0]: "image"}
    for title in named:
        if title not in _NAMES:
            columns[title] = title.removesuffix("_file_name")
    return columns


def _images(
    path: str, records: Sequence[_Record], title: str, name: str, root: str
) -> tuple[EncodedFiles | ImageLists, list[Any]]:
    """The column of a field, and what a fingerprint covers."""
    values = [record.fields.get(title) for record in records]
    each = [_paths_in(value) or [] for value in values]
    counts = [len(paths) for paths in each]
    where = np.repeat(np.arange(len(records)), counts)
    paths = [_place(one, root, path) for some in each for one in some]
    _check_there(paths, lambda image: records[int(where[image])].where, root)
    inside = all(one.startswith(f"{root}/") for one in paths)
    cut = len(root) + 1 if inside else 0
    files = EncodedFiles(PathTable.of((one[cut:] for one in paths), root if inside else ""))
    parts: list[Any] = [files.paths.digest(), folders.sampled_sizes(files)]
    parts += folders.sampled_bytes(files)
    if all(isinstance(value, str) for value in values) and set(counts) == {1}:
        return replace(files, role=role_of_images(name)), parts
    if any(map(is_remote, paths)):
        files = replace(files, versions=stores.versions_of(paths))
    offsets = offsets_of(counts)
    return ImageLists(files, offsets), [*parts, offsets]


def _place(image: str, root: str, path: str) -> str:
    """The path or URL of an image. Raises SourceError: it is none of this machine's to name."""
    image = image.removeprefix("file://") if image.startswith("file:///") else image
    if is_remote(image):
        return stores.located(image)
    image = image.replace("\\", "/") if os.sep == "/" and "/" not in image else image
    if image.startswith("/"):
        if is_remote(path):
            raise SourceError(
                f"{path}: names {image}, a file of one machine; write paths relative to this file, "
                "or URLs."
            )
        return image
    if is_remote(root):
        scheme, _, rest = root.partition("://")
        host, _, folder = rest.partition("/")
        return f"{scheme}://{host}/{posixpath.normpath(posixpath.join(folder, image))}"
    return os.path.normpath(os.path.join(root, image))


def _check_there(paths: Sequence[str], where: Callable[[int], str], root: str) -> None:
    """Raise SourceError: an image is not there. Each folder is listed once; web servers, which do
    not list, are asked when an image is needed."""
    known: dict[str, frozenset[str]] = {}
    missing = []
    above = {path.rpartition("/")[0] for path in paths}
    stores.list_ahead([one for one in above if is_remote(one) and not stores.is_web(one)])
    for image, path in enumerate(paths):
        folder, _, name = path.rpartition("/")
        if stores.is_web(path):
            continue
        if folder not in known:
            known[folder] = frozenset(_names_in(folder))
        if name not in known[folder]:
            missing.append(image)
    if missing:
        more = and_more([paths[image] for image in missing])
        raise SourceError(
            f"{where(missing[0])}: {paths[missing[0]]}: no such file{more}; add it, or remove the "
            f"line. Relative paths start from {root}; if they are to start from another folder: "
            "open_source(..., image_root=folder)."
        )


def _names_in(folder: str) -> Iterable[str]:
    try:
        return [name for name, is_folder, _ in folders.entries_of(folder) if not is_folder]
    except SourceError:  # there is none
        return []


# -- Other fields ----------------------------------------------------------------------------------


def _column(
    path: str, records: Sequence[_Record], title: str, options: OpenOptions
) -> tuple[ValueArray | RaggedArray | None, str]:
    """A column of a field; or None, and why it is left out."""
    values = [record.fields.get(title) for record in records]

    def describe(row: int) -> str:
        return records[row].where

    missing = [row for row, value in enumerate(values) if value is None]
    if missing:
        if options.fields is not None:
            return json_column(values, describe), ""
        first = records[missing[0]].where
        return None, (
            f"left out: {title!r}, which {counted(len(missing), 'record')} of {len(values):,} "
            f"lack, the first {first} (served where fields names it)"
        )
    if title == "label" and options.classes is not None:
        return ValueArray(_labels(path, values, describe, options.classes)), ""
    if all(map(_is_plain, values)) and _go_together(values):
        column = column_of_values(title, values, path, describe)
        if column is not None:
            return column, ""
    return json_column(values, describe), ""


def _labels(
    path: str, values: Sequence[Any], describe: Callable[[int], str], classes: Sequence[str]
) -> Any:
    """int64 of labels that are numbers, or names of classes."""
    numbers = {name: number for number, name in enumerate(classes)}
    words = (row for row, value in enumerate(values) if isinstance(value, str))
    strange = next((row for row in words if values[row] not in numbers), None)
    if strange is not None:
        raise SourceError(
            f"{describe(strange)}: the label {values[strange]!r} is none of "
            f"{counted(len(classes), 'class')}; correct it, or classes=."
        )
    given = [numbers[value] if isinstance(value, str) else value for value in values]
    return class_labels(given, classes=len(classes), name=path, describe=describe)


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether it is a text, a number, or a list of numbers, or of lists of them, up to
    `_DEEPEST`."""
    if isinstance(value, list):
        inner = (not isinstance(one, str) and _is_plain(one, depth + 1) for one in value)
        return depth < _DEEPEST and all(inner)
    return isinstance(value, str | int | float)


def _go_together(values: Sequence[Any]) -> bool:
    """Whether lists of numbers are rows of one array: all elements have one form."""
    lists = [value for value in values if isinstance(value, list)]
    if not lists:
        return True
    forms = {_form(one) for value in lists for one in value}
    return len(lists) == len(values) and len(forms) <= 1 and None not in forms


def _form(value: Any) -> tuple[int, ...] | None:
    """The shape of a number or of regular lists of them; None of others."""
    if not isinstance(value, list):
        return ()
    forms = {_form(one) for one in value}
    if len(forms) > 1 or None in forms:
        return None
    inner = next(iter(forms), ())
    return None if inner is None else (len(value), *inner)


FORMAT = Format(
    name="records",
    title="JSON lines of images",
    recognise=has_records,
    open=open_records,
    options=("fields", "classes", "image_root"),
    remote=True,
    signs=(),
    files=("*.jsonl", "*.ndjson", "*.json"),
    packages=(),
    generality=1,
)
