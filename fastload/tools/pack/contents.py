"""The columns of a data set as the fields of a shard, and single samples as bytes."""

from __future__ import annotations

import errno
import io
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeGuard

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image

from fastload import Ragged, native
from fastload.cache.samples import shrink, shrunk_points, shrunk_size, shrunk_together
from fastload.decode.header import ImageHeader
from fastload.decode.image import LARGE, EncodedReader, or_error
from fastload.decode.libraries import Pixels, core_pool
from fastload.errors import ConfigurationError, DecodeError, PackError, SourceError, counted
from fastload.exif import with_orientation
from fastload.files import DecodeSettings, in_utf8, read_regular_into
from fastload.sources import EncodedFiles, PixelImages, Source, Values
from fastload.sources.columns import ImageColumn
from fastload.sources.kinds import JSON_NAME, kind_of_key, transformed
from fastload.sources.places import refuse_left_behind
from fastload.sources.texts import TEXT
from fastload.stores import ChangedError
from fastload.tools.pack.plan import PackOptions, evenly_spaced

How = Literal["image", "mask", "label", "text", "array", "ragged", "nested"]
Memory = Callable[[int], memoryview]
"""Gives memory for so many bytes."""

_ENDINGS = {"JPEG": "jpg", "TIFF": "tif"}
"""By what a header calls the format; of the others it is the name in small letters."""
_LONGEST_NAME = 80
"""Of a column [bytes, UTF-8]: a name in a tar archive has 100, and number and ending are in it."""
_FEWEST_SAMPLED, _MOST_SAMPLED = 16, 64
"""Samples that are made to find out how large one is: one of 64, within these bounds."""
_TOGETHER = 4
"""Samples whose images are read and reduced together: see `shrunk_together`."""
_MOST_TOGETHER = 8 << 20
"""As soon as so much is read, it is fewer [bytes]."""
_KEPT = 1 << 20
"""Memory for larger files is not used again [bytes]."""
_LONGEST_ENCODED = 65_500
"""By libjpeg-turbo, Pillow's and the core's encoder [pixels]."""


@dataclass(frozen=True)
class Field:
    """One column, as it is written."""

    name: str
    """Of the column."""
    role: str
    how: How

    @property
    def prefix(self) -> str:
        """Of the ending in a tar shard: `left.` for `0001.left.jpg`, `label.` for labels that are
        no whole numbers; empty for columns called as what they are: image, label, text."""
        named = self.name in ("image", "label", "text") and self.name == self.how
        return "" if named else f"{self.name}."


class Part(msgspec.Struct, frozen=True):
    """One field of one sample."""

    data: bytes | memoryview
    ending: str
    """Of the file that it is: jpg, png, cls, txt, npy."""
    value: Any = None
    """What is no image, as a number, str or array."""


_NOTHING = Part(b"", "")


@dataclass
class _Read:
    """An image that may be reduced."""

    data: bytes | memoryview
    header: ImageHeader
    after: tuple[int, int]
    """(height, width) as it is written; `size`: it is copied."""
    for_core: bool
    """Whether the core may reduce it."""
    smaller: Pixels | None = None
    """What that has made of it."""

    @property
    def size(self) -> tuple[int, int]:
        return self.header.height, self.header.width


_State = tuple[tuple[int, ...], ...]
_Reads = dict[str, "_Read | DecodeError"]
"""The images of a sample by the names of columns, up to one that cannot be read."""


class _Memory:
    """Memory that images are read to, again and again: pages that are new take as long as half of
    the reading."""

    def __init__(self) -> None:
        self._held, self._given = list[bytearray](), 0

    def __call__(self, size: int) -> memoryview:
        if size > _KEPT:
            return memoryview(bytearray(size))
        if self._given == len(self._held):
            self._held.append(bytearray())
        if len(self._held[self._given]) < size:
            self._held[self._given] = bytearray(size)
        self._given += 1
        return memoryview(self._held[self._given - 1])[:size]

    def take_back(self) -> None:
        self._given = 0


