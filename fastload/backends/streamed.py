"""Batches of an IterableDataset, as torch's own DataLoader makes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Protocol

from torch.utils.data import DataLoader

from fastload.backends.base import BackendOptions, EndOfData, HostBatch, MadeHere, Traits, Work
from fastload.draws import Draws


class StreamPlace(Protocol):
    """Which epoch a data set is in, and where in it."""

    def begin(self, epoch: int, step: int) -> int:
        """It is about to be iterated, up to the batch `step`. Returns the one that comes first."""

    def began(self) -> None:
        """Its first batch has come, or an error or the end in its place."""


class StreamBackend:
    """The batches of a DataLoader, in the calling thread: what is ahead of it, its own workers
    prefetch."""

    name = "torch"
    Options: ClassVar[type[BackendOptions]] = BackendOptions
    traits = Traits(summary="torch's DataLoader, as it is", processes=True, runs_opaque=True)
    depth = 1
    background = False

    def __init__(self, loader: DataLoader[Any], place: StreamPlace) -> None:
        self._loader, self._place = loader, place
        self._batches: Iterator[Any] | None = None
        self.next = (0, 0)
        """(epoch, step) of the batch that comes next."""

    def start(self, draws: Draws) -> Work:
        return MadeHere(partial(self._batch, draws.epoch, int(draws.indices[0])))

    def _batch(self, epoch: int, step: int) -> HostBatch:
        """Raises EndOfData: the epoch has no more batches. Whatever else the data set's own code
        raises."""
        first = self._batches is None or self.next[0] != epoch or self.next[1] > step
        if first:
            self.next = (epoch, self._place.begin(epoch, step))
            self._batches = iter(self._loader)
        assert self._batches is not None
        try:
            while True:
                at = self.next[1]
                self.next = (epoch, at + 1)
                try:
                    batch = next(self._batches)
                finally:
                    if first:
                        self._place.began()
                        first = False
                if at == step:
                    return HostBatch({}, collated=batch)
        except StopIteration:
            self._batches = None
            raise EndOfData from None

    def close(self) -> None:
        self._batches = None

    def explain(self) -> Mapping[str, str]:
        workers = self._loader.num_workers
        return {
            "torch": f"{workers} worker processes"
            if workers
            else "in the calling thread (num_workers=0)"
        }
