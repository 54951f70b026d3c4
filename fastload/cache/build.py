"""Decode every sample of a source once, into a directory that is either complete or not there."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import psutil

from fastload.arguments import checks_names
from fastload.cache import progress as progress_file
from fastload.cache.manifest import (
    HEADER_BYTES,
    ColumnEntry,
    Manifest,
    Variant,
    is_cache,
    lock_of,
    read_manifest,
    remedy,
    write_manifest,
)
from fastload.cache.progress import Progress
from fastload.cache.reading import source_of
from fastload.cache.samples import (
    Sample,
    Samples,
    samples_of,
    shrunk_points,
    shrunk_sizes,
)
from fastload.cache.stamps import (
    Look,
    StampWriter,
    columns_with_files,
    looked_at,
    read_stamps,
    say_unknown,
)
from fastload.cache.writing import ColumnWriter, write_values
from fastload.checksum import crc32
from fastload.errors import (
    CacheError,
    ConfigurationError,
    DecodeError,
    OnError,
    counted,
)
from fastload.files import DecodeSettings, free_bytes, read_regular, sync_folder
from fastload.fingerprint import FULLY_FINGERPRINTED, fingerprint_of
from fastload.geometry.points import PointMap
from fastload.locks import exclusive_lock, one_of_node
from fastload.machine import cache_home, usable_cores
from fastload.sources.base import Source
from fastload.sources.columns import Column, DatasetItems, PixelImages, ValueArray, Values
from fastload.sources.inspection import maker_of, refuse_among_samples
from fastload.sources.opening import open_source
from fastload.sources.places import refuse_left_behind
from fastload.stores.reads import ReaderPool
from fastload.terminal import progress

logger = logging.getLogger("fastload")

T = TypeVar("T")

_HEADERS_PER_TASK = 64
_BYTES_PER_SAMPLE = 64
"""Bytes for sizes, offsets, names and rounding, in the estimate."""
_NOTE_EVERY = 5.0
"""Seconds of work that a killed build loses, at most."""
LOOK = 1.0
"""Seconds that a look at the files of a cache may take before the first batch."""


@checks_names()
def build_cache(
    source: Any,
    directory: str | os.PathLike[str] | None = None,
    *,
    short_side: int | None = None,
    exif_orientation: bool = False,
    max_pixels: int = DecodeSettings.max_pixels,
    num_workers: int | None = None,
    progress: bool = True,
    on_error: OnError = "raise",
    split: str | None = None,
    pace: Callable[[int], None] | None = None,
    wait: bool = True,
    later: Callable[[Look], None] | None = None,
) -> Path:
    """Decode all samples once and keep them as memory-mapped tensors. A cache that is there already
    is reused, if the files of the samples are as they were (`fastload.cache.stamps`).

    Several processes may call this at once: one builds, the others wait. A build that fails leaves
    nothing; after one whose process was killed, the next one of the same samples goes on from what
    it had written up to some 5 seconds before, if the checksum of that holds; of a torch Dataset,
    whose code may have changed, from the beginning.

    Args:
        source: what `create_loader` takes, or a Source.
        directory: where the cache is to be: new, empty, or this very cache. None: a directory under
            `$XDG_CACHE_HOME/fastload` (`~/.cache/fastload`) named after the samples and options.
        short_side: reduce images to this many pixels on the shorter side (antialiased bilinear;
            masks nearest; smaller images stay as they are). It saves space, but crops are then not
            exactly those of the originals. None: full resolution, exact.
        exif_orientation: turn images upright by their EXIF tag.
        max_pixels: refuse images with more pixels than this, unread.
        num_workers: decoding threads. None: one for each usable core, but a single one for a torch
            Dataset, whose code may need that.
        progress: draw a bar on standard error; where that is no terminal, say after a second how
            long it will take, and every ten seconds how far it is.
        on_error: "raise", or "substitute": note the bad sample in the cache, which then fails again
            when it is loaded, so that the loader substitutes it as from any other backend.
        split: of a source that holds several, which part: "train", "val", "test".
        pace: called by each thread before a few samples, with the first of them; it may sleep.
        wait: for another process that builds this cache. If not, it is a BeingBuiltError.
        later: gets the look at the files where that takes longer than a second; it goes on, and
            who uses the cache asks for the result. None: it is waited for.

    Returns:
        The directory.

    Raises:
        CacheError: the disk is full or will be, the directory holds something else or cannot be
            written, or the samples are not images; a directory that was given holds a cache of
            files that have changed since.
        DecodeError: a sample cannot be decoded (with on_error="raise").
        ConfigurationError: an argument that cannot be honoured.
        SourceError: the source cannot be opened.
    """
    if num_workers is not None and num_workers < 0:
        raise ConfigurationError(f"num_workers: must be None, 0 or more, got {num_workers!r}.")
    if on_error not in ("raise", "substitute"):
        raise ConfigurationError(f"on_error: must be 'raise' or 'substitute', got {on_error!r}.")
    source = open_source(source, split=split).source
    if exif_orientation:
        source.refuse_turning()
        refuse_left_behind(source, "exif_orientation", "turns")
    if short_side is not None:
        refuse_left_behind(source, "short_side", "resizes")
    if short_side is not None and source.drawn:
        raise ConfigurationError(
            f"short_side: {source.drawn[0]!r} of {source.name} are masks of the images at full "
            "resolution; leave one of the two out."
        )
    variant = Variant(short_side, exif_orientation or source.upright, max_pixels)
    build = _Build(source, directory, variant, num_workers, progress, on_error, pace, later)
    target = build.target
    if not is_cache(target):
        refuse_among_samples("directory", target, source)
    manifest = build.current()
    if manifest is None:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CacheError(
                f"{target.parent}: cannot be made ({error.strerror}). Give a writable cache "
                "directory (directory=..., or set XDG_CACHE_HOME)."
            ) from error
        with exclusive_lock(lock_of(target), wait=wait):
            manifest = build.current() or build.run()
    if on_error == "raise" and manifest.failed:
        first = next(
            message for column in manifest.columns.values() for message in column.failed.values()
        )
        raise DecodeError(
            f"{first} (So noted in the cache {target}, which was built with on_error='substitute'.)"
        )
    return target


def is_current(
    source: Source,
    directory: str | os.PathLike[str] | None = None,
    *,
    exif_orientation: bool = False,
    max_pixels: int = DecodeSettings.max_pixels,
    later: Callable[[Look], None] | None = None,
) -> bool:
    """Whether the cache at full resolution is there, and of the files as they are. One of files
    that have changed is removed. Raises CacheError. The arguments are those of `build_cache`."""
    variant = Variant(None, exif_orientation or source.upright, max_pixels)
    build = _Build(source, directory, variant, later=later)
    if not is_cache(build.target):
        return False
    if build.current() is not None:
        return True
    with exclusive_lock(lock_of(build.target)):
        if build.current() is None:
            shutil.rmtree(build.target, ignore_errors=True)
    return is_cache(build.target)


def default_directory(source: Source, variant: Variant) -> Path:
    """Where the cache of a source is kept unless a directory is given."""
    made_by = _made_by(source)
    named = fingerprint_of(source.fingerprint, made_by) if made_by else source.fingerprint
    return cache_home() / variant.directory_name(named)


def _made_by(source: Source) -> str:
    """The code and the settings of a torch Dataset; of sources that fastload reads nothing."""
    return "".join(
        maker_of(column.dataset)
        for column in source.objects.values()
        if isinstance(column, DatasetItems)
    )


@dataclass
class _Build:
    """The arguments of `build_cache`."""

    source: Source
    directory: str | os.PathLike[str] | None
    variant: Variant
    num_workers: int | None = None
    progress: bool = True
    on_error: OnError = "raise"
    pace: Callable[[int], None] | None = None
    later: Callable[[Look], None] | None = None

    def __post_init__(self) -> None:
        self.target = (
            default_directory(self.source, self.variant)
            if self.directory is None
            else Path(self.directory).expanduser().absolute()
        )
        self.files = columns_with_files(self.source.images)
        # Before any sample is made: what the data set keeps of that is no setting.
        self.made_by = _made_by(self.source)

    def existing(self) -> Manifest | None:
        """The manifest of the wanted cache, if it is there. Raises CacheError: damaged, or
        something else is there."""
        target = self.target
        if not os.path.lexists(target):
            return None
        if not target.is_dir():
            raise CacheError(f"{target}: is not a directory; a cache needs one of its own.")
        if not is_cache(target):
            if any(target.iterdir()):
                raise CacheError(
                    f"{target}: holds other files; give a new or empty directory for the cache."
                )
            return None
        manifest = read_manifest(target)
        if (manifest.fingerprint, manifest.variant) != (self.source.fingerprint, self.variant):
            held, wanted = manifest.variant.describe(), self.variant.describe()
            raise CacheError(
                f"{target}: holds a cache of {manifest.source} ({manifest.fingerprint}, {held}), "
                f"not of {self.source.name} ({self.source.fingerprint}, {wanted}). Give another "
                f"directory, or delete this one (rm -r '{target}')."
            )
        if manifest.made_by != self.made_by:
            raise CacheError(
                f"{target}: holds samples of {self.source.name} that were made by other code, or "
                f"by other settings of it. {remedy(target)}"
            )
        columns = source_of(target, manifest).columns
        for name, column in self.source.columns.items():
            if name in columns and columns[name].role != column.role:
                raise CacheError(
                    f"{target}: column {name!r} is cached as {columns[name].role}, and it is "
                    f"{column.role} by now (an older fastload built this cache). {remedy(target)}"
                )
            if self.variant.short_side is None and not _same_array(target, manifest, name, column):
                raise CacheError(
                    f"{target}: holds other numbers of {name!r} than {self.source.name} has by now "
                    f"(it was changed in a few rows since). {remedy(target)}"
                )
        return manifest

    def current(self) -> Manifest | None:
        """`existing`, if the files of the source are as they were when it was built; else None.

        Raises CacheError: they are not, and the directory was given: who gave it deletes it.
        """
        manifest, count = self.existing(), len(self.source)
        if manifest is None or not self.files:
            return manifest
        stamps = read_stamps(self.target, count, len(self.source.images))
        if stamps is None:
            say_unknown(self.target, count)
            return manifest
        lock = self.target.with_name(self.target.name + ".look")
        with one_of_node(lock, "is looking at the files") as ranks:
            if ranks and looked_at(self.target) >= psutil.Process().create_time():
                return manifest  # since this process started another one has looked
            look = Look(self.files, stamps, self.target)
            changed = look.within(None if self.later is None else LOOK)
            if changed is None and self.later is not None:
                self.later(look)
        if not changed:
            return manifest
        words = f"{changed} has changed since the cache {self.target} was built"
        if self.directory is not None:
            raise CacheError(f"{words}. {remedy(self.target)}")
        logger.warning("%s; it is built again.", words)
        return None

    def run(self) -> Manifest:
        """Build beside the target and rename; the caller holds the lock."""
        if is_cache(self.target):  # of files that have changed; who has mapped it keeps it
            shutil.rmtree(self.target)
        # One fixed name: who holds the lock knows that whatever is there was left by a build that
        # was killed.
        partial = self.target.with_name(self.target.name + ".partial")
        needed = 0
        try:
            samples = samples_of(
                self.source,
                DecodeSettings(self.variant.exif_orientation, self.variant.max_pixels),
                self.variant.short_side,
            )
            threads = self.num_workers
            if threads is None:
                threads = usable_cores() if samples.parallel else 1
            with _Pool(max(1, threads), self.pace) as pool:
                needed, typical, sizes = self._survey(samples, pool)
                before = self._left(partial)
                free = free_bytes(self.target.parent) + _size(partial)
                if needed > free:
                    raise CacheError(self._no_space(needed, free))
                partial.mkdir(exist_ok=True)
                try:
                    manifest = self._write(samples, pool, partial, typical, sizes, before)
                except _NotAsNotedError as error:
                    logger.info("%s; it is built from the beginning", error)
                    shutil.rmtree(partial)
                    partial.mkdir()
                    manifest = self._write(samples, pool, partial, typical, sizes, Progress())
            progress_file.remove(partial)
            sync_folder(partial)
            os.rename(partial, self.target)
            sync_folder(self.target.parent)
            return manifest
        except CacheError:
            raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                space = self._no_space(needed, free_bytes(self.target.parent))
                raise CacheError(f"the disk ran full ({error.strerror}): {space}") from error
            raise CacheError(
                f"{self.target}: the cache could not be written ({error}). Give a writable "
                "directory on a sound disk."
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _left(self, partial: Path) -> Progress:
        """What a killed build of the same cache has left there to go on from; all else is
        removed."""
        if not partial.exists():
            return Progress()
        # The code of a data set may have changed, which its fingerprint does not show: half of the
        # samples would be of the old one.
        before = Progress() if self.source.objects else Progress.load(partial, self._what)
        if before.rows and self.files:
            stamps = read_stamps(partial, before.rows, len(self.source.images), whole=False)
            if stamps is None or Look(self.files, stamps, None).within(None):
                before = Progress()
        if before.rows:
            logger.info("%s: %s are there already", partial, counted(before.rows, "sample"))
        else:
            logger.info("removing %s, left by a build that was interrupted", partial)
            shutil.rmtree(partial)
        return before

    @property
    def _what(self) -> str:
        """Names what is built."""
        return fingerprint_of(
            self.source.fingerprint, repr(self.variant), len(self.source), self.on_error
        )

    def _no_space(self, needed: int, free: int) -> str:
        smaller = (
            "a short side (short_side=256)"
            if self.variant.short_side is None
            else "a smaller short_side"
        )
        return (
            f"{self.target.parent}: the cache of {self.source.name} needs {needed:,} bytes "
            f"({needed / 1e9:.1f} GB), {free:,} ({free / 1e9:.1f} GB) are free. Make room, give a "
            f"directory on another disk, or {smaller}."
        )

    def _survey(
        self, samples: Samples, pool: _Pool
    ) -> tuple[int, list[tuple[int, int]], npt.NDArray[np.int64]]:
        """The bytes that the cache will take, from the headers of the images; (height, width) of
        one good image of each
        column: what the row of a bad one gets; and (N, columns, 2) those of all images, 0 where
        they are not known. A bad header is found here, before hours of decoding."""
        count, images = len(self.source), samples.images
        sizes = np.zeros((count, len(images), 2), dtype=np.int64)
        if not samples.has_headers:
            sizes[:] = [size or (0, 0) for size in samples.sizes(0)]
        elif images:
            with progress(
                f"Reading the headers of {self.source.name}", count, show=self.progress
            ) as advance:
                for index, row in pool.in_order(
                    samples.sizes, range(count), _HEADERS_PER_TASK, advance
                ):
                    if None in row and self.on_error == "raise":
                        _raise_first(samples.read(index))
                    sizes[index] = [size or (0, 0) for size in row]
        needed = sum(column.nbytes for column in samples.values.values())
        typical = []
        for number, column in enumerate(images):
            known = sizes[:, number][sizes[:, number].all(axis=1)]
            kept = shrunk_sizes(known, self.variant.short_side)
            typical.append((int(kept[0, 0]), int(kept[0, 1])) if len(kept) else (1, 1))
            needed += int(kept.prod(axis=1).sum()) * column.channels * column.dtype.itemsize
            needed += count * _BYTES_PER_SAMPLE
        return needed, typical, sizes

    def _write(
        self,
        samples: Samples,
        pool: _Pool,
        directory: Path,
        typical: list[tuple[int, int]],
        sizes: npt.NDArray[np.int64],
        before: Progress,
    ) -> Manifest:
        """Decode and write everything that is not there, the manifest last."""
        started = time.monotonic()
        source = self.source
        stems: dict[str, Path] = {}
        for name in [*source.columns, *(column.name for column in samples.images), "label"]:
            stems.setdefault(
                name, directory / (name if _is_file_name(name) else f"column{len(stems)}")
            )
        labels: list[int] = []
        entries = (
            self._write_images(samples, pool, stems, typical, labels, before)
            if samples.images
            else {}
        )
        values: dict[str, Values] = dict(samples.values)
        if labels:
            values["label"] = ValueArray(np.array(labels, dtype=np.int64))
        for name, column in values.items():
            moved = (
                self.variant.short_side is not None and column.kind.moves and bool(samples.images)
            )
            shrinking = partial(self._shrunk, sizes[:, 0]) if moved else None
            entries[name] = write_values(stems[name], column, shrinking)
        manifest = Manifest(
            fingerprint=source.fingerprint,
            source=source.name,
            source_format=source.format,
            samples=len(source),
            variant=self.variant,
            columns={name: entries[name] for name in stems if name in entries},
            layout="tuple" if labels else source.layout,
            classes=source.classes,
            decoder=samples.decoder,
            seconds=round(time.monotonic() - started, 3),
            made_by=self.made_by,
        )
        write_manifest(directory, manifest)
        return manifest

    def _note(
        self, writers: list[ColumnWriter], stamps: StampWriter | None, directory: Path
    ) -> None:
        """Write down how far the build has come. Raises OSError."""
        if stamps is not None:
            stamps.flush()
        written = tuple(writer.progress for writer in writers)
        Progress(written).save(directory, self._what)

    def _shrunk(self, sizes: npt.NDArray[np.int64], indices: npt.NDArray[np.int64]) -> PointMap:
        """What the reduction to a short side does to rows that go with the images, given the (N, 2)
        sizes of all; 0 where an image could not be read."""
        return shrunk_points(sizes[indices], self.variant.short_side)

    def _write_images(
        self,
        samples: Samples,
        pool: _Pool,
        stems: dict[str, Path],
        typical: list[tuple[int, int]],
        labels: list[int],
        before: Progress,
    ) -> dict[str, ColumnEntry]:
        """Labels that come with the images are appended to `labels`. Raises _NotAsNotedError."""
        count, columns = len(self.source), samples.images
        kept = before.columns or (None,) * len(columns)
        if len(kept) != len(columns):
            raise _NotAsNotedError(f"{stems[columns[0].name].parent}: of other columns")

        title = (
            f"Building the cache of {self.source.name} in {self.target.parent} (once; "
            "later runs find it)"
        )
        with contextlib.ExitStack() as stack:
            try:
                writers = [
                    stack.enter_context(
                        contextlib.closing(
                            ColumnWriter(stems[column.name], column, count, size, earlier)
                        )
                    )
                    for column, size, earlier in zip(columns, typical, kept, strict=True)
                ]
            except (ValueError, FileNotFoundError) as error:
                raise _NotAsNotedError(str(error)) from error
            directory, stamps = stems[columns[0].name].parent, None
            if self.files:
                stamps = StampWriter(directory, len(columns), before.rows)
                stack.enter_context(contextlib.closing(stamps))
            began = noted = time.monotonic()
            with progress(title, count, show=self.progress) as advance:
                if before.rows:
                    advance(before.rows)
                rows = range(before.rows, count)
                for _, sample in pool.in_order(samples.read, rows, samples.batch, advance):
                    if self.on_error == "raise":
                        _raise_first(sample)
                    for writer, pixels in zip(writers, sample.pixels, strict=True):
                        writer.append(pixels)
                    if stamps is not None:
                        stamps.append(sample.stamps)
                    if sample.label is not None:
                        labels.append(sample.label)
                    if not self.source.objects and time.monotonic() - noted >= _NOTE_EVERY:
                        self._note(writers, stamps, directory)
                        noted = time.monotonic()
            if noted > began:  # flushing to the disk takes long, too
                self._note(writers, stamps, directory)
            if stamps is not None:
                stamps.finish()
            return {
                column.name: writer.finish()
                for column, writer in zip(columns, writers, strict=True)
            }


class _Pool(ReaderPool):
    """Threads that work a little ahead of who takes their results; what is waiting at an error is
    dropped."""

    def __init__(self, threads: int, pace: Callable[[int], None] | None) -> None:
        super().__init__(threads, "fastload-cache")
        self._pace = pace
        self._ahead = 4 * threads  # bounds the memory

    def in_order(
        self, function: Callable[[int], T], rows: range, size: int, advance: Callable[[int], None]
    ) -> Iterator[tuple[int, T]]:
        """(index, result) for `rows`, `size` of them a task; `advance` is called with how many are
        done."""
        pending: deque[tuple[range, Future[list[T]]]] = deque()
        tasks = (rows[start : start + size] for start in range(0, len(rows), size))
        while True:
            for indices in islice(tasks, self._ahead + 1 - len(pending)):
                pending.append((indices, self.submit(self._work, function, indices)))
            if not pending:
                return
            indices, results = pending.popleft()
            yield from zip(indices, results.result(), strict=True)
            advance(len(indices))

    def _work(self, function: Callable[[int], T], indices: range) -> list[T]:
        if self._pace is not None:
            self._pace(indices.start)
        return list(map(function, indices))


def _same_array(directory: Path, manifest: Manifest, name: str, column: Column) -> bool:
    """Whether a large array of the source still has the numbers that are cached: the fingerprint
    covers only some of its rows. All are compared, which takes a second a gigabyte."""
    stored = column.in_array() if isinstance(column, PixelImages | Values) else None
    entry = manifest.columns.get(name)
    cached = None if entry is None else entry.arrays["array"]
    if stored is None or cached is None or cached.checksum is None or manifest.failed:
        return True
    rows = len(stored)
    if stored.array.nbytes <= FULLY_FINGERPRINTED or cached.shape != (
        rows,
        *stored.array.shape[1:],
    ):
        return True
    step = max(1, (16 << 20) * len(stored.array) // stored.array.nbytes)
    checksum = 0
    for start in range(0, rows, step):
        block = stored.array[stored.rows_of(np.arange(start, min(start + step, rows)))]
        checksum = crc32(np.ascontiguousarray(block).data.cast("B"), checksum)
    header = read_regular(directory / cached.file, most=HEADER_BYTES)
    return crc32(header, checksum) == cached.checksum


def _is_file_name(name: str) -> bool:
    return name.isascii() and name.replace("_", "").isalnum() and len(name) <= 64


class _NotAsNotedError(Exception):
    """What a build that was killed has left is not what it noted."""


def _size(directory: Path) -> int:
    """Bytes of the files in it; 0 where it is not there."""
    if not directory.exists():
        return 0
    return sum(path.stat().st_size for path in directory.iterdir())


def _raise_first(sample: Sample) -> None:
    for pixels in sample.pixels:
        if isinstance(pixels, DecodeError):
            raise pixels
