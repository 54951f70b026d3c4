"""Tar archives: read once from front to back, compressed or not; indexed by headers; unpacked to a
temporary file.

The index is made by hand, because the standard library's tarfile takes more than three times as
long (21 microseconds a file), mistakes a damaged header for the end of the archive, and reads as
many pax records as a header claims to have.
Format: POSIX.1-2001 (ustar and pax), and GNU tar's long names.
"""

from __future__ import annotations

import atexit
import bz2
import gzip
import lzma
import math
import os
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import IO, Any, NamedTuple, cast

from fastload import stores
from fastload.errors import FastloadError, SourceError
from fastload.files import open_regular, read_at
from fastload.sources.image_files import is_never_data

_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_OPENERS: dict[str, Any] = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}
_DAMAGED: tuple[type[Exception], ...] = (EOFError, zlib.error, lzma.LZMAError, OSError)

# Bytes: compressed archives that unpack to more are refused; the time to do it again at every start
# adds up.
LARGEST_UNPACKED = 2 << 30

_BLOCK = 512
_FILE, _FOLDER = b"\x000\x37", b"5"
_PAX, _PAX_GLOBAL, _GNU_NAME, _GNU_LINK = b"x", b"g", b"L", b"K"
# Bytes of a long name or pax header: more is damage, not a name.
_LARGEST_NAME = 1 << 20
# Bytes of zeros at the end: programs fill up a record, of 10 KiB, at most 1 MiB (tar -b 2048).
_MOST_PADDING = 1 << 20
# Records of a pax header; real ones have a name, times, an owner and perhaps some dozen attributes.
_MOST_RECORDS = 1000


def is_archive_name(path: str) -> bool:
    """Whether the name is one of a tar archive and there is such a file."""
    return path.lower().endswith(_SUFFIXES) and stores.is_file(path)


def compression_of(path: str) -> str | None:
    """ "gzip", "bzip2", "xz" or "zstd" by the file's first bytes; None for anything else. Raises
    SourceError."""
    try:
        head = stores.read_up_to(path, 6)
    except OSError as error:
        raise _unopened(path, error) from error
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


@contextmanager
def open_archive(path: str) -> Iterator[Iterator[tuple[FileInTar, Callable[[], bytes]]]]:
    """The files of an archive of any compression, in order; each may be read before the next is
    asked for.

    Raises:
        SourceError: truncated, damaged, not a tar file, or compressed in a way that Python cannot
            read.
    """
    with _unpacked(path) as stream:
        read = _ForwardReader(stream).read

        def content_of(file: FileInTar) -> bytes:
            content = read(file.offset, file.size)
            if len(content) < file.size:
                raise EOFError("it ends before the file that it announces")
            return content

        yield ((file, partial(content_of, file)) for file in _files(path, read))


def first_names(path: str, count: int) -> list[str]:
    """Names of the first files (no folders, no names that are never data), without a leading "./";
    fewer if the archive has fewer."""
    with open_archive(path) as files:
        names = (file.name for file, _ in files)
        return list(
            islice((name for name in names if not any(map(is_never_data, name.split("/")))), count)
        )


@contextmanager
def _unpacked(path: str) -> Iterator[IO[bytes]]:
    """The archive without its compression; what reading it raises is a SourceError that names
    it."""
    compression = compression_of(path)
    if compression == "zstd":
        raise SourceError(f"{path}: zstd archives cannot be read; unpack it: tar --zstd -xf {path}")
    try:
        with open_regular(path) as file:
            if compression is None:
                yield file
            else:
                with cast("IO[bytes]", _OPENERS[compression](file, "rb")) as stream:
                    yield stream
    except FastloadError:
        raise
    except _DAMAGED as error:
        raise SourceError(
            f"{path}: this archive cannot be read ({str(error) or type(error).__name__}); if it is "
            "truncated or damaged, fetch it again."
        ) from error


class _ForwardReader:
    """Reads at growing positions of a stream that cannot go back."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._position = 0

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position` on, fewer at the end of the stream; `position` is none
        already read."""
        assert position >= self._position
        while self._position < position:
            passed = len(self._stream.read(min(1 << 20, position - self._position)))
            if not passed:
                return b""
            self._position += passed
        data = bytearray()  # in pieces: a damaged header may announce more than there is memory
        while len(data) < size and (piece := self._stream.read(min(1 << 20, size - len(data)))):
            data += piece
        self._position += len(data)
        return bytes(data)


