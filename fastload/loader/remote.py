"""What a loader does for images that lie in stores: how far past the end of an epoch it reads, and
that what does not decode is fetched once more."""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np

from fastload import stores
from fastload.draws import Draws
from fastload.errors import counted
from fastload.machine import memory_bytes, ranks_here
from fastload.recipe.composite import Composite
from fastload.sampler import Order
from fastload.sources.base import Source
from fastload.stores.tier import bytes_of

_SHARE = 8
"""Of an epoch, one of so many batches may be fetched for nothing."""
_SETTING = "FASTLOAD_READ_AHEAD"
_LOOKED_AT = 64
"""Samples by which it is seen whether the store says versions."""


def read_ahead_bytes() -> int:
    """Bytes of batches that are fetched ahead, at most: an eighth of the machine's memory, divided
    by its ranks, or what FASTLOAD_READ_AHEAD says. Raises ConfigurationError: that is no number of
    bytes."""
    said = os.environ.get(_SETTING, "")
    return bytes_of(said, _SETTING) if said else memory_bytes() // 8 // ranks_here()


class Remote:
    """The images of a source that lie in stores, as an order reads them."""

    def __init__(
        self,
        source: Source,
        order: Order,
        composite: Composite,
        last_epoch: int | None = None,
    ) -> None:
        """`composite`: of the recipe. `last_epoch`: after which nothing is read ahead; None:
        there is none."""
        columns = [column for column in source.encoded.values() if column.waits]
        self._columns, self._composite, self._count = columns, composite, len(source)
        rows = np.linspace(0, self._count - 1, min(self._count, _LOOKED_AT)).astype(np.int64)
        kept = all(stores.keeps(column.read_from(rows)) for column in columns)
        self.past_end = None if kept or order.endless else _past_end(order)
        """Batches of later epochs that may be asked for before the trainer has taken one of them,
        as they would be fetched again, or for nothing after the last epoch. None: any number, as
        what is fetched is kept."""
        self.most_bytes = read_ahead_bytes()
        """Bytes of batches in flight, compressed; one batch may have more."""
        self._last_epoch = last_epoch
        self._steps = 0 if order.endless else order.steps

    def bytes_of(self, batches: Iterable[Draws]) -> int:
        """Compressed bytes of the images of batches, as far as they are known. Groups of neighbours
        (BlockShuffle) are not counted: their memory follows from the block and the window."""
        members = [self._composite.members(draws, self._count).indices for draws in batches]
        return sum(column.fetched_bytes(rows) for column in self._columns for rows in members)

    def drop_kept(self, draws: Draws) -> None:
        """Forget what this machine has kept of some samples, so that they are fetched again."""
        indices = self._composite.members(draws, self._count).indices
        for column in self._columns:
            for wanted in column.read_from(indices):
                stores.drop_kept(wanted)

    def explain(self) -> str:
        """How much is fetched, and by whom, for a person."""
        first = np.arange(min(1, self._count))
        names = [each.name for column in self._columns for each in column.read_from(first)]
        ahead = (
            f"of batches ahead at most {self.most_bytes / 1e9:.1f} GB at once, or one ({_SETTING})"
        )
        parts = [self._how_much(), ahead, *map(stores.by_whom, names)]
        return "; ".join(filter(None, dict.fromkeys(parts)))

    def _how_much(self) -> str:
        if self.past_end is None:
            return "each image once; it is kept in the local tier (fastload cache list)"
        ahead = counted(self.past_end, "batch")
        fetched = (
            f"all images in each epoch ({counted(self._steps, 'batch')}), as nothing keeps them "
            "(no local tier, or the store says no versions); past the end of an epoch at most "
            f"{ahead} before the trainer goes on"
        )
        if self._last_epoch is None:
            return f"{fetched}: so much is fetched for nothing after the last one"
        return f"{fetched}, and nothing of an epoch after {self._last_epoch} (last_epoch)"


def _past_end(order: Order) -> int:
    """Batches that bring an eighth of an epoch, at least one. Where neighbours are read together
    the first of them brings more than its own samples."""
    samples = order.own_samples // _SHARE - order.read_with_first
    return max(1, min(order.steps // _SHARE, samples // order.batch_size))
