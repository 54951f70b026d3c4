"""Where the files of a tar archive begin, found by reading its headers alone."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import NamedTuple

from fastload.errors import SourceError
from fastload.sources.archive import damaged

__all__ = ["FileInTar", "files_in_tar"]

_BLOCK = 512


class FileInTar(NamedTuple):
    """A regular file in a tar archive."""

    name: str
    offset: int
    """First byte of its content in the archive."""
    size: int
    """Bytes."""


def files_in_tar(path: str) -> Iterator[FileInTar]:
    """The regular files of an uncompressed archive, in order. Folders are left out.

    Raises:
        SourceError: the archive is truncated or damaged, or holds links or sparse files, whose content lies elsewhere.
    """
    try:
        # Unbuffered: a buffered file would read kilobytes of image data behind each 512-byte header.
        with open(path, "rb", buffering=0) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            while (member := archive.next()) is not None:
                # It keeps all members, about 1 kB each.
                archive.members = []  # type: ignore[attr-defined]
                if member.isdir():
                    continue
                if not member.isreg() or member.issparse():
                    raise SourceError(
                        f"{path}: {member.name} is not a plain file but a link or special one; "
                        "write the archive with its content: tar --dereference --hard-dereference."
                    )
                yield FileInTar(member.name.removeprefix("./"), member.offset_data, member.size)
            # tarfile takes a damaged header for the end. The real end is a block of zeros.
            file.seek(archive.offset)
            if file.read(_BLOCK) != bytes(_BLOCK):
                raise SourceError(
                    f"{path}: no end-of-archive mark at byte {archive.offset:,}; it is truncated or damaged: "
                    "fetch or write it again."
                )
    except (tarfile.TarError, OSError) as error:
        raise damaged(path, error) from error
