"""`mode="unchanged"`: images as they are stored, grey as one channel and 16 bits as 16.

Otherwise images are RGB of 8 bits, and of 16 bits the upper eight are kept.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from fastload import stores
from fastload.errors import ConfigurationError, SourceError, counted
from fastload.fingerprint import fingerprint_of
from fastload.sources.base import Opened
from fastload.sources.buffers import Int64Array
from fastload.sources.columns import EncodedFiles, EncodedImages, PixelFormat

_READ = ("JPEG", "PNG", "TIFF", "WEBP", "BMP")
"""Formats, by Pillow's names, that are known to be read without loss. Of others Pillow may read
only the upper bits."""
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_COLOURS = {0: 1, 2: 3}
_ALPHA = ("LA", "La", "PA", "RGBA", "RGBa", "RGBX")
_PREFIX = 256 << 10
_BITS, _SAMPLES = 258, 339
"""Tags of a TIFF: BitsPerSample, SampleFormat."""


def in_mode(mode: str, opened: Opened) -> Opened:
    """The source in a mode of `open_source`. Raises ConfigurationError: there is no such mode;
    SourceError: see `unchanged`."""
    if mode == "unchanged":
        return unchanged(opened)
    if mode != "RGB":
        raise ConfigurationError(f"mode: must be 'RGB' or 'unchanged', got {mode!r}.")
    return opened


def unchanged(opened: Opened) -> Opened:
    """The same source with its compressed images and masks as they are stored: all as the first one
    is.

    Raises:
        SourceError: there are none, the first cannot be read, or not without a loss.
    """
    source = opened.source
    if not source.encoded:
        raise SourceError(
            f"mode='unchanged': {source.name} has no compressed images, so that nothing is changed "
            "in decoding; leave mode out."
        )
    columns, said = dict(source.columns), []
    for name, column in source.encoded.items():
        try:
            pixels = _first_format(column)
        except (OSError, ValueError) as error:
            raise SourceError(
                f"mode='unchanged': {column.describe(0)}: {error}. Convert the images, or leave "
                "mode out: RGB of 8 bits."
            ) from error
        columns[name] = UnchangedImages(column, pixels)
        said.append(f"{name}: {pixels}")
    shown = ", ".join(said)
    return replace(
        opened,
        source=replace(
            source, columns=columns, fingerprint=fingerprint_of(source.fingerprint, shown)
        ),
        notes=(*opened.notes, f"mode='unchanged': {shown}"),
        bare=None,
        assumed=None,
    )


def _first_format(column: EncodedImages) -> PixelFormat:
    masks = column.kind.as_stored
    data = column.read_start(0, _PREFIX)
    try:
        return format_of(data, masks=masks)
    except (OSError, ValueError):
        return format_of(column.read(0), masks=masks)


@dataclass(frozen=True)
class UnchangedImages(EncodedImages):
    """Compressed images whose pixels are served as they are stored."""

    column: EncodedImages
    stored: PixelFormat

    @property
    def role(self) -> str:
        return self.column.role

    @property
    def channels(self) -> int:
        return self.stored.channels

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.stored.dtype

    def __len__(self) -> int:
        return len(self.column)

    def describe(self, index: int) -> str:
        return self.column.describe(index)

    def read(self, index: int) -> bytes:
        return self.column.read(index)

    def read_many(self, indices: Int64Array) -> Sequence[bytes]:
        return self.column.read_many(indices)

    def read_start(self, index: int, length: int) -> bytes:
        return self.column.read_start(index, length)

    def read_from(self, indices: Int64Array) -> Sequence[stores.Range]:
        return self.column.read_from(indices)

    @property
    def survives_fork(self) -> bool:
        return self.column.survives_fork

    @property
    def any_order(self) -> bool:  # type: ignore[override]
        return self.column.any_order

    @property
    def groups(self) -> Any:
        return self.column.groups

    def for_any_order(self) -> UnchangedImages:
        return replace(self, column=self.column.for_any_order())

    @property
    def parts_in_stores(self) -> EncodedFiles | None:
        return self.column.parts_in_stores

    def take(self, indices: Int64Array) -> UnchangedImages:
        return replace(self, column=self.column.take(indices))


def format_of(data: bytes, *, masks: bool = False) -> PixelFormat:
    """What the pixels of a compressed image are; of masks those of 8 bits may be of a palette.

    Raises:
        ValueError: they cannot be read without a loss, or have an alpha channel or a palette; the
            message says which. OSError: it is no image.
    """
    try:
        if data.startswith(b"\xff\xd8\xff"):
            return PixelFormat(_jpeg_components(data), np.dtype(np.uint8))
        if data.startswith(_PNG) and not masks:
            return _png_format(data)
    except struct.error as error:
        raise ValueError("the file ends within its header") from error
    with Image.open(io.BytesIO(data)) as image:
        return _pillow_format(image, masks)


def _png_format(data: bytes) -> PixelFormat:
    depth, colour = struct.unpack_from(">BB", data, 24)
    if colour not in _PNG_COLOURS:
        what = "a palette" if colour == 3 else "an alpha channel"
        raise ValueError(f"the image has {what}, and mode='unchanged' serves grey and RGB")
    return PixelFormat(_PNG_COLOURS[colour], np.dtype(np.uint16 if depth == 16 else np.uint8))


def _jpeg_components(data: bytes) -> int:
    with Image.open(io.BytesIO(data)) as image:  # Reads the header alone.
        components = len(image.getbands())
    if components not in (1, 3):
        raise ValueError(f"a JPEG of {counted(components, 'component')} (CMYK) becomes RGB")
    return components


def _pillow_format(image: Image.Image, masks: bool) -> PixelFormat:
    mode = image.mode
    if mode in _ALPHA and not masks:
        raise ValueError("the image has an alpha channel, and mode='unchanged' serves grey and RGB")
    if image.format not in _READ:
        raise ValueError(f"mode='unchanged' reads {', '.join(_READ)}, not {image.format}")
    if mode.startswith("I;16"):
        return PixelFormat(1, np.dtype(np.uint16))
    if masks:
        return PixelFormat(1, np.dtype(np.uint8))
    if mode == "F":
        return PixelFormat(1, np.dtype(np.float32))
    bits: set[int] = {8}
    if image.format == "TIFF":
        tags: Any = image.tag_v2  # type: ignore[attr-defined]
        bits = set(tags.get(_BITS, (1,)))
        if set(tags.get(_SAMPLES, (1,))) != {1}:
            raise ValueError("a TIFF of signed integers")
    if mode in ("1", "L") and max(bits) <= 8:
        return PixelFormat(1, np.dtype(np.uint8))
    if mode == "RGB" and bits in ({8}, {16}):
        return PixelFormat(3, np.dtype(np.uint16 if bits == {16} else np.uint8))
    raise ValueError(
        f"its pixels (Pillow's mode {mode}, {', '.join(map(str, sorted(bits)))} bits a sample) are "
        "neither grey nor RGB of 8 or 16 bits, nor grey of floating point"
    )
