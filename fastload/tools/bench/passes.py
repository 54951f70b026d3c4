"""What a decoder is asked to do (the images of a folder, what is cut out of them, where their bytes
come from), what a contestant is, and its clock: whole passes over the images. Imports no torch:
some contestants run in light processes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from fastload.errors import DecodeError, SourceError
from fastload.tools.measure.rounds import Runner, Work

Pixels = npt.NDArray[np.uint8]  # (H, W, 3) RGB

Place = tuple[tuple[int, int, int, int], tuple[int, int]]
"""Box (top, left, height, width) of the image, and the size (height, width) that it is resampled
to."""

Metrics = Mapping[str, float | None]

# Where the compressed bytes come from: memory of the process; files that the system holds in
# memory; files on disk.
READINGS = ("memory", "page cache", "cold")

# What is done with each image: name, and title.
MODES = {
    "full": "full decode",
    "resize256": "decode, resize the shorter side to 256",
    "crop224": "decode, RandomResizedCrop(224)",
}

# Which files are taken: name, and suffixes.
FORMATS = {"jpeg": (".jpg", ".jpeg", ".jpe", ".jfif"), "png": (".png",), "webp": (".webp",)}


@dataclass(frozen=True)
class Images:
    """Some files of one format, read once."""

    paths: tuple[str, ...]
    data: tuple[bytes, ...]
    sizes: tuple[tuple[int, int], ...]  # (height, width)
    format: str = "jpeg"

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def pixels(self) -> int:
        """Pixels of all images together."""
        return sum(height * width for height, width in self.sizes)


@dataclass(frozen=True)
class Task:
    """One pass: each of the images, decoded and placed."""

    images: Images
    places: tuple[Place | None, ...]  # one an image; None leaves it whole and as it is
    threads: int = 1
    reading: str = "memory"

    def encoded(self, index: int) -> bytes:
        """The compressed bytes, from where they are to be read. Raises OSError."""
        if self.reading == "memory":
            return self.images.data[index]
        with open(self.images.paths[index], "rb", buffering=0) as file:
            return file.read(os.fstat(file.fileno()).st_size)


def places_of(mode: str, images: Images) -> tuple[Place | None, ...]:
    """A place for each image; random boxes as the loader draws them in its first epoch."""
    from fastload.draws import Draws
    from fastload.geometry import GeometryPlan
    from fastload.recipe import GeometryOperation
    from fastload.recipe.crops import RandomResizedCrop, Resize

    if mode == "full":
        return (None,) * len(images)
    crop = mode == "crop224"
    operation: GeometryOperation = (
        RandomResizedCrop(size=(224, 224)) if crop else Resize(size=None, shorter=256)
    )
    draws = Draws(0, 0, np.arange(len(images), dtype=np.int64))
    geometry = GeometryPlan(ops=((0, operation),)).resolve(
        draws, np.array(images.sizes, dtype=np.int64)
    )
    boxes, sizes = geometry.box.tolist(), geometry.size.tolist()
    return tuple((tuple(box), tuple(size)) for box, size in zip(boxes, sizes, strict=True))


# -- Contestants -----------------------------------------------------------------------------------


class PixelRunner(Runner, Protocol):
    """A runner that also shows its pixels."""

    def pixels(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        """A copy of what becomes of one image. Raises ValueError, OSError."""
        ...


class Contestant:
    """A contestant of the table. An instance decodes one image a call and is called by several
    threads at once; or, where `batch` is more than 1, up to `batch` images a call."""

    name: ClassVar[str]
    resampler: ClassVar[str]  # what it resamples with, in words
    modes: ClassVar[tuple[str, ...]] = tuple(MODES)
    formats: ClassVar[tuple[str, ...]] = ("jpeg",)
    batch: ClassVar[int] = 1
    gpu: ClassVar[bool] = False  # runs on a GPU; not tried where there is none, unless asked for

    def __init__(self, task: Task) -> None:
        """Raises BackendUnavailableError with what to install."""

    @classmethod
    def open(cls, task: Task, known: Metrics) -> PixelRunner:
        """A runner that measures it; `known` are metrics to repeat in each round: the pixel
        differences."""
        return PassRunner(task, cls(task), known)

    @classmethod
    def version(cls) -> str:
        """Called after it was opened."""
        from fastload.decode import get_decoder

        return get_decoder(cls.name).version

    def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        """The pixels, valid until this thread's next call, of an image of `size` (height, width).
        Raises ValueError,
        OSError: it cannot be decoded."""
        raise NotImplementedError

    def decode(
        self,
        encoded: Sequence[bytes],
        sizes: Sequence[tuple[int, int]],
        places: Sequence[Place | None],
    ) -> Any:
        """Up to `batch` images, all of them done; something for `first`. Raises ValueError,
        OSError."""
        return self(encoded[0], sizes[0], places[0])

    def first(self, decoded: Any) -> Pixels:
        """The first image, on the host."""
        return np.array(decoded)

    def close(self) -> None:
        """Nothing to release."""


class PassRunner:
    """Passes over all images; the calls of one pass are taken from one queue, by `task.threads`
    threads where a call is of one image. Libraries that take batches have threads of their own."""

    def __init__(self, task: Task, decoder: Contestant, known: Metrics) -> None:
        self._task, self._decoder, self._known = task, decoder, known
        self._threads = task.threads if decoder.batch == 1 else 1
        self._pool = ThreadPoolExecutor(self._threads, "fastload-bench")
        self._stopping = threading.Event()
        self._calls: list[tuple[range, float]] = []
        """(images, seconds that they took) of each call."""
        self._failures: dict[str, str] = {}

    def run(self, seconds: float) -> Work:
        """Passes until `seconds` are over, at least one. Whole passes, so that each round has the
        same images."""
        self._calls, self._failures = [], {}
        images, batch = self._task.images, self._decoder.batch
        elapsed = burnt = 0.0
        while elapsed < seconds or elapsed == 0.0:
            if self._task.reading == "cold":
                evict(images.paths)
            cpu, clock = time.process_time(), time.perf_counter()
            starts = iter(range(0, len(images), batch))  # next() of it is atomic
            for share in [self._pool.submit(self._take, starts) for _ in range(self._threads)]:
                share.result()
            elapsed += time.perf_counter() - clock
            burnt += time.process_time() - cpu
        done = [images.sizes[row] for rows, _ in self._calls for row in rows]
        return Work(
            samples=len(done),
            seconds=elapsed,
            cpu_seconds=burnt,
            latencies=[taken for _, taken in self._calls],
            latency_of="sample" if batch == 1 else f"batch of {batch}",
            failures=self._failures,
            metrics={
                "pixels_per_second": sum(height * width for height, width in done) / elapsed,
                **self._known,
            },
        )

    def pixels(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        return self._decoder.first(self._decoder.decode([data], [size], [place]))

    def close(self) -> None:
        self._stopping.set()
        self._pool.shutdown()
        self._decoder.close()

    def _take(self, starts: Iterator[int]) -> None:
        """One thread's share of a pass."""
        task, images, batch = self._task, self._task.images, self._decoder.batch
        for start in starts:
            if self._stopping.is_set():
                break
            rows = range(start, min(start + batch, len(images)))
            started = time.perf_counter()
            try:
                encoded = [task.encoded(row) for row in rows]
                self._decoder.decode(
                    encoded,
                    images.sizes[rows.start : rows.stop],
                    task.places[rows.start : rows.stop],
                )
            except (ValueError, OSError) as error:
                message = str(error) or type(error).__name__
                if batch > 1:  # The library does not say which image failed.
                    message = f"in a batch that failed: {message}"
                self._failures.update({images.paths[row]: message for row in rows})
            else:
                self._calls.append((rows, time.perf_counter() - started))


