"""Who is measured, with which settings: the rows of the loader benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import fastload
from fastload.backends.cache import CacheOptions
from fastload.bench.loader.feeds import BackendFeed, Feed, OneBatchFeed, PlainFeed
from fastload.bench.loader.images import LoaderImages
from fastload.errors import ConfigurationError

__all__ = ["ALONE", "DATALOADER", "DEFAULT", "Conditions", "Row", "check_contestants", "contestant_names", "rows"]

ALONE = "trainer alone"
"""The trainer with a batch that is there already: no loader can be faster."""
DATALOADER = "DataLoader"
DEFAULT = "default"
"""A parameter that was left to the contestant."""

_COMMON_WORKERS = 4
"""What most scripts have."""
_WITHOUT_PROCESSES = frozenset({"turbojpeg", "cache", "dali"})
"""Backends that always work in threads of their own: to them, 0 workers means nothing."""


@dataclass(frozen=True)
class Conditions:
    """The same for all rows."""

    images: LoaderImages
    batch_size: int
    device: torch.device
    cache: Path
    """Where the `cache` backend has its cache."""

    @property
    def drop_last(self) -> bool:
        """As training does, where that leaves anything."""
        return len(self.images.source) - len(self.images.damaged) >= self.batch_size


@dataclass(frozen=True)
class Row:
    """One contestant with one setting."""

    contestant: str
    workers: int | None = None
    """None: its own choice."""
    prefetch: int | None = None

    @property
    def parameters(self) -> dict[str, str | int]:
        if self.contestant == ALONE:
            return {}
        given = {"workers": self.workers, "prefetch": self.prefetch}
        return {name: DEFAULT if value is None else value for name, value in given.items()}

    def opener(self, conditions: Conditions) -> Callable[[], Feed]:
        """What opens its feed. That raises what the contestant raises."""
        c, folder = conditions, conditions.images.folder
        if self.contestant == ALONE:
            return lambda: OneBatchFeed(c.batch_size, c.images.classes, c.device)
        if self.contestant == DATALOADER:
            return lambda: PlainFeed(
                folder,
                c.batch_size,
                c.device,
                drop_last=c.drop_last,
                workers=self.workers or 0,
                prefetch=self.prefetch,
                damaged=c.images.damaged.keys(),
            )
        options = CacheOptions(directory=c.cache, progress=False) if self.contestant == "cache" else None
        return lambda: BackendFeed(
            self.contestant,
            folder,
            c.batch_size,
            c.device,
            drop_last=c.drop_last,
            workers=self.workers,
            prefetch=self.prefetch,
            options=options,
        )


def contestant_names() -> tuple[str, ...]:
    """The DataLoader and all backends, installed or not."""
    return (DATALOADER, *(status.name for status in fastload.available_backends()))


def check_contestants(names: Sequence[str]) -> None:
    """Raises ConfigurationError: one of them is not known."""
    for name in names:
        if name not in contestant_names():
            raise ConfigurationError(f"--backends: {name!r} is not known; choose from {', '.join(contestant_names())}.")


def rows(names: Sequence[str], workers: Sequence[int], prefetch: Sequence[int], *, alone: bool) -> list[Row]:
    """Each contestant as it comes, and then with each number of workers and each prefetch factor on its own.

    Args:
        names: of `contestant_names()`.
        workers, prefetch: to sweep over; empty for no sweep.
        alone: whether to measure the trainer alone.
    """
    every = [Row(ALONE)] if alone else []
    for name in names:
        every += _rows(name, workers, prefetch)
    return list(dict.fromkeys(every))


def _rows(name: str, workers: Sequence[int], prefetch: Sequence[int]) -> Iterator[Row]:
    if name == DATALOADER:
        yield Row(name, 0)
        yield Row(name, _COMMON_WORKERS)
        yield from (Row(name, count) for count in workers)
        yield from (Row(name, _COMMON_WORKERS, factor) for factor in prefetch)
        return
    yield Row(name)
    yield from (Row(name, count) for count in workers if count or name not in _WITHOUT_PROCESSES)
    yield from (Row(name, None, factor) for factor in prefetch)
