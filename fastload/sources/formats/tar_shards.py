"""Tar archives of samples: shards named as WebDataset names them, and archives of class folders.

    shards/                      or one archive:
    ├── shard-000000.tar         data.tar
    │   ├── 0001.jpg             └── train/
    │   ├── 0001.cls                 ├── cat/0001.jpg
    │   ├── 0002.jpg                 └── dog/0002.jpg
    │   └── 0002.cls
    └── shard-000001.tar

Gives a column for each ending of the files: images, masks, labels, arrays (`.npy`), texts; of class
folders `image` and `label`.

Files whose path up to the first dot of the file name is equal, and which follow each other, are one
sample; the rest of the name says which field of it each is: `0001.jpg`, `0001.cls`,
`0001.mask.png`. They are read at random by an index of offsets, without being extracted.
"""

from __future__ import annotations

import io
import itertools
import operator
import os
import re
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from fastload import stores
from fastload.errors import ConfigurationError, SourceError
from fastload.fingerprint import fingerprint_of
from fastload.sources import folders
from fastload.sources.archive import (
    LARGEST_UNPACKED,
    FileInTar,
    compression_of,
    files_in_tar,
    first_names,
    is_archive_name,
    uncompressed_copy,
)
from fastload.sources.archived_folders import archived_folders
from fastload.sources.base import Opened, OpenOptions, Source
from fastload.sources.buffers import PathTable, PathTableBuilder
from fastload.sources.checked import class_labels
from fastload.sources.columns import EncodedFiles, RaggedArray, ValueArray
from fastload.sources.formats import Format
from fastload.sources.image_files import LeftOut, is_image_name, is_never_data
from fastload.sources.kinds import check_rows, kind_of_key, role_of_values
from fastload.sources.packed import about, check_samples, in_order, with_classes
from fastload.sources.ragged import Ragged
from fastload.sources.texts import text_column
from fastload.stores.reads import ReaderPool

Kind = Literal["image", "mask", "array", "text", "label"]
Sample = dict[str, tuple[Kind, FileInTar]]
"""Kind and file by column name."""

_IN_MEMORY: tuple[Kind, ...] = ("array", "text", "label")
"""Kinds whose values are all in memory once the shards are open."""
_MASKS = ("mask", "seg")
# Remote shards that are read through at once for their index.
_SHARDS_AT_ONCE = 8


def is_tar_shards(spec: object) -> bool:
    """A list of paths, a tar archive, or a folder with `.tar` files and without folders."""
    if isinstance(spec, list):
        return bool(spec) and all(isinstance(path, str) and path.endswith(".tar") for path in spec)
    if not isinstance(spec, str):
        return False
    if stores.is_folder(spec):
        return bool(_shards_in(spec)) and not folders.subfolders(spec)
    return is_archive_name(spec)


def remote_compressed(url: str) -> list[str]:
    """The URL itself, if it is of a compressed tar archive, which is read from front to back.

    Raises:
        SourceError: it is larger than what may be unpacked.
    """
    if not is_archive_name(url) or (url.lower().endswith(".tar") and compression_of(url) is None):
        return []
    size = stores.size_of(url)
    if size > LARGEST_UNPACKED:
        raise SourceError(
            f"{url}: a compressed archive is copied and unpacked at each start, and this one has "
            f"{size:,} bytes, more than {LARGEST_UNPACKED >> 30} GiB; unpack it once, and give the "
            "folder or an archive without compression."
        )
    return [url]


