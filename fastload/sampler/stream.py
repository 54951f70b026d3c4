"""The order of a data set that can only be iterated."""

from __future__ import annotations

import sys
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastload.draws import Draws
from fastload.sampler.order import Int64Array, Order, Shard


@dataclass(frozen=True)
class StreamOrder(Order):
    """As the data set gives its samples. How many there are is known when there are no more."""

    dataset: Any
    loader: Sized
    """The DataLoader that makes the batches."""
    batch_size: int
    drop_last: bool = False
    seed: int = 0
    shard: Shard = Shard()  # noqa: RUF009
    length: int = 0

    @property
    def steps(self) -> int:
        return sys.maxsize

    @property
    def endless(self) -> bool:
        return True

    def count(self) -> int:
        """By the data set's own length. Raises TypeError: it has none."""
        return len(self.loader)

    def epoch(self, epoch: int) -> Int64Array:
        return np.empty(0, dtype=np.int64)

    def draws(self, epoch: int, step: int, indices: Int64Array, repeats: Int64Array | None) -> Draws:
        """The number of the batch in place of its samples."""
        return Draws(self.seed, epoch, np.array([step], dtype=np.int64))

    def describe(self) -> str:
        return (
            f"as the IterableDataset {type(self.dataset).__name__} gives them, rank {self.shard.rank} of "
            f"{self.shard.world_size}; a loaded state is found again by reading up to it"
        )

    def reproducible(self) -> dict[str, Any]:
        return {
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "rank": self.shard.rank,
            "world_size": self.shard.world_size,
        }
