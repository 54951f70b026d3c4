"""Files of this machine: which paths name them, and reading what may be damaged or hostile: only
regular files, opened without waiting, and images within limits. Writing files of our own, which
replace the old file when they are complete.

A named pipe, a terminal or a link to `/dev/zero` may lie under any name, in a folder of images as
in a cache: opening the first waits for a writer, reading the last never ends, and neither can be
interrupted in a worker process.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import platform
import re
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from fastload.errors import ConfigurationError

# Images with more pixels are refused unread, unless options say otherwise: decompression bombs. It
# is where Pillow refuses (twice its MAX_IMAGE_PIXELS of 1024 * 1024 * 1024 // 4 // 3).
MAX_PIXELS = 178_956_970

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_FLAGS = sum(getattr(os, f"O_{name}", 0) for name in ["NONBLOCK", "CLOEXEC", "BINARY", "NOINHERIT"])
"""Of each file that is opened, as far as the system has them: the last two are of Windows."""
_position = threading.Lock()
"""Held by who moves the position of a descriptor, where files can be read in no other way."""


@dataclass(frozen=True)
class DecodeSettings:
    """What counts as a good image, and how it is turned; the same for every backend."""

    exif_orientation: bool = False
    """Rotate and mirror by the EXIF orientation tag (torchvision does not, so neither do we by
    default)."""
    max_pixels: int = MAX_PIXELS
    """Images with more pixels are refused unread: decompression bombs."""

    @property
    def max_work(self) -> int:
        """Limit of pixels times scans of a JPEG.

        Each scan of a progressive file goes over the whole image again, at about a nanosecond a
        pixel, and costs its author twenty bytes: without a limit 93 KB keep a processor busy for
        minutes. Real files have up to about 20 scans; so many are allowed in the largest image, and
        more in smaller ones, for the same time. The same number is in fastload/native/image.hpp.
        """
        return 24 * self.max_pixels


def is_remote(path: str) -> bool:
    """Whether a path is a URL, of which `fastload.stores` knows what it names, and no file of this
    machine. (A `file://` URL is one, too, until `stores.located` has made a path of it.)"""
    return "://" in path and _SCHEME.match(path) is not None


def in_utf8(text: str) -> str:
    """Text in which file names may be, for files that hold UTF-8: bytes of names that are none are
    written as Python writes them, `caf\\xe9.jpg`."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return text


