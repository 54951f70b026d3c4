"""The sizes of images from their headers, where labels are fractions of them."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from PIL import Image, UnidentifiedImageError

from fastload import stores
from fastload.errors import SourceError
from fastload.exif import UPRIGHT, orientation_of
from fastload.files import check_regular
from fastload.machine import usable_cores
from fastload.stores.contents import parts

_HEADER = 16 << 10
"""Bytes of a JPEG in a store that are asked for first: what comes before the pixels takes some 600,
with a thumbnail in the EXIF data up to 64 KiB."""
_JPEG = b"\xff\xd8\xff"
_MOST_AT_ONCE = 128 << 20
"""Bytes of images in memory."""


class _Header(NamedTuple):
    size: tuple[int, int]
    """Height, width."""
    turned: bool
    """Whether the EXIF data turn it."""


def upright_sizes(images: Sequence[str], labels: Sequence[str]) -> list[tuple[int, int]]:
    """(height, width) of images, of which the files `labels` have fractions.

    Of JPEGs in a store so much is read as has the header; of other formats, whose EXIF data may
    come last, all: the local tier keeps it.

    Raises SourceError: one cannot be read; or its EXIF data turn it, so that it is not known which
    picture the fractions are of.
    """
    if images and stores.is_remote(images[0]):
        headers = [header for some in parts(images) for header in _in_store(some)]
    else:
        with ThreadPoolExecutor(usable_cores()) as pool:
            headers = [*pool.map(_in_file, images)]
    for header, image, each in zip(headers, images, labels, strict=True):
        if header.turned:
            raise SourceError(
                f"{image}: its EXIF data turn it, and {each} may be fractions of the picture "
                "before or after that; save it turned, without EXIF (PIL.ImageOps.exif_transpose)."
            )
    return [header.size for header in headers]


def stored_sizes(images: Sequence[str]) -> list[tuple[int, int] | None]:
    """(height, width) of images on a disk as they are stored; None for one that cannot be read."""
    with ThreadPoolExecutor(usable_cores()) as pool:
        return [*pool.map(_stored_size, images)]


def _stored_size(image: str) -> tuple[int, int] | None:
    with contextlib.suppress(SourceError):
        return _in_file(image).size
    return None


def _in_file(image: str) -> _Header:
    try:
        check_regular(image)
        return _header(image)
    except Exception as error:  # Pillow's formats raise many kinds
        raise _unreadable(image, error) from None


def _in_store(images: Sequence[str]) -> list[_Header]:
    headers: dict[int, _Header] = {}
    sizes = [max(0, stores.size_of(image)) for image in images]
    versions = stores.versions_of(images).tolist()
    pairs = zip(images, versions, strict=True)
    whole = [stores.Range(image, version=version) for image, version in pairs]
    long = [
        row
        for row, image in enumerate(images)
        if sizes[row] > _HEADER and image.lower().endswith((".jpg", ".jpeg"))
    ]
    starts = _read([whole[row]._replace(length=_HEADER) for row in long], by_tier=False)
    for row, start in zip(long, starts, strict=True):
        # Pillow reads a JPEG up to where the pixels begin, and raises where it ends before.
        with contextlib.suppress(Exception):
            if start.startswith(_JPEG):
                headers[row] = _header(io.BytesIO(start))
    for rows in _groups([row for row in range(len(images)) if row not in headers], sizes):
        for row, data in zip(rows, _read([whole[row] for row in rows]), strict=True):
            try:
                headers[row] = _header(io.BytesIO(data))
            except Exception as error:
                raise _unreadable(images[row], error) from None
    return [headers[row] for row in range(len(images))]


def _groups(rows: Sequence[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    """Rows in groups of so many bytes, one at least."""
    group, total = list[int](), 0
    for row in rows:
        if group and total + sizes[row] > _MOST_AT_ONCE:
            yield group
            group, total = [], 0
        group.append(row)
        total += sizes[row]
    if group:
        yield group


def _read(ranges: Sequence[stores.Range], *, by_tier: bool = True) -> list[bytes]:
    try:
        return stores.read_many(ranges, by_tier=by_tier)
    except OSError as error:  # It names the file that failed.
        raise SourceError(
            f"{ranges[0].name}: the sizes of this image and others cannot be read: {error}"
        ) from error


def _header(image: str | io.BytesIO) -> _Header:
    with Image.open(image) as opened:
        width, height = opened.size
        return _Header((height, width), orientation_of(opened) != UPRIGHT)


def _unreadable(image: str, error: Exception) -> SourceError:
    words, remedy = str(error) or type(error).__name__, "replace or remove the file"
    if isinstance(error, UnidentifiedImageError):
        words = "this is no image that Pillow reads"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        remedy = (
            "if it is to be trusted, raise PIL.Image.MAX_IMAGE_PIXELS, and max_pixels in the "
            "backend's options"
        )
    return SourceError(
        f"{image}: its size, which its labels are fractions of, cannot be read "
        f"({words.rstrip('.')}); {remedy}."
    )
