"""A cache directory as a source: its arrays as columns, memory-mapped and checked.

    cache/
    ├── manifest.json
    └── *.npy

Gives the columns of the data set that it was built from.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fastload import stores
from fastload.cache.manifest import (
    FILE_NAME,
    ColumnEntry,
    Manifest,
    checksum_of,
    is_cache,
    is_manifest,
    read_manifest,
    remedy,
    sampled_checksum_of,
)
from fastload.errors import CacheError, SourceError, counted
from fastload.files import check_regular
from fastload.sources.base import OpenOptions, Source
from fastload.sources.buffers import AnyArray, PathTable
from fastload.sources.checked import class_labels
from fastload.sources.columns import PixelArray, RaggedArray, ValueArray
from fastload.sources.formats import Format
from fastload.sources.kinds import pixel_kind
from fastload.sources.ragged import Ragged

_LOOKED_AT = 256
"""Bytes at the beginning of a manifest; the first key says that it is one."""
_CHECKED = 16 << 20
"""Bytes: labels, sizes, offsets and names that take no more are checked against their checksums
when a cache is opened. 16 MiB are two million labels, and take some 10 ms."""


def is_built_cache(spec: object) -> bool:
    """A folder that is a cache, whatever its version and state."""
    return isinstance(spec, str) and is_cache(spec)


def open_built_cache(directory: str, _: OpenOptions) -> Source:
    return open_cache(directory)


def open_cache(directory: str | os.PathLike[str]) -> Source:
    """Open a cache that `build_cache` made; its arrays are memory maps, nothing is read yet.

    The fingerprint is that of the source it was built from if the cache has full resolution, so
    that saved states fit both; a cache with a short side has its own.

    Raises:
        CacheError: there is none, it is damaged, or another version of fastload made it.
    """
    return source_of(Path(directory), read_manifest(Path(directory)))


def source_of(directory: Path, manifest: Manifest) -> Source:
    try:
        columns = {name: _open_column(directory, entry) for name, entry in manifest.columns.items()}
        labels = columns.get("label")
        if isinstance(labels, ValueArray) and manifest.classes is not None:
            class_labels(labels.array, classes=len(manifest.classes), name=str(directory))
        source = Source(
            columns,
            manifest.variant.fingerprint(manifest.fingerprint),
            manifest.source,
            manifest.layout,
            manifest.classes,
            f"cache ({manifest.variant.describe()}) of {manifest.source_format}",
            {"cache": str(directory), "resolution": manifest.variant.describe()},
        )
    except CacheError as error:
        raise CacheError(f"{error}. {remedy(directory)}") from error
    except (SourceError, KeyError, ValueError, TypeError) as error:
        raise CacheError(
            f"{directory}: the columns do not fit together ({error}). {remedy(directory)}"
        ) from error
    if len(source) != manifest.samples:
        raise CacheError(
            f"{directory}: {counted(manifest.samples, 'sample')} expected, got {len(source)}. "
            f"{remedy(directory)}"
        )
    return source


def _open_column(directory: Path, entry: ColumnEntry) -> PixelArray | ValueArray | RaggedArray:
    arrays: dict[str, AnyArray] = {
        key: _map_npy(directory / item.file, item.dtype, item.shape)
        for key, item in entry.arrays.items()
    }
    for key, item in entry.arrays.items():
        small = arrays[key].nbytes <= _CHECKED and (entry.kind, key) != ("pixels", "array")
        path = directory / item.file
        if small and item.checksum is not None and checksum_of(path) != item.checksum:
            raise CacheError(f"{path} is not what was written")
        if not small and item.sampled is not None and sampled_checksum_of(path) != item.sampled:
            raise CacheError(
                f"{path} is not what was written: a file of another cache, or copied in part"
            )
    if entry.kind == "values":
        return ValueArray(arrays["array"], role=entry.role)
    if entry.kind == "ragged":
        return RaggedArray(_ragged(directory, entry, arrays), role=entry.role)
    if not 1 <= entry.channels <= 4:
        raise CacheError(
            f"{directory}: images of {counted(entry.channels, 'channel')}, where 1 to 4 are "
            "possible"
        )
    pixels, sizes, offsets = arrays["array"], arrays.get("sizes"), arrays.get("offsets")
    if sizes is not None and offsets is not None:
        _check_extents(directory, entry, pixels, sizes, offsets)
    elif sizes is not None or offsets is not None:
        raise CacheError(f"{directory}: of sizes and offsets, one is there without the other")
    return PixelArray(
        pixels,
        pixel_kind(entry.role).name,
        sizes,
        offsets,
        entry.channels,
        names=_names(directory, entry, arrays) if "name_blob" in arrays else None,
        failed=entry.failed,
    )


def _ragged(directory: Path, entry: ColumnEntry, arrays: Mapping[str, AnyArray]) -> Ragged:
    values: AnyArray | Ragged = arrays["array"]
    levels = len(arrays) - 1
    for level in reversed(range(levels)):
        offsets = arrays[f"offsets{level}"]
        sound = offsets.dtype == np.int64 and offsets.ndim == 1 and len(offsets) > 0
        if not sound or offsets[0] != 0 or offsets[-1] != len(values):
            file = entry.arrays[f"offsets{level}"].file
            raise CacheError(
                f"{directory / file}: the offsets are not those of {entry.arrays['array'].file}"
            )
        values = Ragged(values, offsets)
    if not isinstance(values, Ragged):
        raise CacheError(f"{directory}: a column of rows of variable length has no offsets")
    return values


def _names(directory: Path, entry: ColumnEntry, arrays: Mapping[str, AnyArray]) -> PathTable:
    blob, ends, rows = arrays["name_blob"], arrays["name_ends"], arrays.get("name_rows")
    given = [array for array in (ends, rows) if array is not None]
    sound = (
        blob.dtype == np.uint8
        and blob.ndim == 1
        and all(a.dtype == np.int64 and a.ndim == 1 for a in given)
    )
    if sound and len(ends):
        sound = ends[0] >= 0 and ends[-1] <= len(blob) and bool((np.diff(ends) >= 0).all())
    if sound and rows is not None and len(rows):
        sound = bool(rows.min() >= 0 and rows.max() < len(ends))
    if not sound:
        raise CacheError(f"{directory}: the names do not lie in {entry.arrays['name_blob'].file}")
    return PathTable(entry.name_root, blob, ends, rows)


def _check_extents(
    directory: Path, entry: ColumnEntry, pixels: AnyArray, sizes: AnyArray, offsets: AnyArray
) -> None:
    """No image may reach past the end of the flat buffer."""
    forms = (pixels.ndim, sizes.dtype.kind, sizes.shape, offsets.dtype.kind, offsets.ndim)
    sound = forms == (1, "i", (len(offsets), 2), "i", 1)
    if sound and len(sizes):
        # A side longer than the buffer cannot be right, and without those the product does not
        # overflow.
        sound = bool(
            sizes.min() >= 1 and sizes.max() <= len(pixels) < 1 << 62 and offsets.min() >= 0
        )
        areas = sizes.astype(np.float64).prod(axis=1) * entry.channels
        sound = sound and bool((areas + offsets <= len(pixels)).all())
    if not sound:
        file = entry.arrays["offsets"].file
        raise CacheError(
            f"{directory / file}: images reach past the end of {entry.arrays['array'].file}"
        )


def _map_npy(path: Path, dtype: str, shape: tuple[int, ...]) -> AnyArray:
    """A `.npy` file as a read-only memory map. Raises CacheError: missing, cut short, of another
    dtype or shape."""
    try:
        if path.resolve().parent != path.parent.resolve():
            raise CacheError(f"{path} is a link to another folder")
        check_regular(path)
        # An empty array cannot be mapped.
        array = np.load(path, mmap_mode="r" if 0 not in shape else None, allow_pickle=False)
    except FileNotFoundError:
        raise CacheError(f"{path} is missing") from None
    except CacheError:
        raise
    except Exception as error:  # a header is a Python expression, and may be wrong in any way
        raise CacheError(f"{path} is damaged or cut short ({error})") from error
    if array.dtype.str != dtype or array.shape != shape:
        raise CacheError(
            f"{path} holds {array.dtype.str} {array.shape}, but the manifest says {dtype} {shape}"
        )
    result: AnyArray = array
    return result


def remote_cache(url: str) -> list[str]:
    """Of the URL of a built cache its files. What else has a manifest.json is none."""
    manifest = f"{url}/{FILE_NAME}"
    if not stores.is_folder(url) or not stores.is_file(manifest):
        return []
    if not is_manifest(stores.look(manifest, _LOOKED_AT)):
        return []
    return [f"{url}/{name}" for name, is_folder in stores.entries(url) if not is_folder]


FORMAT = Format(
    name="cache",
    title="a built cache",
    recognise=is_built_cache,
    open=open_built_cache,
    signs=("manifest.json",),
    files=(),
    packages=(),
    copies=remote_cache,
)