def open_tar_shards(spec: str | list[str], options: OpenOptions) -> Opened:
    """Open shards: samples in the order of the shards given (of a folder: sorted) and of the files
    in each.

    Fields become columns by their extension, images first, labels last (or in the order of
    `options.fields`):

    - `jpg`, `png` and the other extensions of class folders: column `image`; with a prefix,
      `left.jpg`, a column `left`; `mask.png` and `seg.png`: column `mask`;
    - `cls`: a decimal number, column `label`; checked against `options.classes` if given;
    - `txt`: a text in UTF-8, column `text` or its prefix; held in memory;
    - `npy`: an array, of equal dtype and shape in all samples, column `npy` or its prefix; held in
      memory;
    - anything else is refused, unless `options.fields` (extensions or column names) leaves it out.

    Every sample must have every field. Of images only the headers are read; the index is kept in
    memory alone. A single archive of nothing but images in several folders is one of class folders:
    see `archived_folders`.
    """
    name = spec if isinstance(spec, str) else f"{spec[0]} and {len(spec) - 1} more shards"
    single = isinstance(spec, str) and stores.is_file(spec)
    packed = about(spec)
    options = with_classes(options, packed)
    paths = spec if isinstance(spec, list) else [spec] if single else _shards_in(spec)
    notes: tuple[str, ...] = ()
    compressed = single and compression_of(name) is not None
    if compressed and all(is_image_name(file) and "/" in file for file in first_names(name, 8)):
        paths = [uncompressed_copy(name)]
        notes = (
            f"unpacked to {paths[0]} until this process ends; to save that at each start: tar -xf "
            f"{name}",
        )
    left_out = LeftOut(name, strict=options.strict)
    others = list[str]()
    columns = _index(paths, options, left_out, others)
    notes += left_out.notes()
    if not columns:
        what = f" with the fields {', '.join(options.fields)}" if options.fields else ""
        raise SourceError(
            f"{name}: no samples{what} in it; expected files named <key>.<extension>, such as "
            "0001.jpg."
        )
    if single and list(columns) == ["image"]:
        opened = archived_folders(
            columns["image"].files(paths),
            name,
            options.split,
            notes,
            others=others,
            as_one_set=f"give the .tar in a list: fastload.create_loader([{name!r}])",
        )
        if opened is not None:
            return opened
        notes += ("images alone: nothing in the archive says what their labels are",)
    if options.split is not None:
        raise ConfigurationError(
            f"split={options.split!r}: {name} has no splits; open the shards of the split."
        )
    served = {key: column.serve(key, paths, options.classes) for key, column in columns.items()}
    identity = [part for key, column in columns.items() for part in (key, *column.identity())]
    identity += [column.array for column in served.values() if isinstance(column, ValueArray)]
    for column in served.values():
        identity += column.array.arrays() if isinstance(column, RaggedArray) else ()
        identity += folders.sampled_bytes(column) if isinstance(column, EncodedFiles) else ()
    fingerprint, details = fingerprint_of("tar shards", *identity), {"shards": len(paths)}
    source = Source(
        in_order(served, packed, options),
        fingerprint,
        name,
        layout="tuple" if packed is None else packed.layout,
        upright=packed is not None and packed.upright,
        classes=options.classes,
        format="tar shards",
        details=details,
    )
    check_samples(packed, len(source), spec)
    return Opened(source, notes=notes)


def _shards_in(folder: str) -> list[str]:
    return [
        os.path.join(folder, name) for name in folders.files_in(folder) if name.endswith(".tar")
    ]


def _index(
    paths: list[str], options: OpenOptions, left_out: LeftOut, folders: list[str]
) -> dict[str, TarColumn]:
    """The fields of all samples by column name. Every one has an entry for every sample. The names
    of the folders of the archives are added to `folders`."""
    columns: dict[str, TarColumn] = {}
    for shard, (path, files) in enumerate(_listed(paths, options.fields, folders)):
        for key, sample in _samples_in(path, files, options.fields, left_out):
            if not columns:
                columns = {name: TarColumn(kind) for name, kind in _ordered(sample, options.fields)}
            if sample.keys() != columns.keys():
                missing, extra = columns.keys() - sample.keys(), sample.keys() - columns.keys()
                unlike = (
                    f"lacks {', '.join(sorted(missing))}"
                    if missing
                    else f"has also {', '.join(sorted(extra))}"
                )
                raise SourceError(
                    f"{path}:{key}: this sample {unlike}, unlike those before it; the files of a "
                    "sample must follow each other, and each sample have the same fields (write "
                    "with tar --sort=name, or name the common ones: open_source(..., "
                    f"fields={tuple(columns)}))."
                )
            for name, (_, file) in sample.items():
                columns[name].append(shard, file)
    return columns


def _listed(
    paths: Sequence[str], fields: tuple[str, ...] | None, folders: list[str]
) -> Iterator[tuple[str, Iterable[FileInTar]]]:
    """The files of each shard, with the content of kinds that are in memory; of remote ones
    several shards are read at once."""
    if not any(map(stores.is_remote, paths)):
        yield from ((path, _files_of(path, fields, folders)) for path in paths)
        return

    def read(path: str) -> list[FileInTar]:
        return list(_files_of(path, fields, folders))

    with ReaderPool(_SHARDS_AT_ONCE, "fastload-shards") as threads:
        waiting = deque[Future[list[FileInTar]]]()
        for asked in range(len(paths) + _SHARDS_AT_ONCE):
            if asked < len(paths):
                waiting.append(threads.submit(read, paths[asked]))
            if asked >= _SHARDS_AT_ONCE:
                yield paths[asked - _SHARDS_AT_ONCE], waiting.popleft().result()


