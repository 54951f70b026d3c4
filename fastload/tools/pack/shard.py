"""One shard: written whole under another name, then given its own."""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import mmap
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fastload.checksum import crc32
from fastload.distribution import install_command
from fastload.errors import DecodeError, PackError, SourceError, counted
from fastload.files import in_utf8
from fastload.tools.pack.contents import Contents, Field, Part
from fastload.tools.pack.plan import ShardJob

_TAR_BLOCK = 512
"""[bytes]: a header is one, and contents are filled up to whole ones."""
_BLOCK = 4 << 20
"""What is written at once [bytes]; with 1 MiB a tenth slower. A multiple of a page, as `O_DIRECT`
asks."""
_IN_PLACE = 1 << 20
"""Files up to this size [bytes] are read to where they are written from."""
_HOT = 128 << 10
"""After so many bytes their checksum is taken: they are in the processor's cache still."""
_SMALL = 4 << 10
"""Contents up to this size [bytes] are written with the headers around them."""
_ZEROS = bytes(_TAR_BLOCK)
_ROW_GROUP = 64 << 20
"""About what a row group of a Parquet file holds [bytes]: what a reader must read at once."""


class Rejected(msgspec.Struct, frozen=True):
    """A sample that is not in the shard."""

    index: int
    """In the source."""
    reason: str


class ShardRow(msgspec.Struct, frozen=True):
    """What became of a shard: a line of the manifest."""

    name: str
    samples: int
    bytes: int
    crc32: str
    """Of the whole file, in eight hexadecimal digits: of damage, 1 in 4 billion goes unseen."""
    formats: dict[str, int]
    """How many images of each format."""
    rejected: tuple[Rejected, ...] = ()


def pack_shard(
    contents: Contents, job: ShardJob, path: Path, go_on: Callable[[], bool] = lambda: True
) -> ShardRow:
    """Write one shard to a file that is not there, or is to be written over.

    The same bytes from every writer, at any time. Samples that cannot be read are left out; the
    others keep their numbers.

    `go_on` is asked before each sample.

    Raises:
        OSError: the disk is full, or the file cannot be written.
        PackError: a sample cannot be read now, see `Contents.sample`; or `go_on` says no.
        SourceError: nothing that could be read is left of it.
    """
    rejected = list[Rejected]()
    formats = Counter[str]()
    images = [field.name for field in contents.fields if field.how == "image"]

    def samples() -> Iterator[tuple[int, int, dict[str, Part]]]:
        """(number, index, fields) of those that can be read."""
        indices = job.rows.tolist()
        for place, parts in enumerate(contents.samples(indices, memory)):
            if not go_on():
                raise PackError(f"{job.name}: stopped, as another shard has failed.")
            index = indices[place]
            if isinstance(parts, DecodeError):
                rejected.append(Rejected(index, in_utf8(str(parts))))
                continue
            for name in images:
                formats[parts[name].ending] += 1
            yield job.first + place, index, parts

    with _Output(path) as out:
        tar = contents.options.format == "tar"
        memory = out.memory if tar else None  # of Parquet files the samples of a row group are held
        if tar:
            count = _write_tar(out, contents, samples())
        else:
            count = _write_parquet(out, contents, samples())
        out.sync()
    if not count:
        raise SourceError(
            f"{job.name}: of {counted(len(job.rows), 'sample')} none can be read; take "
            f"them out of the data set. The first: {rejected[0].reason}"
        )
    return ShardRow(
        job.name, count, out.bytes, f"{out.checksum:08x}", dict(formats), tuple(rejected)
    )


def checksum(path: Path) -> tuple[int, str]:
    """(bytes, CRC-32 in hexadecimal digits) of a file. Raises OSError."""
    crc = size = 0
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            crc, size = crc32(block, crc), size + len(block)
    return size, f"{crc:08x}"