def size_of(path: str) -> int:
    """Bytes of a file; -1 where there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def open_regular(path: str | os.PathLike[str], *, buffering: int = -1) -> IO[bytes]:
    """`open(path, "rb")` of a regular file, links followed.

    Raises:
        OSError: as `open`; IsADirectoryError; and "not a regular file" for pipes, sockets and
            devices.
    """
    return cast("IO[bytes]", open(path, "rb", buffering=buffering, opener=_opener))


def read_regular(path: str | os.PathLike[str], *, most: int = -1) -> bytes:
    """The content of a regular file, or its first `most` bytes. Raises OSError as `open_regular`
    does."""
    with open_regular(path, buffering=0) as file:
        return file.read(most)


def read_range(path: str, start: int = 0, length: int | None = None) -> bytes:
    """Bytes of a regular file; all from `start` on if `length` is None. Raises OSError as
    `open_regular` does; and where the file ends before."""
    with open_regular(path, buffering=0) as file:
        if start:
            file.seek(start)
        if length is None:
            return file.read()
        data = file.read(length)
    if len(data) != length:
        raise OSError(f"{path}: the file ends after {len(data)} of {length} bytes.")
    return data


def read_regular_into(
    path: str | os.PathLike[str],
    memory: Callable[[int], memoryview],
    start: int = 0,
    length: int | None = None,
) -> tuple[memoryview, os.stat_result]:
    """The content of a regular file, or a range of it, in what `memory` gives for so many bytes;
    and what the system said of the file after it was read. Raises OSError as `open_regular` does;
    and where the file is shorter or longer than it was."""
    file, before = _opened(os.fspath(path), os.O_RDONLY)
    try:
        size = before.st_size - start if length is None else length
        target, read = memory(size), 0
        while read < size and (more := _preadv(file, [target[read:]], start + read)):
            read += more
        after = os.fstat(file)
        if read < size:
            raise OSError(f"{path}: the file ends after {read} of {size} bytes.")
        if length is None and after.st_size != size:
            raise OSError(f"{path}: the file grew while it was read.")
        return target, after
    finally:
        os.close(file)


def _read_there(descriptor: int, count: int, position: int) -> bytes:
    """`os.pread` where the system has none (Windows)."""
    with _position:
        os.lseek(descriptor, position, os.SEEK_SET)
        return os.read(descriptor, count)


def _read_into_there(descriptor: int, buffers: list[memoryview], position: int) -> int:
    """`os.preadv` of one buffer, where the system has none."""
    data = _read_there(descriptor, len(buffers[0]), position)
    buffers[0][: len(data)] = data
    return len(data)


read_at: Callable[[int, int, int], bytes] = getattr(os, "pread", _read_there)
"""`read_at(descriptor, count, position)`: bytes of an open file, as `os.pread`."""
_preadv: Callable[[int, list[memoryview], int], int] = getattr(os, "preadv", _read_into_there)


def free_bytes(folder: str | os.PathLike[str]) -> int:
    """What may still be written there by this user. Raises OSError."""
    if not hasattr(os, "statvfs"):  # Windows
        return shutil.disk_usage(folder).free
    system = os.statvfs(folder)
    return system.f_bavail * system.f_frsize


def check_regular(path: str | os.PathLike[str]) -> None:
    """For files that a library opens by their path. Raises OSError as `open_regular` does."""
    open_regular(path, buffering=0).close()


def _opener(path: str, flags: int) -> int:
    return _opened(path, flags)[0]


def _opened(path: str, flags: int) -> tuple[int, os.stat_result]:
    """A file, and what the system says of it."""
    descriptor = os.open(path, flags | _FLAGS)
    state = os.fstat(descriptor)
    if stat.S_ISREG(state.st_mode):
        return descriptor, state
    os.close(descriptor)
    if stat.S_ISDIR(state.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what takes the place of a file once it is whole; what was there stays if
    anything is raised. An OSError of writing it names `path`.

    The name has the machine and the process in it. Files that killed processes of this machine have
    left are removed first.
    """
    import psutil  # 13 ms, and commands that write nothing import this file

    ours = f".{path.name}.{platform.node()}"
    for left in path.parent.glob(f"{glob.escape(ours)}.*.tmp"):
        writer = left.name.split(".")[-2]
        if writer.isdigit() and not psutil.pid_exists(int(writer)):
            left.unlink(missing_ok=True)
    beside = path.with_name(f"{ours}.{os.getpid()}.tmp")
    try:
        beside.unlink(missing_ok=True)
        yield beside
        os.replace(beside, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        if isinstance(error, OSError) and _of_writing(error, beside):
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise


def _of_writing(error: OSError, beside: Path) -> bool:
    """Whether it is of the file being written. A full disk names none."""
    if error.filename is None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return bool(os.fspath(error.filename) == os.fspath(beside))


def check_output(path: Path, option: str) -> None:
    """Refuse, before the work, a file that could not be written after it. Raises
    ConfigurationError, which names the option."""
    said, folder = f"{option} {path}", path.absolute().parent
    if path.is_dir():
        raise ConfigurationError(f"{said}: is a folder; give the name of a file.")
    if not folder.is_dir():
        raise ConfigurationError(f"{said}: there is no folder {folder}; create it first.")
    if not os.access(folder, os.W_OK):
        raise ConfigurationError(f"{said}: no permission to write there; give another place.")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder outlast a power cut; not every file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def state_of(path: str) -> tuple[int, ...] | None:
    """Size [bytes] and time of change [ns] of a file on a local disk; None: there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
