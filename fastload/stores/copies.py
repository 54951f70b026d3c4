"""Remote files that are needed whole, on local disk: copied once for all processes of a machine.

A copy is a folder, named by a digest of the URLs, sizes and versions, so that another version is
another copy. It appears by renaming when all of it is there.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fastload import stores
from fastload.errors import SourceError, counted
from fastload.locks import lock_until_closed
from fastload.machine import cache_home
from fastload.stores.base import Range, StoreError

logger = logging.getLogger("fastload")

_PIECE = 16 << 20
"""Bytes of a request."""
_AT_ONCE = 8
"""Requests whose bytes are in memory."""


def copied(urls: Sequence[str], top: str) -> Path:
    """The folder in which copies of these objects lie, as they lie below the folder `top`.

    Objects without versions are copied by each process for itself.

    Raises:
        SourceError: one cannot be read, changed meanwhile, or there is no space.
    """
    sizes = {url: stores.size_of(url) for url in urls}
    versions = dict(zip(urls, stores.versions_of(urls).tolist(), strict=True))
    key = repr([(url, sizes[url], versions[url]) for url in urls])
    name = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    folder = cache_home() / "copies" / name
    try:
        if not all(versions.values()):
            folder = Path(tempfile.mkdtemp(prefix="fastload-copy-"))
            atexit.register(_remove, folder, os.getpid())
            _copy(urls, sizes, versions, top, folder)
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(folder.with_suffix(".lock"), "wb") as lock:
            lock_until_closed(lock)  # the other ranks wait for the one that copies
            if not folder.is_dir():
                total = sum(sizes.values()) / 1e6
                logger.info(
                    "%s: %s (%.0f MB) copied to %s.", top, counted(len(urls), "file"), total, folder
                )
                beside = folder.with_suffix(".part")
                shutil.rmtree(beside, ignore_errors=True)  # A killed process has left it.
                _copy(urls, sizes, versions, top, beside)
                os.rename(beside, folder)
    except StoreError as error:
        raise SourceError(f"{top}: cannot be copied to the local disk ({error}).") from error
    except OSError as error:
        raise SourceError(
            f"{top}: cannot be copied to {folder} ({error.strerror or error}). If the local disk "
            "is full, free some space, or set XDG_CACHE_HOME to a folder on another disk."
        ) from error
    return folder


def _copy(
    urls: Sequence[str], sizes: dict[str, int], versions: dict[str, int], top: str, to: Path
) -> None:
    for url in urls:
        target = to / os.path.relpath(url, top)
        target.parent.mkdir(parents=True, exist_ok=True)
        pieces = [
            Range(url, start, min(_PIECE, sizes[url] - start), versions[url])
            for start in range(0, sizes[url], _PIECE)
        ]
        store, inside = stores.store_of(url)
        with open(target, "xb") as out:
            for first in range(0, len(pieces), _AT_ONCE):
                some = pieces[first : first + _AT_ONCE]
                # Not through the tier: they are read once.
                wanted = [each._replace(name=inside) for each in some]
                try:
                    data = store.read_many(wanted)
                except OSError as error:  # what is denied or gone is so in the store, not here
                    raise StoreError(str(error)) from error
                out.writelines(data)


def _remove(folder: Path, owner: int) -> None:
    # A forked child runs the same exit handlers, and must not take the files from its parent.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def copies() -> list[Path]:
    """The folders of copies, of all data sets."""
    return sorted(path for path in (cache_home() / "copies").glob("*") if path.is_dir())
