"""One shard: written whole under another name, then given its own."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from fastload.distribution import install_command
from fastload.errors import DecodeError, PackError, SourceError, counted
from fastload.tools.pack.contents import Contents, Field, Part
from fastload.tools.pack.plan import ShardJob

_BLOCK = 512
"""Of a tar archive [bytes]: a header is one, and contents are filled up to whole ones."""
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
    sha256: str
    """Of the whole file, in hexadecimal digits."""
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

    def samples() -> Iterator[tuple[int, int, dict[str, Part]]]:
        """(number, index, fields) of those that can be read."""
        for place, index in enumerate(job.rows.tolist()):
            if not go_on():
                raise PackError(f"{job.name}: stopped, as another shard has failed.")
            try:
                parts = contents.sample(index)
            except DecodeError as error:
                rejected.append(Rejected(index, str(error)))
                continue
            formats.update(
                parts[field.name].ending for field in contents.fields if field.how == "image"
            )
            yield job.first + place, index, parts

    with open(path, "wb", buffering=1 << 20) as file:
        out = _Hashed(file)
        if contents.options.format == "tar":
            count = _write_tar(out, contents, samples())
        else:
            count = _write_parquet(out, contents, samples())
        file.flush()
        os.fsync(file.fileno())
    if not count:
        raise SourceError(
            f"{job.name}: of {counted(len(job.rows), 'sample')} none can be read; take "
            f"them out of the data set. The first: {rejected[0].reason}"
        )
    return ShardRow(
        job.name, count, out.bytes, out.digest.hexdigest(), dict(formats), tuple(rejected)
    )


def checksum(path: Path) -> tuple[int, str]:
    """(bytes, SHA-256) of a file. Raises OSError."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256") if hasattr(hashlib, "file_digest") else None
        if digest is None:  # Python 3.10
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
        return file.seek(0, io.SEEK_END), digest.hexdigest()


class _Hashed:
    """A file to write to that counts and hashes what is written, as pyarrow wants one."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.bytes = 0

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.digest.update(view)
        self.bytes += view.nbytes
        return self._file.write(view)

    def tell(self) -> int:
        return self.bytes

    def flush(self) -> None:
        self._file.flush()

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """The file is closed by who opened it."""


# -- tar -------------------------------------------------------------------------------------------


def _write_tar(
    out: _Hashed, contents: Contents, samples: Iterator[tuple[int, int, dict[str, Part]]]
) -> int:
    """WebDataset's layout: `000000000.jpg`, `000000000.cls`, ..., the fields of a sample next to
    each other. Returns how many samples."""
    count = 0
    for number, _, parts in samples:
        count += 1
        for field in contents.fields:
            part = parts[field.name]
            ending = f"{field.prefix}{part.ending}"
            member = tarfile.TarInfo(f"{number:09}.{ending}")
            member.size = len(part.data)
            out.write(member.tobuf(tarfile.USTAR_FORMAT))
            out.write(part.data)
            out.write(bytes(-len(part.data) % _BLOCK))
    out.write(bytes(2 * _BLOCK))
    out.write(bytes(-out.bytes % tarfile.RECORDSIZE))
    return count


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
    out: _Hashed, contents: Contents, samples: Iterator[tuple[int, int, dict[str, Part]]]
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
    out: _Hashed,
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
    if field.how == "ragged":
        from fastload.sources.ragged import Ragged

        return Ragged.of(values).to_arrow()
    array = np.stack(values)
    flat = pa.array(np.ascontiguousarray(array).reshape(-1))
    for length in reversed(array.shape[1:]):
        flat = pa.FixedSizeListArray.from_arrays(flat, length)
    return flat


def _features(contents: Contents, schema: Any) -> Mapping[str, Any]:
    """The `features` of Hugging Face's metadata: what a column is, beyond its Arrow type."""
    found = dict[str, Any]()
    for field in contents.fields:
        if field.how in ("image", "mask"):
            found[field.name] = {"_type": "Image"}
        elif field.how == "label" and contents.source.classes is not None:
            found[field.name] = {"names": list(contents.source.classes), "_type": "ClassLabel"}
        else:
            found[field.name] = _feature(schema.field(field.name).type)
    return found


def _feature(kind: Any) -> Any:
    types = importlib.import_module("pyarrow").types
    if types.is_fixed_size_list(kind):
        return {"feature": _feature(kind.value_type), "length": kind.list_size, "_type": "List"}
    if types.is_list(kind) or types.is_large_list(kind):
        return {"feature": _feature(kind.value_type), "_type": "List"}
    names = {"double": "float64", "float": "float32", "halffloat": "float16"}
    return {"dtype": names.get(str(kind), str(kind)), "_type": "Value"}
