"""The columns of a data set as the fields of a shard, and single samples as bytes."""

from __future__ import annotations

import errno
import io
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image

from fastload import Ragged, native
from fastload.cache.samples import shrink, shrunk_by_core, shrunk_points, shrunk_size
from fastload.decode.header import ImageHeader
from fastload.decode.image import EncodedReader
from fastload.decode.libraries import core_pool
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
        self._main = next(iter(source.images))
        self._names = [field.name for field in self.fields]
        images, values = source.images, source.values
        self._images = [(each, images[each.name]) for each in self.fields if each.name in images]
        self._values = [(each, values[each.name]) for each in self.fields if each.name in values]
        first = self.fields[0]
        files = images.get(first.name)
        in_files = type(files) is EncodedFiles and not files.is_remote
        self._copied_first = first if in_files and options.short_side is None else None
        """The first field, if it is files of this machine that are copied as they are."""

    def sample(self, index: int, memory: Memory | None = None) -> dict[str, Part]:
        """The fields of one sample by the names of columns. `memory`: gives memory for the first
        field, if that is a file of this machine that is copied.

        Raises:
            DecodeError: an image is none, or is not there; or, where it is reduced, is damaged.
            PackError: an image cannot be read now, for a reason that is not its own: the disk, the
                network, access; or it was changed after the plan was made.
        """
        parts, size = dict.fromkeys(self._names, _NOTHING), None
        for field, column in self._images:
            given = memory if field is self._copied_first else None
            parts[field.name], before = self._image(field, column, index, given)
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
        for index in evenly_spaced(len(self.source), count):
            try:
                sizes.append(sum(len(part.data) for part in self.sample(index).values()))
            except DecodeError as error:
                first = first or error
        if not sizes:
            raise DecodeError(
                f"{self.source.name}: of {counted(count, 'sample')} looked at none can be "
                f"read; the first says: {first}"
            )
        return max(1, round(sum(sizes) / len(sizes)))

    def _image(
        self, field: Field, column: ImageColumn, index: int, memory: Memory | None
    ) -> tuple[Part, tuple[int, int] | None]:
        """The image, and (height, width) of the one it was made of, if it was reduced."""
        short_side = self.options.short_side
        if isinstance(column, PixelImages):
            pixels = column.pixels(index)
            return Part(png(shrink(pixels, field.role, short_side)), "png"), pixels.shape[:2]
        reader = self._readers[field.name]
        column = reader.column
        if memory is not None and isinstance(column, EncodedFiles):
            return self._copied(column, reader, index, memory)
        try:
            reader.look_first(index)
            data = column.read(index)
        except OSError as error:
            raise _not_read(column.describe(index), error) from error
        self._refuse_changed(column, index)
        header = reader.accept(index, data)[1]
        size = header.height, header.width
        ending = _ending(header)
        after = shrunk_size(size, short_side)
        if after == size:
            return Part(data, ending), size
        if field.how == "mask":
            return Part(png(shrink(reader.pixels(index), field.role, short_side)), "png"), size
        if max(after) > _LONGEST_ENCODED:
            raise ConfigurationError(
                f"short_side: {column.describe(index)} would have {after[0]:,} x {after[1]:,} "
                f"pixels, and a JPEG has at most {_LONGEST_ENCODED:,} a side. Take it out of the "
                "data set, or reduce to fewer pixels."
            )
        smaller = shrunk_by_core(data, size, after)
        if smaller is None:
            smaller = shrink(reader.pixels(index), field.role, short_side)
        encoded = jpeg(smaller, self.options.jpeg_quality)
        return Part(with_orientation(encoded, header.orientation), "jpg"), size

    def _copied(
        self, column: EncodedFiles, reader: EncodedReader, index: int, memory: Memory
    ) -> tuple[Part, tuple[int, int]]:
        """An image that is packed as it is, and (height, width)."""
        path, start, length = column.locate(index)
        try:
            reader.look_first(index)
            data, state = read_regular_into(path, memory, start, None if length < 0 else length)
        except OSError as error:
            raise _not_read(column.describe(index), error) from error
        if self._is_new(state):
            raise _changed(path)
        name = path if column.names is None else column.describe(index)
        header = reader.accept_start(name, data)
        return Part(data, _ending(header)), (header.height, header.width)

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
