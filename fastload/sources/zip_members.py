"""The members of a zip archive as parts of a file, on a disk or in a store. Format: PKWARE's
APPNOTE 6.3.9."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, ClassVar

import numpy as np

from fastload import stores
from fastload.checksum import crc32
from fastload.errors import SourceError
from fastload.files import open_regular, read_at
from fastload.sources.archive import RemoteArchive
from fastload.sources.buffers import Int64Array, PathTable, values_of
from fastload.sources.columns import EncodedFiles
from fastload.stores.range_file import RangeFile

_LOCAL_HEADER = struct.Struct("<4s4xH16xHH")
"""Signature, method, lengths of the name and the extra field (section 4.3.7)."""
_UTF8 = 0x800
_LARGEST = 1 << 30
"""Bytes of an image: deflate makes up to 1,032 times as many of what it is given."""
_METHODS = {9: "deflate64", 12: "bzip2", 14: "LZMA", 93: "zstandard", 95: "xz"}
"""Methods of section 4.4.5 that are in use and not read."""
_ENCRYPTED = 1
_MADE_ON_UNIX = (3, 19)
"""Unix and macOS, of section 4.4.2: names are the bytes that the file system has, today UTF-8."""
_NOT_GIVEN = (stores.StoreError, FileNotFoundError, PermissionError)
"""What says nothing of the bytes of an archive."""
_PATH_FIELD = 0x7075
"""Of the extra field (section 4.6.9): version 1, the CRC-32 of the name, and the name in UTF-8."""


def members_of(path: str) -> list[zipfile.ZipInfo]:
    """The directory of an archive. Raises SourceError: it cannot be read."""
    try:
        with _opened(path) as file, zipfile.ZipFile(file) as archive:
            return archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, struct.error, NotImplementedError) as error:
        # An end that cannot be read is no end to the standard library: "File is not a zip file".
        why = error.__context__ if isinstance(error.__context__, _NOT_GIVEN) else error
        words = f"{path}: this archive cannot be read ({why})"
        if isinstance(why, _NOT_GIVEN):
            raise SourceError(f"{words}.") from error
        raise SourceError(f"{words}; if it is truncated or damaged, fetch it again.") from error


def files_in_zip(
    path: str, named: Sequence[tuple[str, zipfile.ZipInfo]], remedy: str
) -> EncodedFiles:
    """Members of an archive, with the names that they are to have.

    Raises SourceError: two have one name; one cannot be read as it is stored, or is not where the
    directory says. `remedy` is the end of the message.
    """
    names, members = [name for name, _ in named], [member for _, member in named]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise SourceError(f"{path}: {twice[0]} is in it twice; {remedy}")
    for name, member in named:
        if "\\" in name:
            raise SourceError(
                f"{path}: {name} has a backslash in it, which is a folder to some programs and a "
                f"letter to others; {remedy}"
            )
        if member.file_size > _LARGEST:
            raise SourceError(f"{path}: {name} claims {member.file_size:,} bytes; {remedy}")
        if member.flag_bits & _ENCRYPTED:
            raise SourceError(f"{path}: {name} is encrypted; {remedy}")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            how = _METHODS.get(member.compress_type, f"method {member.compress_type}")
            raise SourceError(f"{path}: {name} is compressed by {how}, not deflate; {remedy}")
    packed = np.array([member.compress_size for member in members], dtype=np.int64)
    try:
        starts = _starts(path, members, packed)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error}); open it again.") from error
    files = EncodedFiles(
        PathTable.of([path]).take(np.zeros(len(members), dtype=np.int64)),
        "image",
        starts,
        packed,
        PathTable.of(names),
    )
    stored = [member.compress_type == zipfile.ZIP_STORED for member in members]
    if all(stored):
        return files
    sizes = [-1 if one else m.file_size for one, m in zip(stored, members, strict=True)]
    sums = np.array([member.CRC for member in members], dtype=np.uint32)
    sized = np.array(sizes, dtype=np.int64)
    return InflatedFiles(**values_of(files), sizes=sized, sums=sums)


def name_of(member: zipfile.ZipInfo) -> str | None:
    """The name of a member, as it is unpacked; None where its letters are not known.

    The standard library takes names that are not marked as UTF-8 for cp437: the zip of Debian and
    macOS marks none, and names by cp437 are others, in another order.
    """
    if member.flag_bits & _UTF8 or member.orig_filename.isascii():
        return member.filename
    name = _bytes_of_name(member).partition(b"\0")[0]
    extra = member.extra
    while len(extra) >= 4:
        tag, length = struct.unpack_from("<HH", extra)
        field, extra = extra[4 : 4 + length], extra[4 + length :]
        if tag == _PATH_FIELD and field[:5] == b"\1" + crc32(name).to_bytes(4, "little"):
            return field[5:].decode("utf-8", "surrogateescape")
    if member.create_system in _MADE_ON_UNIX:
        return name.decode("utf-8", "surrogateescape")
    return None


def _bytes_of_name(member: zipfile.ZipInfo) -> bytes:
    """The bytes of a name in the archive, which the standard library has decoded."""
    return member.orig_filename.encode("utf-8" if member.flag_bits & _UTF8 else "cp437")


@contextlib.contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    """The archive, to read its directory. Raises OSError."""
    if not stores.is_remote(path):
        with open_regular(path) as file:
            yield file
        return
    with io.BufferedReader(RangeFile(path), 1 << 16) as remote:
        yield remote


def _starts(path: str, members: list[zipfile.ZipInfo], packed: Int64Array) -> Int64Array:
    """(N,) int64: where the bytes of each member begin, after its own header. Raises SourceError:
    there is no such header, it is of another member, or they go beyond the end of the file."""
    starts = np.zeros(len(members), dtype=np.int64)
    with contextlib.ExitStack() as stack:
        read: Callable[[int, int], bytes]
        if stores.is_remote(path):
            size, read = stores.size_of(path), RemoteArchive(path).read
        else:
            descriptor = stack.enter_context(open_regular(path, buffering=0)).fileno()
            size = os.fstat(descriptor).st_size

            def read(position: int, count: int) -> bytes:
                return read_at(descriptor, count, position)

        # From front to back: that is how a remote archive is read.
        for row in sorted(range(len(members)), key=lambda row: members[row].header_offset):
            member = members[row]
            name = _bytes_of_name(member)
            begin = member.header_offset  # negative where the file lacks its beginning
            header = read(begin, _LOCAL_HEADER.size + len(name)) if begin >= 0 else b""
            signature, method, length, extra = _LOCAL_HEADER.unpack_from(
                header.ljust(_LOCAL_HEADER.size, b"\0")
            )
            starts[row] = member.header_offset + _LOCAL_HEADER.size + length + extra
            same = (method, length) == (member.compress_type, len(name)) and header.endswith(name)
            if signature != b"PK\3\4" or not same or starts[row] + packed[row] > size:
                raise SourceError(
                    f"{path}: {member.filename} is not where the archive's directory says; the "
                    "file is truncated or damaged, fetch it again."
                )
    return starts


@dataclass(frozen=True)
class InflatedFiles(EncodedFiles):
    """Images of which some are deflated: `offsets` and `lengths` are of the compressed bytes."""

    sizes: Any = None
    """(N,) int64: bytes of each image; -1 where it is stored as it is."""
    sums: Any = None
    """(N,) uint32: CRC-32 of each image."""
    own_arrays: ClassVar[tuple[str, ...]] = ("sizes", "sums")

    def read(self, index: int) -> bytes:
        return bytes(self._inflated(index, super().read(index), int(self.sizes[index])))

    def views(self, indices: Int64Array) -> Sequence[stores.Data]:
        return [
            self._inflated(index, data, int(self.sizes[index]))
            for index, data in zip(indices.tolist(), super().views(indices), strict=True)
        ]

    def read_start(self, index: int, length: int) -> bytes:
        if self.sizes[index] < 0:
            return super().read_start(index, length)
        return self.read(index)[:length]

    def in_files(self, indices: Int64Array) -> None:
        return None

    def looked(self, indices: Int64Array) -> None:
        return None

    def take(self, indices: Int64Array) -> InflatedFiles:
        taken = super().take(indices)
        return InflatedFiles(**values_of(taken), sizes=self.sizes[indices], sums=self.sums[indices])

    def _inflated(self, index: int, data: stores.Data, size: int) -> stores.Data:
        """Raises OSError: they are damaged."""
        if size < 0:
            return data
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            inflated = inflate.decompress(data, size + 1)
        except zlib.error as error:
            raise OSError(f"{self.describe(index)}: is damaged ({error}).") from error
        if len(inflated) != size:
            raise OSError(f"{self.describe(index)}: is damaged (its size is not {size}).")
        if crc32(inflated) != self.sums[index]:
            raise OSError(f"{self.describe(index)}: is damaged (its checksum is another).")
        return inflated
