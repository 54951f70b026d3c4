"""Tar archives, compressed or not: read once from front to back, or unpacked to a temporary file."""

from __future__ import annotations

import atexit
import bz2
import gzip
import lzma
import os
import tarfile
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from fastload.errors import FastloadError, SourceError
from fastload.files import open_regular, read_regular

_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_OPENERS: dict[str, Any] = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}
_DAMAGED: tuple[type[Exception], ...] = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError)
_DAMAGED += (ArithmeticError, ValueError, RecursionError)  # tarfile lets damaged numbers fail as they like

LARGEST_UNPACKED = 2 << 30
"""Bytes: compressed archives that unpack to more are refused; the time to do it again at every start adds up."""


def is_archive_name(path: str) -> bool:
    """Whether the name is one of a tar archive and there is such a file."""
    return path.lower().endswith(_SUFFIXES) and os.path.isfile(path)


def compression_of(path: str) -> str | None:
    """ "gzip", "bzip2", "xz" or "zstd" by the file's first bytes; None for anything else. Raises SourceError."""
    try:
        head = read_regular(path, most=6)
    except OSError as error:
        raise unopened(path, error) from error
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


@contextmanager
def open_archive(path: str) -> Iterator[Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]]:
    """The members of an archive of any compression, in order; each may be read before the next is asked for.

    Raises:
        SourceError: truncated, damaged, not a tar file, or compressed in a way that Python cannot read.
    """
    if compression_of(path) == "zstd":
        raise SourceError(f"{path}: zstd archives cannot be read; unpack it: tar --zstd -xf {path}")
    try:
        with _unpacked(path) as stream, tarfile.open(fileobj=cast("Any", _Ending(stream)), mode="r|") as archive:
            yield ((member, archive) for member in archive)
    except FastloadError:
        raise
    except _DAMAGED as error:
        raise damaged(path, error) from error


@contextmanager
def _unpacked(path: str) -> Iterator[IO[bytes]]:
    """The archive without its compression (tarfile can do that, too, and fails at damage as it likes)."""
    opener = _OPENERS.get(compression_of(path) or "")
    with open_regular(path) as file:
        if opener is None:
            yield file
        else:
            with cast("IO[bytes]", opener(file, "rb")) as stream:
                yield stream


class _Ending:
    """A file that can be read to its end, and not for ever after it.

    To pass over a member that a header announces as of 2^88 bytes, tarfile would read that often.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._ended = 0

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._ended += not data
        if self._ended > 2:
            raise EOFError("it ends before the file that it announces")
        return data


def unopened(path: str, error: OSError) -> SourceError:
    return SourceError(f"{path}: cannot be opened ({error.strerror}); check the path and its permissions.")


def damaged(path: str, error: BaseException) -> SourceError:
    reason = str(error) or type(error).__name__
    return SourceError(
        f"{path}: this archive cannot be read ({reason}); if it is truncated or damaged, fetch it again."
    )


def peek(path: str, count: int) -> list[str]:
    """Names of the first files (folders left out), without a leading "./"; fewer if the archive has fewer."""
    names: list[str] = []
    with open_archive(path) as members:
        for member, _ in members:
            if not member.isdir():
                names.append(member.name.removeprefix("./"))
                if len(names) == count:
                    break
    return names


_copies: dict[tuple[str, int, int], str] = {}
_copies_lock = threading.Lock()


def uncompressed_copy(path: str) -> str:
    """Path of a temporary, uncompressed copy of a compressed archive; the same one when asked again.

    It lies in the system's folder for temporary files (TMPDIR) and is removed when this process ends. Random access
    needs it: nothing can start reading in the middle of a compressed stream.

    Raises:
        SourceError: damaged, too large (`LARGEST_UNPACKED`), or no room; the message says what to do instead.
    """
    status = os.stat(path)
    key = (os.path.realpath(path), status.st_size, status.st_mtime_ns)
    with _copies_lock:
        if key not in _copies or not os.path.exists(_copies[key]):
            _copies[key] = _unpack(path)
        return _copies[key]


def _unpack(path: str) -> str:
    if compression_of(path) not in _OPENERS:
        raise SourceError(f"{path}: this compression cannot be read; unpack the archive: tar -xf {path}")
    descriptor, target = tempfile.mkstemp(prefix=f"{os.path.basename(path)}-", suffix=".tar")
    try:
        with os.fdopen(descriptor, "wb") as out:
            _copy(path, out)
    except BaseException:
        os.unlink(target)
        raise
    atexit.register(_remove, target, os.getpid())
    return target


def _copy(path: str, out: IO[bytes]) -> None:
    remedy = f"unpack it once and open the folder: tar -xf {path}"
    written = 0
    with _unpacked(path) as stream:
        while True:
            try:
                chunk = stream.read(1 << 20)
            except _DAMAGED as error:
                raise damaged(path, error) from error
            written += len(chunk)
            if written > LARGEST_UNPACKED:
                raise SourceError(f"{path}: unpacks to more than {LARGEST_UNPACKED >> 30} GiB; {remedy}")
            if not chunk:
                return
            try:
                out.write(chunk)
            except OSError as error:
                folder = tempfile.gettempdir()
                raise SourceError(f"{path}: cannot be unpacked into {folder} ({error.strerror}); {remedy}") from error


def _remove(target: str, owner: int) -> None:
    # A forked child runs the same exit handlers, and must not take the file from its parent.
    if os.getpid() == owner and os.path.exists(target):
        os.unlink(target)
