"""The samples of a source as pixels, read one at a time: what a cache is built from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastload import native, stores
from fastload.cache.stamps import UNREAD, Stamp, stamp_of
from fastload.decode.image import EncodedReader, ImageReader, or_error, reader_of, say_if_narrowed
from fastload.decode.libraries import (
    CoreDecoder,
    Pixels,
    core_pool,
    describe_decoder,
    get_decoder,
)
from fastload.errors import CacheError, DecodeError, counted
from fastload.exif import UPRIGHT
from fastload.files import DecodeSettings
from fastload.geometry import Geometry, GeometryPlan, Resampling, View
from fastload.geometry.boxes import resized_sizes
from fastload.geometry.points import PointMap
from fastload.render.host import render_into
from fastload.sources.base import Source
from fastload.sources.buffers import PathTable
from fastload.sources.columns import Buffer, EncodedImages, Values
from fastload.sources.kinds import pixel_kind


@dataclass(frozen=True)
class ImageSpec:
    """A column of images or masks that is to be cached."""

    name: str
    role: str
    channels: int
    names: PathTable | None = None
    dtype: np.dtype[Any] = np.dtype(np.uint8)  # noqa: RUF009


@dataclass(frozen=True)
class Sample:
    """One sample, decoded and reduced."""

    pixels: tuple[Pixels | DecodeError, ...]
    """(H, W, C) for each image column, or why there are none."""
    label: int | None = None
    """The label, where the source has no column of labels."""
    stamps: tuple[Stamp, ...] = ()
    """The states of the files that the images were read from; none of what has no files."""


class Samples:
    """Random access to the decoded samples of a source: images, compressed or not, beside
    values."""

    parallel = True
    """Whether several threads may ask."""
    has_headers = True
    """Whether `sizes` is much cheaper than `read`."""
    images: tuple[ImageSpec, ...]
    values: Mapping[str, Values]
    decoder: str
    """What decodes, for messages."""
    batch: int
    """Samples of one task of a thread pool."""

    def __init__(
        self, source: Source, settings: DecodeSettings, short_side: int | None = None
    ) -> None:
        self._readers: list[ImageReader] = [
            reader_of(column, settings) for column in source.images.values()
        ]
        self._settings, self._short_side = settings, short_side
        decoder = CoreDecoder() if native.available() else get_decoder("auto")
        self.decoder = describe_decoder(decoder) if source.encoded else "none"
        self.batch = 1 if source.encoded else 64
        self.values = source.values
        self.images = tuple(
            ImageSpec(name, column.role, column.channels, column.name_table(), column.dtype)
            for name, column in source.images.items()
        )

    def sizes(self, index: int) -> tuple[tuple[int, int] | None, ...]:
        """(height, width) of each image column before it is reduced, or None where it is not known
        without decoding."""
        sizes = (or_error(reader.size, index) for reader in self._readers)
        return tuple(size if isinstance(size, tuple) else None for size in sizes)

    def read(self, index: int) -> Sample:
        read = [self._read(*pair, index) for pair in zip(self._readers, self.images, strict=True)]
        return Sample(tuple(pixels for pixels, _ in read), stamps=tuple(one for _, one in read))

    def _read(
        self, reader: ImageReader, column: ImageSpec, index: int
    ) -> tuple[Pixels | DecodeError, Stamp]:
        """An image, and the state of the file that it was read from."""
        if not isinstance(reader, EncodedReader):
            return or_error(lambda row: self._shrunk(reader.pixels(row), column), index), UNREAD
        # Before it is read: a change from then on is one to be found.
        stamp = stamp_of(reader.column, index)
        try:
            data = reader.read(index)
        except DecodeError as error:
            return error, stamp
        try:
            return self._pixels(reader, column, index, data), stamp.of(data)
        except DecodeError as error:
            wanted = reader.column.read_from(np.array([index])) if reader.column.waits else ()
            if not wanted:
                return error, stamp.of(data)
        for each in wanted:  # What the local tier has kept need not be what the store has.
            stores.drop_kept(each)
        return or_error(
            lambda row: self._pixels(reader, column, row, reader.read(row)), index
        ), stamp

    def _pixels(self, reader: EncodedReader, column: ImageSpec, index: int, data: bytes) -> Pixels:
        """Raises DecodeError."""
        data, header, name = reader.accept(index, data)
        if _fits_core(reader.column):
            size = header.height, header.width
            if not (self._settings.exif_orientation and header.orientation != UPRIGHT):
                pixels = shrunk_by_core(data, size, shrunk_size(size, self._short_side))
                if pixels is not None:
                    say_if_narrowed(data, header, name)
                    return pixels
        return self._shrunk(reader.decoded(data, header, name), column)

    def _shrunk(self, pixels: Pixels, column: ImageSpec) -> Pixels:
        return shrink(pixels, column.role, self._short_side)


def _fits_core(column: EncodedImages) -> bool:
    """Whether the native core makes the pixels that are served: RGB of 8 bits."""
    return column.usual_format and not column.kind.as_stored


def samples_of(source: Source, settings: DecodeSettings, short_side: int | None = None) -> Samples:
    """How to read this source. `short_side`: images are reduced to so many pixels on the shorter
    side, if they are larger. Raises CacheError: its samples cannot be cached."""
    return _Items(source, short_side) if source.objects else Samples(source, settings, short_side)


class _Items(Samples):
    """The items of a torch Dataset, if they are an image and a label."""

    decoder = "the dataset's own"
    parallel = False  # its Python code was written for one thread a process
    batch = 1
    has_headers = False

    def __init__(self, source: Source, short_side: int | None) -> None:
        if len(source.columns) != 1:
            raise CacheError(
                f"{source.name}: a dataset beside other columns cannot be cached; use "
                "backend='torch'."
            )
        (self._column,) = source.objects.values()
        self._name, self._short_side = source.name, short_side
        self.values = {}
        # The first sample that there is tells the channels; it is kept, because reading it may be
        # slow.
        items = ((index, or_error(self._item, index)) for index in range(len(self._column)))
        first = next(
            ((index, item) for index, item in items if not isinstance(item, DecodeError)), None
        )
        if first is None:
            raise DecodeError(f"{self._name}: the dataset raises an error for every sample.")
        self._first, (self._image, self._label) = first
        self.images = (ImageSpec("image", "image", int(self._image.shape[2])),)

    def sizes(self, index: int) -> tuple[tuple[int, int] | None, ...]:
        """Of the first sample that could be read, for all: an estimate."""
        return ((self._image.shape[0], self._image.shape[1]),)

    def read(self, index: int) -> Sample:
        if index == self._first:
            return Sample((shrink(self._image, "image", self._short_side),), self._label)
        item = or_error(self._item, index)
        if isinstance(item, DecodeError):
            return Sample((item,), -1)
        pixels, label = item
        if pixels.shape[2] != self.images[0].channels:
            raise CacheError(
                f"{self._name}: sample {index} has {counted(pixels.shape[2], 'channel')}, those "
                f"before it {self.images[0].channels}; convert all to one mode in the dataset "
                "(image.convert('RGB'))."
            )
        return Sample((shrink(pixels, "image", self._short_side),), label)

    def _item(self, index: int) -> tuple[Pixels, int]:
        try:
            item = self._column.item(index)
        except Exception as error:  # any error of the user's code is that of the sample
            raise DecodeError(
                f"{self._name}: sample {index}: the dataset raised {error!r}."
            ) from error
        if isinstance(item, tuple | list) and len(item) == 2:
            pixels, label = _as_pixels(item[0]), _as_label(item[1])
            if pixels is not None and label is not None:
                return pixels, label
        raise CacheError(
            f"{self._name}: sample {index} is {_describe(item)}; a cache takes (image, label) "
            "pairs: a PIL image, a uint8 array (H, W, C) or a uint8 tensor (C, H, W) of 1 or 3 "
            "channels, and an int. Take float conversion and normalisation out of the dataset's "
            "transform and pass them to the loader, or use backend='torch'."
        )


def _as_pixels(image: Any) -> Pixels | None:
    """(H, W, C) uint8, or None if it is no image."""
    array: Any = image
    if (
        isinstance(image, torch.Tensor)
        and image.dtype == torch.uint8
        and image.ndim == 3
        and not image.is_cuda
    ):
        array = image.permute(1, 2, 0).numpy()
    elif hasattr(image, "getbands") and hasattr(image, "mode"):  # PIL, without importing it
        array = np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))
    if not isinstance(array, np.ndarray):
        return None
    if array.ndim == 2:
        array = array[:, :, None]
    if (
        array.dtype != np.uint8
        or array.ndim != 3
        or array.shape[2] not in (1, 3)
        or 0 in array.shape
    ):
        return None
    return np.asarray(array)


def _as_label(label: Any) -> int | None:
    if isinstance(label, torch.Tensor | np.ndarray | np.generic):
        return (
            int(label)
            if label.ndim == 0 and not torch.as_tensor(label).is_floating_point()
            else None
        )
    return int(label) if isinstance(label, int) else None


def _describe(item: Any) -> str:
    if isinstance(item, tuple | list):
        return f"{type(item).__name__} of ({', '.join(_describe(part) for part in item)})"
    if isinstance(item, torch.Tensor | np.ndarray):
        return f"{type(item).__name__} {tuple(item.shape)} of {item.dtype}"
    return f"{type(item).__module__}.{type(item).__qualname__}"


def shrunk_sizes(sizes: npt.NDArray[np.int64], short_side: int | None) -> npt.NDArray[np.int64]:
    """(B, 2) int64: the sizes of images of these (B, 2) sizes in the cache. Smaller ones are not
    enlarged."""
    if short_side is None:
        return sizes
    small = sizes.min(axis=1, keepdims=True) <= short_side
    return np.where(small, sizes, resized_sizes(sizes, shorter=short_side))


@lru_cache(maxsize=4096)
def shrunk_size(size: tuple[int, int], short_side: int | None) -> tuple[int, int]:
    """`shrunk_sizes` of one image; remembered, as many images have the same."""
    height, width = shrunk_sizes(np.array([size]), short_side)[0].tolist()
    return height, width


def shrunk_points(sizes: npt.NDArray[np.int64], short_side: int | None) -> PointMap:
    """Where the points of images of these (B, 2) sizes are in those of the cache; sizes of 0 count
    as 1."""
    before = np.maximum(sizes, 1)
    after = np.maximum(shrunk_sizes(before, short_side), 1)
    whole = [np.concatenate([np.zeros_like(part), part], axis=1) for part in (before, after)]
    shrunk = Geometry(whole[0], after, whole[1], np.zeros(before.shape, dtype=np.bool_))
    return PointMap.identity(before).then(shrunk, clips="nothing")


def shrink(pixels: Pixels, role: str, short_side: int | None) -> Pixels:
    """(H, W, C) reduced as torchvision's antialiased Resize(short_side) does; masks
    nearest."""
    height, width = pixels.shape[:2]
    new_height, new_width = shrunk_sizes(np.array([[height, width]]), short_side)[0].tolist()
    if (new_height, new_width) == (height, width):
        return pixels
    out = np.empty((new_height, new_width, pixels.shape[2]), dtype=pixels.dtype)
    resampling = pixel_kind(role).resampling(GeometryPlan())
    render_into(
        pixels,
        box=(0, 0, height, width),
        size=(new_height, new_width),
        resampling=resampling,
        out=out,
    )
    return out


def shrunk_by_core(
    data: Buffer, size: tuple[int, int], after: tuple[int, int], *, draft: bool = False
) -> Pixels | None:
    """(h, w, 3) uint8: an image of this (height, width) decoded and reduced in one go, the pixels
    that `shrink` gives, or with `draft` nearly those (see `TurboJpegOptions.draft`). None where the
    native core is not built, does not read the format or finds fault with it."""
    return shrunk_together([(data, size, after)], draft=draft)[0]


def shrunk_together(
    images: Sequence[tuple[Buffer, tuple[int, int], tuple[int, int]]], *, draft: bool = False
) -> list[Pixels | None]:
    """`shrunk_by_core` of several: the core decodes two at a time, which takes a twentieth less."""
    pixels: list[Pixels | None] = [None] * len(images)
    if not native.available():
        return pixels
    # Of tall images the widths after it are alike, of wide ones the heights: places for the largest
    # in both sides are not much larger than the images.
    tall = [height > width for _, _, (height, width) in images]
    for shape in set(tall):
        rows = [row for row, one in enumerate(tall) if one == shape]
        data, before, after = zip(*(images[row] for row in rows), strict=True)
        sizes = np.array(after, dtype=np.int32)
        whole, window = np.zeros((2, len(rows), 4), dtype=np.int32)  # from the corner at (0, 0)
        whole[:, 2:], window[:, 2:] = before, sizes
        mirrored = np.zeros((len(rows), 2), dtype=np.bool_)
        out = np.empty((len(rows), *sizes.max(axis=0), 3), dtype=np.uint8)
        view = View(Geometry(whole, sizes, window, mirrored), Resampling(), out, sizes)
        pending = core_pool().decode_views(data, [view], check_whole=True, draft=draft, here=True)
        failed = {failure.row for failure in pending.wait()}
        for number, row in enumerate(rows):
            height, width = after[number]
            if number not in failed:
                pixels[row] = np.ascontiguousarray(out[number, :height, :width])
    return pixels
