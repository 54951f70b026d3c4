"""Opening files that somebody else has made: regular ones only, and without ever waiting for one to begin.

A named pipe, a terminal or a link to `/dev/zero` may lie under any name, in a folder of images as in a cache: opening
the first waits for a writer, reading the last never ends, and neither can be interrupted in a worker process.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import IO, cast

__all__ = ["check_regular", "open_regular", "read_regular"]


def open_regular(path: str | os.PathLike[str], *, buffering: int = -1) -> IO[bytes]:
    """`open(path, "rb")` of a regular file, links followed.

    Raises:
        OSError: as `open`; IsADirectoryError; and "not a regular file" for pipes, sockets and devices.
    """
    return cast("IO[bytes]", open(path, "rb", buffering=buffering, opener=_opener))


def read_regular(path: str | os.PathLike[str], *, most: int = -1) -> bytes:
    """The content of a regular file, or its first `most` bytes. Raises OSError as `open_regular` does."""
    with open_regular(path, buffering=0) as file:
        return file.read(most)


def check_regular(path: str | os.PathLike[str]) -> None:
    """For files that a library opens by their path. Raises OSError as `open_regular` does."""
    open_regular(path, buffering=0).close()


def _opener(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
