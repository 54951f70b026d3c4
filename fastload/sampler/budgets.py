"""Batches of at most so many pixels or tokens, whatever the number of samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastload.errors import ConfigurationError, counted
from fastload.sampler.best_fit import best_fit
from fastload.sampler.costs import PIXELS
from fastload.sampler.cuts import CutOrder, CutOrdering
from fastload.sampler.nested import is_count
from fastload.sampler.order import EpochOrder, Int64Array

_MOST = 1 << 62
"""The highest total: twice as much fits into 64 bits."""


@dataclass(frozen=True)
class Budget(CutOrdering):
    """Batches that cost at most so much on each rank: `create_loader(..., order=Budget(Shuffle(),
    total=16_384, cost="tokens"))`, without `batch_size`.

    Windows of samples are divided into batches: by best fit, so that nearly all are full; with
    `padded`, sorted by cost and cut. All ranks have as many steps. `len(loader)` is that of the
    epoch at hand, and known before it starts.

    Raises:
        ConfigurationError: a number is none; inside is another order than a Shuffle; (when the
            Loader is made:) a sample costs more than `total`, and `long` does not say what becomes
            of it; costs are no whole numbers; `batch_size` was given.
    """

    total: int = field(default=0, kw_only=True)
    """What a batch of one rank may cost."""
    padded: bool = field(default=False, kw_only=True)
    """Whether a batch costs its number of samples x the highest cost among them, as where all are
    padded to the longest; else the sum."""
    most: int | None = field(default=None, kw_only=True)
    """The most samples of a batch, with `padded`; None: as many as the total allows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_long(("error", "leave_out"))
        if not is_count(self.total) or self.total > _MOST:
            raise ConfigurationError(
                "order: Budget needs total=, an int from 1 to 2**62: what a batch may cost, such "
                f"as 16_384 tokens; got {self.total!r}."
            )
        if self.most is not None and not (is_count(self.most) and self.padded):
            raise ConfigurationError(
                "order: most of Budget must be an int of at least 1, beside padded=True, got "
                f"{self.most!r}."
            )
        if self.padded and isinstance(self.cost, str) and self.cost == PIXELS:
            raise ConfigurationError(
                "order: images of a padded batch have the largest height and the largest width of "
                "them, which the number of pixels of each does not say. Use Buckets, whose batches "
                "have one shape, or give Budget other costs, such as the square of the longer side."
            )

    @property
    def _longs(self) -> tuple[str, ...]:
        return ("error", "leave_out")

    def applied_to(self, order: EpochOrder) -> BudgetOrder:
        if order.batch_size != 1:
            raise ConfigurationError(
                f"batch_size: order=Budget(...) says how much a batch may have, got "
                f"{order.batch_size}; leave batch_size out."
            )
        inner = self._inner(order)
        costs, left_out, _ = self._fitting(order, int(self.total))
        fitting = costs[costs <= self.total]
        if self.padded:
            least = max(int(fitting.min(initial=self.total)), 1)
            most = self.total // least if self.most is None else self.most
        else:  # what costs nothing is all in one batch of its window
            some = fitting[fitting > 0]
            most = self.total // int(some.min(initial=self.total)) + len(fitting) - len(some)
        return BudgetOrder.of(
            inner,
            costs=costs,
            most=int(self.total),
            window=int(self.window),
            left_out=left_out,
            padded=self.padded,
            at_most=min(int(most), int(self.window), max(len(fitting), 1)),
        )


@dataclass(frozen=True, eq=False)
class BudgetOrder(CutOrder):
    """Units are the batches of single ranks."""

    padded: bool = False
    at_most: int = 1
    """The most samples of a batch."""

    def _units(self, costs: Int64Array) -> Int64Array:
        if not self.padded:
            return best_fit(costs, self.most)
        by_cost = np.argsort(-costs, kind="stable")
        highest = np.maximum(costs[by_cost], 1).tolist()
        bounds = [0]
        while bounds[-1] < len(highest):
            size = min(self.most // highest[bounds[-1]], self.at_most)
            bounds.append(min(bounds[-1] + size, len(highest)))
        units = np.empty(len(costs), dtype=np.int64)
        units[by_cost] = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        return units

    @property
    def largest_batch(self) -> int:
        return self.at_most

    def reproducible(self) -> dict[str, Any]:
        said = super().reproducible()
        ranks = counted(self.shard.world_size, "batch")
        cuts = {**said["cuts"], "padded": self.padded, "most": self.at_most}
        return said | {"global_batch_size": f"{ranks} of at most {self.most}", "cuts": cuts}

    @property
    def _kind(self) -> str:
        return f"{self.inner._kind}, in batches of a budget"

    def describe(self) -> str:
        return (
            f"{self._kind}, seed {self.seed}, rank {self.shard.rank} of {self.shard.world_size}, "
            f"{counted(self.steps, 'batch')} of at most {self.most:,} (epoch 0)"
        )

    def explain(self) -> str:
        ends, costs = self.ends(0), self.costs[self.epoch(0)].astype(np.int64)
        sizes = np.diff(ends)
        sums = np.add.reduceat(costs, ends[:-1])
        whole = int(sums.sum())
        said = [
            self.describe(),
            f"samples a batch: {sizes.min():,} to {sizes.max():,}, {sizes.mean():,.1f} on average; "
            f"filled to {whole / (len(sizes) * self.most):.1%}",
        ]
        if self.padded:
            padded = int((sizes * np.maximum.reduceat(costs, ends[:-1])).sum())
            said.append(f"padding: {1 - whole / max(padded, 1):.1%} of what the batches have")
        if self.left_out:
            said.append(
                f"left out, as they cost more: {counted(self.left_out, 'sample')} in each epoch"
            )
        dropped = (len(ends) - 1) % self._units_a_step
        if self.drop_last and dropped:
            count = int(ends[-1] - ends[-1 - dropped])
            said.append(f"left out by drop_last: {counted(count, 'sample')} of epoch 0")
        return "\n".join(said)