class RemoteArchive:
    """Reads a remote archive from front to back. The headers of small files come with the files, in
    requests that grow up to 8 MiB; of large files the headers alone are asked for."""

    _LEAST, _MOST = 64 << 10, 8 << 20

    def __init__(self, path: str) -> None:
        self._path, self._version = path, int(stores.versions_of([path])[0])
        self._start, self._block, self._ask = 0, b"", 1 << 20

    def read(self, position: int, size: int) -> bytes:
        """Bytes from a position on, fewer at the end of the archive. Raises OSError."""
        start = position - self._start
        if not 0 <= start <= start + size <= len(self._block):
            passed = start - len(self._block)
            self._ask = min(2 * self._ask, self._MOST) if passed <= self._ask else self._LEAST
            self._start, start = position, 0
            self._block = stores.read_up_to(
                self._path, max(self._ask, size), position, self._version
            )
        return self._block[start : start + size]


def _unopened(path: str, error: OSError) -> SourceError:
    return SourceError(
        f"{path}: cannot be opened ({error.strerror or error}); check the path and its permissions."
    )


_copies: dict[tuple[str, int, int], str] = {}
_copies_lock = threading.Lock()


def uncompressed_copy(path: str) -> str:
    """Path of a temporary, uncompressed copy of a compressed archive; the same one when asked
    again.

    It lies in the system's folder for temporary files (TMPDIR) and is removed when this process
    ends. Random access needs it: nothing can start reading in the middle of a compressed stream.
    """
    status = os.stat(path)
    key = (os.path.realpath(path), status.st_size, status.st_mtime_ns)
    with _copies_lock:
        if not os.path.exists(_copies.get(key, "")):
            _copies[key] = _unpack(path)
        return _copies[key]


def _unpack(path: str) -> str:
    remedy = f"unpack it once and open the folder: tar -xf {path}"
    descriptor, target = tempfile.mkstemp(prefix=f"{os.path.basename(path)}-", suffix=".tar")
    atexit.register(_remove, target, os.getpid())
    try:
        with os.fdopen(descriptor, "wb") as out, _unpacked(path) as stream:
            while chunk := stream.read(1 << 20):
                if out.tell() + len(chunk) > LARGEST_UNPACKED:
                    raise SourceError(
                        f"{path}: unpacks to more than {LARGEST_UNPACKED >> 30} GiB; {remedy}"
                    )
                try:
                    out.write(chunk)
                    out.flush()
                except OSError as error:
                    where = f"cannot be unpacked into {tempfile.gettempdir()} ({error.strerror})"
                    raise SourceError(f"{path}: {where}; {remedy}") from error
    except BaseException:
        os.unlink(target)
        raise
    return target


def _remove(target: str, owner: int) -> None:
    # A forked child runs the same exit handlers, and must not take the file from its parent.
    if os.getpid() == owner and os.path.exists(target):
        os.unlink(target)


class FileInTar(NamedTuple):
    """A regular file in a tar archive: where its content begins, and how many bytes it has."""

    name: str
    offset: int
    size: int
    content: bytes | None = None
    """Where it was asked for."""


def files_in_tar(
    path: str,
    folders: list[str] | None = None,
    wanted: Callable[[str], bool] = lambda name: False,
) -> Iterator[FileInTar]:
    """The regular files of an uncompressed archive, in order. Folders are left out; their names are
    added to `folders`.

    `wanted`: by its name, whether the content of a file comes with it. That of a small file in a
    remote archive mostly lies in what is read for the headers; later it would be a request.

    Raises:
        SourceError: the archive is truncated or damaged, or holds links or sparse files, whose
            content lies elsewhere.
    """
    if stores.is_remote(path):
        try:
            size = max(0, stores.size_of(path))
            yield from _files(path, RemoteArchive(path).read, size, folders, wanted)
        except OSError as error:
            raise _unopened(path, error) from error
        return
    try:
        opened = open_regular(path, buffering=0)
    except OSError as error:
        raise _unopened(path, error) from error
    with opened:
        descriptor = opened.fileno()
        yield from _files(
            path,
            lambda position, size: read_at(descriptor, size, position),
            os.fstat(descriptor).st_size,
            folders,
            wanted,
        )