def _files_of(path: str, fields: tuple[str, ...] | None, folders: list[str]) -> Iterator[FileInTar]:
    packed = compression_of(path)
    if packed is not None:
        raise SourceError(
            f"{path}: is compressed ({packed}) and cannot be read from the middle; decompress "
            "it first, images hardly shrink anyway: gunzip, bunzip2, unxz or zstd -d."
        )

    def is_in_memory(name: str) -> bool:
        extension = os.path.basename(name).partition(".")[2].lower()
        column, kind = _column_of(extension)
        return kind in _IN_MEMORY and _is_asked_for(column, extension, fields)

    yield from files_in_tar(path, folders, is_in_memory)


def _is_asked_for(column: str, extension: str, fields: tuple[str, ...] | None) -> bool:
    return fields is None or extension in fields or column in fields


def _ordered(sample: Sample, fields: tuple[str, ...] | None) -> list[tuple[str, Kind]]:
    """Columns in the order of a batch: that of `fields`, or images, masks, arrays, texts,
    labels."""

    def place(name: str) -> int:
        kind, file = sample[name]
        if fields is None:
            return get_args(Kind).index(kind)
        return fields.index(
            name if name in fields else os.path.basename(file.name).partition(".")[2].lower()
        )

    return [(name, sample[name][0]) for name in sorted(sample, key=place)]


def _samples_in(
    path: str, members: Iterable[FileInTar], fields: tuple[str, ...] | None, left_out: LeftOut
) -> Iterator[tuple[str, Sample]]:
    """(key, fields) of each sample of a shard that has any of the fields."""
    for key, files in itertools.groupby(_named(members, left_out), key=operator.itemgetter(0)):
        sample: Sample = {}
        for _, extension, file in files:
            name, kind = _column_of(extension)
            if not _is_asked_for(name, extension, fields):
                continue
            if kind is None:
                raise SourceError(
                    f"{path}:{file.name}: cannot tell how to serve .{extension}; name the fields "
                    "that you want: open_source(..., fields=('jpg', 'cls'))."
                )
            if name in sample:
                raise SourceError(
                    f"{path}:{file.name}: the sample has this field already, as "
                    f"{sample[name][1].name}; remove one, or prefix it: <key>.left.jpg, "
                    "<key>.right.jpg. (To WebDataset, too, a key ends at the first dot of the "
                    f"file name, here {key!r}.)"
                )
            sample[name] = (kind, file)
        if sample:
            yield key, sample


def _named(members: Iterable[FileInTar], left_out: LeftOut) -> Iterator[tuple[str, str, FileInTar]]:
    """(key, extension, file) of those of a shard that are of samples, to WebDataset too: hidden
    files, read-me files without an extension and its own metadata are not. They are counted in
    `left_out`."""
    for file in members:
        folder, base = os.path.split(file.name)
        stem, dot, extension = base.partition(".")
        if (
            stem
            and dot
            and not stem.startswith("__")
            and not any(map(is_never_data, file.name.split("/")))
        ):
            yield os.path.join(folder, stem), extension.lower(), file
        else:
            left_out.add(file.name)


def _column_of(extension: str) -> tuple[str, Kind | None]:
    """Name and kind of the column for an extension; kind None if it is not known."""
    prefix, _, last = extension.rpartition(".")
    name = prefix.replace(".", "_")
    if is_image_name(f".{last}"):
        return ("mask", "mask") if name in _MASKS else (name or "image", "image")
    if last == "cls":
        return name or "label", "label"
    if last == "npy":
        return name or "npy", "array"
    if last == "txt":
        return name or "text", "text"
    return extension, None


