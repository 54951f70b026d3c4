"""A shuffle of the row groups of Parquet files: `BlockShuffle("row group")`.

As `blocks` has it, with blocks that are where the files have them in every epoch, and of as many
samples. Lanes end within row groups, so that as many of these as there are lanes are in two: each
is read twice in an epoch, and any other once. Where a lane begins within a row group it comes to
the end of it at another time than other lanes do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np

from fastload.draws import Draws, Stream
from fastload.errors import ConfigurationError, counted
from fastload.sampler.bijection import ROUNDS, Bijection
from fastload.sampler.block_order import BlockEpoch, BlockOrder, Pieces
from fastload.sampler.order import Int64Array, Shard


@dataclass(frozen=True)
class RowGroupEpoch(BlockEpoch):
    """The order of one epoch. Places are those of the row groups in the order of this epoch."""

    order: RowGroupOrder

    @cached_property
    def _numbers(self) -> Int64Array:
        """(G,): the row groups, in the order of this epoch."""
        groups = len(self.order.first_samples)
        keys = Draws(self.order.seed, self.number, np.arange(ROUNDS)).integers(Stream.BLOCKS)
        return Bijection(groups, keys).at(np.arange(groups, dtype=np.int64))

    @cached_property
    def _ends(self) -> Int64Array:
        """(G,): the place after each of these."""
        return cast("Int64Array", np.cumsum(self.order.group_sizes[self._numbers]))

    @cached_property
    def first_sample(self) -> int:
        return 0

    @cached_property
    def begins(self) -> Int64Array:
        return np.zeros(self.order.window, np.int64)

    def pieces(self, places: Int64Array) -> Pieces:
        order = self.order
        lane = np.searchsorted(order.starts, places, "right") - 1
        start, size = order.starts[lane], order.sizes[lane]
        turn = np.searchsorted(self._ends, places, "right")
        end = np.minimum(self._ends[turn], start + size)
        begin = np.maximum(self._ends[turn] - order.group_sizes[self._numbers[turn]], start)
        return Pieces(begin, end - begin, begin - start)

    def ahead_of_first(self, begins: Int64Array) -> Int64Array:
        turn = np.searchsorted(self._ends, begins, "right")
        number = self._numbers[turn]
        within = begins - (self._ends[turn] - self.order.group_sizes[number])
        return self.order.first_samples[number] + within


@dataclass(frozen=True)
class RowGroupOrder(BlockOrder):
    """The shuffled order of `EpochOrder`, in which the samples of a row group come soon after each
    other, on one rank. `block` is the largest of their numbers."""

    first_samples: Int64Array = field(
        default_factory=lambda: np.zeros(0, np.int64), repr=False, compare=False
    )
    """(G,): the first sample of each row group."""

    @classmethod
    def of(
        cls, length: int, batch_size: int, shard: Shard, begins: Int64Array, **settings: Any
    ) -> RowGroupOrder:
        """Raises ConfigurationError: the row groups are not those of so many samples."""
        sizes = np.diff(begins, append=length)
        if not len(begins) or begins[0] != 0 or (sizes <= 0).any():
            raise ConfigurationError(
                f"order: the row groups are not of these {counted(length, 'sample')}; give a "
                "number of samples as the block of the BlockShuffle."
            )
        return cls(
            length,
            batch_size,
            shard,
            block=int(sizes.max()),
            first_samples=begins,
            **settings,
        )

    @cached_property
    def first(self) -> int:
        return self.block  # row groups are read whole

    @cached_property
    def group_sizes(self) -> Int64Array:
        """(G,)."""
        return np.diff(self.first_samples, append=self.length)

    def computed(self, epoch: int) -> RowGroupEpoch:
        known = self._epochs.get(epoch)
        if known is None:
            while len(self._epochs) > 1:  # the next epoch begins while this one is served
                self._epochs.pop(min(self._epochs))
            known = self._epochs[epoch] = RowGroupEpoch(self.length, self, epoch)
        return known

    @cached_property
    def _epochs(self) -> dict[int, RowGroupEpoch]:
        return {}

    def reproducible(self) -> dict[str, Any]:
        return super().reproducible() | {"blocks": {"block": "row group", "window": self.window}}

    @property
    def _kind(self) -> str:
        rows = counted(self.block, "row")
        return f"shuffled by row groups ({len(self.first_samples):,} of at most {rows})"
