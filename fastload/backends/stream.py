"""Batches of an IterableDataset: torch's own DataLoader makes them, and nothing of what it promises is changed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from torch.utils.data import DataLoader, IterableDataset

from fastload.backends.base import BackendOptions, EndOfData, HostBatch, Traits
from fastload.draws import Draws
from fastload.sampler import Shard


class SharedStream(IterableDataset[Any]):
    """This rank's part of a data set that every rank iterates over: of `world_size` batches one.

    The last ones are filled up with the first samples, so that ranks are equal, or left out with `drop_last`: as
    Accelerate shares one (`IterableDatasetShard`).
    """

    def __init__(self, dataset: Any, shard: Shard, batch_size: int, drop_last: bool) -> None:
        self.dataset = dataset
        self.shard, self.batch_size, self.drop_last = shard, batch_size, drop_last

    def __len__(self) -> int:
        samples, together = len(self.dataset), self.batch_size * self.shard.world_size
        return (samples // together if self.drop_last else -(-samples // together)) * self.batch_size

    def __iter__(self) -> Iterator[Any]:
        together = self.batch_size * self.shard.world_size
        mine = slice(self.shard.rank * self.batch_size, (self.shard.rank + 1) * self.batch_size)
        first: list[Any] = []
        group: list[Any] = []
        for sample in self.dataset:
            group.append(sample)
            if len(group) == together:
                yield from group[mine]
                first, group = first or group, []
        if group and not self.drop_last:
            first = first or list(group)
            while len(group) < together:
                group += first
            yield from group[mine]


class StreamBackend:
    """The batches of a DataLoader, in the calling thread: what is ahead of it, its own workers prefetch."""

    name = "torch"
    Options: ClassVar[type[BackendOptions]] = BackendOptions
    traits = Traits(summary="torch's DataLoader, as it is", processes=True, runs_opaque=True)
    depth = 1
    background = False

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        self._wanted: deque[tuple[int, int]] = deque()
        self._batches: Iterator[Any] | None = None
        self._next = (0, 0)
        """(epoch, step) of the batch that comes next."""

    def submit(self, draws: Draws) -> None:
        self._wanted.append((draws.epoch, int(draws.indices[0])))

    def receive(self) -> HostBatch:
        """Raises EndOfData: the epoch has no more batches. Whatever else the data set's own code raises."""
        epoch, step = self._wanted.popleft()
        if self._batches is None or self._next[0] != epoch or self._next[1] > step:
            self._batches, self._next = iter(self._loader), (epoch, 0)
        try:
            while True:
                at = self._next[1]
                self._next = (epoch, at + 1)
                batch = next(self._batches)
                if at == step:
                    return HostBatch({}, collated=batch)
        except StopIteration:
            self._batches = None
            raise EndOfData from None

    def reread(self, draws: Draws) -> HostBatch:
        raise AssertionError("a stream reports no failures of single samples")

    def cancel(self) -> None:
        self._wanted.clear()

    def close(self) -> None:
        self._wanted.clear()
        self._batches = None

    def explain(self) -> Mapping[str, str]:
        workers = self._loader.num_workers
        return {"torch": f"{workers} worker processes" if workers else "in the calling thread (num_workers=0)"}
