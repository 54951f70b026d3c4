"""What goes into a cache: all samples, decoded by threads, written in order by one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from fastload.cache.progress import progress_bar
from fastload.cache.samples import Sample, Samples
from fastload.cache.shrink import shrink, shrunk_sizes
from fastload.cache.writing import ColumnWriter, file_stem, write_values
from fastload.errors import DecodeError, OnError
from fastload.sources.base import Source
from fastload.sources.built_cache import ColumnEntry, Manifest, Variant, write_manifest
from fastload.sources.columns import ValueArray

__all__ = ["Contents"]

T = TypeVar("T")

_HEADERS_PER_TASK = 64
_BYTES_PER_SAMPLE = 64
"""Of sizes, offsets, names and rounding, for the estimate."""


@dataclass
class Contents:
    """One cache in the making: first `survey`, then `write`."""

    source: Source
    samples: Samples
    variant: Variant
    pool: ThreadPoolExecutor
    ahead: int
    """Tasks given to the pool before the result of the first is taken: bounds the memory."""
    on_error: OnError
    progress: bool
    _typical: list[tuple[int, int]] = field(default_factory=list)
    """(height, width) of one good image of each column: what the row of a bad one gets."""

    def survey(self) -> int:
        """The bytes that the cache will take, from the headers of the images.

        Raises:
            DecodeError: the header of a sample is bad and that is not allowed: found before hours of decoding.
        """
        count, images = len(self.source), self.samples.images
        sizes = np.zeros((count, len(images), 2), dtype=np.int64)
        if not self.samples.has_headers:
            sizes[:] = [size or (0, 0) for size in self.samples.sizes(0)]
        elif images:
            with progress_bar(f"Reading the headers of {self.source.name}", count, show=self.progress) as advance:
                for chunk, found in self._in_order(self._sizes, _chunks(count, _HEADERS_PER_TASK)):
                    for index, row in zip(chunk, found, strict=True):
                        if None in row and self.on_error == "raise":
                            _raise_first(self.samples.read(index))
                        sizes[index] = [size or (0, 0) for size in row]
                    advance(len(chunk))
        needed = sum(len(c) * (c.array.nbytes // max(1, len(c.array))) for c in self.samples.values.values())
        for number, column in enumerate(images):
            known = sizes[:, number][sizes[:, number].all(axis=1)]
            kept = shrunk_sizes(known, self.variant.short_side)
            self._typical.append((int(kept[0, 0]), int(kept[0, 1])) if len(kept) else (1, 1))
            needed += int(kept.prod(axis=1).sum()) * column.channels + count * _BYTES_PER_SAMPLE
        return needed

    def write(self, directory: Path) -> Manifest:
        """Decode and write everything, the manifest last.

        Raises:
            DecodeError: a sample is bad and that is not allowed.
            OSError: the disk is full, or broken.
        """
        started = time.monotonic()
        source, samples = self.source, self.samples
        stems: dict[str, str] = {}
        for name in [*source.columns, *(column.name for column in samples.images), "label"]:
            stems.setdefault(name, file_stem(name, len(stems)))
        entries, labels = self._write_images(directory, stems)
        values = dict(samples.values)
        if labels:
            values["label"] = ValueArray(np.array(labels, dtype=np.int64))
        for name, column in values.items():
            entries[name] = write_values(directory, stems[name], column)
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
        )
        write_manifest(directory, manifest)
        return manifest

    def _write_images(self, directory: Path, stems: dict[str, str]) -> tuple[dict[str, ColumnEntry], list[int]]:
        count, images = len(self.source), self.samples.images
        labels: list[int] = []
        if not images:
            return {}, labels
        title = f"Building the cache of {self.source.name} in {directory.parent}"
        writers: list[ColumnWriter] = []
        try:
            for column, typical in zip(images, self._typical, strict=True):
                writers.append(ColumnWriter(directory, stems[column.name], column, count, typical))
            with progress_bar(title, count, show=self.progress) as advance:
                for chunk, decoded in self._in_order(self._read, _chunks(count, self.samples.batch)):
                    for sample in decoded:
                        if self.on_error == "raise":
                            _raise_first(sample)
                        for writer, pixels in zip(writers, sample.pixels, strict=True):
                            writer.append(pixels)
                        if sample.label is not None:
                            labels.append(sample.label)
                    advance(len(chunk))
            return {column.name: writer.finish() for column, writer in zip(images, writers, strict=True)}, labels
        finally:
            for writer in writers:
                writer.close()

    def _in_order(self, function: Callable[[range], T], chunks: Sequence[range]) -> Iterator[tuple[range, T]]:
        """The results of a function in order, computed by the pool a little ahead of who takes them."""
        pending: deque[tuple[range, Future[T]]] = deque()
        for chunk in chunks:
            pending.append((chunk, self.pool.submit(function, chunk)))
            if len(pending) > self.ahead:
                oldest, result = pending.popleft()
                yield oldest, result.result()
        while pending:
            oldest, result = pending.popleft()
            yield oldest, result.result()

    def _sizes(self, chunk: range) -> list[tuple[tuple[int, int] | None, ...]]:
        return [self.samples.sizes(index) for index in chunk]

    def _read(self, chunk: range) -> list[Sample]:
        return [self._shrunk(self.samples.read(index)) for index in chunk]

    def _shrunk(self, sample: Sample) -> Sample:
        pixels = tuple(
            p if isinstance(p, DecodeError) else shrink(p, column.role, self.variant.short_side)
            for p, column in zip(sample.pixels, self.samples.images, strict=True)
        )
        return replace(sample, pixels=pixels)


def _raise_first(sample: Sample) -> None:
    for pixels in sample.pixels:
        if isinstance(pixels, DecodeError):
            raise pixels


def _chunks(count: int, size: int) -> list[range]:
    return [range(start, min(start + size, count)) for start in range(0, count, size)]
