"""Tar shards of samples, named as WebDataset names them, read at random by an index of offsets.

Files whose path up to the first dot of the file name is equal, and which follow each other, are one sample; the rest
of the name says which field of it each is: `0001.jpg`, `0001.cls`, `0001.mask.png`.
"""

from __future__ import annotations

import os

from fastload.errors import ConfigurationError, SourceError
from fastload.sources.archive import compression_of, is_archive_name, peek, uncompressed_copy
from fastload.sources.base import Source, Values, fingerprint_of
from fastload.sources.folder_scan import files_in, subfolders
from fastload.sources.opening import Opened, OpenOptions
from fastload.sources.tar_fields import Kind, TarColumn, samples_in_shard
from fastload.sources.tar_folders import class_folders_in_tar, looks_like_class_folders
from fastload.sources.tar_index import FileInTar

__all__ = ["is_tar_shards", "open_tar_shards"]

_ORDER: tuple[Kind, ...] = ("image", "mask", "array", "label")


def is_tar_shards(spec: object) -> bool:
    """A list of paths, a tar archive, or a folder with `.tar` files and without folders."""
    if isinstance(spec, list):
        return bool(spec) and all(isinstance(path, str) and path.endswith(".tar") for path in spec)
    if not isinstance(spec, str):
        return False
    if os.path.isdir(spec):
        return bool(_shards_in(spec)) and not subfolders(spec)
    return is_archive_name(spec)


def open_tar_shards(spec: str | list[str], options: OpenOptions) -> Opened:
    """Open shards: samples in the order of the shards given (of a folder: sorted) and of the files in each.

    Fields become columns by their extension, images first, labels last (or in the order of `options.fields`):

    - `jpg`, `png` and the other extensions of class folders: column `image`; with a prefix, `left.jpg`, a column
      `left`; `mask.png` and `seg.png`: column `mask`;
    - `cls`: a decimal number, column `label`; checked against `options.classes` if given;
    - `npy`: an array, of equal dtype and shape in all samples, column `npy` or its prefix; held in memory;
    - anything else is refused, unless `options.fields` (extensions or column names) leaves it out.

    Every sample must have every field. Of images only the headers are read; the index is kept in memory alone.
    A single archive of nothing but images in several folders is one of class folders: see `class_folders_in_tar`.

    Raises:
        ConfigurationError: a split, of shards that have none.
        SourceError: compressed, truncated or damaged archives; a sample with a field missing, twice or of an unknown
            kind; labels that are not numbers.
    """
    name = spec if isinstance(spec, str) else f"{spec[0]} and {len(spec) - 1} more shards"
    single = isinstance(spec, str) and os.path.isfile(spec)
    paths = spec if isinstance(spec, list) else [spec] if single else _shards_in(spec)
    notes: tuple[str, ...] = ()
    if single and compression_of(name) is not None and looks_like_class_folders(peek(name, 8)):
        paths = [uncompressed_copy(name)]
        notes = (f"unpacked to {paths[0]} until this process ends; to save that at each start: tar -xf {name}",)
    columns = _index(paths, options)
    if not columns:
        what = f" with the fields {', '.join(options.fields)}" if options.fields else ""
        raise SourceError(f"{name}: no samples{what} in it; expected files named <key>.<extension>, such as 0001.jpg.")
    if single and list(columns) == ["image"]:
        opened = class_folders_in_tar(columns["image"].images(paths), name, options.split, notes)
        if opened is not None:
            return opened
    if options.split is not None:
        raise ConfigurationError(f"split={options.split!r}: {name} has no splits; open the shards of the split.")
    served = {key: column.served(paths, options.classes) for key, column in columns.items()}
    identity = [part for key, column in columns.items() for part in (key, *column.identity())]
    identity += [column.array for column in served.values() if isinstance(column, Values)]
    source = Source(
        served,
        fingerprint_of("tar shards", *identity),
        name,
        classes=options.classes,
        format="tar shards",
        details={"shards": len(paths)},
    )
    return Opened(source, notes=notes)


def _shards_in(folder: str) -> list[str]:
    return [os.path.join(folder, name) for name in files_in(folder) if name.endswith(".tar")]


def _index(paths: list[str], options: OpenOptions) -> dict[str, TarColumn]:
    """The fields of all samples by column name. Every one has an entry for every sample."""
    columns: dict[str, TarColumn] = {}
    for shard, path in enumerate(paths):
        packed = compression_of(path)
        if packed is not None:
            raise SourceError(
                f"{path}: is compressed ({packed}) and cannot be read from the middle; decompress it first, images "
                "hardly shrink anyway: gunzip, bunzip2, unxz or zstd -d."
            )
        for key, sample in samples_in_shard(path, options.fields):
            if not columns:
                columns = {name: TarColumn(kind) for name, kind in _ordered(sample, options.fields)}
            if sample.keys() != columns.keys():
                missing, extra = columns.keys() - sample.keys(), sample.keys() - columns.keys()
                found = f"lacks {', '.join(sorted(missing))}" if missing else f"has also {', '.join(sorted(extra))}"
                raise SourceError(
                    f"{path}:{key}: this sample {found}, unlike those before it; the files of a sample must follow "
                    "each other, and each sample have the same fields (write with tar --sort=name, or name the common "
                    f"ones: open_source(..., fields={tuple(columns)}))."
                )
            for name, (_, file) in sample.items():
                columns[name].append(shard, file)
    return columns


def _ordered(sample: dict[str, tuple[Kind, FileInTar]], fields: tuple[str, ...] | None) -> list[tuple[str, Kind]]:
    """Columns in the order of a batch: that of `fields`, or images, masks, arrays, labels."""

    def place(name: str) -> int:
        kind, file = sample[name]
        if fields is None:
            return _ORDER.index(kind)
        return fields.index(name if name in fields else os.path.basename(file.name).partition(".")[2].lower())

    return [(name, sample[name][0]) for name in sorted(sample, key=place)]