class Contents:
    """The samples of a source as they are packed.

    Raises:
        SourceError: the samples are made by Python code, or a column cannot be packed as asked.
    """

    planned: int | None = None
    """When the plan was made [ns since 1970]: files that were written later are refused. None: not
    yet."""

    def __init__(self, source: Source, options: PackOptions) -> None:
        self.source, self.options = source, options
        for column in source.objects.values():
            raise SourceError(
                f"{source.name}: its samples are made by the Python code of {column.producer}; "
                "only stored samples can be packed. Give the folder, archive or arrays that it "
                "reads."
            )
        for name in source.decoded:
            raise SourceError(
                f"{source.name}: column {name!r} has lists of images, which shards cannot hold. "
                "Serve these files as they are; or leave the column out where others are to be "
                "packed: open_source(..., fields=...)."
            )
        if not source.images:
            raise SourceError(f"{source.name}: has no images; only data sets of images are packed.")
        if options.short_side is not None:
            refuse_left_behind(source, "short_side", "resizes")
        self.fields = tuple(
            _field(name, column, source.name, options) for name, column in source.columns.items()
        )
        self._readers = {
            name: EncodedReader(column, DecodeSettings()) for name, column in source.encoded.items()
        }
        self._made = dict[int, tuple[_State, dict[str, Part]]]()
        """Reduced samples that were made to find out how large they are, by index."""
        self._main = next(iter(source.images))
        self._names = [field.name for field in self.fields]
        images, values = source.images, source.values
        self._images = [(each, images[each.name]) for each in self.fields if each.name in images]
        self._values = [(each, values[each.name]) for each in self.fields if each.name in values]
        first = self.fields[0]
        in_files = first.name in images and _in_files(images[first.name])
        self._copied_first = first if in_files and options.short_side is None else None
        """The first field, if it is files of this machine that are copied as they are."""

    def samples(
        self, indices: Iterable[int], memory: Memory | None = None
    ) -> Iterator[dict[str, Part] | DecodeError]:
        """`sample` of each, or why it cannot be read. With `memory` the data of one are overwritten
        when the next is asked for. Raises PackError."""
        if self.options.short_side is None:
            yield from (or_error(lambda row: self.sample(row, memory), index) for index in indices)
            return
        rest, own = iter(indices), None if memory is None else _Memory()
        while some := self._some(rest, own):
            self._reduce(each for *_, read in some for each in read.values())
            for index, parts, read in some:
                try:
                    yield parts or self.sample(index, read=read)
                except DecodeError as error:
                    yield error
            if own is not None:
                own.take_back()

    def sample(
        self, index: int, memory: Memory | None = None, read: _Reads | None = None
    ) -> dict[str, Part]:
        """The fields of one sample by the names of columns. `memory`: gives memory for the first
        field, if that is a file of this machine that is copied. `read`: what was read of it.

        Raises:
            DecodeError: an image is none, or is not there; or, where it is reduced, is damaged.
            PackError: an image cannot be read now, for a reason that is not its own: the disk, the
                network, access; or it was changed after the plan was made.
        """
        parts, size = dict.fromkeys(self._names, _NOTHING), None
        for field, column in self._images:
            given = memory if field is self._copied_first else None
            of_it = None if read is None else read.get(field.name)
            parts[field.name], before = self._image(field, column, index, given, of_it)
            size = before if field.name == self._main else size
        for field, values in self._values:
            parts[field.name] = self._value(field, values, index, size)
        return parts

    def path(self, column: str, index: int) -> str:
        """Where an image was stored, below the data set, in UTF-8: not where that lies on this
        machine."""
        name = self.source.columns[column].describe(index)
        below = name.removeprefix(f"{self.source.name}/")
        return in_utf8(below if below != name else name.rpartition("/")[2])

    @cached_property
    def typical_size(self) -> int:
        """Mean size of a sample as it is written, of those that can be read [bytes]. Raises
        DecodeError: of those looked at none can."""
        sizes, first = [], None
        count = min(_MOST_SAMPLED, max(_FEWEST_SAMPLED, len(self.source) // 64))
        indices = evenly_spaced(len(self.source), count)
        states = [self._state(index) for index in indices]
        for index, state, parts in zip(indices, states, self.samples(indices), strict=True):
            if isinstance(parts, DecodeError):
                first = first or parts
                continue
            sizes.append(sum(len(part.data) for part in parts.values()))
            if state and self.options.short_side is not None:
                self._made[index] = state, parts
        if not sizes:
            raise DecodeError(
                f"{self.source.name}: of {counted(count, 'sample')} looked at none can be "
                f"read; the first says: {first}"
            )
        return max(1, round(sum(sizes) / len(sizes)))

    def _image(
        self,
        field: Field,
        column: ImageColumn,
        index: int,
        memory: Memory | None,
        read: _Read | DecodeError | None,
    ) -> tuple[Part, tuple[int, int] | None]:
        """The image, and (height, width) of the one it was made of, if it was reduced."""
        short_side = self.options.short_side
        if isinstance(column, PixelImages):
            pixels = column.pixels(index)
            return Part(png(shrink(pixels, field.role, short_side)), "png"), pixels.shape[:2]
        reader = self._readers[field.name]
        column = reader.column
        if memory is not None and isinstance(column, EncodedFiles):
            data, header = self._from_file(column, reader, index, memory)
            return Part(data, _ending(header)), (header.height, header.width)
        if read is None:
            read = self._read(field.how, reader, index)
            self._reduce([read])
        if isinstance(read, DecodeError):
            raise read
        if read.after == read.size:
            return Part(read.data, _ending(read.header)), read.size
        if field.how == "mask":
            pixels = shrink(reader.pixels(index), field.role, short_side)
            return Part(png(pixels), "png"), read.size
        if max(read.after) > _LONGEST_ENCODED:
            height, width = read.after
            raise ConfigurationError(
                f"short_side: {column.describe(index)} would have {height:,} x {width:,} "
                f"pixels, and a JPEG has at most {_LONGEST_ENCODED:,} a side. Take it out of the "
                "data set, or reduce to fewer pixels."
            )
        smaller = read.smaller
        if smaller is None:
            smaller = shrink(reader.pixels(index), field.role, short_side)
        encoded = jpeg(smaller, self.options.jpeg_quality)
        return Part(with_orientation(encoded, read.header.orientation), "jpg"), read.size

    def _state(self, index: int) -> _State:
        """What the system says of the files of a sample; of places where it says nothing, empty."""
        found: list[tuple[int, ...]] = []
        for reader in self._readers.values():
            if not _in_files(reader.column):
                return ()
            try:
                of = os.stat(reader.column.paths[index])
            except OSError:
                return ()
            found.append((of.st_mtime_ns, of.st_ctime_ns, of.st_size, of.st_ino, of.st_dev))
        return tuple(found)

    def _made_before(self, index: int) -> dict[str, Part] | None:
        """A sample that was made to find out how large it is, if its files are as they were."""
        state, parts = self._made.pop(index, ((), None))
        return parts if state and state == self._state(index) else None

    def _some(
        self, rest: Iterator[int], memory: Memory | None
    ) -> list[tuple[int, dict[str, Part] | None, _Reads]]:
        """The next samples: (index, what was made of it before, what was read of it). Raises
        PackError."""
        some: list[tuple[int, dict[str, Part] | None, _Reads]] = []
        total = 0
        for index in rest:
            parts = self._made_before(index)
            read = self._reads(index, memory) if parts is None else {}
            some.append((index, parts, read))
            total += sum(len(each.data) for each in read.values() if isinstance(each, _Read))
            if len(some) == _TOGETHER or total > _MOST_TOGETHER:
                break
        return some

    def _reads(self, index: int, memory: Memory | None) -> _Reads:
        """The images of one sample, read. Raises PackError."""
        reads: _Reads = {}
        for field, column in self._images:
            if isinstance(column, PixelImages):
                continue
            try:
                reads[field.name] = self._read(field.how, self._readers[field.name], index, memory)
            except DecodeError as error:
                reads[field.name] = error
                break
        return reads

    def _read(
        self, how: How, reader: EncodedReader, index: int, memory: Memory | None = None
    ) -> _Read:
        """Raises DecodeError; PackError."""
        column = reader.column
        data: bytes | memoryview
        if memory is not None and _in_files(column):
            data, header = self._from_file(column, reader, index, memory)
        else:
            try:
                reader.look_first(index)
                data = column.read(index)
            except OSError as error:
                raise _not_read(column.describe(index), error) from error
            self._refuse_changed(column, index)
            header = reader.accept(index, data)[1]
        size = header.height, header.width
        after = shrunk_size(size, self.options.short_side)
        for_core = how == "image" and after != size and max(after) <= _LONGEST_ENCODED
        return _Read(data, header, after, for_core)

    def _reduce(self, reads: Iterable[_Read | DecodeError]) -> None:
        """Have the core reduce what is too large, as far as it can."""
        large = [each for each in reads if isinstance(each, _Read) and each.for_core]
        images = [(each.data, each.size, each.after) for each in large]
        for each, pixels in zip(large, shrunk_together(images), strict=True):
            each.smaller = pixels

    def _from_file(
        self, column: EncodedFiles, reader: EncodedReader, index: int, memory: Memory
    ) -> tuple[memoryview, ImageHeader]:
        """An image of this machine, and its header. Raises DecodeError; PackError."""
        path, start, length = column.locate(index)

        def place(size: int) -> memoryview:
            if size > LARGE:
                reader.look_first(index)
            return memory(size)

        try:
            data, state = read_regular_into(path, place, start, None if length < 0 else length)
        except OSError as error:
            raise _not_read(column.describe(index), error) from error
        if self._is_new(state):
            raise _changed(path)
        name = path if column.names is None else column.describe(index)
        return data, reader.accept_start(name, data)

    def _refuse_changed(self, column: ImageColumn, index: int) -> None:
        """After it was read: else one that is being written may come out as a part of itself."""
        if self.planned is None or not isinstance(column, EncodedFiles) or column.is_remote:
            return
        path = column.paths[index]
        try:
            changed = self._is_new(os.stat(path))
        except OSError:  # it has just been read
            changed = True
        if changed:
            raise _changed(path)

    def _is_new(self, state: os.stat_result) -> bool:
        """Whether a file was written since the plan was made; not one that an archive or a camera
        has dated in the future."""
        return self.planned is not None and self.planned < state.st_mtime_ns <= time.time_ns()

    def _value(
        self, field: Field, column: Values, index: int, size: tuple[int, int] | None
    ) -> Part:
        rows = column.at(np.array([index], dtype=np.int64))
        if self.options.short_side is not None and column.kind.moves and size is not None:
            points = shrunk_points(np.array([size]), self.options.short_side)
            rows = transformed(column.kind, rows, points)
        if field.how == "text":
            text = TEXT.objects(rows)[0]  # of JSON values their own text
            return Part(text.encode(), "txt", text)
        value = rows[0]
        if field.how == "label":
            return Part(str(int(value)).encode(), "cls", int(value))
        if field.how == "nested":
            return Part(b"".join(map(_raw, value.arrays())), "", value)
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.asarray(value), version=(1, 0), allow_pickle=False)
        return Part(buffer.getvalue(), "npy", np.asarray(value))


def _in_files(column: ImageColumn) -> TypeGuard[EncodedFiles]:
    """Whether its images are files of this machine, or parts of some."""
    return type(column) is EncodedFiles and not column.is_remote


def _raw(array: npt.NDArray[Any]) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def _changed(path: str) -> PackError:
    return PackError(
        f"{path}: was changed after this packing began, so that shards of before and after would "
        "lie side by side. Pack it again, to a new folder."
    )


def _not_read(name: str, error: OSError) -> DecodeError | PackError:
    """The sample is left out if its file is gone, or is none; else it may be sound."""
    if isinstance(error, ChangedError):
        return _changed(name)
    not_a_file = error.errno == errno.EINVAL  # a pipe, a socket, a device
    if isinstance(error, FileNotFoundError | IsADirectoryError) or not_a_file:
        return DecodeError(f"{name}: cannot be read ({error}).")
    return PackError(
        f"{name}: cannot be read now ({error}). Mend what keeps it from being read, and run the "
        "same command again: it goes on with what is missing."
    )


def _ending(header: ImageHeader) -> str:
    return _ENDINGS.get(header.format, header.format.lower())


def class_counts(source: Source, rows: npt.NDArray[np.int64]) -> Counter[str]:
    """How many of these samples are of each class, by its name; empty where there are no
    classes."""
    labels = source.values.get("label")
    if labels is None or source.class_count is None:
        return Counter()
    present, counts = np.unique(np.asarray(labels.at(rows)), return_counts=True)
    names = source.classes
    return Counter(
        {
            (str(label) if names is None else names[label]): int(count)
            for label, count in zip(present.tolist(), counts.tolist(), strict=True)
        }
    )


def _field(name: str, column: Any, source: str, options: PackOptions) -> Field:
    role = column.role
    if "." in name or "/" in name or name != name.lower() or not name:
        raise SourceError(
            f"{source}: column {name!r} cannot be packed: names of fields are in small letters, "
            "without . and /. Rename it."
        )
    if len(name.encode()) > _LONGEST_NAME:
        raise SourceError(
            f"{source}: column {name!r} cannot be packed: names of fields have at most "
            f"{_LONGEST_NAME} bytes. Rename it."
        )
    if isinstance(column, ImageColumn):
        if (role == "mask") != (name in ("mask", "seg")) or role not in ("image", "mask"):
            raise SourceError(
                f"{source}: column {name!r} is of the kind {role!r}, which its name does not say: "
                "in shards columns called mask or seg are masks, and no others. Rename it."
            )
        if not column.usual_format:
            raise SourceError(
                f"{source}: column {name!r} is served as it is stored (mode='unchanged'), and read "
                "from shards it would be RGB of 8 bits. Leave mode out: images are packed as they "
                "are, and mode='unchanged' reads the shards."
            )
        if column.channels not in (1, 3) or (column.channels == 1 and role != "mask"):
            raise SourceError(
                f"{source}: column {name!r} has images of {column.channels} channel; read from "
                "shards they would have 3. Build a cache of them (`fastload cache build`), which "
                "keeps them as they are."
            )
        return Field(name, role, "mask" if role == "mask" else "image")
    if role.partition(":")[0] in (TEXT.name, JSON_NAME):
        return Field(name, role, "text")
    read_as = kind_of_key(name, ragged=column.ragged).name
    if read_as != role.partition(":")[0]:
        raise SourceError(
            f"{source}: column {name!r} is of the kind {role!r}, which its name does not say: read "
            f"from shards it would be of the kind {read_as!r}. Rename it."
        )
    if column.ragged:
        nested = isinstance(column.at(np.array([0], dtype=np.int64)).values, Ragged)
        if nested and options.format != "parquet":
            raise SourceError(
                f"{source}: column {name!r} has lists of lists, which tar shards cannot hold. Pack "
                "to Parquet (--to parquet), or build a cache (`fastload cache build`)."
            )
        return Field(name, role, "nested" if nested else "ragged")
    first = np.asarray(column.at(np.array([0], dtype=np.int64)))
    if first.dtype.hasobject:
        raise SourceError(f"{source}: column {name!r} holds {first.dtype}, not numbers.")
    if options.format == "parquet" and first.dtype.kind not in "biuf":
        raise SourceError(
            f"{source}: column {name!r} holds {first.dtype}, which Parquet has no type for; pack "
            "to format='tar'."
        )
    whole = first.ndim == 1 and first.dtype.kind in "iu" and name == "label"
    return Field(name, role, "label" if whole else "array")


# -- Writing images --------------------------------------------------------------------------------


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """(H, W, 1) or (H, W, 3) uint8 as a PNG."""
    buffer = io.BytesIO()
    plane = pixels[..., 0] if pixels.shape[2] == 1 else pixels
    Image.fromarray(np.ascontiguousarray(plane)).save(buffer, "PNG")
    return buffer.getvalue()


def jpeg(pixels: npt.NDArray[np.uint8], quality: int) -> bytes:
    """(H, W, 3) uint8 as libjpeg-turbo's defaults make it, chroma of half the height and width: the
    same bytes by the native core and by Pillow."""
    if native.available():
        return core_pool().encode_jpeg(np.ascontiguousarray(pixels), quality)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality, subsampling=2)
    return buffer.getvalue()


def described(fields: tuple[Field, ...]) -> Mapping[str, str]:
    """Roles by column name, for the file beside the shards."""
    return {field.name: field.role for field in fields}
