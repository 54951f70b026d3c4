"""The images of the loader benchmark: a sample to run on, what is wrong with it, and what a cache of all would take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fastload.cache.samples import samples_of
from fastload.decode import DecodeSettings
from fastload.errors import DecodeError, SourceError, counted
from fastload.machine import usable_cores
from fastload.measure.images import image_folders
from fastload.sources import open_source
from fastload.sources.base import Source

_HEADERS = 1000
"""Read for the size of a cache; more change the estimate by less than a percent."""
_BYTES_PER_SAMPLE = 64
"""That a cache takes beside the pixels: label, size, offset, name."""


@dataclass(frozen=True)
class LoaderImages:
    """What is run on, and what it is a part of."""

    folder: Path
    """With one folder per class."""
    source: Source
    """Of that folder."""
    total: int
    """Images in the user's whole folder."""
    cache_bytes: int
    """That a cache of the user's whole folder would take, at full resolution."""
    damaged: Mapping[str, str]
    """Of those to run on: path: what is wrong."""

    @property
    def classes(self) -> int:
        return len(self.source.classes or ())

    def original(self, path: str) -> str:
        """The name that the user knows the file by: samples of large folders are links."""
        return str(Path(path).resolve()) if Path(path).is_symlink() else path


def read_loader_images(folder: Path, most: int, room: Path) -> LoaderImages:
    """Look through the folder.

    Args:
        folder: class folders, perhaps under `train`.
        most: images to run on; of a larger folder about so many are taken.
        room: an empty folder, for the links to those.

    Raises:
        SourceError: there is no such folder, it has no images, or all that were taken are damaged.
        ConfigurationError: it is another kind of data set.
    """
    folders = image_folders(folder, most, room)
    part, whole = folders.train, folders.whole
    source = open_source(str(part)).source
    damaged = dict(find_damaged(source))
    if len(damaged) == len(source):
        raise SourceError(f"{folder}: none of {counted(len(source), 'image')} can be decoded. {_first(damaged)}")
    return LoaderImages(part, source, len(whole), cache_bytes(whole), damaged)


def _first(damaged: Mapping[str, str]) -> str:
    return ": ".join(next(iter(damaged.items())))


def cache_bytes(source: Source) -> int:
    """What `fastload.build_cache(source)` would take [bytes], from the headers of an even sample of its images."""
    samples = samples_of(source, DecodeSettings())
    count = min(len(source), _HEADERS)
    needed, known = 0, 0
    for number in range(count):
        for size, column in zip(samples.sizes(number * len(source) // count), samples.images, strict=True):
            if size is not None:
                needed += size[0] * size[1] * column.channels
                known += 1
    images = len(source) * len(samples.images)
    return images * (needed // known if known else 0) + len(source) * _BYTES_PER_SAMPLE


def find_damaged(source: Source) -> Iterator[tuple[str, str]]:
    """Decode everything once: the path of each image that cannot be, and why."""
    samples = samples_of(source, DecodeSettings())

    def trouble(index: int) -> DecodeError | None:
        return next((pixels for pixels in samples.read(index).pixels if isinstance(pixels, DecodeError)), None)

    with ThreadPoolExecutor(usable_cores()) as pool:
        for index, error in enumerate(pool.map(trouble, range(len(source)))):
            if error is not None:
                name = source.describe(index)
                yield name, str(error).removeprefix(f"{name}: ")