# -- The images of a folder ------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageSet:
    """The files of a folder, sorted by what can be asked of a decoder."""

    good: Images  # files without damage, JPEGs of one or three components: these are timed
    damaged: dict[str, bytes]
    """Files that no decoder should accept in silence, by path; each contestant gets them once, not
    timed."""
    left_out: dict[str, str]  # files that are fine and not every decoder's business (CMYK), and why
    listed: int  # files of the format in the folder, of which these are an even sample


def read_images(folder: str | os.PathLike[str], most: int, format: str = "jpeg") -> ImageSet:
    """Read up to `most` files of a format, evenly spaced over the sorted names below the folder.
    Raises SourceError: there is no such folder, it has no such files, or none of those read is
    whole."""
    named, suffixes = format.upper(), FORMATS[format]
    root = Path(folder)
    if not root.is_dir():
        raise SourceError(
            f"{root}: there is no such folder. Give one with {named} files, in sub-folders or not."
        )
    paths = sorted(str(path) for path in root.rglob("*") if path.suffix.lower() in suffixes)
    if not paths:
        raise SourceError(
            f"{root}: has no {named} files ({', '.join(suffixes)}). Give a folder of {named}s."
        )
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
            size, reason = _judged(data, path, named)
        except DecodeError:
            damaged[path] = data
            continue
        if reason:
            left_out[path] = reason
        else:
            good.append((path, data, size))
    if not good:
        raise SourceError(
            f"{root}: none of the {count} {named} files that were read is whole. Give a folder of "
            "good ones."
        )
    names, contents, sizes = zip(*good, strict=True)
    return ImageSet(Images(names, contents, sizes, format), damaged, left_out, len(paths))


def _judged(data: bytes, path: str, format: str) -> tuple[tuple[int, int], str]:
    """(height, width), and why not every decoder is asked to read it, empty if all are. Raises
    DecodeError."""
    from fastload.decode import DecodeSettings, get_decoder
    from fastload.decode.header import read_header
    from fastload.decode.image import decode_image

    settings = DecodeSettings()
    header = read_header(data, path)
    size = (header.height, header.width)
    if header.height * header.width > settings.max_pixels:
        return size, f"{header.width} x {header.height} pixels, more than a loader takes"
    if header.format != format or (format == "JPEG" and header.components not in (1, 3)):
        return (
            size,
            f"{header.format} of {header.components} components, which loaders leave to Pillow",
        )
    decode_image(data, name=path, decoder=get_decoder(), settings=settings, header=header)
    return size, ""


# -- Files out of the page cache, without privileges -----------------------------------------------


def evict(paths: Iterable[str]) -> None:
    """Ask the system to forget the contents of these files. Raises OSError."""
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())  # what is not written yet is not dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def can_evict(paths: Sequence[str]) -> bool:
    """Whether the system really forgets them: not on tmpfs, not while another process maps them,
    not outside Linux."""
    if not hasattr(os, "posix_fadvise") or not hasattr(os, "RWF_NOWAIT"):
        return False
    try:
        evict(paths[:8])
        return not any(map(is_cached, paths[:8]))
    except OSError:
        return False


def is_cached(path: str) -> bool:
    """Whether the system holds its first byte in memory. Raises OSError."""
    with open(path, "rb", buffering=0) as file:
        try:
            # Fails rather than wait for the disk.
            os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
    return True