def _files(
    path: str,
    read: Callable[[int, int], bytes],
    length: float = math.inf,
    folders: list[str] | None = None,
    wanted: Callable[[str], bool] = lambda name: False,
) -> Iterator[FileInTar]:
    """The regular files, in order. `read(position, size)` gives bytes of the archive, `length` is
    how many it has. For the others see `files_in_tar`."""
    position, long_name, pax = 0, b"", dict[bytes, bytes]()
    while True:
        header = read(position, _BLOCK)
        if header == bytes(_BLOCK):
            _check_end(path, position, read, length)
            return
        if len(header) < _BLOCK:
            raise _damaged(path, position, "no end-of-archive mark")
        if not _checksum_fits(header):
            raise _damaged(path, position, "not a tar header")
        kind, start = header[156:157], position + _BLOCK
        size = _number(pax[b"size"], 10) if b"size" in pax else _number(header[124:136])
        if kind == _FOLDER:
            size = 0  # whatever the header says, as in tarfile and GNU tar
        if size < 0 or start + size > length:
            raise _damaged(
                path,
                position,
                f"a file of {size:,} bytes begins, but the archive ends before it does",
            )
        position = start + -(-size // _BLOCK) * _BLOCK
        if kind in (_PAX, _PAX_GLOBAL, _GNU_NAME, _GNU_LINK):
            if size > _LARGEST_NAME:
                raise _damaged(path, start, f"a name of {size:,} bytes")
            content = read(start, size)
            if kind == _PAX:
                records = _pax_records(content)
                if records is None:
                    raise _damaged(
                        path,
                        start,
                        "a pax header that is not made of records, or of more than "
                        f"{_MOST_RECORDS:,}",
                    )
                pax = records
            elif kind == _GNU_NAME:
                long_name = content.rstrip(b"\0")
            continue
        name = (pax.get(b"path") or long_name or _name(header)).decode("utf-8", "surrogateescape")
        is_sparse = any(key.startswith(b"GNU.sparse") for key in pax)
        long_name, pax = b"", {}
        if kind == _FOLDER or (name.endswith("/") and not size):
            if folders is not None:
                folders.append(name)
            continue
        if name.endswith("/"):
            raise _damaged(path, start, f"{size:,} bytes of the folder {name}")
        if kind not in _FILE or is_sparse:
            raise SourceError(
                f"{path}: {name} is not a plain file but a link, sparse or special one; write the "
                "archive with its content: tar --dereference --hard-dereference."
            )
        name = name.removeprefix("./")
        if not wanted(name):
            yield FileInTar(name, start, size)
            continue
        content = read(start, size)
        if len(content) < size:
            raise _damaged(path, start, f"{len(content):,} of {size:,} bytes of {name}")
        yield FileInTar(name, start, size, content)


def _damaged(path: str, position: int, damage: str) -> SourceError:
    return SourceError(
        f"{path}: {damage} at byte {position:,}; the archive is truncated or damaged: fetch or "
        "write it again."
    )


def _check_end(path: str, position: int, read: Callable[[int, int], bytes], length: float) -> None:
    """Raises SourceError: a block of zeros is not the end of the archive. Files after it would be
    lost: those of a second archive, or after a hole that an interrupted download has left."""
    at = position + _BLOCK
    while at < length and at - position <= _MOST_PADDING:
        piece = read(at, int(min(_MOST_PADDING, length - at)))
        if not piece:
            return
        if piece.strip(b"\0"):
            raise SourceError(
                f"{path}: more follows after the end-of-archive mark at byte {position:,}: several "
                "archives in one file, or a hole in it. Split them or write them as one (tar "
                "--concatenate), or fetch the file again."
            )
        at += len(piece)
    if at - position > _MOST_PADDING:
        raise _damaged(path, position, f"more than {_MOST_PADDING:,} zeros at the end, from")


def _checksum_fits(header: bytes) -> bool:
    """The sum of all bytes, those of the checksum itself taken as spaces; some old programs summed
    signed bytes."""
    try:
        expected = int(header[148:156].strip(b" \0") or b"0", 8)
    except ValueError:
        return False
    unsigned = sum(header) - sum(header[148:156]) + 8 * 0x20
    return expected == unsigned or expected == unsigned - 256 * sum(byte > 127 for byte in header)


def _number(field: bytes, base: int = 8) -> int:
    """Digits; or, marked by the first bit, a big-endian number, which GNU tar writes from 8 GiB on.
    -1 for neither."""
    if field.startswith(b"\x80"):
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", base)
    except ValueError:
        return -1


def _name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    # GNU's own format has other things where POSIX has the prefix.
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _pax_records(content: bytes) -> dict[bytes, bytes] | None:
    """Records "<length> <key>=<value>\\n", the length being that of the whole record; None: one is
    not so, or there are too many."""
    records: dict[bytes, bytes] = {}
    position = 0
    for _ in range(_MOST_RECORDS):
        if not content[position:].strip(b"\0"):  # some programs fill up with zeros
            return records
        # The header is no larger than _LARGEST_NAME, so that a longer number is damage.
        space = content.find(b" ", position, position + 8)
        digits = content[position : max(space, position)]
        if not digits.isdigit():
            return None
        end = position + int(digits)
        key, equals, value = content[space + 1 : end - 1].partition(b"=")
        if not equals or content[end - 1 : end] != b"\n":
            return None
        records[key] = value
        position = end
    return None
