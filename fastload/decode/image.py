"""One image to pixels: the one place that decides what is a good image, and the one that reads
single samples.

Plain JPEGs go to the decoder, PNG and WebP to the native core where it reads them. Everything rarer
goes through
Pillow: CMYK, masks, other formats.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastload.decode.deep import read_deep
from fastload.decode.header import (
    REMEDY,
    REMEDY_UNREADABLE,
    SKIP,
    ImageHeader,
    check_start,
    count_scans,
    pixel_chunks,
    read_header,
    scan_offset,
)
from fastload.decode.libraries import (
    CoreDecoder,
    Decoder,
    Pixels,
    core_formats,
    get_decoder,
    is_no_damage,
    open_lazily,
    second_opinions,
)
from fastload.errors import DecodeError
from fastload.exif import turned_size, upright
from fastload.files import DecodeSettings
from fastload.narrowed import say_narrowed
from fastload.sources.columns import EncodedImages, PixelFormat
from fastload.sources.unchanged import format_of
from fastload.stores import StoreError

A = TypeVar("A")
T = TypeVar("T")
Fetched = tuple[bytes, ImageHeader, str]

logger = logging.getLogger("fastload")

_SOS, _EOI = b"\xff\xda", b"\xff\xd9"
_PNG_DEPTH, _TIFF_BITS = 24, 258
"""Offset of the bits a sample in a PNG; tag of a TIFF (BitsPerSample)."""
# How much of an image is read for its header, at first and if that was not enough [bytes].
_PREFIXES = (16 << 10, 256 << 10)
LARGE = 16 << 20
"""Of larger files the first bytes are looked at before the rest is read [bytes]."""
_JPEG = b"\xff\xd8"
_GREY_16 = ("PNG", "PPM")
"""Formats in which Pillow's mode I is grey of 16 bits."""
_PGM_HEADER = 64 << 10
"""Of a PGM's header, which may have comments, no more is read [bytes]."""
# Bytes that are kept between images. Larger images get an array of their own, which is freed again.
_SCRATCH_BYTES = 64 << 20


