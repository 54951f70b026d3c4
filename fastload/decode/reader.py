"""One image of a column at a time, whatever the column holds: the only place where Python reads single samples."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from fastload.decode.base import DecodeSettings, ImageHeader
from fastload.decode.header import REMEDY, read_header
from fastload.decode.image import check_header, decode_image, upright_size
from fastload.decode.registry import get_decoder
from fastload.errors import DecodeError
from fastload.sources.base import EncodedImages, ImageColumn, Kind, PixelImages

A = TypeVar("A")
T = TypeVar("T")
Fetched = tuple[bytes, ImageHeader, str]

_PREFIXES = (16 << 10, 256 << 10)
"""How much of an image is read for its header, at first and if that was not enough [bytes]."""


class ImageReader(Protocol):
    """Reads the images of one column. May be called from several threads; picklable if the column is."""

    def size(self, index: int) -> tuple[int, int]:
        """(height, width) of what `pixels` gives, from the header alone. Raises DecodeError as that does."""
        ...

    def pixels(self, index: int) -> npt.NDArray[np.uint8]:
        """(H, W, C) uint8, perhaps read-only. Raises DecodeError, which names the sample."""
        ...


def reader_of(column: ImageColumn, settings: DecodeSettings, decoder: str = "auto") -> ImageReader:
    """The reader of a column, compressed or not."""
    reader: ImageReader = _READERS[column.kind](column, settings, decoder)
    return reader


@dataclass(frozen=True)
class EncodedReader:
    """Reads and decodes."""

    column: EncodedImages
    settings: DecodeSettings
    decoder: str = "auto"

    def fetch(self, index: int) -> Fetched:
        """(compressed bytes, header, name): read and accepted, but not decoded. Raises DecodeError."""
        try:
            data = self.column.read(index)
        except OSError as error:
            raise _unreadable(self.column.describe(index), error) from error
        return self._accept(index, data)

    def fetch_many(self, indices: npt.NDArray[np.int64]) -> list[Fetched | DecodeError]:
        """The same of several samples, or why there are none."""
        try:
            found = self.column.read_many(indices)
        except OSError:  # of one of them, and each may have words of its own
            return [or_error(self.fetch, index) for index in indices.tolist()]
        pairs = zip(indices.tolist(), found, strict=True)
        return [or_error(lambda pair: self._accept(*pair), pair) for pair in pairs]

    def _accept(self, index: int, data: bytes) -> Fetched:
        name = self.column.describe(index)
        header = read_header(data, name)
        check_header(header, name, self.settings)
        return data, header, name

    def size(self, index: int) -> tuple[int, int]:
        try:
            header = self._header(index)
        except OSError as error:
            raise _unreadable(self.column.describe(index), error) from error
        check_header(header, self.column.describe(index), self.settings)
        return upright_size(header, self.settings)

    def pixels(self, index: int) -> npt.NDArray[np.uint8]:
        data, header, name = self.fetch(index)
        return decode_image(
            data,
            name=name,
            decoder=get_decoder(self.decoder),
            settings=self.settings,
            role=self.column.role,
            header=header,
        )

    def _header(self, index: int) -> ImageHeader:
        """The header, reading no more than it takes. Raises DecodeError and OSError."""
        name = self.column.describe(index)
        for length in _PREFIXES:
            data = self.column.read_start(index, length)
            if len(data) != length:
                # All there is, or more than was asked for.
                return read_header(data, name)
            # Of other formats a part may not do, or say something else than the whole.
            if not data.startswith(b"\xff\xd8"):
                break
            with contextlib.suppress(DecodeError):
                return read_header(data, name)
        return read_header(self.column.read(index), name)


@dataclass(frozen=True)
class _PixelReader:
    """Hands out what is decoded already."""

    column: PixelImages
    settings: DecodeSettings
    decoder: str

    def size(self, index: int) -> tuple[int, int]:
        only = np.array([index])
        for error in self.column.failures_of(only).values():
            raise error
        height, width = self.column.sizes_of(only)[0]
        return int(height), int(width)

    def pixels(self, index: int) -> npt.NDArray[np.uint8]:
        return self.column.pixels(index)


_READERS: dict[Kind, Any] = {"encoded": EncodedReader, "pixels": _PixelReader}


def or_error(function: Callable[[A], T], argument: A) -> T | DecodeError:
    """What a function gives, or the DecodeError that it raises."""
    try:
        return function(argument)
    except DecodeError as error:
        return error


def _unreadable(name: str, error: OSError) -> DecodeError:
    return DecodeError(f"{name}: cannot be read: {error.strerror or error}. {REMEDY}")
