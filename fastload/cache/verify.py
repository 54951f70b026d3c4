"""Whether the files of a cache are still what was written: disks and copies lose and flip bytes without saying so."""

from __future__ import annotations

import os
from pathlib import Path

from fastload.cache.writing import checksum_of
from fastload.errors import CacheError
from fastload.sources.built_cache import Manifest, is_as_written, read_manifest, remedy, source_of


def verify_cache(directory: str | os.PathLike[str]) -> Manifest:
    """Read a cache whole and hold every file against the checksum (CRC-32) that was noted when it was written.

    It takes as long as reading takes, or a second a gigabyte.

    Returns:
        What the cache says of itself.

    Raises:
        CacheError: there is no cache, it is damaged, or it was built by a version that noted no checksums; the message
            names the file.
    """
    path = Path(directory)
    manifest = read_manifest(path)
    source_of(path, manifest)
    arrays = [array for column in manifest.columns.values() for array in column.arrays.values()]
    if any(array.checksum is None for array in arrays):
        raise CacheError(f"{path}: an older fastload built this cache, without checksums. {remedy(path)}")
    if not is_as_written(path):
        raise CacheError(f"{path}: its manifest is not what was written. {remedy(path)}")
    for array in arrays:
        try:
            found = checksum_of(path / array.file)
        except OSError as error:
            raise CacheError(f"{path / array.file}: cannot be read: {error}. {remedy(path)}") from error
        if found != array.checksum:
            raise CacheError(
                f"{path / array.file}: is not what was written: its checksum is {found:08x}, not "
                f"{array.checksum:08x}. The disk, a copy or another program has changed it. {remedy(path)}"
            )
    return manifest