class Scratch:
    """Memory to decode into, again and again. It belongs to one thread and one image at a time.

    A fresh array per image is a fresh mapping per image: the system clears its pages, and threads
    queue for the address space of the process. Two threads that decode photographs into kept memory
    are up to twice as fast.
    """

    def __init__(self) -> None:
        self._buffer = np.empty(0, dtype=np.uint8)

    def take(self, shape: tuple[int, ...]) -> Pixels:
        """An uninitialised C-contiguous uint8 array; the one taken before is overwritten."""
        size = math.prod(shape)
        if size > _SCRATCH_BYTES:
            return np.empty(shape, dtype=np.uint8)
        if size > len(self._buffer):
            self._buffer = np.empty(
                max(size, min(_SCRATCH_BYTES, len(self._buffer) * 3 // 2)), dtype=np.uint8
            )
        return self._buffer[:size].reshape(shape)


def check_header(header: ImageHeader, name: str, settings: DecodeSettings) -> None:
    """Refuse what would be too large, before any pixel is decoded. Raises DecodeError."""
    pixels = header.height * header.width
    if pixels > settings.max_pixels:
        raise DecodeError(
            f"{name}: {header.width} x {header.height} = {pixels:,} pixels, above the limit of "
            f"{settings.max_pixels:,} that guards against decompression bombs. If the file is "
            "to be trusted, raise "
            'max_pixels in the options; or skip such samples with on_error="substitute".'
        )


def upright_size(header: ImageHeader, settings: DecodeSettings) -> tuple[int, int]:
    """(height, width) of the pixels that `decode_image` gives."""
    size = header.height, header.width
    return turned_size(size, header.orientation) if settings.exif_orientation else size


def decode_image(
    data: bytes,
    *,
    name: str,
    decoder: Decoder,
    settings: DecodeSettings,
    as_stored: bool = False,
    header: ImageHeader | None = None,
    scratch: Scratch | None = None,
    stored: PixelFormat | None = None,
) -> Pixels:
    """Decode one image.

    Args:
        data: the bytes of the file.
        name: what to call it in messages: its path.
        decoder: for JPEGs of one or three components.
        as_stored: not RGB, but the numbers in the file: grey values, palette indices, 0 and 255 of
            one bit.
        header: what `read_header` said, if it was asked before.
        scratch: memory to decode into; the result is then valid until the scratch is used again,
            and may be read-only.
        stored: what its pixels are, to be kept as they are.

    Returns:
        (H, W, 3) uint8 RGB, or (H, W, 1) uint8 of a mask, or (H, W, C) as `stored` says; upright if
        the settings say so.

    Raises:
        DecodeError: no image, damaged, incomplete, too large, a coloured mask, a mask above 255,
            other pixels than `stored` says.
    """
    if header is None:
        header = read_header(data, name)
    check_header(header, name, settings)
    data = check_data(data, header, name, settings)
    shape = (header.height, header.width, 3)
    try:
        if stored is not None and _is_deep(data, stored, as_stored):
            pixels = read_deep(data, header, stored)
        elif header.format == "JPEG" and _is_of_decoders(header):
            pixels = _jpeg(data, decoder, None if scratch is None else scratch.take(shape))
            if as_stored:
                pixels = _one_channel(pixels)
        elif header.format not in core_formats():
            pixels = _with_pillow(data, header.format, as_stored, name)
        else:
            shape = (header.height, header.width, 1 if as_stored else 3)
            out = np.empty(shape, dtype=np.uint8) if scratch is None else scratch.take(shape)
            try:
                pixels = CoreDecoder().decode(data, out=out)
                say_if_narrowed(data, header, name)
            except ValueError:  # the core refuses it: Pillow decides whether it is damaged
                pixels = _with_pillow(data, header.format, as_stored, name)
    except MemoryError:
        raise
    except Exception as error:  # what libraries raise on damaged data is not limited to any list
        cause = str(error) or type(error).__name__
        raise DecodeError(f"{name}: {cause.rstrip('.')}. {REMEDY}") from error
    if pixels.shape[:2] != (header.height, header.width):
        raise DecodeError(
            f"{name}: the header says {header.width} x {header.height} pixels, the data has "
            f"{pixels.shape[1]} x {pixels.shape[0]}. {REMEDY}"
        )
    if stored is not None and (pixels.shape[2], pixels.dtype) != (stored.channels, stored.dtype):
        # Grey that was read as RGB; masks of 8 bits among those of 16.
        pixels = np.ascontiguousarray(pixels[..., : stored.channels], dtype=stored.dtype)
    if settings.exif_orientation:
        pixels = upright(pixels, header.orientation)
    # Pillow's arrays are read-only, of which torch warns. With a scratch the pixels are about to be
    # copied anyway.
    return pixels if pixels.flags.writeable or scratch is not None else pixels.copy()


def check_data(data: bytes, header: ImageHeader, name: str, settings: DecodeSettings) -> bytes:
    """The data as decoders get it: without the metadata that readers disagree about.

    Raises:
        DecodeError: it is cut off, or would take for ever.
    """
    if header.format == "JPEG":
        # A cut file still decodes, to an image with a grey rest. From the back: the end mark is
        # normally the last two bytes, while a thumbnail before the scan has one of its own.
        complete = data.endswith(_EOI) or 0 < scan_offset(data) < data.rfind(_EOI)
        _check_work(data, header, name, settings)
        # A block of 8 x 8 samples takes a bit at least, and 16 x 16 pixels have one whatever the
        # sampling; arithmetic coding has no such bound. So nothing is allocated for pixels that
        # cannot be there. The same, with the derivation, is in fastload/native/decoder.cpp.
        bits = (header.height // 16) * (header.width // 16)
        if not header.arithmetic and bits // 8 > len(data):
            raise DecodeError(
                f"{name}: truncated: {len(data)} bytes cannot hold {header.width} x "
                f"{header.height} pixels. {REMEDY}"
            )
        if not complete:
            raise DecodeError(
                f"{name}: truncated: the end of the image is missing ({len(data)} bytes). {REMEDY}"
            )
    elif header.format == "PNG":
        try:
            return pixel_chunks(data)
        except ValueError as error:
            raise DecodeError(f"{name}: {error}. {REMEDY}") from error
    return data


def _check_work(data: bytes, header: ImageHeader, name: str, settings: DecodeSettings) -> None:
    most = settings.max_work // max(header.height * header.width, 1)
    # A scan's header has ten bytes at least, so that most files have no room for too many; counting
    # marks is quick and never too low; following the markers is exact.
    if len(data) // 10 > most and data.count(_SOS) > most and (scans := count_scans(data)) > most:
        raise DecodeError(
            f"{name}: {scans} scans of {header.width} x {header.height} pixels, where {most} are "
            "allowed in an image of this size: a file that is made to keep the decoder busy. "
            f"{REMEDY}"
        )


def _is_of_decoders(header: ImageHeader) -> bool:
    """Whether a JPEG is given to the decoder. CMYK is not; and libjpeg-turbo converts no colours in
    lossless JPEGs, so that grey does not become RGB."""
    return header.components == 3 or (header.components == 1 and not header.lossless)


def _jpeg(data: bytes, decoder: Decoder, out: Pixels | None) -> Pixels:
    """The decoder's pixels; or, if it refuses, those of another one that finds the data sound."""
    try:
        return decoder.decode(data, out=out)
    except ValueError as error:
        refusal = str(error)
        for other in second_opinions(decoder):
            # The core tells damage from oddities by libjpeg's own codes. Others may not notice
            # damage at all.
            if other.name != CoreDecoder.name and not is_no_damage(refusal):
                break
            try:
                return other.decode(data)
            except ValueError as another:
                refusal = str(another)
        raise


def _with_pillow(data: bytes, format: str, as_stored: bool, name: str) -> Pixels:
    with open_lazily(data, format) as image:
        image.load()
        if not as_stored and _has_more_bits(image, data):
            say_narrowed(name)
        if as_stored and image.mode.startswith(("I", "L")) and format == "PPM":
            return _mask_of(_unscaled(np.asarray(image), data))
        if as_stored and image.mode.startswith("I"):
            return _mask_of(np.asarray(image))
        if image.mode.startswith("I;16") or (image.mode == "I" and format in _GREY_16):
            # The high byte, as for 16-bit colour and in torchvision; Pillow's own conversion would
            # clip at 255.
            return np.repeat((np.asarray(image) >> 8).astype(np.uint8)[..., None], 3, axis=2)
        if image.mode in ("I", "F"):
            raise ValueError(
                f"pixels of 32 bits (Pillow's mode {image.mode}) have no scale that fits 8 bits"
            )
        if not as_stored:
            # Only for alpha, which is dropped; and Pillow warns about it when a palette has it.
            image.info.pop("transparency", None)
            return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
        if image.mode in ("L", "P", "LA", "La"):
            return np.asarray(image.getchannel(0))[..., None]
        if image.mode == "1":
            return np.asarray(image.convert("L"))[..., None]
        if image.mode in ("RGB", "RGBA", "RGBX"):
            return _one_channel(np.asarray(image)[..., :3])
        raise ValueError(
            f"a mask has one number a pixel, this one has {len(image.getbands())} ({image.mode})"
        )


def _mask_of(values: npt.NDArray[Any]) -> Pixels:
    """Numbers of 16 or 32 bits as a mask. Raises ValueError: they do not fit."""
    least, most = values.min(), values.max()
    if least < 0 or most > 255:
        raise ValueError(
            f"a mask with the number {most if most > 255 else least}; fastload keeps masks as "
            "uint8, 0 to 255"
        )
    return values.astype(np.uint8)[..., None]


def _unscaled(values: npt.NDArray[Any], data: bytes) -> npt.NDArray[np.int64]:
    """The numbers of a PGM as they are in the file: Pillow stretches 0 to maxval, the third number
    of the header, to all of 8 or 16 bits."""
    header = re.sub(rb"#[^\r\n]*", b" ", data[:_PGM_HEADER]).split(None, 4)
    own, most = int(header[3]), int(np.iinfo(values.dtype).max if values.itemsize == 1 else 65535)
    return (values.astype(np.int64) * own + most // 2) // most


def _one_channel(pixels: Pixels) -> Pixels:
    first = pixels[..., :1]
    if not (np.array_equal(first, pixels[..., 1:2]) and np.array_equal(first, pixels[..., 2:3])):
        raise ValueError(
            "a mask has one number a pixel, this one is in colour; save the class numbers as a "
            "grey or palette PNG"
        )
    return first


def say_if_narrowed(data: bytes, header: ImageHeader, name: str) -> None:
    """The warning of `narrowed` for an image that the core has decoded, if it has 16 bits."""
    if header.format == "PNG" and data[_PNG_DEPTH] == 16:
        say_narrowed(name)


def _has_more_bits(image: Image.Image, data: bytes) -> bool:
    """Whether samples have 16 bits, of formats in which that is to be seen."""
    if image.format == "TIFF":
        tags: Any = image.tag_v2  # type: ignore[attr-defined]
        return bool(max(tags.get(_TIFF_BITS, (1,))) == 16)
    if image.format == "PPM":
        return image.mode == "I"
    return image.format == "PNG" and data[_PNG_DEPTH] == 16


def _is_deep(data: bytes, stored: PixelFormat, masks: bool) -> bool:
    """Whether pixels that are served as they are stored have more than 8 bits. Masks may have fewer
    than those of the first one, and more if their numbers fit.

    Raises ValueError: images are others than the first one of the data set.
    """
    actual = format_of(data, masks=masks)
    if actual != stored and not masks:
        raise ValueError(
            f"its pixels are {actual}, and those of the first image of the data set {stored}: "
            "mode='unchanged' serves one kind; convert them to one"
        )
    return np.uint8 not in (actual.dtype, stored.dtype)


class ImageReader(Protocol):
    """Reads the images of one column. May be called from several threads; picklable if the column
    is."""

    def size(self, index: int) -> tuple[int, int]:
        """(height, width) of what `pixels` gives, from the header alone. Raises DecodeError as that
        does."""

    def pixels(self, index: int) -> Pixels:
        """(H, W, C) uint8, perhaps read-only. Raises DecodeError, which names the sample."""


def reader_of(column: Any, settings: DecodeSettings, decoder: str = "auto") -> ImageReader:
    """The reader of a column of images. Columns of decoded pixels are their own readers."""
    reader: ImageReader = (
        EncodedReader(column, settings, decoder) if column.storage == "encoded" else column
    )
    return reader


@dataclass(frozen=True)
class EncodedReader:
    """Reads and decodes."""

    column: EncodedImages
    settings: DecodeSettings
    decoder: str = "auto"

    def fetch(self, index: int) -> Fetched:
        """(compressed bytes, header, name): read and accepted, but not decoded. Raises
        DecodeError."""
        return self.accept(index, self.read(index))

    def read(self, index: int) -> bytes:
        """The compressed bytes. Raises DecodeError."""
        try:
            return self._read(index)
        except OSError as error:
            raise _unreadable(self.column.describe(index), error) from error

    def fetch_many(self, indices: npt.NDArray[np.int64]) -> list[Fetched | DecodeError]:
        """`fetch` of several samples, or why one cannot be fetched."""
        if any(map(self._is_large, indices.tolist())):
            return [or_error(self.fetch, index) for index in indices.tolist()]
        try:
            read = self.column.read_many(indices)
        except OSError:  # one of them failed; read singly, each has its own message
            return [or_error(self.fetch, index) for index in indices.tolist()]
        pairs = zip(indices.tolist(), read, strict=True)
        return [or_error(lambda pair: self.accept(*pair), pair) for pair in pairs]

    def _is_large(self, index: int) -> bool:
        return self.column.length(index) > LARGE

    def _read(self, index: int) -> bytes:
        self.look_first(index)
        return self.column.read(index)

    def look_first(self, index: int) -> None:
        """Refuse a large sample by its first bytes, before the rest is read. Raises DecodeError;
        OSError."""
        if not self._is_large(index):
            return
        name, start = self.column.describe(index), self.column.read_start(index, _PREFIXES[-1])
        check_start(start, self.column.length(index), name)
        header = _jpeg_header(start, name)
        if header is not None:
            check_header(header, name, self.settings)

    def accept(self, index: int, data: bytes) -> Fetched:
        """What `fetch` gives for a sample whose bytes were read. Raises DecodeError."""
        name = self.column.describe(index)
        header = read_header(data, name)
        check_header(header, name, self.settings)
        return data, header, name

    def accept_start(self, name: str, data: memoryview) -> ImageHeader:
        """The header of a sample of this name whose bytes were read, of which no more are copied
        than it takes. Raises DecodeError."""
        header = _jpeg_header(bytes(data[: _PREFIXES[0]]), name) or read_header(bytes(data), name)
        check_header(header, name, self.settings)
        return header

    def size(self, index: int) -> tuple[int, int]:
        try:
            header = self._header(index)
        except OSError as error:
            raise _unreadable(self.column.describe(index), error) from error
        check_header(header, self.column.describe(index), self.settings)
        return upright_size(header, self.settings)

    def pixels(self, index: int) -> Pixels:
        return self.decoded(*self.fetch(index))

    def decoded(self, data: bytes, header: ImageHeader, name: str) -> Pixels:
        """`pixels` of what was fetched."""
        decoder, as_stored = get_decoder(self.decoder), self.column.kind.as_stored
        return decode_image(
            data,
            name=name,
            decoder=decoder,
            settings=self.settings,
            as_stored=as_stored,
            header=header,
            stored=self.column.stored,
        )

    def _header(self, index: int) -> ImageHeader:
        """The header, reading no more than it takes. Raises DecodeError and OSError."""
        name = self.column.describe(index)
        for length in _PREFIXES:
            data = self.column.read_start(index, length)
            if len(data) != length:
                # All there is, or more than was asked for.
                return read_header(data, name)
            header = _jpeg_header(data, name)
            if header is not None:
                return header
            if not data.startswith(_JPEG):
                break
        return read_header(self._read(index), name)


def _jpeg_header(start: bytes, name: str) -> ImageHeader | None:
    """The header of a JPEG that begins with these bytes, if they hold all of it; else None. Other
    formats need the whole file."""
    if not start.startswith(_JPEG):
        return None
    try:
        return read_header(start, name, whole=False)
    except DecodeError:
        return None


def or_error(function: Callable[[A], T], argument: A) -> T | DecodeError:
    """What a function gives, or the DecodeError that it raises."""
    try:
        return function(argument)
    except DecodeError as error:
        return error


def _unreadable(name: str, error: OSError) -> DecodeError:
    if isinstance(error, StoreError):  # the file may be right
        words, remedy = str(error).removesuffix("."), SKIP
    else:
        words, remedy = error.strerror or str(error), REMEDY_UNREADABLE
    unreadable = DecodeError(f"{name}: cannot be read: {words}. {remedy}")
    unreadable.read = False
    return unreadable
