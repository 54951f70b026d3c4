"""The index of a remote data set: what opening it found, kept as one memory-mapped file.

Listing a bucket and reading the headers of shards takes minutes for millions of objects. What comes
of it (names, sizes, versions, offsets of members, labels, boxes) is a few arrays: they are written
to one file, with a stamp of every listing and annotation file they were made from. When the data
set is opened again the listings are asked for at once and compared; if all are the same, the arrays
are mapped. Every read is checked against the version noted here, so that an object that changed is
an error.

`index_file` has the format of the file. Rows of variable length are an array of their elements and
one of offsets (`Ragged`), as often as they are nested. A file may be damaged, or lie with the data
and be written by anybody: it is taken as a whole or not at all. What it says cannot lead out of the
file or of its arrays, nor to another store.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from PIL import Image

from fastload import stores
from fastload.errors import SourceError
from fastload.files import replacing
from fastload.machine import cache_home
from fastload.modules import Later
from fastload.sources.base import Opened, OpenOptions, Source
from fastload.sources.buffers import PathTable
from fastload.sources.columns import Column, EncodedFiles, RaggedArray, ValueArray
from fastload.sources.formats import FORMATS
from fastload.sources.image_files import is_image_name
from fastload.sources.index_file import NUMBERS, WRONG, Arrays, read_index, write_index
from fastload.sources.kinds import check_rows
from fastload.sources.ragged import Ragged

logger = logging.getLogger("fastload")

_ROWS = {kind.__name__: kind for kind in (ValueArray, RaggedArray)}
_OF_FILES = ("offsets", "lengths", "versions", "object_sizes")
"""Arrays of files, of which not all have each."""

# Requests of a check: two million objects are compared by their listings in about two seconds (32
# at once, 30 ms each); of more objects the folders that this is enough for, spread evenly.
MOST_REQUESTS = 2000


class OfParts(Protocol):
    """A column of a format (`Format.columns`) that an index holds as files, arrays and rows. One
    that is derived from EncodedFiles names arrays of its own in `own_arrays` instead."""

    def parts(self) -> dict[str, Any] | None:
        """By name an EncodedFiles, arrays and Ragged; None where they are not whole and remote."""

    @classmethod
    def of_parts(cls, parts: dict[str, Any]) -> Column:
        """The column again. Raises SourceError: they do not fit each other."""


# -- A source as arrays ----------------------------------------------------------------------------


def source_as_arrays(opened: Opened) -> tuple[dict[str, Any], Arrays] | None:
    """(header, arrays) of a source of files and values; None where it has anything else."""
    source, arrays = opened.source, Arrays()
    columns: dict[str, Any] = {}
    for name, column in source.columns.items():
        described: dict[str, Any] = {"type": type(column).__name__, "role": column.role}
        known: Any = type(column) is _class_named(type(column).__name__) and column
        if isinstance(known, EncodedFiles) and known.is_remote:
            described |= _put_files(arrays, name, known)
        elif known and not isinstance(known, EncodedFiles) and (parts := known.parts()) is not None:
            described["parts"] = {
                part: _put_part(arrays, f"{name}/{part}", value) for part, value in parts.items()
            }
        elif isinstance(column, ValueArray | RaggedArray):
            described["depth"] = _put_rows(arrays, name, column.at(np.arange(len(column))))
        else:
            return None
        columns[name] = described
    if not all(array.dtype.kind in NUMBERS for array in arrays.values()):
        return None
    try:
        details = json.loads(json.dumps(dict(source.details)))
    except TypeError:
        return None
    if opened.transform is not None or opened.bare is not None:
        return None
    if _tupled(details) != source.details:
        return None
    header = {
        "columns": columns,
        "fingerprint": source.fingerprint,
        "name": source.name,
        "layout": source.layout,
        "classes": source.classes,
        "format": source.format,
        "details": details,
        "upright": source.upright,
        "notes": opened.notes,
    }
    return header, arrays


def _class_named(name: str) -> Any:
    """The class of a column that is known by this name; None: there is none."""
    if name == EncodedFiles.__name__:
        return EncodedFiles
    for form in FORMATS:
        if name in form.columns:
            kind = form.columns[name]
            return kind.loaded() if isinstance(kind, Later) else kind
    return None


def _put_part(arrays: Arrays, name: str, part: Any) -> dict[str, Any]:
    """Add a part of a column; its description."""
    if isinstance(part, EncodedFiles):
        return _put_files(arrays, name, part)
    if isinstance(part, Ragged):
        return {"depth": _put_rows(arrays, name, part)}
    arrays[name] = part
    return {}


def _put_files(arrays: Arrays, name: str, files: EncodedFiles) -> dict[str, Any]:
    """Add a column of files; its description."""
    described: dict[str, Any] = {"type": type(files).__name__, "role": files.role}
    for part in ("paths", "names"):
        table: PathTable | None = getattr(files, part)
        if table is not None:
            described[part] = table.root
            _put(arrays, f"{name}/{part}", table, ("blob", "ends", "rows"))
    _put(arrays, name, files, (*_OF_FILES, *files.own_arrays))
    return described


def _put(arrays: Arrays, prefix: str, holder: Any, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(holder, name, None) is not None:
            arrays[f"{prefix}/{name}"] = getattr(holder, name)


def _put_rows(arrays: Arrays, name: str, rows: Any) -> int:
    """Add the rows of a column; how many Ragged they are in each other."""
    depth = 0
    while isinstance(rows, Ragged):
        arrays[f"{name}/offsets/{depth}"] = rows.offsets
        rows, depth = rows.values, depth + 1
    arrays[f"{name}/array"] = rows
    return depth


def _tupled(value: Any) -> Any:
    """JSON's lists as tuples."""
    if isinstance(value, dict):
        return {key: _tupled(each) for key, each in value.items()}
    return tuple(map(_tupled, value)) if isinstance(value, list) else value


