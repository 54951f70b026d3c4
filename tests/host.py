"""Sources, contexts and draws for tests of what makes batches on the host."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
from torchvision.transforms import v2

from fastload.backends.base import Backend, Context, HostBatch, Work
from fastload.backends.rows import RowReader
from fastload.decode import DecodeSettings
from fastload.draws import Draws
from fastload.recipe import Recipe
from fastload.sources.base import Source
from fastload.sources.buffers import PathTable
from fastload.sources.columns import Column, EncodedFiles, EncodedImages, ValueArray

CROP = v2.Compose([v2.RandomResizedCrop(32, antialias=True), v2.RandomHorizontalFlip()])


def encoded(paths: list[Path], **options: Any) -> EncodedImages:
    return EncodedFiles(PathTable.of(str(path) for path in paths), **options)


def source_of(**columns: Column) -> Source:
    return Source(columns, "fingerprint", "test")


def photos(folder: Path) -> Source:
    """Of a folder of classes; the labels are 0, 10, 20 and so on."""
    paths = sorted(folder.glob("*/*.jpg"))
    return source_of(
        image=encoded(paths), label=ValueArray(np.arange(len(paths), dtype=np.int64) * 10)
    )


def photos_of(paths: list[Path]) -> Source:
    return source_of(image=encoded(paths), label=ValueArray(np.arange(len(paths), dtype=np.int64)))


def context_of(source: Source, transform: Any, **options: Any) -> Context:
    options.setdefault("batch_size", 4)
    options.setdefault("num_workers", 2)
    return Context(source, Recipe.from_transform(transform).split(), **options)


def reader_of(source: Source, transform: Any, **options: Any) -> RowReader:
    options.setdefault("settings", DecodeSettings())
    return RowReader(source, Recipe.from_transform(transform).split(), **options)


class InOrder:
    """Batches of a backend, waited for in the order in which they were started."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.works: deque[Work] = deque()

    def start(self, *requests: Draws) -> InOrder:
        self.works += [self.backend.start(draws) for draws in requests]
        return self

    def next(self) -> HostBatch:
        return self.works.popleft().result()

    def cancel(self) -> None:
        """All, the last one first."""
        while self.works:
            self.works.pop().cancel()


def made_by(backend: Backend, draws: Draws) -> HostBatch:
    """A batch of it."""
    return backend.start(draws).result()


def draws_of(*indices: int, epoch: int = 0) -> Draws:
    return Draws(7, epoch, np.array(indices, dtype=np.int64))
