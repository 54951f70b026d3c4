"""Zip archives of class folders, or of images alone, read at random without being unpacked, on a
disk or in a store.

    data.zip
    ├── train/              or the folders of classes alone, or images alone
    │   ├── cat/0001.jpg
    │   └── dog/0002.jpg
    └── val/

Gives `image` and `label`; of images alone `image`.

Members that are stored as they are (`zip -0`) are ranges of the file, which the native core opens.
Deflated ones are inflated at each read.
Format: PKWARE's APPNOTE 6.3.9.
"""

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
from fastload.files import open_regular
from fastload.fingerprint import fingerprint_of
from fastload.sources.archive import RemoteArchive
from fastload.sources.archived_folders import archived_folders
from fastload.sources.base import Opened, OpenOptions, Source
from fastload.sources.buffers import Int64Array, PathTable, values_of
from fastload.sources.columns import EncodedFiles
from fastload.sources.folders import sampled_bytes
from fastload.sources.formats import Format
from fastload.sources.image_files import DOCUMENTS, LeftOut, is_image_name, is_never_data
from fastload.stores.range_file import RangeFile

_TABLES = (".csv", ".tsv", ".jsonl", ".parquet", ".yaml", ".yml")
_LOCAL_HEADER = struct.Struct("<4s4xH16xHH")
"""Signature, method, lengths of the name and the extra field (section 4.3.7)."""
_UTF8 = 0x800
_LARGEST = 1 << 30
"""Bytes of an image: deflate makes up to 1,032 times as many of what it is given."""
_METHODS = {9: "deflate64", 12: "bzip2", 14: "LZMA", 93: "zstandard", 95: "xz"}
"""Methods of section 4.4.5 that are in use and not read."""
_ENCRYPTED = 1
_MADE_ON_DOS = 0
_MADE_ON_UNIX = (3, 19)
"""Unix and macOS, of section 4.4.2: names are the bytes that the file system has, today UTF-8."""
_NOT_GIVEN = (stores.StoreError, FileNotFoundError, PermissionError)
"""What says nothing of the bytes of an archive."""
_PATH_FIELD = 0x7075
"""Of the extra field (section 4.6.9): version 1, the CRC-32 of the name, and the name in UTF-8."""


def is_zip(spec: object) -> bool:
    """A file whose name ends in `.zip`."""
    return isinstance(spec, str) and spec.lower().endswith(".zip") and stores.is_file(spec)


def open_zip(path: str, options: OpenOptions) -> Opened:
    """Open the images of an archive: of several folders as classes, of one without labels.

    Raises:
        SourceError: the archive is damaged, encrypted or compressed by another method than deflate;
            it holds no images, or tables and annotations, which may say more than its folders.
    """
    left_out = LeftOut(path, strict=options.strict)
    files, others = _members(path, left_out)
    if not len(files):
        raise SourceError(f"{path}: no images in it.")
    notes = left_out.notes()
    opened = archived_folders(
        files,
        path,
        options.split,
        notes,
        others=others,
        as_one_set=f"unpack it ({_unzip(path)}) and give the folder with format='images'",
    )
    if opened is not None:
        return opened
    if options.split is not None:
        raise SourceError(f"split={options.split!r}: {path} has no splits; leave it out.")
    assert files.names is not None
    assert files.lengths is not None
    source = Source(
        {"image": files},
        fingerprint_of("zip", files.names.digest(), files.lengths, *sampled_bytes(files)),
        path,
        format="zip archive",
    )
    words = "images alone: nothing in the archive says what their labels are"
    return Opened(source, notes=(*notes, words))


def _members(path: str, left_out: LeftOut) -> tuple[EncodedFiles, list[str]]:
    """Its images, in the order of its directory, and the names of all else, of folders with a slash
    at the end."""
    remedy = f"unpack it ({_unzip(path)}) and give the folder."
    images: list[tuple[str, zipfile.ZipInfo]] = []
    try:
        with _opened(path) as file, zipfile.ZipFile(file) as archive:
            listed = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, struct.error, NotImplementedError) as error:
        # An end that cannot be read is no end to the standard library: "File is not a zip file".
        why = error.__context__ if isinstance(error.__context__, _NOT_GIVEN) else error
        words = f"{path}: this archive cannot be read ({why})"
        if isinstance(why, _NOT_GIVEN):
            raise SourceError(f"{words}.") from error
        raise SourceError(f"{words}; if it is truncated or damaged, fetch it again.") from error
    others = [_name_of(member) or member.filename for member in listed if member.is_dir()]
    for member in listed:
        if member.is_dir():
            continue
        known = _name_of(member)
        name = known or member.filename
        if member.create_system == _MADE_ON_DOS:
            name = name.replace("\\", "/")
        suffix = os.path.splitext(name)[1].lower()
        if is_image_name(name) and not any(map(is_never_data, name.split("/"))):
            if known is None:
                raise SourceError(
                    f"{path}: {name} has letters that are not ASCII, and the archive does not say "
                    f"in which code, so that classes may have other names and numbers; {remedy}"
                )
            images.append((name, member))
        elif suffix in _TABLES or (suffix in DOCUMENTS and not _is_about_itself(name)):
            raise SourceError(
                f"{path}: {name} may say more of the images than their folders do, and of a zip "
                f"archive only the folders are read; {remedy}"
            )
        else:
            left_out.add(name)
            others.append(name)
    names = [name for name, _ in images]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise SourceError(f"{path}: {twice[0]} is in it twice; {remedy}")
    for name, member in images:
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
    packed = np.array([member.compress_size for _, member in images], dtype=np.int64)
    try:
        starts = _starts(path, [member for _, member in images], packed)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error}); open it again.") from error
    files = EncodedFiles(
        PathTable.of([path]).take(np.zeros(len(images), dtype=np.int64)),
        "image",
        starts,
        packed,
        PathTable.of(names),
    )
    if all(member.compress_type == zipfile.ZIP_STORED for _, member in images):
        return files, others
    sizes = [
        -1 if member.compress_type == zipfile.ZIP_STORED else member.file_size
        for _, member in images
    ]
    sums = np.array([member.CRC for _, member in images], dtype=np.uint32)
    sized = np.array(sizes, dtype=np.int64)
    return InflatedFiles(**values_of(files), sizes=sized, sums=sums), others


def _name_of(member: zipfile.ZipInfo) -> str | None:
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


def _unzip(path: str) -> str:
    path = os.path.basename(path) if stores.is_remote(path) else path
    return f"unzip {path} -d {path[:-4]}"


def _is_about_itself(name: str) -> bool:
    """Whether it is a text about the archive: README.txt, LICENSE.txt."""
    words = ("readme", "license", "licence", "copying", "notice", "citation")
    return os.path.basename(name).lower().startswith(words)


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
                return os.pread(descriptor, count, position)

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


FORMAT = Format(
    name="zip",
    title="zip archives of images",
    recognise=is_zip,
    open=open_zip,
    options=("split",),
    remote=True,
    signs=(),
    files=("*.zip",),
    packages=(),
    columns={"InflatedFiles": InflatedFiles},
)