def source_from_arrays(header: Mapping[str, Any], arrays: Arrays) -> Opened:
    """The source that `source_as_arrays` was given.

    Raises:
        SourceError: there cannot be such a source: offsets that fall or lie outside of their
            values, boxes that are none, columns of different lengths.
        LookupError, TypeError, ...: it is none of those.
    """
    columns: dict[str, Column] = {}
    for name, described in header["columns"].items():
        columns[name] = _column_from(name, described, arrays)
    classes = header["classes"]
    source = Source(
        columns,
        header["fingerprint"],
        header["name"],
        header["layout"],
        None if classes is None else tuple(classes),
        header["format"],
        _tupled(header["details"]),
        upright=header["upright"],
    )
    return Opened(source, notes=tuple(header["notes"]))


def _column_from(name: str, described: Mapping[str, Any], arrays: Arrays) -> Column:
    if described["type"] in _ROWS:
        return _rows_from(name, described, arrays)
    if "parts" not in described:
        return _files_from(name, described, arrays)
    parts = {
        part: _part_from(f"{name}/{part}", what, arrays)
        for part, what in described["parts"].items()
    }
    column: Column = _class_named(described["type"]).of_parts(
        parts
    )  # None has none, which is WRONG
    return column


def _part_from(name: str, described: Mapping[str, Any], arrays: Arrays) -> Any:
    if "type" in described:
        return _files_from(name, described, arrays)
    depth = described.get("depth")
    return arrays[name] if depth is None else _array_from(name, depth, arrays)


def _array_from(name: str, depth: int, arrays: Arrays) -> Any:
    """An array, or Ragged in each other."""
    rows: Any = arrays[f"{name}/array"]
    for level in reversed(range(depth)):
        rows = Ragged(rows, arrays[f"{name}/offsets/{level}"])  # checks the offsets
        if rows.offsets.dtype != np.int64:
            raise SourceError(f"{name}: offsets of {rows.offsets.dtype}")
    return rows


def _rows_from(name: str, described: Mapping[str, Any], arrays: Arrays) -> Column:
    rows = _array_from(name, described["depth"], arrays)
    cls: type[ValueArray | RaggedArray] = _ROWS[described["type"]]
    column = cls(rows, role=described["role"])
    if isinstance(rows, Ragged) is not column.ragged:
        raise SourceError(f"{name}: rows of variable length, or not")
    check_rows(column.kind, rows, name)
    return column


