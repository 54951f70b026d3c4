"""Bytes from anywhere: one way to list and read what a path or a URL names.

A path is a local file, read as `fastload.files` reads it; `s3://`, `gs://`, `az://`, `http://` and
`https://` go by obstore, other schemes by fsspec. Nothing that calls this knows which it is.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
from collections.abc import Iterator, Sequence

from fastload.distribution import install_command
from fastload.errors import SourceError
from fastload.files import open_regular
from fastload.stores.base import Entry, Range, Store, StoreError
from fastload.stores.objects import SCHEMES, ObjectStore

__all__ = [
    "Entry",
    "Range",
    "Store",
    "StoreError",
    "entries",
    "is_file",
    "is_folder",
    "is_remote",
    "list_ahead",
    "listings_kept",
    "located",
    "parent_of",
    "read",
    "read_many",
    "read_up_to",
    "size_of",
]

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


def is_remote(path: str) -> bool:
    """Whether it is a URL. Local files have none: `file://` is taken off by `located`."""
    return "://" in path and _SCHEME.match(path) is not None


def located(url: str) -> str:
    """The URL as it is used everywhere: without a slash at its end; of `file://` the path.

    Raises:
        SourceError: it has credentials in it, which would be shown wherever the data set is named.
    """
    if url.startswith("file://"):
        return url.removeprefix("file://").removeprefix("localhost")
    authority = url.partition("://")[2].partition("/")[0]
    if ("@" in authority and not url.startswith("abfs")) or "?" in url or "#" in url:
        raise SourceError(
            f"{url.partition('://')[0]}://...: credentials and parameters in a URL would be "
            "shown with every message; "
            "leave them out, and set them in the environment, as the store's own tools read them."
        )
    return url.rstrip("/")


def _split(url: str) -> tuple[Store, str]:
    scheme, _, rest = url.partition("://")
    authority, _, name = rest.partition("/")
    return _store(f"{scheme}://{authority}"), name.strip("/")


_making = threading.Lock()


def _store(url: str) -> Store:
    with _making:
        return _made(url)


@functools.cache
def _made(url: str) -> Store:
    scheme = url.partition("://")[0]
    try:
        if scheme in SCHEMES:
            return ObjectStore(url)
        from fastload.stores.filesystems import FileSystemStore

        return FileSystemStore(url)
    except ImportError as error:
        raise SourceError(
            f"{url}: reading from there needs a package that is not installed ({error}): "
            f"{install_command('remote')}"
        ) from None
    except (
        Exception
    ) as error:  # of the clients, whatever they raise at a name or a setting that is wrong
        words = str(error).split("\n")[0]
        raise SourceError(
            f"{url}: cannot be opened ({words}); check the URL and the settings in the environment."
        ) from None


# -- Folders ---------------------------------------------------------------------------------------

_kept: dict[str, tuple[Entry, ...]] | None = None


@contextlib.contextmanager
def listings_kept() -> Iterator[None]:
    """While a data set is opened each remote folder is listed once."""
    global _kept
    before, _kept = _kept, {} if _kept is None else _kept
    try:
        yield
    finally:
        _kept = before


def remote_entries(url: str) -> tuple[Entry, ...]:
    """What is in a remote folder, one level. Raises SourceError."""
    if _kept is not None and url in _kept:
        return _kept[url]
    store, name = _split(url)
    try:
        found = tuple(store.entries(name))
    except OSError as error:
        raise SourceError(f"{url}: this folder cannot be listed ({error}).") from error
    if _kept is not None:
        _kept[url] = found
    return found


def list_ahead(urls: Sequence[str]) -> None:
    """List remote folders at once that are going to be asked for one after the other."""
    wanted = [url for url in urls if _kept is not None and url not in _kept]
    if len(wanted) < 2 or _kept is None:
        return
    store = _split(wanted[0])[0]
    with contextlib.suppress(OSError):  # which is said when the folder is asked for
        for url, found in zip(
            wanted, store.entries_of([_split(url)[1] for url in wanted]), strict=True
        ):
            _kept[url] = tuple(found)


def _entry_of(url: str) -> Entry | None:
    """What the folder above says of a URL."""
    above, _, name = url.rpartition("/")
    if above.endswith(":/"):
        return None  # the authority itself
    return next((entry for entry in remote_entries(above) if entry.name == name), None)


def is_folder(path: str) -> bool:
    if not is_remote(path):
        return os.path.isdir(path)
    if path.startswith("http"):
        return False
    entry = _entry_of(path)
    return (
        entry.is_folder
        if entry is not None
        else path.count("/") == 2 and bool(remote_entries(path))
    )


def is_file(path: str) -> bool:
    if not is_remote(path):
        return os.path.isfile(path)
    if path.startswith("http"):
        return size_of(path) >= 0
    entry = _entry_of(path)
    return entry is not None and not entry.is_folder


def parent_of(path: str) -> str:
    """The folder above; of the top of a store the top."""
    return path if is_remote(path) and path.count("/") == 2 else os.path.dirname(path)


def entries(folder: str) -> list[tuple[str, bool]]:
    """(name, is a folder) of what is in a remote folder. Raises SourceError."""
    return [(entry.name, entry.is_folder) for entry in remote_entries(folder)]


# -- Bytes -----------------------------------------------------------------------------------------


def size_of(path: str) -> int:
    """Bytes of a file; -1 where there is none."""
    if is_remote(path):
        if _kept is not None and (known := _kept.get(path.rpartition("/")[0])) is not None:
            name = path.rpartition("/")[2]
            return next((entry.size for entry in known if entry.name == name), -1)
        store, name = _split(path)
        entry = store.info(name)
        return -1 if entry is None else entry.size
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def read_up_to(path: str, most: int, start: int = 0) -> bytes:
    """At most so many bytes from `start` on, fewer where the file ends before. Raises OSError."""
    if is_remote(path):
        store, name = _split(path)
        return store.read_up_to(name, start, most)
    with open_regular(path, buffering=0) as file:
        file.seek(start)
        return file.read(most)


def read(path: str, start: int = 0, length: int | None = None) -> bytes:
    """Bytes of a file; all from `start` on if `length` is None.

    Raises:
        OSError: it cannot be read, or ends before.
    """
    if is_remote(path):
        store, name = _split(path)
        return store.read(name, start, length)
    with open_regular(path, buffering=0) as file:
        if start:
            file.seek(start)
        if length is None:
            return file.read()
        data = file.read(length)
    if len(data) != length:
        raise OSError(f"{path}: the file ends after {len(data)} of {length} bytes.")
    return data


def read_many(ranges: Sequence[tuple[str, int, int | None]]) -> list[bytes]:
    """Several (path, start, length), all of one store, at once. Raises OSError as `read`."""
    if not ranges or not is_remote(ranges[0][0]):
        return [read(*part) for part in ranges]
    store = _split(ranges[0][0])[0]
    return store.read_many(
        [Range(_split(path)[1], start, length) for path, start, length in ranges]
    )


def forget() -> None:
    """Drop the clients that were made, for whoever has changed the settings in the environment
    since."""
    with _making:
        _made.cache_clear()
