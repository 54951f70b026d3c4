"""A cache directory as a source: the reading half of `fastload.cache`, which writes them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.errors import CacheError, SourceError
from fastload.sources.base import Column, PixelImages, Source, Values
from fastload.sources.cache_manifest import ColumnEntry, Manifest, is_cache, read_manifest, remedy
from fastload.sources.opening import Opened, OpenOptions
from fastload.sources.paths import PathTable

__all__ = ["is_built_cache", "open_built_cache", "open_cache", "source_of"]


def is_built_cache(spec: object) -> bool:
    """A folder that is a cache, whatever its version and state."""
    return isinstance(spec, str) and is_cache(spec)


def open_built_cache(directory: str, options: OpenOptions) -> Opened:
    """Open it. Raises CacheError if it is damaged."""
    return Opened(open_cache(directory))


def open_cache(directory: str | os.PathLike[str]) -> Source:
    """Open a cache that `build_cache` made; its arrays are memory maps, nothing is read yet.

    The fingerprint is that of the source it was built from if the cache has full resolution, so that saved states
    fit both; a cache with a short side has its own.

    Raises:
        CacheError: there is no cache, a file of it is missing, cut short or not as the manifest says, or another
            version of fastload made it.
    """
    path = Path(directory)
    manifest = read_manifest(path)
    return source_of(path, manifest)


def source_of(directory: Path, manifest: Manifest) -> Source:
    """The source behind a manifest that has been read already. Raises CacheError as `open_cache` does."""
    try:
        source = Source(
            {name: _open_column(directory, entry) for name, entry in manifest.columns.items()},
            manifest.variant.fingerprint(manifest.fingerprint),
            manifest.source,
            manifest.layout,
            manifest.classes,
            f"cache ({manifest.variant.describe()}) of {manifest.source_format}",
            {"cache": str(directory), "resolution": manifest.variant.describe()},
        )
    except CacheError as error:
        raise CacheError(f"{error}. {remedy(directory)}") from error
    except (SourceError, KeyError) as error:
        raise CacheError(f"{directory}: the columns do not fit together ({error}). {remedy(directory)}") from error
    if len(source) != manifest.samples:
        raise CacheError(f"{directory}: {manifest.samples} samples expected, got {len(source)}. {remedy(directory)}")
    return source


def _open_column(directory: Path, entry: ColumnEntry) -> Column:
    arrays: dict[str, npt.NDArray[Any]] = {
        key: _map_npy(directory / item.file, item.dtype, item.shape) for key, item in entry.arrays.items()
    }
    if entry.kind == "values":
        return Values(arrays["array"])
    names = None
    if "name_blob" in arrays:
        names = PathTable(entry.name_root, arrays["name_blob"], arrays["name_ends"], arrays.get("name_rows"))
    sizes, offsets = arrays.get("sizes"), arrays.get("offsets")
    if sizes is not None and offsets is not None:
        _check_extents(directory, entry, arrays["array"], sizes, offsets)
    return PixelImages(
        arrays["array"],
        "mask" if entry.role == "mask" else "image",
        sizes,
        offsets,
        entry.channels,
        names=names,
        failed=entry.failed,
    )


def _check_extents(
    directory: Path,
    entry: ColumnEntry,
    pixels: npt.NDArray[Any],
    sizes: npt.NDArray[Any],
    offsets: npt.NDArray[Any],
) -> None:
    """No image may reach past the end of the flat buffer."""
    ends = offsets + sizes.astype(np.int64).prod(axis=1) * entry.channels
    if len(sizes) != len(offsets) or sizes.min() < 1 or offsets.min() < 0 or int(ends.max()) > len(pixels):
        file = entry.arrays["offsets"].file
        raise CacheError(f"{directory / file}: images reach past the end of {entry.arrays['array'].file}")


def _map_npy(path: Path, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """A `.npy` file as a read-only memory map.

    Raises:
        CacheError: it is missing, too short, or not of this dtype and shape; the message says which.
    """
    try:
        # An empty array cannot be mapped.
        array = np.load(path, mmap_mode="r" if 0 not in shape else None, allow_pickle=False)
    except FileNotFoundError:
        raise CacheError(f"{path} is missing") from None
    except (OSError, ValueError, EOFError) as error:
        raise CacheError(f"{path} is damaged or cut short ({error})") from error
    if array.dtype.str != dtype or array.shape != shape:
        raise CacheError(f"{path} holds {array.dtype.str} {array.shape}, but the manifest says {dtype} {shape}")
    result: npt.NDArray[Any] = array
    return result
