"""Columns that are joined to a data set, of files: archives of arrays, tables, folders."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fastload import stores
from fastload.errors import ConfigurationError, DecodeError, SourceError
from fastload.files import is_remote, state_of
from fastload.sources import folders, keys
from fastload.sources.base import Opened, Source
from fastload.sources.buffers import PathTable
from fastload.sources.columns import Column, EncodedFiles
from fastload.sources.file_rows import (
    BFLOAT16,
    FileRows,
    RaggedFileRows,
    TextFiles,
    array_of_npy,
    read_rows,
)
from fastload.sources.image_files import is_image_name
from fastload.sources.keyed_tables import identity_of, open_keyed_table
from fastload.sources.kinds import role_of_images, role_of_values
from fastload.sources.opening import locate
from fastload.sources.partners import (
    Partner,
    Rows,
    check_dtype,
    in_role,
    rows_of_array,
    rows_of_mapping,
    rows_of_source,
)
from fastload.sources.safetensors_files import tensors_in
from fastload.sources.zip_members import files_in_zip, members_of, name_of

_TABLES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")


def open_partner(name: str, given: Any, by: str) -> Rows:
    """The rows for a column called `name`.

    Args:
        by: "name", "index", or a column of the data set that it is joined to.

    Raises:
        ConfigurationError: it is not known what to join; nothing that rows are taken from.
        SourceError: it cannot be read.
    """
    partner = given if isinstance(given, Partner) else Partner(given)
    data = partner.data
    if isinstance(data, Source | Opened):
        rows = rows_of_source(name, partner, data, by)
    elif isinstance(data, str | os.PathLike):
        rows = _of_path(name, partner, _located(name, data), by)
    elif isinstance(data, Mapping):
        rows = rows_of_mapping(name, partner, data)
    else:
        rows = rows_of_array(name, data)
    return rows if partner.role is None else rows._replace(column=in_role(rows, partner.role))


def _located(name: str, path: Any) -> str:
    try:
        place = locate(path)
    except SourceError as error:
        raise SourceError(f"{name!r}: {error}") from None
    if not isinstance(place, str):
        raise ConfigurationError(f"{name!r}: {path} is a pattern; give one file or folder.")
    return place


def _of_path(name: str, partner: Partner, path: str, by: str) -> Rows:
    if stores.is_folder(path):
        return _of_folder(name, partner, path)
    suffix = os.path.splitext(path)[1].lower()
    if suffix == ".npy":
        return rows_of_array(name, path)
    if suffix == ".npz":
        return _of_npz(name, partner, path, by)
    if suffix == ".safetensors":
        return _of_safetensors(name, partner, path, by)
    if suffix in _TABLES:
        return _of_table(name, partner, path, by)
    raise ConfigurationError(
        f"{name!r}: {path} is none of the files that are joined (.npy, .npz, .safetensors, "
        f"{', '.join(_TABLES)}) and no folder; write it as one of them, or open it: "
        "fastload.open_source(path)."
    )


def _of_folder(name: str, partner: Partner, folder: str) -> Rows:
    """Files by their paths in it without ending."""
    paths = _files_below(folder, partner.ending)
    arrays = [path for path in paths if path.lower().endswith(".npy")]
    texts = [path for path in paths if path.lower().endswith(".txt")]
    images = [path for path in paths if is_image_name(path)]
    there = {
        what: some for what, some in zip(_ENDINGS, (arrays, texts, images), strict=True) if some
    }
    if len(there) != 1:
        words = "has files of several kinds: " + ", ".join(there)
        if not there:
            words = f"has no files of these kinds: {', '.join(_ENDINGS)}"
        raise ConfigurationError(
            f"{name!r}: {folder} {words}; say how the names end: "
            "fastload.Partner(folder, ending='.npy')."
        )
    ((what, chosen),) = there.items()
    files = EncodedFiles(PathTable.of(chosen, folder))
    if is_remote(folder):
        every = files.paths.many(np.arange(len(chosen)))
        files = replace(files, versions=stores.versions_of(every))
    cut = len(partner.ending or "")
    stems = [path[:-cut] if cut else keys.stem_in("", path) for path in chosen]
    identity = _identity_of_files(files)
    column: Column
    if what == "images":
        column = replace(files, role=role_of_images(name))
    elif what == ".txt":
        column = TextFiles(files)
    else:
        column = _npy_rows(name, partner, files)
    return Rows(folder, column, stems, files.describe, identity)


_ENDINGS = (".npy", ".txt", "images")


def _files_below(folder: str, ending: str | None) -> list[str]:
    """Paths of files below a folder relative to it, sorted."""
    paths, todo = [], [""]
    while todo:
        here = todo.pop()
        at = os.path.join(folder, here).rstrip("/")
        todo += [here + inner + "/" for inner in folders.subfolders(at)]
        paths += [here + file for file in folders.files_in(at)]
        if is_remote(folder):
            stores.list_ahead([os.path.join(folder, inner).rstrip("/") for inner in todo])
    return sorted(path for path in paths if ending is None or path.endswith(ending))


def _identity_of_files(files: EncodedFiles) -> list[Any]:
    arrays = [one for one in (files.offsets, files.lengths) if one is not None]
    names = b"" if files.names is None else files.names.digest()
    where = os.path.basename(files.paths[0]) if files.offsets is not None else ""
    paths = where if where else files.paths.digest()
    sizes = folders.sampled_sizes(files)
    return [paths, names, *arrays, sizes, *folders.sampled_bytes(files)]


def _npy_rows(name: str, partner: Partner, files: EncodedFiles) -> FileRows:
    """Rows that are `.npy` files, as the first one is."""
    try:
        (data,) = read_rows(files, np.zeros(1, dtype=np.int64))
        first = array_of_npy(files.describe(0), data)
    except DecodeError as error:
        raise SourceError(str(error)) from None
    check_dtype(first.dtype, files.describe(0))
    if not partner.ragged:
        header = data[: len(data) - first.nbytes] if first.flags.c_contiguous else b""
        return FileRows(files, first.dtype, first.shape, role_of_values(name), header=header)
    if not first.ndim:
        raise SourceError(f"{files.describe(0)}: is a single number; leave ragged out.")
    role = role_of_values(name, ragged=True)
    return RaggedFileRows(files, first.dtype, first.shape[1:], role)


def _of_npz(name: str, partner: Partner, path: str, by: str) -> Rows:
    """Its arrays by their names; or the rows of one of them."""
    members, seen = {}, state_of(path)
    for member in members_of(path):
        known = name_of(member) or member.filename
        if known.endswith(".npy"):
            key = known.removesuffix(".npy")
            if key in members:
                raise SourceError(f"{path}: {key} is in it twice; write it again with numpy.savez.")
            members[key] = member
    whole = _whole_array(name, partner, path, list(members), by)
    if whole is not None:
        data = io.BytesIO(stores.read(path)) if is_remote(path) else path
        try:
            with np.load(data, allow_pickle=False) as archive:
                array = archive[whole]
        except Exception as error:  # a header is a Python expression, and may be wrong in any way
            raise SourceError(
                f"{path}: {whole} cannot be read ({error}); write it again with numpy.savez, as an "
                "array of numbers."
            ) from None
        return rows_of_array(name, array)._replace(name=f"{path}: {whole}")
    files = files_in_zip(path, list(members.items()), "write it again with numpy.savez.")
    rows = replace(_npy_rows(name, partner, files), seen=seen)
    return Rows(path, rows, list(members), files.describe, _identity_of_files(files))


def _whole_array(
    name: str, partner: Partner, path: str, there: Sequence[str], by: str
) -> str | None:
    """Which array of a file has a row for each sample; None: it has one array for each sample."""
    if not there:
        raise SourceError(f"{path}: there are no arrays in it.")
    if partner.value is not None:
        if partner.value not in there:
            raise ConfigurationError(
                f"value={partner.value!r}: {path} has no such array; there are "
                f"{', '.join(there[:5])}{', ...' if there[5:] else ''}."
            )
        return partner.value
    if by != "index":
        return None
    if name in there:
        return name
    return there[0] if len(there) == 1 else None


def _of_safetensors(name: str, partner: Partner, path: str, by: str) -> Rows:
    """Its tensors by their names; or the rows of one of them."""
    seen = state_of(path)
    tensors, start = tensors_in(path)
    whole = _whole_array(name, partner, path, list(tensors), by)
    if whole is not None:
        one = tensors[whole]
        if not one.shape or 0 in one.shape:
            raise SourceError(
                f"{path}: {whole} is {one.stored}{list(one.shape)}, not a row of numbers for each "
                "sample."
            )
        length = (one.end - one.begin) // one.shape[0]
        begins = start + one.begin + length * np.arange(one.shape[0], dtype=np.int64)
        files = _parts_of(path, begins, np.full(one.shape[0], length, dtype=np.int64), None)
        rows = FileRows(
            files, _served(one.stored), one.shape[1:], role_of_values(name), one.stored, seen=seen
        )
        described = f"{path}: {whole}, row {{}}".format
        return Rows(f"{path}: {whole}", rows, None, described, _identity_of_files(files))
    first = next(iter(tensors))
    cut = 1 if partner.ragged else 0
    if partner.ragged and not tensors[first].shape:
        raise SourceError(f"{path}: {first} is a single number; leave ragged out.")
    for key, one in tensors.items():
        like = tensors[first]
        if one.stored != like.stored or one.shape[cut:] != like.shape[cut:]:
            raise SourceError(
                f"{path}: {key} is {one.stored}{list(one.shape)}, and {first} {like.stored}"
                f"{list(like.shape)}; the rows of a column are alike. If they are to differ in "
                "their first dimension: fastload.Partner(path, ragged=True). If one of them has a "
                "row for each sample: Partner(path, value=...)."
            )
    every = tensors.values()
    files = _parts_of(
        path,
        start + np.array([one.begin for one in every], dtype=np.int64),
        np.array([one.end - one.begin for one in every], dtype=np.int64),
        PathTable.of(tensors),
    )
    stored, shape = tensors[first].stored, tensors[first].shape[cut:]
    kind = RaggedFileRows if partner.ragged else FileRows
    role = role_of_values(name, ragged=partner.ragged)
    column = kind(files, _served(stored), shape, role, stored, seen=seen)
    return Rows(path, column, list(tensors), files.describe, _identity_of_files(files))


def _served(stored: str) -> np.dtype[Any]:
    return np.dtype(np.float32 if stored == BFLOAT16 else stored)


def _parts_of(path: str, begins: Any, lengths: Any, names: PathTable | None) -> EncodedFiles:
    paths = PathTable.of([path]).take(np.zeros(len(begins), dtype=np.int64))
    versions = None
    if is_remote(path):
        versions = np.full(len(begins), int(stores.versions_of([path])[0]), dtype=np.int64)
    return EncodedFiles(paths, "image", begins, lengths, names, versions)


def _of_table(name: str, partner: Partner, path: str, by: str) -> Rows:
    table = open_keyed_table(path)
    key = table.key_title(partner.key, by)
    column = table.values(table.value_title(partner.value, name, key), name)
    keyed = None if key is None else table.keys(key)
    return Rows(path, column, keyed, table.describe, identity_of(column))