class _Output:
    """A new file that counts what is written and takes its checksum, as pyarrow wants one.

    Written past the page cache where the system can (`O_DIRECT`): nobody reads it soon, and to copy
    112 KB to pages that are new takes twice as long as to read, check and write them so (113 us and
    55 us of processor time). A second thread waits for the disk, while the next block is filled: of
    68 MB that wait was 41 ms (AMD EPYC, Zen 4).
    """

    closed = False

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.bytes = 0
        self.checksum = 0
        """CRC-32 of what was written, after `sync`."""
        self._held, self._other = _memory(), _memory()
        """What is filled, and what is being written."""
        self._writer = ThreadPoolExecutor(1, "fastload-pack-write")
        self._writing: Future[None] | None = None
        self._filled = self._checked = 0
        """Bytes of what is filled that hold something, and those that the checksum is of."""
        self._reserved: memoryview | None = None
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):  # not every file system can
            self._set_direct(True)

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.shutdown()
        os.close(self._file)

    def write(self, data: Any) -> int:
        """Raises OSError."""
        rest = memoryview(data).cast("B")
        while rest:
            count = min(rest.nbytes, len(self._held) - self._filled)
            self._held[self._filled : self._filled + count] = rest[:count]
            self._filled_more(count)
            rest = rest[count:]
        return self.bytes

    def memory(self, size: int) -> memoryview:
        """Memory for the next file of a tar archive: its place here after its header. To be filled,
        and given to `write_member` before anything else is written."""
        if size > _IN_PLACE:
            return memoryview(bytearray(size))
        begin = self._filled + _TAR_BLOCK
        self._reserved = self._held[begin : begin + size]
        return self._reserved

    def write_member(self, before: bytes, data: Any) -> None:
        """Write a header, with what comes before it, and a file. Raises OSError."""
        if data is not self._reserved or self._reserved is None:
            self.write(before)
            self.write(data)
        elif len(before) == _TAR_BLOCK:
            self._held[self._filled : self._filled + _TAR_BLOCK] = before
            self._filled_more(_TAR_BLOCK + len(self._reserved))
        else:
            after = bytes(self._reserved)  # `before` may be written over it
            self.write(before)
            self.write(after)

    def _filled_more(self, count: int) -> None:
        self.bytes += count
        self._filled += count
        if self._filled - self._checked >= _HOT:
            self._check()
        if self._filled >= _BLOCK:
            self._pass_on(_BLOCK)

    def sync(self) -> None:
        """Have all of it on the disk. Raises OSError."""
        self._check()
        self._wait()
        self._set_direct(False)  # the rest is no whole block
        self._to_file(self._held[: self._filled])
        self._filled = self._checked = 0
        os.fsync(self._file)

    def _check(self) -> None:
        self.checksum = crc32(self._held[self._checked : self._filled], self.checksum)
        self._checked = self._filled

    def _pass_on(self, count: int) -> None:
        """Have the first bytes of what is held written meanwhile; the rest goes to the other
        memory."""
        if self._checked < count:
            self._check()
        self._wait()
        block, rest = self._held[:count], self._held[count : self._filled]
        self._held, self._other = self._other, self._held
        self._held[: len(rest)] = rest
        self._filled, self._checked = len(rest), self._checked - count
        self._writing = self._writer.submit(self._to_file, block)

    def _wait(self) -> None:
        """Until what was passed on is written. Raises OSError."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _to_file(self, rest: memoryview) -> None:
        while rest:
            try:
                written = os.write(self._file, rest)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                written = 0
            if written < len(rest):  # where the disk is full, or it asks for more than whole pages
                self._set_direct(False)
            rest = rest[written:]

    def _set_direct(self, wanted: bool) -> None:
        import fcntl  # not on Windows, which has no O_DIRECT either

        direct = getattr(os, "O_DIRECT", 0)
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        fcntl.fcntl(self._file, fcntl.F_SETFL, flags | direct if wanted else flags & ~direct)
        self._direct = wanted

    def tell(self) -> int:
        return self.bytes

    def flush(self) -> None:
        """Nothing is to be seen before `sync`."""

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """The file is closed by who opened it."""


def _memory() -> memoryview:
    """For a block and a file that begins in it; begins with a page."""
    pages = mmap.mmap(
        -1, _BLOCK + _TAR_BLOCK + _IN_PLACE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )
    with contextlib.suppress(AttributeError, OSError):  # not every system has them
        pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)


# -- tar -------------------------------------------------------------------------------------------


def _write_tar(
    out: _Output, contents: Contents, samples: Iterator[tuple[int, int, dict[str, Part]]]
) -> int:
    """WebDataset's layout: `000000000.jpg`, `000000000.cls`, ..., the fields of a sample next to
    each other. Returns how many samples."""
    count = 0
    for number, _, parts in samples:
        count += 1
        small = b""
        for field in contents.fields:
            part = parts[field.name]
            size = len(part.data)
            small += _member_header(number, f"{field.prefix}{part.ending}", size)
            if size > _SMALL:
                out.write_member(small, part.data)
                small = b""
            else:
                small += part.data
            small += _ZEROS[: -size % _TAR_BLOCK]
        out.write(small)
    out.write(bytes(2 * _TAR_BLOCK))
    out.write(bytes(-out.bytes % tarfile.RECORDSIZE))
    return count


def _member_header(number: int, ending: str, size: int) -> bytes:
    """What tarfile makes for `000000012.jpg`, in a tenth of its time: of one ending only the
    number, the size and the sum of all bytes differ."""
    name, length = b"%09d" % number, b"%011o" % size
    if len(name) > 9 or len(length) > 11:
        return _tar_header(f"{number:09}.{ending}", size)
    after_name, after_length, after_sum, total = _header_template(ending)
    checksum = b"%06o" % (total + sum(name) + sum(length))
    return b"".join((name, after_name, length, after_length, checksum, after_sum))


@lru_cache(maxsize=256)
def _header_template(ending: str) -> tuple[bytes, bytes, bytes, int]:
    """What is between and after the number (the first 9 bytes), the size (11 bytes at 124) and the
    sum of all bytes (6 digits at 148) of a header, and what all else adds to that sum."""
    header = _tar_header(f"{0:09}.{ending}", 0)
    total = int(header[148:154], 8) - 20 * ord("0")
    return header[9:124], header[135:148], header[154:], total


def _tar_header(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.USTAR_FORMAT)


# -- Parquet ---------------------------------------------------------------------------------------


def require_parquet() -> None:
    """Raises SourceError, with the command: pyarrow is not installed."""
    try:
        importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise SourceError(
            f"format='parquet': written by pyarrow, which is not installed: "
            f"{install_command('parquet')}"
        ) from None


def _write_parquet(
    out: _Output, contents: Contents, samples: Iterator[tuple[int, int, dict[str, Part]]]
) -> int:
    """As Hugging Face writes them: images are structs of bytes and path, uncompressed, classes in
    the metadata. Returns how many samples."""
    parquet: Any = importlib.import_module("pyarrow.parquet")
    count, rows, held = 0, list[tuple[int, dict[str, Part]]](), 0
    writer: Any = None
    for _, index, parts in samples:
        count += 1
        rows.append((index, parts))
        held += sum(len(part.data) for part in parts.values())
        if held >= _ROW_GROUP:
            writer = _row_group(writer, parquet, out, contents, rows)
            rows, held = [], 0
    if rows:
        writer = _row_group(writer, parquet, out, contents, rows)
    if writer is not None:
        writer.close()
    return count


def _row_group(
    writer: Any,
    parquet: Any,
    out: _Output,
    contents: Contents,
    rows: list[tuple[int, dict[str, Part]]],
) -> Any:
    pa: Any = importlib.import_module("pyarrow")
    columns = dict[str, Any]()
    for field in contents.fields:
        parts = [(index, sample[field.name]) for index, sample in rows]
        columns[field.name] = _arrow_column(pa, contents, field, parts)
    table = pa.table(columns)
    if writer is None:
        features = {"info": {"features": _features(contents, table.schema)}}
        schema = table.schema.with_metadata({"huggingface": json.dumps(features)})
        writer = parquet.ParquetWriter(
            out, schema, compression="none", use_dictionary=False, write_statistics=False
        )
    writer.write_table(table.cast(writer.schema), row_group_size=len(rows))
    return writer


def _arrow_column(pa: Any, contents: Contents, field: Field, rows: list[tuple[int, Part]]) -> Any:
    if field.how in ("image", "mask"):
        return pa.array(
            [
                {"bytes": part.data, "path": contents.path(field.name, index)}
                for index, part in rows
            ],
            pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        )
    if field.how == "label":
        return pa.array([part.value for _, part in rows], pa.int64())
    values = [part.value for _, part in rows]
    if field.how == "text":
        return pa.array(values, pa.string())
    if field.how in ("ragged", "nested"):
        from fastload import Ragged

        return Ragged.of(values).to_arrow()
    array = np.stack(values)
    flat = pa.array(np.ascontiguousarray(array).reshape(-1))
    for length in reversed(array.shape[1:]):
        flat = pa.FixedSizeListArray.from_arrays(flat, length)
    return flat


def _features(contents: Contents, schema: Any) -> Mapping[str, Any]:
    """The `features` of Hugging Face's metadata: what a column is, beyond its Arrow type."""
    features = dict[str, Any]()
    for field in contents.fields:
        if field.how in ("image", "mask"):
            features[field.name] = {"_type": "Image"}
        elif field.how == "label" and contents.source.classes is not None:
            classes = [in_utf8(name) for name in contents.source.classes]
            features[field.name] = {"names": classes, "_type": "ClassLabel"}
        else:
            features[field.name] = _feature(schema.field(field.name).type)
    return features


def _feature(arrow: Any) -> Any:
    types = importlib.import_module("pyarrow").types
    if types.is_fixed_size_list(arrow):
        return {
            "feature": _feature(arrow.value_type),
            "length": arrow.list_size,
            "_type": "List",
        }
    if types.is_list(arrow) or types.is_large_list(arrow):
        return {"feature": _feature(arrow.value_type), "_type": "List"}
    names = {"double": "float64", "float": "float32", "halffloat": "float16"}
    return {"dtype": names.get(str(arrow), str(arrow)), "_type": "Value"}