def _files_from(name: str, described: Mapping[str, Any], arrays: Arrays) -> EncodedFiles:
    tables = {
        part: _table_from(described[part], f"{name}/{part}", arrays)
        for part in ("paths", "names")
        if part in described
    }
    cls = _class_named(described["type"])
    kept = (*_OF_FILES, *cls.own_arrays)
    rest = {part: arrays[f"{name}/{part}"] for part in kept if f"{name}/{part}" in arrays}
    lowest = dict.fromkeys(("lengths", "object_sizes", "sizes"), -1)
    for part, array in rest.items():
        sound = array.shape == (len(tables["paths"]),) and array.dtype.kind in "iu"
        if not sound or (len(array) and array.min() < lowest.get(part, 0)):
            raise SourceError(f"{name}/{part}: no whole numbers, one a file")
    if ("offsets" in rest) is not ("lengths" in rest):
        raise SourceError(f"{name}: offsets without lengths, or lengths without offsets")
    if not {*cls.own_arrays} <= rest.keys():
        raise SourceError(f"{name}: has not all of {', '.join(cls.own_arrays)}")
    if "names" in tables and len(tables["names"]) != len(tables["paths"]):
        raise SourceError(f"{name}: names of other files")
    files: EncodedFiles = cls(tables["paths"], described["role"], names=tables.get("names"), **rest)
    return files


def _table_from(root: str, name: str, arrays: Arrays) -> PathTable:
    blob, ends = arrays[f"{name}/blob"], arrays[f"{name}/ends"]
    rows = arrays.get(f"{name}/rows")
    numbers = [ends] if rows is None else [ends, rows]
    sound = blob.ndim == 1 and blob.dtype == np.uint8
    if not sound or any(array.ndim != 1 or array.dtype != np.int64 for array in numbers):
        raise SourceError(f"{name}: no table of names")
    Ragged(blob, np.concatenate([[0], ends]))  # checks that the ends are in it, and do not fall
    if rows is not None and len(rows) and not 0 <= rows.min() <= rows.max() < len(ends):
        raise SourceError(f"{name}: rows beyond its names")
    return PathTable(root, blob, ends, rows)


# -- Which index is of which data set --------------------------------------------------------------


class IndexPlace(NamedTuple):
    """Where the index of a data set, opened with certain options, is kept."""

    path: Path
    key: dict[str, Any]
    """What the index is of; the file holds it, too."""


def index_place(place: str | list[str], options: OpenOptions, format: str | None) -> IndexPlace:
    """Raises nothing; the folder need not be there."""
    key = {
        "place": place,
        "options": json.loads(json.dumps(asdict(options))),
        "format": format,
        "endings": _endings(),
    }
    digest = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=16)
    return IndexPlace(cache_home() / "index" / f"{digest.hexdigest()}.index", key)


@functools.cache
def _endings() -> str:
    """Short fingerprint of the endings that are images here: what Pillow reads decides which files
    are samples."""
    Image.init()
    known = sorted(ending for ending in Image.EXTENSION if is_image_name(f"_{ending}"))
    return hashlib.blake2b(" ".join(known).encode(), digest_size=8).hexdigest()


def says_versions(source: Source) -> bool:
    """Whether the store says of all images which version they are: else an index would be taken
    for that of an object of the same size which has other images in it, and other labels."""
    files = _remote_files(source)
    return all(c.versions is not None and bool((c.versions != 0).all()) for c in files)


def _remote_files(source: Source) -> list[EncodedFiles]:
    return [files for files in _files_of(source) if files.is_remote]


def _files_of(source: Source) -> list[EncodedFiles]:
    files: list[EncodedFiles] = []
    for column in source.columns.values():
        parts = column.parts() if hasattr(column, "parts") else None
        some = (column,) if parts is None else parts.values()
        files += [each for each in some if isinstance(each, EncodedFiles)]
    return files


