"""Who is measured, with which settings: the rows of the loader benchmark. Backends are those that there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

import fastload
from fastload.backends import backend_class
from fastload.bench.loader.images import LoaderImages
from fastload.errors import ConfigurationError, FastloadError
from fastload.measure import images
from fastload.measure.loaders import DATALOADER, Feed, OneBatch, PlainLoader

ALONE = "trainer alone"
"""The trainer with a batch that is there already: no loader can be faster."""
DEFAULT = "default"
"""A parameter that was left to the contestant."""

_COMMON_WORKERS = 4
"""What most scripts have."""


@dataclass(frozen=True)
class Conditions:
    """The same for all rows."""

    images: LoaderImages
    batch_size: int
    device: torch.device
    room: Path
    """Where backends put what they leave on disk."""

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
            return lambda: OneBatch(c.batch_size, c.images.classes, c.device)
        if self.contestant == DATALOADER:
            return lambda: PlainLoader(
                folder,
                images.training(),
                c.batch_size,
                c.device,
                drop_last=c.drop_last,
                workers=self.workers or 0,
                prefetch=self.prefetch,
                damaged=c.images.damaged.keys(),
            )
        return lambda: _loader(self, c)


def _loader(row: Row, c: Conditions) -> fastload.Loader:
    return fastload.create_loader(
        str(c.images.folder),
        c.batch_size,
        shuffle=True,
        drop_last=c.drop_last,
        transform=images.training(),
        backend=row.contestant,
        num_workers=row.workers,
        prefetch_factor=row.prefetch,
        device=c.device,
        on_error="substitute",
        options=backend_class(row.contestant).Options.within(c.room / row.contestant),
    )


def prepare(name: str, conditions: Conditions) -> None:
    """Have a backend do what it does once, such as building a cache: it is not measured. If it fails, its rows will."""
    with suppress(FastloadError), _loader(Row(name), conditions) as loader:
        next(iter(loader), None)


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
    # To threads, 0 workers means nothing.
    processes = {DATALOADER, *(status.name for status in fastload.available_backends() if status.traits.processes)}
    for name in names:
        every += _rows(name, workers if name in processes else [count for count in workers if count], prefetch)
    return list(dict.fromkeys(every))


def _rows(name: str, workers: Sequence[int], prefetch: Sequence[int]) -> Iterator[Row]:
    common = _COMMON_WORKERS if name == DATALOADER else None
    if name == DATALOADER:
        yield Row(name, 0)
    yield Row(name, common)
    yield from (Row(name, count) for count in workers)
    yield from (Row(name, common, factor) for factor in prefetch)