class TarColumn:
    """Where one field of every sample lies, in C integers: a million samples take 24 MB and their
    names."""

    def __init__(self, kind: Kind) -> None:
        self._kind: Kind = kind
        self._shards, self._offsets, self._sizes = array("q"), array("q"), array("q")
        self._names = PathTableBuilder()
        self._contents: list[bytes] = []
        """Of kinds that are in memory."""

    def append(self, shard: int, file: FileInTar) -> None:
        self._shards.append(shard)
        self._offsets.append(file.offset)
        self._sizes.append(file.size)
        self._names.extend((file.name,))
        if file.content is not None:
            self._contents.append(file.content)

    @property
    def holds_images(self) -> bool:
        return self._kind in ("image", "mask")

    def identity(self) -> tuple[bytes, npt.NDArray[np.int64]]:
        """For fingerprints: digest of the names, and sizes [bytes]."""
        return self._names.build().digest(), np.frombuffer(self._sizes, dtype=np.int64)

    def files(self, paths: Sequence[str]) -> EncodedFiles:
        """The column as byte ranges of the shards."""
        return EncodedFiles(
            PathTable.of(paths).take(np.frombuffer(self._shards, dtype=np.int64)),
            "mask" if self._kind == "mask" else "image",
            np.frombuffer(self._offsets, dtype=np.int64),
            np.frombuffer(self._sizes, dtype=np.int64),
            self._names.build(),
        )

    def serve(
        self, name: str, paths: Sequence[str], classes: Sequence[str] | None
    ) -> EncodedFiles | ValueArray | RaggedArray:
        """The column."""
        files = self.files(paths)
        if self.holds_images:
            return files
        if self._kind == "array":
            return _rows(self._contents, files, name)
        if self._kind == "text":
            return text_column(self._contents, files.describe)
        numbers = array("q", (_number(data, files, row) for row, data in enumerate(self._contents)))
        count = None if classes is None else len(classes)
        return ValueArray(
            class_labels(numbers, classes=count, name="tar shards", describe=files.describe)
        )


def _number(data: bytes, files: EncodedFiles, row: int) -> int:
    text = data.strip()
    if len(text) <= 19 and re.fullmatch(rb"[+-]?[0-9]+", text) and int(text) < 1 << 63:
        return int(text)
    raise SourceError(
        f"{files.describe(row)}: expected a label as a decimal number of at most 18 digits, got "
        f"{data[:32]!r}; write the class's number, or leave the field out: open_source(..., "
        "fields=('jpg',))."
    )


def _rows(contents: Sequence[bytes], files: EncodedFiles, name: str) -> ValueArray | RaggedArray:
    """A column of arrays: of one shape; or Ragged, where they differ in their first dimension or
    the name is one of objects (`boxes`)."""
    arrays: list[npt.NDArray[Any]] = []
    like, which = None, 0  # the first one that is not empty: others say nothing of dtype and shape
    for row, data in enumerate(contents):
        try:
            value = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        except Exception as error:  # a header is a Python expression, and may be wrong in any way
            raise SourceError(
                f"{files.describe(row)}: cannot be read as an array of numbers ({error})."
            ) from error
        arrays.append(value)
        if value.ndim > 0 and not len(value):
            continue
        if like is None:
            like, which = value, row
        if (value.ndim, value.shape[1:], value.dtype) != (like.ndim, like.shape[1:], like.dtype):
            raise SourceError(
                f"{files.describe(row)}: {value.dtype} of shape {value.shape}, but {like.dtype} "
                f"of shape {like.shape} in {files.describe(which)}; store arrays that agree in all "
                "but their first dimension, or leave the field out."
            )
    if like is not None and like.ndim == 0 and any(each.ndim for each in arrays):
        raise SourceError(f"{files.describe(which)}: a single number, and others are lists.")
    if like is not None and like.ndim:
        arrays = [each if len(each) else like[:0] for each in arrays]
    kind = kind_of_key(name, ragged=True)
    lengths = {len(each) if each.ndim else 0 for each in arrays}
    if arrays[0].ndim == 0 or (
        len(lengths) == 1 and (arrays[0].ndim == 1 or not kind.of_instances)
    ):
        column: ValueArray | RaggedArray = ValueArray(np.stack(arrays), role=role_of_values(name))
    else:
        column = RaggedArray(Ragged.of(arrays), role=role_of_values(name, ragged=True))
    check_rows(column.kind, column.array, f"{files.paths[0]}: the field {name!r}")
    return column


FORMAT = Format(
    name="tar",
    title="tar archives",
    recognise=is_tar_shards,
    open=open_tar_shards,
    options=("split", "fields", "classes"),
    remote=True,
    signs=("*.tar", ".*.tar"),
    files=("*.tar*", "*.t[gbx]z*"),
    lists=(".tar",),
    packages=(),
    copies=remote_compressed,
)