def _lie_in(place: str | list[str], source: Source, stamp: Iterable[str]) -> bool:
    """Whether all files of a source, and all URLs of a stamp, are in the stores of a data set."""
    urls = [*stamp]
    for files in _files_of(source):
        root = files.paths.root
        urls += [f"{root}/"] if root else files.paths.all_held()
    places = [place] if isinstance(place, str) else place
    return {*map(stores.top_of, urls)} <= {*map(stores.top_of, places)}


def save(opened: Opened, seen: stores.Seen, where: IndexPlace, to: Path | None = None) -> bool:
    """Keep what opening a data set found; False where it has columns that an index cannot hold, or
    images or annotations of which the store says no version.

    Raises:
        OSError: the file cannot be written.
    """
    versioned = says_versions(opened.source) and seen.has_versions()
    index = source_as_arrays(opened) if versioned else None
    if index is None:
        return False
    header, arrays = index
    counts = {f"{url}/": len(entries) for url, entries in seen.folders.items()}
    stamp = seen.stamp()
    # Where no image is read, nothing but the stamp tells that the store has changed.
    decisive = seen.decisive() if _remote_files(opened.source) else [*stamp]
    header |= {"of": where.key, "stamp": stamp, "counts": counts, "decisive": decisive}
    write_index(where.path if to is None else to, header, arrays)
    return True


def load(where: IndexPlace, since: float | None = None) -> Opened | None:
    """The data set by its index; None where there is none, it is damaged, or the store has changed.

    An index in the data set's own folder (`fastload index --output`) is taken where this machine
    has none.

    Args:
        since: a time [seconds since 1970]; an index that was made, or compared with the store,
            since then is not compared again: another rank of the same job has done it.

    Raises:
        SourceError: the store cannot be asked.
    """
    if not where.path.exists():
        _fetch(where)
    try:
        header, arrays = read_index(where.path)
        opened = source_from_arrays(header, arrays)
        of, decisive = header["of"], [*map(str, header["decisive"])]
        stamp = {str(url): str(tag) for url, tag in header["stamp"].items()}
        counts = {str(url): int(count) for url, count in header["counts"].items()}
    except FileNotFoundError:
        return None
    except (OSError, SourceError, *WRONG) as error:
        logger.warning("%s: the index is not used: %s", where.key["place"], error)
        return None
    if of != where.key or not says_versions(opened.source):
        return None
    if not _lie_in(where.key["place"], opened.source, stamp):
        logger.warning("%s: the index is not used: it leads elsewhere", where.key["place"])
        return None
    if since is not None and _compared_at(where.path) >= since:
        note = f"by the index {where.path}, which another rank of this machine has just checked"
        return Opened(opened.source, notes=(*opened.notes, note))
    same, asked = stores.unchanged(stamp, counts, MOST_REQUESTS, decisive)
    if not same:
        logger.info("%s: has changed since its index was made.", where.key["place"])
        return None
    with contextlib.suppress(OSError):  # a folder that others own
        os.utime(where.path)
    total = len(stamp)
    words = "all of its folders are as they were"
    if asked < total:
        words = f"{asked:,} of its {total:,} folders were compared with the store and are the same"
    return Opened(opened.source, notes=(*opened.notes, f"by the index {where.path}: {words}"))


def _compared_at(path: Path) -> float:
    """When an index was made, or last compared with the store."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _fetch(where: IndexPlace) -> None:
    """Copy the index that is stored with the data here, if there is one."""
    place = where.key["place"]
    if not isinstance(place, str) or not stores.is_folder(place):
        return
    if not stores.is_file(f"{place}/{stores.INDEX_NAME}"):
        return
    try:
        where.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(where.path) as beside:
            beside.write_bytes(stores.read(f"{place}/{stores.INDEX_NAME}"))
            os.utime(beside, (0, 0))  # it was not compared with the store yet
    except OSError as error:
        logger.warning("%s/%s: cannot be taken: %s", place, stores.INDEX_NAME, error)


def remember(opened: Opened, seen: stores.Seen, where: IndexPlace) -> None:
    """`save`, if possible: a full disk must not stop training."""
    with contextlib.suppress(OSError):
        save(opened, seen, where)
