"""What a contestant is asked to do: the images, read and judged, what is cut out of them, where their bytes come from.

Plain data, so that it can be sent to another process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastload.errors import DecodeError, SourceError

Pixels = npt.NDArray[np.uint8]
"""(H, W, 3) RGB."""

Place = tuple[tuple[int, int, int, int], tuple[int, int]]
"""Box (top, left, height, width) of the image, and the size (height, width) that it is resampled to."""

READINGS = ("memory", "page cache", "cold")
"""Where the compressed bytes come from: memory of the process; files that the system holds in memory; files on disk."""

MODES = {
    "full": "full decode",
    "resize256": "decode, resize the shorter side to 256",
    "crop224": "decode, RandomResizedCrop(224)",
}
"""What is done with each image: name, and title."""

FORMATS = {"jpeg": (".jpg", ".jpeg", ".jpe", ".jfif"), "png": (".png",), "webp": (".webp",)}
"""Which files are taken: name, and suffixes."""


@dataclass(frozen=True)
class Images:
    """Some files of one format, read once."""

    paths: tuple[str, ...]
    data: tuple[bytes, ...]
    sizes: tuple[tuple[int, int], ...]
    """(height, width)"""

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def pixels(self) -> int:
        """Of all images together."""
        return sum(height * width for height, width in self.sizes)


@dataclass(frozen=True)
class Task:
    """One pass: each of the images, decoded and placed."""

    images: Images
    places: tuple[Place | None, ...]
    """One an image; None leaves it whole and as it is."""
    threads: int = 1
    reading: str = "memory"
    format: str = "jpeg"

    def prepare(self) -> None:
        """Before each pass, outside the clock."""
        if self.reading == "cold":
            evict(self.images.paths)

    def encoded(self, index: int) -> bytes:
        """The compressed bytes, from where they are to be read. Raises OSError."""
        if self.reading == "memory":
            return self.images.data[index]
        with open(self.images.paths[index], "rb", buffering=0) as file:
            return file.read(os.fstat(file.fileno()).st_size)


def places_of(mode: str, images: Images, seed: int = 0) -> tuple[Place | None, ...]:
    """One an image; random boxes as the loader draws them, from the seed and the image's number."""
    from fastload.draws import Draws
    from fastload.geometry import GeometryPlan
    from fastload.recipe import GeometryOperation, RandomResizedCrop, Resize

    if mode == "full":
        return (None,) * len(images)
    crop = mode == "crop224"
    operation: GeometryOperation = RandomResizedCrop(size=(224, 224)) if crop else Resize(size=None, shorter=256)
    draws = Draws(seed, 0, np.arange(len(images), dtype=np.int64))
    geometry = GeometryPlan(ops=((0, operation),)).resolve(draws, np.array(images.sizes, dtype=np.int64))
    boxes, sizes = geometry.box.tolist(), geometry.size.tolist()
    return tuple((tuple(box), tuple(size)) for box, size in zip(boxes, sizes, strict=True))


# -- The images of a folder --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageSet:
    """The files of a folder, sorted by what can be asked of a decoder."""

    good: Images
    """Files without damage, JPEGs of one or three components: these are timed."""
    damaged: dict[str, bytes]
    """Files that no decoder should accept in silence, by path; each contestant gets them once, outside the clock."""
    left_out: dict[str, str]
    """Files that are fine and not every decoder's business (CMYK), and why."""
    format: str
    """Of the files, one of `FORMATS`."""
    found: int
    """Files of the format in the folder, of which these are an even sample."""


def read_images(folder: str | os.PathLike[str], most: int, format: str = "jpeg") -> ImageSet:
    """Read up to `most` files of a format, evenly spaced over the sorted names below the folder.

    Raises:
        SourceError: there is no such folder, it has no such files, or none of those read is whole.
    """
    kind, suffixes = format.upper(), FORMATS[format]
    root = Path(folder)
    if not root.is_dir():
        raise SourceError(f"{root}: there is no such folder. Give one with {kind} files, in sub-folders or not.")
    paths = sorted(_files(root, suffixes))
    if not paths:
        raise SourceError(f"{root}: has no {kind} files ({', '.join(suffixes)}). Give a folder of {kind}s.")
    count = min(most, len(paths))
    good: list[tuple[str, bytes, tuple[int, int]]] = []
    damaged: dict[str, bytes] = {}
    left_out: dict[str, str] = {}
    for path in (paths[index * len(paths) // count] for index in range(count)):
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            left_out[path] = f"cannot be read: {error.strerror or error}"
            continue
        try:
            size = _judged(data, path, kind)
        except DecodeError:
            damaged[path] = data
        except _NotForAllError as error:
            left_out[path] = str(error)
        else:
            good.append((path, data, size))
    if not good:
        raise SourceError(
            f"{root}: none of the {count} {kind} files that were read is whole. Give a folder of good ones."
        )
    names, contents, sizes = zip(*good, strict=True)
    return ImageSet(Images(names, contents, sizes), damaged, left_out, format, len(paths))


class _NotForAllError(Exception):
    """A file that is fine and not every decoder's business."""


def _judged(data: bytes, path: str, kind: str) -> tuple[int, int]:
    """(height, width) of a file that every decoder should decode. Raises DecodeError, _NotForAllError."""
    from fastload.decode import DecodeSettings, decode_image, get_decoder, read_header

    settings = DecodeSettings()
    header = read_header(data, path)
    if header.height * header.width > settings.max_pixels:
        raise _NotForAllError(f"{header.width} x {header.height} pixels, more than a loader takes")
    if header.format != kind or (kind == "JPEG" and header.components not in (1, 3)):
        raise _NotForAllError(f"{header.format} of {header.components} components, which loaders leave to Pillow")
    decode_image(data, name=path, decoder=get_decoder(), settings=settings, header=header)
    return header.height, header.width


def _files(root: Path, suffixes: tuple[str, ...]) -> Iterator[str]:
    for folder, _, names in os.walk(root):
        for name in names:
            if name.lower().endswith(suffixes):
                yield os.path.join(folder, name)


# -- Files out of the page cache, without privileges -------------------------------------------------------------------


def evict(paths: Iterable[str]) -> None:
    """Ask the system to forget the contents of these files. Raises OSError."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # what is not written yet is not dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def can_evict(paths: Iterable[str]) -> bool:
    """Whether the system really forgets them: not on tmpfs, not while another process maps them, not outside Linux."""
    if not hasattr(os, "posix_fadvise") or not hasattr(os, "RWF_NOWAIT"):
        return False
    some = list(paths)[:8]
    try:
        evict(some)
        return not any(_cached(path) for path in some)
    except OSError:
        return False


def _cached(path: str) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)  # fails rather than wait for the disk
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
