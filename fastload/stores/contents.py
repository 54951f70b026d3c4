"""Small files that say what is in a data set (annotations, labels, lists of a split): many at once,
of the versions that were seen, and noted for its index."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import IO, TypeVar

from fastload import stores
from fastload.errors import SourceError
from fastload.files import open_regular, read_regular
from fastload.stores.base import Range
from fastload.stores.range_file import RangeFile

T = TypeVar("T")
AT_ONCE = 4096
"""Files of which the content is in memory."""
_BLOCK = 16 << 20
"""Bytes of a request for a part of a long file."""


def parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Some at a time, in order."""
    return (items[start : start + AT_ONCE] for start in range(0, len(items), AT_ONCE))


def contents(paths: Sequence[str], most: int) -> list[bytes | None]:
    """What is in files; None for those that are not there. In a store each folder is listed once,
    and what is empty takes no request.

    Raises:
        SourceError: one cannot be read, has changed meanwhile, or has more than `most` bytes.
    """
    remote = [path for path in paths if stores.is_remote(path)]
    if not remote:
        return [_content(path, most) for path in paths]
    folders = {url.rpartition("/")[0]: None for url in remote if not stores.is_web(url)}
    stores.list_ahead([*folders])
    for folder in folders:
        stores.remote_entries(folder)
    stores.ask_ahead(remote)
    versions = [stores.noted(url) for url in remote]
    sizes = [stores.size_of(url) for url in remote]
    for url, size in zip(remote, sizes, strict=True):
        _check(url, size, most)
    wanted = [row for row, size in enumerate(sizes) if size > 0]
    ranges = [Range(remote[row], version=versions[row]) for row in wanted]
    try:
        read = stores.read_many(ranges, by_tier=False)
    except OSError as error:  # It names the file.
        raise SourceError(
            f"{remote[0]}: this file, or one beside it, cannot be read: {error}"
        ) from error
    content_of: dict[str, bytes | None] = {
        url: None if size < 0 else b"" for url, size in zip(remote, sizes, strict=True)
    }
    content_of |= {remote[row]: data for row, data in zip(wanted, read, strict=True)}
    return [content_of[path] if path in content_of else _content(path, most) for path in paths]


def open_text(path: str) -> IO[str]:
    """A file of UTF-8 that may be too long for memory, as csv wants it: lines end as they do.

    Raises OSError: there is none; and where it is read, that it cannot be.
    """
    stores.noted(path)
    file = _Blocks(RangeFile(path), _BLOCK) if stores.is_remote(path) else open_regular(path)
    return io.TextIOWrapper(file, encoding="utf-8-sig", newline="")


class _Blocks(io.BufferedReader):
    """Asks for as much as its buffer holds, also where a line is asked for."""

    def read1(self, size: int = -1, /) -> bytes:
        return self.read(size)


def _content(path: str, most: int) -> bytes | None:
    try:
        data = read_regular(path, most=most + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error}).") from None
    _check(path, len(data), most)
    return data


def _check(path: str, size: int, most: int) -> None:
    if size > most:
        raise SourceError(
            f"{path}: has more than {most:,} bytes; is it one of labels or annotations?"
        )
