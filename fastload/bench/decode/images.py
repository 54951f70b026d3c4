"""The images of the benchmark: read, judged, and with a reference to hold pixels against."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fastload.bench.decode.task import JpegImages
from fastload.decode import DecodeSettings, decode_image, get_decoder, read_header
from fastload.errors import DecodeError, SourceError

__all__ = ["ImageSet", "read_images"]

_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif")


@dataclass(frozen=True)
class ImageSet:
    """The files of a folder, sorted by what can be asked of a decoder."""

    good: JpegImages
    """JPEGs of one or three components without damage: these are timed."""
    damaged: dict[str, bytes]
    """Files that no decoder should accept in silence, by path; each contestant gets them once, outside the clock."""
    left_out: dict[str, str]
    """Files that are fine and not every decoder's business (CMYK), and why."""
    found: int
    """JPEG files in the folder, of which these are an even sample."""


def read_images(folder: str | os.PathLike[str], most: int) -> ImageSet:
    """Read up to `most` JPEG files, evenly spaced over the sorted names below the folder.

    Raises:
        SourceError: there is no such folder, it has no JPEG files, or none of those read is whole.
    """
    root = Path(folder)
    if not root.is_dir():
        raise SourceError(f"{root}: there is no such folder. Give one with JPEG files, in sub-folders or not.")
    paths = sorted(_files(root))
    if not paths:
        raise SourceError(f"{root}: has no JPEG files ({', '.join(_SUFFIXES)}). Give a folder of JPEGs.")
    count = min(most, len(paths))
    chosen = [paths[index * len(paths) // count] for index in range(count)]
    good: list[tuple[str, bytes, tuple[int, int]]] = []
    damaged: dict[str, bytes] = {}
    left_out: dict[str, str] = {}
    settings = DecodeSettings()
    for path in chosen:
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            left_out[path] = f"cannot be read: {error.strerror or error}"
            continue
        try:
            header = read_header(data, path)
            if header.height * header.width > settings.max_pixels:
                left_out[path] = f"{header.width} x {header.height} pixels, more than a loader takes"
                continue
            if header.format != "JPEG" or header.components not in (1, 3):
                left_out[path] = f"{header.format} of {header.components} components, which loaders leave to Pillow"
                continue
            decode_image(data, name=path, decoder=get_decoder(), settings=settings, header=header)
        except DecodeError:
            damaged[path] = data
        else:
            good.append((path, data, (header.height, header.width)))
    if not good:
        raise SourceError(
            f"{root}: none of the {count} JPEG files that were read is whole. Give a folder of good ones."
        )
    names, contents, sizes = zip(*good, strict=True)
    return ImageSet(JpegImages(names, contents, sizes), damaged, left_out, len(paths))


def _files(root: Path) -> Iterator[str]:
    for folder, _, names in os.walk(root):
        for name in names:
            if name.lower().endswith(_SUFFIXES):
                yield os.path.join(folder, name)
